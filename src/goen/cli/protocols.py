"""``goen data new`` and ``goen data check PROTOCOL``: protocols of one's own folders."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from goen.checks import check_number
from goen.cli.options.types import Overwrite, several
from goen.cli.output.console import note
from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.data.protocols.opening import OpenedPlan, OpenedSet, open_plan
from goen.data.protocols.plan import Plan
from goen.data.protocols.plan_file import ENDING, read_plan, write_plan
from goen.errors import first_of
from goen.escaping import visible
from goen.progress import PipeConsole

_NAMED = 5
_SMALL_CLASS = 20
Folders = Annotated[tuple[str, ...], several("FOLDER")]


@dataclass(frozen=True)
class NewOptions:
    """What a protocol file holds beside the ID images.

    Attributes:
        ood: folders of images that belong to no class, to evaluate on.
        near_ood: the same, images like those of the classes.
        far_ood: the same, images unlike them.
        calibration_ood: folders of OOD images that calibrate; noise and augmented are generated,
            and the default.
        size: side of the images in pixels; 0 chooses it from the images.
        flip: whether a mirrored image is of the same class: --no-flip for text.
    """

    ood: Folders = ()
    near_ood: Folders = ()
    far_ood: Folders = ()
    calibration_ood: Folders = ()
    size: int = 0
    flip: bool = True


def new_protocol(
    protocol: Annotated[Path, tyro.conf.Positional],
    id_: Annotated[Path, tyro.conf.arg(name="id", metavar="FOLDER")],
    options: Annotated[NewOptions, tyro.conf.arg(name="")] = NewOptions(),  # noqa: B008  (frozen)
    overwrite: Overwrite = False,
) -> int:
    """Write a protocol file: which folders train, calibrate and evaluate.

    For example: goen data new photos.toml --id photos --ood screens --far-ood textures
                 goen data check photos.toml
                 goen run --data photos.toml

    Args:
        protocol: the file to write; it ends in .toml.
        id_: a folder with a folder of images per class, or with train/, val/ and test/ that have
            such folders.
        options: the other sets, and how images are read.
    """
    groups = {"ood": options.ood, "near": options.near_ood, "far": options.far_ood}
    check_number("size", options.size, whole=True, at_least=0)
    plan = Plan.of_folder(
        id_,
        {group: places for group, places in groups.items() if places},
        calibration=options.calibration_ood or None,
    )
    size = (options.size, options.size) if options.size else None
    plan = replace(plan, name=protocol.stem, size=size, flip=options.flip)
    write_plan(plan, protocol, overwrite=overwrite)
    written = shlex.quote(str(protocol))
    print(f"{protocol}   (goen data check {written}, goen run --data {written})")
    return 0


def is_protocol(name: str) -> bool:
    """Whether this is a protocol file or a folder, not the name of a dataset."""
    return name.endswith(ENDING) or Path(name).is_dir()


def check_protocol(name: str) -> int:
    """Print counts, sizes, classes, broken files, copies and near-copies of a protocol.

    Returns:
        1 if something was left out or looks like a mistake, else 0.
    """
    path = Path(name)
    plan = Plan.of_folder(path) if path.is_dir() else read_plan(path)
    opened = open_plan(plan)
    made = Protocol.from_plan(plan, opened)
    console = PipeConsole()
    console.print(_table(made, opened))
    for line in _facts(made):
        print(line)
    findings = [*opened.warnings, *_small_classes(made.train), *_near_copies(opened)]
    for finding in findings[len(opened.warnings) :]:
        note(f"warning: {visible(finding)}")
    print(f"problems: {len(findings)}" if findings else "no problems")
    return 1 if findings else 0


def _table(made: Protocol, opened: OpenedPlan) -> Table:
    table = Table(title=escape(visible(made.name)), title_justify="left", box=SIMPLE_HEAD)
    for column in ("set", "role", "images", "per class", "broken", "content"):
        right = column in ("images", "broken")
        table.add_column(column, justify="right" if right else "left", no_wrap=column != "set")
    broken = {role: len(part.broken) for role, part in _parts(opened).items()}
    rows: list[tuple[str, str, ImageSet]] = [
        ("train", "training", made.train),
        ("validation", "calibration, threshold", made.validation),
        ("test", "evaluation, ID", made.test),
        *((n, "calibration, OOD", images) for n, images in made.calibration_ood.items()),
        *((n, f"evaluation, {ood.group}", ood.images) for n, ood in made.evaluation.items()),
    ]
    for name, role, images in rows:
        counts = images.counts().values()
        span = "-".join(map(str, sorted({min(counts), max(counts)})))
        numbers = f"{len(images):,}", span, str(broken.get(name, 0))
        table.add_row(escape(visible(name)), role, *numbers, images.fingerprint[:8])
    return table


def _parts(opened: OpenedPlan) -> dict[str, OpenedSet]:
    """All sets that were read, by name; parts of one folder have its broken files once."""
    found = dict(opened.roles)
    whole = found["train"]
    for role in ("validation", "test"):
        if found[role].above == whole.above:
            found[role] = replace(found[role], broken={})
    ood = {name: part for members in opened.ood.values() for name, part in members.items()}
    return {**found, **opened.calibration, **ood}


def _facts(made: Protocol) -> list[str]:
    classes = made.train.classes
    channels, height, width = made.train.image_shape
    bits = 8 * made.train.pixels.dtype.itemsize
    plural = "1 channel" if channels == 1 else f"{channels} channels"
    names = [visible(repr(name) if "," in name else name) for name in classes]
    return [
        f"classes: {len(classes)}: {first_of(names, 20)}",
        f"images:  {height}×{width} pixels, {plural} of {bits} bits",
    ]


def _small_classes(train: ImageSet) -> list[str]:
    small = [f"{name} ({count})" for name, count in train.counts().items() if count < _SMALL_CLASS]
    if not small:
        return []
    return [
        f"Classes with fewer than {_SMALL_CLASS} training images, which a network trained from "
        f"scratch hardly learns: {first_of(small, 10)}."
    ]


def _near_copies(opened: OpenedPlan) -> list[str]:
    """A sentence for each set with near-copies of training images."""
    from goen.data.protocols.near_copies import Thumbnails  # torch: slow

    sentences = []
    train = opened.roles["train"]
    thumbnails = Thumbnails(train.images)
    for name, part in _parts(opened).items():
        pairs = [] if name == "train" else thumbnails.near_copies(part.images)
        if pairs:
            shown = [_pair(part, train, pair.row, pair.training_row) for pair in pairs[:_NAMED]]
            more = ", ..." if len(pairs) > _NAMED else ""
            sentences.append(
                f"{name}: near-copies of training images, {len(pairs):,} of {len(part.images):,}, "
                f"such as pictures saved again; they are kept: {'; '.join(shown)}{more}."
            )
    return sentences


def _pair(part: OpenedSet, train: OpenedSet, row: int, training_row: int) -> str:
    return f"{part.names([row])[0]} of {train.names([training_row])[0]}"
