"""``goen data``: list, download, check and display image datasets."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from PIL.Image import Image as Picture
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from goen.cli.options.types import AsJson, OptionalName, OptionalPath, Overwrite, several
from goen.cli.output.console import note
from goen.cli.protocols import check_protocol, is_protocol, new_protocol
from goen.data.images.contact_sheet import class_sheet, save_png, sheet
from goen.data.imageset import ImageSet, digest_images
from goen.data.sets.catalogue import KNOWN, Known
from goen.data.sets.embedded import EMBEDDED
from goen.data.sets.sources import data_folder, find, load_set, names
from goen.errors import DataError, UsageError, unknown
from goen.progress import PipeConsole

Names = Annotated[tuple[str, ...], tyro.conf.Positional, several("NAME")]


@dataclass(frozen=True)
class _Row:
    name: str
    split: str | None
    images: int | None
    here: str | None
    obtainable: str
    title: str
    licence: str

    def cells(self) -> tuple[str, str, str, str]:
        """As a table shows it."""
        here = f"[dim]not here; {escape(self.obtainable)}[/]"
        if self.here:
            here = f"[green]here: {escape(self.here)}[/]"
        number = f"{self.images:,}" if self.images else "any"
        return f"{self.name}/{self.split}" if self.split else self.name, number, here, self.licence


def list_sets(data_dir: OptionalPath = None, json_: AsJson = False) -> int:
    """List all datasets: size, location or how to get it, licence.

    Args:
        data_dir: a folder of datasets (default: the environment variable GOEN_DATA).
        json_: print one JSON object per dataset and split instead of a table.
    """
    folder = data_folder(data_dir)
    rows = [
        _Row(name, None, known.count, "embedded", "", known.title, known.licence)
        for name, known in EMBEDDED.items()
    ]
    for known in KNOWN.values():
        for split, count in known.splits.items():
            here, how = None, _obtainable(known, split)
            try:
                source = find(known, split, folder).source
                here = source.where if source else None
            except DataError as error:  # a damaged one must not hide the others
                how = str(error)
            rows.append(_Row(known.name, split, count, here, how, known.title, known.licence))
    if json_:
        for row in rows:
            print(json.dumps(asdict(row)))
        return 0
    table = Table(title="Image datasets", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("dataset", no_wrap=True)
    table.add_column("images", justify="right", no_wrap=True)
    table.add_column("location, or how to get it", overflow="fold")
    table.add_column("licence")
    for row in rows:
        table.add_row(*row.cells())
    PipeConsole().print(table)
    return 0


def get_sets(sets: Names, data_dir: OptionalPath = None) -> int:
    """Download datasets that are not available, verify and convert them.

    For example: goen data get cifar10 svhn

    Args:
        sets: names of datasets.
        data_dir: a folder of datasets (default: the environment variable GOEN_DATA); those in it
            are not downloaded.
    """
    if not sets:
        raise UsageError(f"Name the datasets to get: {', '.join(KNOWN)}.")
    for name in _checked_names(sets):
        for split in _splits(name):
            images = load_set(name, split, data_dir=data_dir, download=True)
            print(f"{images.name}: {len(images):,} images, {_verdict(name, split, images)}")
    return 0


def check_sets(sets: Names = (), data_dir: OptionalPath = None) -> int:
    """Verify datasets image by image; or folders and protocol files of your own.

    Of datasets: hashes, counts and class balance. Exit code 2 if a dataset is damaged, or if one
    named on the command line is missing. Of a folder or a protocol file: counts, sizes, classes,
    broken files, copies and near-copies; exit code 1 if there is a problem.

    For example: goen data check
                 goen data check photos
                 goen data check photos.toml

    Args:
        sets: names of datasets (default: all that are available), folders or protocol files.
        data_dir: a folder of datasets (default: the environment variable GOEN_DATA).
    """
    own = [name for name in sets if name not in names() and is_protocol(name)]
    code = max(map(check_protocol, own), default=0)
    sets = tuple(name for name in sets if name not in own)
    if own and not sets:
        return code
    folder = data_folder(data_dir)
    table = Table(title="Verified image by image", title_justify="left", box=SIMPLE_HEAD)
    for column in ("dataset", "images", "classes", "per class", "content", "verdict"):
        table.add_column(column, justify="right" if column == "images" else "left", no_wrap=True)
    for name in _checked_names(sets or tuple(names())):
        for split in _splits(name):
            if not sets and name in KNOWN and find(KNOWN[name], split or "", folder).source is None:
                continue
            try:
                images = load_set(name, split, data_dir=folder)
                if (digest_images(images.batches(4096)) != images.digests).any():
                    raise DataError(
                        f"{name}: pixels changed since it was converted; delete it from the "
                        "cache and get it again."
                    )
            except DataError as error:
                code = 2
                note(f"goen: {error}")
                continue
            counts = images.counts().values()
            span = "-".join(map(str, sorted({min(counts), max(counts)})))
            numbers = f"{len(images):,}", str(len(images.classes)), span
            verdict = _verdict(name, split, images)
            table.add_row(images.name, *numbers, images.fingerprint[:12], verdict)
    PipeConsole().print(table)
    return code


def show_sets(
    sets: Names,
    split: OptionalName = None,
    corruption: OptionalName = None,
    out: Path = Path(),
    data_dir: OptionalPath = None,
    overwrite: Overwrite = False,
) -> int:
    """Write a contact sheet of each dataset: a PNG with a row of images per class.

    For example: goen data show digits
                 goen data show cifar10 --split test --corruption all

    Args:
        sets: names of datasets.
        split: of a dataset with several (default: all).
        corruption: show this corruption at severities 1 to 5 instead; "all" for all fifteen.
        out: the folder to write to.
        data_dir: a folder of datasets (default: the environment variable GOEN_DATA).
    """
    if not sets:
        raise UsageError(f"Name the datasets to show: {', '.join(names())}.")
    for name in _checked_names(sets):
        for each in [split] if split else _splits_here(name, data_folder(data_dir)):
            images = load_set(name, each, data_dir=data_dir)
            ending = f"-{corruption}.png" if corruption else ".png"
            path = out / (images.name.replace("/", "-") + ending)
            shown = _corruption_sheet(images, corruption) if corruption else class_sheet(images)
            save_png(shown, path, overwrite=overwrite)
            print(path)
    return 0


def _corruption_sheet(images: ImageSet, corruption: str) -> Picture:
    from goen.data.transforms.corruptions import (  # needs SciPy: slow
        CORRUPTIONS,
        SEVERITIES,
        corrupt,
    )

    if corruption != "all" and corruption not in CORRUPTIONS:
        raise unknown("corruption", corruption, ["all", *CORRUPTIONS])
    if corruption == "all":
        clean = images.read(np.linspace(0, len(images) - 1, 2).astype(int))
        rows = []
        for name in CORRUPTIONS:
            # (severity, image): each image clean, then at rising severity
            worse = np.stack([clean, *(corrupt(clean, name, s) for s in SEVERITIES)])
            rows.append((name, np.concatenate(list(worse.swapaxes(0, 1)))))
        return sheet(f"{images.name}: clean, then severity 1 to 5", rows)
    clean = images.read(np.linspace(0, len(images) - 1, 10).astype(int))
    severities = [(f"severity {s}", corrupt(clean, corruption, s)) for s in SEVERITIES]
    return sheet(f"{images.name}: {corruption}", [("clean", clean), *severities])


def _checked_names(sets: Sequence[str]) -> list[str]:
    for name in sets:
        if name not in names():
            raise UsageError(
                f"{unknown('set', name, names())} Nor is there a folder or a protocol file "
                f"{name!r} in {Path.cwd()}."
            )
    return list(dict.fromkeys(sets))


def _splits(name: str) -> list[str | None]:
    return list(KNOWN[name].splits) if name in KNOWN else [None]


def _splits_here(name: str, folder: Path | None) -> list[str | None]:
    """The available splits; all if none is, so that loading them raises the error that helps."""
    here = [s for s in _splits(name) if s is None or find(KNOWN[name], s, folder).source]
    return here or _splits(name)


def _obtainable(known: Known, split: str) -> str:
    official = known.official.get(split)
    ways = [f"official, {official.megabytes} MB"] if official else []
    ways += [f"npm, {known.npm.megabytes} MB"] if known.npm else []
    if not ways:
        return "not downloadable: put it in --data-dir"
    return f"goen data get {known.name} ({' or '.join(ways)})"


def _verdict(name: str, split: str | None, images: ImageSet) -> str:
    pinned = KNOWN[name].fingerprints.get(split or "") if name in KNOWN else None
    if pinned is None:
        return "readable"
    return "as published" if pinned == images.fingerprint else "NOT as published"


SUBCOMMANDS: dict[str, Callable[..., int]] = {
    "list": list_sets,
    "get": get_sets,
    "check": check_sets,
    "new": new_protocol,
    "show": show_sets,
}
