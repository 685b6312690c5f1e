"""``goen geometry``: the geometry of each variant's features."""

from dataclasses import asdict
from logging import getLogger
from math import isfinite
from pathlib import Path

from torch import Tensor

from goen.data.protocol import Protocol
from goen.functional.cues import normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.geometry import feature_geometry, nearest_mean_agreement
from goen.io.results import Origin, Result, write_results
from goen.io.stages import Stages, alone_in, summarised
from goen.models import Backbone
from goen.outputs import Outputs
from goen.studies.ablate import VARIANTS, AblateConfig
from goen.studies.experiment import AS_PRESET
from goen.studies.methods import labels_of
from goen.studies.networks import EpochRecord, write_epochs
from goen.studies.rows import summary_of

_log = getLogger(__name__)

NETWORK_VARIANTS = tuple(name for name, v in VARIANTS.items() if v.has_own_network)


def geometry(
    config: AblateConfig, protocol: Protocol, out: Path | str, stages: Stages | None = None
) -> list[Result]:
    """The geometry of every variant's features, on training and test images, raw and normalised.

    Rows have the variant as method, ``train`` or ``test`` as the set, and metrics named
    ``FEATURE/raw/MEASURE`` and ``FEATURE/unit/MEASURE``; values that are not finite are left
    out. training.jsonl has one record per variant and epoch.

    Args:
        config: which variants, and how they are trained.
        protocol: the images.
        out: the study's folder.
        stages: finished work, shared between studies; ``stages/`` beside out if not given.
    """
    out = Path(out)
    store = stages or Stages.beside(out)
    variants = config.chosen(NETWORK_VARIANTS, "variant with a network of its own")
    with alone_in(out):
        results: list[Result] = []
        epochs: list[EpochRecord] = []
        for name in variants:
            _log.info(f"variant {name}")
            preset = config.run(name).preset_for(protocol)
            experiment = config.experiment(protocol, store, preset)
            (trained,) = experiment.members(AS_PRESET)
            epochs += [{"variant": name, **row} for row in trained.epochs]
            origin = experiment.origin(name, AS_PRESET)
            for dataset, images in {"train": protocol.train, "test": protocol.test}.items():
                outputs, _ = experiment.outputs(AS_PRESET, images)
                labels = labels_of(images.labels)
                results += _rows(origin, trained.network, dataset, outputs, labels)
        titles = {name: (VARIANTS[name].title, "") for name in variants}
        summary = summary_of("geometry", asdict(config), protocol, titles)
        with summarised(out, summary):
            write_results(out / "results.jsonl", results)
            write_epochs(out / "training.jsonl", epochs)
    return results


def _rows(
    origin: Origin, network: Backbone, dataset: str, outputs: Outputs, labels: Tensor
) -> list[Result]:
    results: list[Result] = []
    weight = network.classifier.state_dict()["weight"]
    for feature in (*network.two_scales, "z"):
        rows = outputs.features[feature]
        for kind, values in {"raw": rows.double(), "unit": normalise(rows)}.items():
            statistics = ClassStatistics(outputs.logits.shape[1], values.shape[1])
            statistics.update(values, labels)
            # The classifier reads z itself (for concat: the same scales, not normalised).
            own = weight if feature == "z" and weight.shape[1] == values.shape[1] else None
            found = asdict(feature_geometry(statistics, own))
            if feature == "z":
                found["nc4"] = nearest_mean_agreement(values, outputs.logits, statistics.means_)
            numbers = {
                f"{feature}/{kind}/{name}": value
                for name, value in found.items()
                if value is not None and isfinite(value) and not name.startswith(("num_", "dim"))
            }
            results += origin.rows(dataset, "id", numbers)
    return results
