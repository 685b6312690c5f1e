"""Copies of flagged images in one folder, whatever their names and wherever they come from."""

import io
import os
import re
import shutil
from collections import Counter
from collections.abc import Sequence
from logging import getLogger
from pathlib import Path

import numpy as np
from PIL import Image

from goen.data.images.formats import SUFFIXES, open_image, pillow_is_quiet
from goen.data.images.pixel_format import Pixels, for_people
from goen.errors import DataCorrupt, DataError, UsageError
from goen.io.files import MARKER, claim_folder, is_folder, printable_path, whole_file
from goen.scoring.shards import Item, Shard
from goen.scoring.urls import is_url, read_url

_log = getLogger(__name__)

# In bytes. The names of most file systems have 255, of which a temporary name needs 30 more.
_LONGEST_NAME = 200
_LONGEST_SUFFIX = 20
_KIND = "flagged images"
# A separator would lead out of the folder.
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f-\x9f/\\]")


class FlaggedCopies:
    """A folder of copies: new, empty, or that of an earlier call, whose copies are removed.

    A copy has its file's name; of equal names, the second and later ones are numbered. An image
    that cannot be read any more is left out with a warning.

    Attributes:
        folder: of the copies.
        copied: how many there are.

    Args:
        folder: of the copies.
        given: paths that are scored.

    Raises:
        UsageError: the folder lies within a folder that is scored, so that the next call would
            score the copies.
        StorageError: it cannot be made.
    """

    def __init__(self, folder: Path, given: Sequence[str] = ()) -> None:
        self._place = Path(os.path.realpath(folder))  # Path.resolve raises for a link to itself
        for place in given:
            if is_url(place) or not is_folder(Path(place)):
                self._check_elsewhere(folder, place)
            elif self._place.is_relative_to(os.path.realpath(place)):
                raise _is_scored(folder, "lies within", place)
        self.folder, self.copied = claim_folder(folder, _KIND), 0
        for earlier in self.folder.iterdir():
            if earlier.name != MARKER and not earlier.is_dir():
                earlier.unlink()
        self._used = {MARKER}
        self._numbers = Counter[str]()

    def add(self, shard: Shard, flags: Sequence[bool]) -> None:
        """Copy the images of a shard that are flagged; it is read once more for that.

        Raises:
            UsageError: an image lies in the folder.
        """
        if any(flags):
            for item, flagged in zip(shard.items(), flags, strict=False):
                if flagged:
                    self._copy(item)

    def _copy(self, item: Item) -> None:
        content = item.content
        try:
            if isinstance(content, Path):
                self._check_elsewhere(self.folder, str(content))
                with whole_file(self.folder / self._name(content.name)) as temporary:
                    shutil.copyfile(content, temporary)
            else:
                encoded = _encoded(item)
                name = Path(item.name).name
                if Path(name).suffix.lower() not in SUFFIXES:
                    with pillow_is_quiet(), open_image(io.BytesIO(encoded)) as image:
                        name += f".{str(image.format).lower()}"
                with whole_file(self.folder / self._name(name)) as temporary:
                    temporary.write_bytes(encoded)
        except (OSError, DataError) as error:
            reason = getattr(error, "strerror", None) or str(error).removesuffix(".")
            _log.warning("%s is not copied: %s.", item.name, reason.lower())
        else:
            self.copied += 1

    def _check_elsewhere(self, folder: Path, place: str) -> None:
        if not is_url(place) and Path(os.path.realpath(place)).is_relative_to(self._place):
            raise _is_scored(folder, "holds", place)

    def _name(self, wanted: str) -> str:
        """A name of its own, also where case does not count."""
        wanted = name = harmless_name(printable_path(Path(wanted)))
        stem, suffix = Path(wanted).stem, Path(wanted).suffix
        while name.casefold() in self._used:
            self._numbers[wanted] += 1
            name = f"{stem}-{self._numbers[wanted] + 1}{suffix}"
        self._used.add(name.casefold())
        return name


def _encoded(item: Item) -> bytes:
    """The content of an image file: as it is, or of pixels a PNG file."""
    content = item.content
    if isinstance(content, str):
        return read_url(content)
    if isinstance(content, np.ndarray):
        return png_content(content)
    if not isinstance(content, bytes):
        raise DataCorrupt(f"{item.name} holds no image.")
    return content


def png_content(image: Pixels) -> bytes:
    """An image ``(C, H, W)`` as the content of a PNG file, as people see it."""
    content = io.BytesIO()
    shown = np.ascontiguousarray(for_people(image).transpose(1, 2, 0))
    Image.fromarray(shown).save(content, "PNG")
    return content.getvalue()


def harmless_name(name: str) -> str:
    """The name without what could lead out of a folder, hide in it or be too long for it."""
    plain = _NOT_IN_NAMES.sub("_", name)
    plain = re.sub(r"^\.", "_", plain)
    suffix = Path(plain).suffix if len(Path(plain).suffix.encode()) <= _LONGEST_SUFFIX else ""
    stem = plain.removesuffix(suffix).encode()[: _LONGEST_NAME - len(suffix.encode())]
    return stem.decode("utf-8", "ignore") + suffix


def _is_scored(folder: Path, where: str, scored: str) -> UsageError:
    return UsageError(
        f"{folder} {where} {scored}, which is scored: copies there would be scored as well the "
        "next time. Choose a folder elsewhere."
    )
