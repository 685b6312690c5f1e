"""Image sets on disk in the one format of goen: memory-mapped arrays beside their hashes."""

import json
import os
from pathlib import Path

import numpy as np
from platformdirs import user_cache_path

from goen.data.imageset import DIGEST, ImageSet, digest_images
from goen.data.sets.readers import Reading, Source
from goen.errors import DataCorrupt, UsageError
from goen.io.files import whole_folder
from goen.progress import bar

_FORM = 1  # raise it when the layout below changes: old folders are then made anew


def cache_folder() -> Path:
    """Where goen keeps what it has fetched and prepared: ``$GOEN_CACHE``, else the user's cache."""
    return Path(os.environ.get("GOEN_CACHE") or user_cache_path("goen"))


def prepared(identity: str) -> Path:
    """The folder in which a source of this identity lies prepared, whether or not it is there."""
    return cache_folder() / "sets" / f"{identity}-{_FORM}"


def prepare_set(source: Source, name: str, fingerprint: str | None = None) -> ImageSet:
    """The set of this source, memory-mapped; written on the first call, found on the next.

    Memory stays at one chunk of the reading. Two processes that prepare the same set at once
    both write it in full and one of the two equal folders stays. If a ``fingerprint`` is given
    and the content has another, nothing is kept.
    """
    folder = prepared(source.identity)
    if not folder.is_dir():
        try:
            with whole_folder(folder, "dataset") as temporary:
                _write(source.read(), name, temporary)
                found = load_prepared(temporary, name).fingerprint
                if fingerprint not in (None, found):
                    raise DataCorrupt(
                        f"{source.where} does not hold {name} as published: its content hashes to "
                        f"{found}, {fingerprint} was expected. Get it again, or from another place."
                    )
        except UsageError:
            if not folder.is_dir():  # else another process was first
                raise
    return load_prepared(folder, name)


def load_prepared(folder: Path, name: str) -> ImageSet:
    """The set that lies prepared in ``folder``, its pixels memory-mapped."""
    try:
        facts = json.loads((folder / "set.json").read_text())
        pixels = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
        labels = np.load(folder / "labels.npy", allow_pickle=False)
        digests = np.load(folder / "digests.npy", allow_pickle=False)
        return ImageSet(name, pixels, labels, tuple(facts["classes"]), known_digests=digests)
    except (OSError, ValueError, KeyError) as error:
        raise DataCorrupt(
            f"The prepared set in {folder} is damaged ({error}). Delete that folder; it will be "
            "made again."
        ) from error


def _write(reading: Reading, name: str, folder: Path) -> None:
    shape = (reading.count, reading.pixel_format.channels, *reading.image_size)
    labels = np.empty(reading.count, np.int64)
    digests = np.empty(reading.count, DIGEST)
    done = 0
    # Plain writes, not a writable map: on a full disk a write is an error, a map a crash.
    with (folder / "images.npy").open("wb") as file, bar() as progress:
        descr = np.lib.format.dtype_to_descr(reading.pixel_format.dtype)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        task = progress.add_task(f"preparing {name}", total=reading.count, status="images")
        for images, numbers in reading.chunks():
            part = slice(done, done + len(images))
            images = np.ascontiguousarray(images)
            file.write(images.data)
            labels[part] = numbers
            digests[part] = digest_images(iter([images]))
            done = part.stop
            progress.update(task, completed=done)
    np.save(folder / "labels.npy", labels)
    np.save(folder / "digests.npy", digests)
    (folder / "set.json").write_text(json.dumps({"name": name, "classes": reading.classes}))
