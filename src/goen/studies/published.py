"""Published numbers of a gate: measuring, writing, reading and comparing them."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.errors import ArtifactError, UsageError
from goen.gate import Gate
from goen.io.files import whole_file
from goen.io.json_files import json_object
from goen.io.manifest import Manifest
from goen.io.provenance import hardware, versions
from goen.metrics import ood_metrics
from goen.studies.rows import evaluation_sets

PUBLISHED = "published.json"
TEST = "test"
# Another machine sums float32 in another order: a few decisions in ten thousand change.
SAME_FILES = 0.0005
# The same set decoded or resized by other software.
OTHER_FILES = 0.005

Verdict = Literal["agrees", "agrees (other files)", "differs", "not here", "not published"]


@dataclass(frozen=True)
class Measured:
    """One metric of a gate on one dataset.

    Attributes:
        dataset: ``test``, or the name of an OOD set of the protocol.
        images: their number.
        fingerprint: of its content; see ``ImageSet.fingerprint``.
        metric: ``accuracy``, ``flagged`` (a share of the images), ``auroc`` or
            ``fpr95_ood_positive`` (both of the test images against the set).
        value: the number.
        low: lower end of its 95 % interval, for the AUROC.
        high: upper end.
    """

    dataset: str
    images: int
    fingerprint: str
    metric: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Compared:
    """A published number and the one measured here; ``None`` where one is missing."""

    dataset: str
    images: int
    metric: str
    published: float | None
    here: float | None
    difference: float | None
    verdict: Verdict


def measure_gate(gate: Gate, protocol: Protocol) -> list[Measured]:
    """The metrics of a gate on the test images and the OOD sets of a protocol, one pass each.

    Raises:
        UsageError: the gate is for another number of classes, or for images of another size.
    """
    _check_fits(gate, protocol.test)
    test = gate.predict(protocol.test)
    rows: list[Measured] = []
    for name, images in evaluation_sets(protocol).items():
        found = test if name == TEST else gate.predict(images)
        numbers: dict[str, tuple[float, ...]] = {}
        if name == TEST:
            numbers["accuracy"] = ((test.label == images.labels).mean(),)
        else:
            m = ood_metrics(test.score, found.score)
            numbers = {
                "auroc": (m.auroc, m.auroc_low, m.auroc_high),
                "fpr95_ood_positive": (m.fpr95_ood_positive,),
            }
        numbers["flagged"] = (found.is_ood.mean(),)
        rows += [
            Measured(name, len(images), images.fingerprint, metric, *map(float, ends))
            for metric, ends in numbers.items()
        ]
    return rows


def _check_fits(gate: Gate, test: ImageSet) -> None:
    def described(classes: int, size: Sequence[int]) -> str:
        return f"{classes} classes and images of {size[0]}×{size[1]}"

    mine = described(len(gate.classes), gate.image_size)
    theirs = described(len(test.classes), test.image_shape[1:])
    if mine != theirs:
        raise UsageError(
            f"This gate is for {mine}, but {test.name} has {theirs}: it cannot be evaluated on it."
        )


def publish(rows: Iterable[Measured], folder: Path) -> Path:
    """Write the numbers beside a gate, with versions and hardware; the file written."""
    content = {
        "versions": versions(),
        "hardware": hardware(),
        "rows": [asdict(row) for row in rows],
    }
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    with whole_file(folder / PUBLISHED, overwrite=True) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    return folder / PUBLISHED


def read_published(folder: Path) -> list[Measured]:
    """The numbers published with the gate in this folder.

    Raises:
        ArtifactError: there is no such file, or it is damaged.
    """
    path = folder / PUBLISHED
    if not path.is_file():
        raise ArtifactError(
            f"{folder} has no {PUBLISHED}, so there is nothing to compare with. Only gates that "
            "were published with their numbers can be checked."
        )
    try:
        return [_read(row) for row in Manifest(json_object(path)).parts("rows")]
    except ValueError as error:
        raise ArtifactError(
            f"{path} is damaged ({error}). Copy the gate's folder again."
        ) from error


def _read(row: Manifest) -> Measured:
    row.check_names([field.name for field in fields(Measured)])
    return Measured(
        row.text("dataset"),
        row.count("images"),
        row.text("fingerprint"),
        row.text("metric"),
        row.number("value"),
        row.number("low") if "low" in row else None,
        row.number("high") if "high" in row else None,
    )


def compare(published: Sequence[Measured], measured: Sequence[Measured]) -> list[Compared]:
    """Every published number, the one measured here, and whether the two agree.

    ``agrees``: they differ by at most 0.0005 on the same images. ``agrees (other files)``: by at
    most 0.005 on other files, such as the same set resized by other software. Shares may differ by
    two images. ``differs`` otherwise; ``not here`` where the dataset is not available here, ``not
    published`` where there is no published number.

    Example:
        >>> published = [Measured("test", 1000, "a1", "accuracy", 0.91)]
        >>> here = [Measured("test", 1000, "a1", "accuracy", 0.90)]
        >>> compare(published, here)[0].verdict
        'differs'
    """
    files = [{r.dataset: r.fingerprint for r in rows} for rows in (published, measured)]
    rest = {(row.dataset, row.metric): row for row in measured}
    rows = []
    for row in published:
        what = (row.dataset, row.images, row.metric)
        here = rest.pop((row.dataset, row.metric), None)
        if here is None:
            rows.append(Compared(*what, row.value, None, None, "not here"))
            continue
        # These two compare OOD images with the test images: either may be other files.
        both = row.metric in ("auroc", "fpr95_ood_positive")
        sets = {row.dataset, TEST} if both else {row.dataset}
        same = all(files[0].get(name) == files[1].get(name) for name in sets)
        difference = here.value - row.value
        verdict = _verdict(difference, same, row)
        rows.append(Compared(*what, row.value, here.value, difference, verdict))
    for row in rest.values():
        what = (row.dataset, row.images, row.metric)
        rows.append(Compared(*what, None, row.value, None, "not published"))
    return rows


def _verdict(difference: float, same: bool, row: Measured) -> Verdict:
    most = SAME_FILES if same else OTHER_FILES
    if row.metric in ("flagged", "accuracy"):
        most = max(most, 2 / row.images)  # a share changes in steps of one image
    # Rounded, so that 0.9005 and 0.9 differ by 0.0005 and not by a rounding error more.
    if not round(abs(difference), 12) <= round(most, 12):
        return "differs"
    return "agrees" if same else "agrees (other files)"
