"""Image sets on disk in the one format of goen: memory-mapped arrays beside their hashes."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from platformdirs import user_cache_path

from goen.data.imageset import DIGEST, Digests, ImageSet, digest_images
from goen.data.sets.readers import Chunk, Reading, Source, unreadable
from goen.errors import DataCorrupt, UsageError, first_of
from goen.io.files import whole_folder
from goen.progress import bar

_CONTENT = "content.npy"
_NAMED = 10
_FORM = 1  # raise it when the layout below changes: old folders are then made anew


def cache_folder() -> Path:
    """Where goen keeps what it has fetched and prepared: ``$GOEN_CACHE``, else the user's cache."""
    return Path(os.environ.get("GOEN_CACHE") or user_cache_path("goen"))


def prepared(identity: str) -> Path:
    """The folder in which a source of this identity lies prepared, whether or not it is there."""
    return cache_folder() / "sets" / f"{identity}-{_FORM}"


@dataclass(frozen=True, eq=False)
class Prepared:
    """A set that lies prepared.

    Attributes:
        images: the set.
        content: ``(N,)`` a hash of what each image was read from: a file, or an image of a stack
            before it was resized. It does not depend on the size of the images.
        broken: files that could not be read, below the folder of the source, with the reasons.
    """

    images: ImageSet
    content: Digests
    broken: Mapping[str, str]


def prepare_set(source: Source, name: str, fingerprint: str | None = None) -> ImageSet:
    """The set of this source, memory-mapped; written on the first call, found on the next.

    Memory stays at one chunk of the reading. Two processes that prepare the same set at once
    both write it in full and one of the two equal folders stays. If a ``fingerprint`` is given
    and the content has another, nothing is kept.

    Raises:
        DataCorrupt: images that cannot be read.
    """
    return prepare(source, name, fingerprint, skip_broken=False).images


def prepare(
    source: Source, name: str, fingerprint: str | None = None, *, skip_broken: bool = True
) -> Prepared:
    """The same, with what is known of its files; those that cannot be read may be skipped."""
    folder = prepared(source.identity)
    if not folder.is_dir():
        try:
            with whole_folder(folder, "dataset") as temporary:
                _write(source.read(), name, temporary)
                found = load_prepared(temporary, name)
                _check_readable(found, skip_broken)
                if fingerprint not in (None, found.images.fingerprint):
                    raise DataCorrupt(
                        f"{source.where} does not hold {name} as published: its content hashes to "
                        f"{found.images.fingerprint}, {fingerprint} was expected. Get it again, or "
                        "from another place."
                    )
        except UsageError:
            if not folder.is_dir():  # else another process was first
                raise
    found = load_prepared(folder, name)
    _check_readable(found, skip_broken)
    return found


def describe_broken(name: str, broken: Mapping[str, str]) -> str:
    """The files of a set that could not be read, in a sentence."""
    one = len(broken) == 1
    count = (
        "1 file cannot be read and is" if one else f"{len(broken):,} files cannot be read and are"
    )
    return f"{name}: {count} left out: {first_of([*broken], _NAMED)}."


def _check_readable(found: Prepared, skip_broken: bool) -> None:
    if found.broken and not skip_broken:
        raise unreadable([*found.broken.values()])


def load_prepared(folder: Path, name: str) -> Prepared:
    """The set that lies prepared in ``folder``, its pixels memory-mapped."""
    try:
        facts = json.loads((folder / "set.json").read_text())
        pixels = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        labels = np.load(folder / "labels.npy", allow_pickle=False)
        digests = np.load(folder / "digests.npy", allow_pickle=False)
        images = ImageSet(name, pixels, labels, tuple(facts["classes"]), known_digests=digests)
        content = digests
        if (folder / _CONTENT).exists():
            content = np.load(folder / _CONTENT, allow_pickle=False)
        return Prepared(images, content, facts.get("broken", {}))
    except (OSError, ValueError, KeyError) as error:
        raise DataCorrupt(
            f"The prepared set in {folder} is damaged ({error}). Delete that folder; it will be "
            "made again."
        ) from error


def _write(reading: Reading, name: str, folder: Path) -> None:
    shape = (reading.pixel_format.channels, *reading.image_size)
    descr = np.lib.format.dtype_to_descr(reading.pixel_format.dtype)
    labels, digests, content = [
        np.empty(reading.count, dtype) for dtype in (np.int64, DIGEST, DIGEST)
    ]
    broken: dict[str, str] = {}
    done = 0
    # Plain writes, not a writable map: on a full disk a write is an error, a map a crash.
    with (folder / "images.npy").open("wb") as file, bar() as progress:
        _write_header(file, descr, (reading.count, *shape))
        task = progress.add_task(f"preparing {name}", total=reading.count, status="images")
        for chunk in (Chunk(*given) for given in reading.chunks()):
            part = slice(done, done + len(chunk.pixels))
            images = np.ascontiguousarray(chunk.pixels)
            file.write(images.data)
            labels[part] = chunk.labels
            digests[part] = digest_images(iter([images]))
            content[part] = digests[part] if chunk.content is None else chunk.content
            broken |= chunk.broken
            done = part.stop
            progress.update(task, completed=done + len(broken))
        if broken:
            file.seek(0)
            _write_header(file, descr, (done, *shape))
    np.save(folder / "labels.npy", labels[:done])
    np.save(folder / "digests.npy", digests[:done])
    if (content[:done] != digests[:done]).any():
        np.save(folder / _CONTENT, content[:done])
    facts = {"name": name, "classes": reading.classes, "broken": broken}
    (folder / "set.json").write_text(json.dumps(facts))


def _write_header(file: BinaryIO, descr: object, shape: tuple[int, ...]) -> None:
    """Of an NPY file. NumPy leaves room for any number of images: its length does not change."""
    header = {"descr": descr, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
