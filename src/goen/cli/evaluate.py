"""``goen evaluate``: a gate on images that it was not fitted with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, cast

import tyro

from goen.cli.options.fit_inputs import class_numbers
from goen.cli.options.model import RateOptions
from goen.cli.options.own_data import OodOptions
from goen.cli.options.study import print_report
from goen.cli.options.types import AsJson, Device, OptionalPath
from goen.cli.output.console import note
from goen.data.feature_files import read_features
from goen.data.feature_set import FeatureSet
from goen.data.imageset import ImageSet
from goen.data.input_spec import ImageInputs
from goen.data.protocols.base import OodGroup, OodSet
from goen.data.sets.folders import open_image_set, open_part
from goen.data.sets.readers import class_names
from goen.errors import UsageError
from goen.features.precomputed import Precomputed
from goen.gate import Gate
from goen.io.files import check_free
from goen.io.stages import RUN
from goen.models.placement import find_device
from goen.studies.given_gate import Evaluated, evaluate

# Folders of a part of a dataset, which is called as the folder above them.
_PARTS = ("val", "valid", "validation", "test", "testing")


@dataclass(frozen=True)
class EvaluateOptions(OodOptions, RateOptions):
    """What a gate is evaluated on.

    Attributes:
        out: the folder of the evaluation (default: runs/GATE-evaluate).
        reuse: evaluate on images that fitted the gate as well; their numbers are marked.
        batch_size: images per forward pass.
        device: where the network runs: cpu, or cuda (cuda:1 is the second GPU).
        json_: print the results as JSON lines instead of tables.
    """

    out: OptionalPath = None
    reuse: bool = False
    batch_size: int = 128
    device: Device = "cpu"
    json_: AsJson = False


def evaluate_command(
    gate: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GATE")],
    id_: Annotated[str, tyro.conf.arg(name="id", metavar="DATASET")],
    options: Annotated[EvaluateOptions, tyro.conf.arg(name="")] = EvaluateOptions(),  # noqa: B008
) -> int:
    """Evaluate a gate on ID and OOD images that it was not fitted with.

    Reports accuracy, AUROC, FPR95 and the share flagged, each with its interval, and compares the
    false alarms with the promise of the gate. An image that fitted, calibrated or chose something
    of the gate is an error. The folder holds tables, results.jsonl and a page.

    For example: goen evaluate gate --model my_nets:resnet20 --id photos/test --ood photos/other
                 goen evaluate runs/digits --id digits-new --near-ood letters --far-ood photos
                 goen evaluate gate --id test.npz --ood ood.npz         (a gate of features)

    Args:
        gate: the folder of a gate (goen fit) or of a run (goen run), or the name of a bundled gate.
        id_: ID images: a folder with a folder per class of the gate, for the accuracy, or any
            folder of images; or another dataset. For a gate of features, a file of features.
        options: what it is evaluated on, and how.
    """
    folder = options.out or Path("runs") / f"{Path(gate).name}-evaluate"
    check_free(folder, RUN, overwrite=True)
    if not options.num_ood:
        raise UsageError("An evaluation needs OOD images as well: give --ood.")
    opened = options.open(gate)
    opened.network.to(find_device(options.device))
    test, labelled = _open(opened, id_, labelled=True)
    groups = options.by_group(lambda name: _open(opened, name, labelled=False)[0])
    ood = {
        name: OodSet(images, cast(OodGroup, group))
        for group, members in groups.items()
        for name, images in members.items()
    }
    place = Path(id_).resolve()
    name = place.parent.name if place.stem in _PARTS else place.stem
    name = name if place.exists() else id_
    images = Evaluated(test, ood, labelled, options.reuse, name)
    evaluate(opened, images, folder, batch_size=options.batch_size)
    from goen.report.page import write_page  # Matplotlib, not before there is a result

    return print_report(write_page(folder), as_json=options.json_)


def _open(gate: Gate, name: str, *, labelled: bool) -> tuple[ImageSet, bool]:
    """A dataset as the gate takes it, and whether it has the labels of the gate's classes."""
    if isinstance(gate.network, Precomputed):
        found = read_features(Path(name))
        numbers = class_numbers(found, gate.classes, Path(name)) if labelled else None
        rows = FeatureSet.of(Path(name).stem, found.arrays, numbers, gate.classes)
        return rows, numbers is not None
    if not isinstance(gate.inputs, ImageInputs):
        raise UsageError(
            f"goen evaluate takes images or features; this gate takes {gate.inputs}. Evaluate it "
            "in Python: gate.predict and goen.metrics."
        )
    folder = Path(name)
    if labelled and folder.is_dir() and not {*class_names(folder)} & {*gate.classes}:
        note(f"{name} has no folders of the gate's classes: evaluated without labels")
        labelled = False
    if labelled:
        return open_part(name, gate.image_size, gate.classes, gate.pixel_format), True
    return open_image_set(name, gate.image_size, (), gate.pixel_format), False
