"""Files behind URLs (``s3://``, ``gs://``, ``https://``, ...), through fsspec.

Which protocols there are, and where credentials come from, is for fsspec and its packages to say:
``s3://`` needs s3fs, ``gs://`` gcsfs, and so on.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from goen.data.images.formats import SUFFIXES
from goen.errors import DataCorrupt, ExtraMissing, UsageError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_ATTEMPTS = 3
_SECONDS_BETWEEN = 1.0
MOST_BYTES = 1 << 29
"""Of the content of an image file, which is held in memory: more than almost any image needs."""
_GLOB = ("*", "?", "[")


def is_url(place: str) -> bool:
    """Whether this is a URL and not a path.

    Example:
        >>> is_url("s3://bucket/photos"), is_url("photos/1.png"), is_url("C:/photos")
        (True, False, False)
    """
    return "://" in place


def open_url(url: str) -> BinaryIO:
    """The file behind the URL, opened for reading."""
    system, path = _system(url)
    opened: BinaryIO = system.open(path, "rb")
    return opened


def read_url(url: str) -> bytes:
    """The content of a picture file behind the URL; failures that may pass are tried again.

    Raises:
        DataCorrupt: it is not there, may not be read, or is too large for a picture.
    """
    for attempt in range(_ATTEMPTS):
        try:
            with open_url(url) as file:
                content = file.read(MOST_BYTES + 1)
        except FileNotFoundError as error:
            raise DataCorrupt(f"{url} does not exist.") from error
        except Exception as error:  # each protocol has exceptions of its own
            lasting = isinstance(error, (PermissionError, IsADirectoryError, UsageError))
            if lasting or attempt + 1 == _ATTEMPTS:
                raise DataCorrupt(f"{url} cannot be opened: {_reason(error)}.") from error
            time.sleep(_SECONDS_BETWEEN * 2**attempt)
        else:
            if len(content) > MOST_BYTES:
                raise DataCorrupt(f"{url} is larger than {MOST_BYTES:,} bytes, the most read.")
            return content
    raise AssertionError("the last attempt returns or raises")


def find_urls(url: str) -> Iterator[str]:
    """The files that a URL stands for: itself, those of a pattern, or the pictures below a folder.

    Pictures are recognised by the ends of their names, since their content is far away. They come
    in the order of ``find_images``: sorted within each folder, without hidden ones.

    Raises:
        UsageError: an unknown protocol, or a folder that cannot be listed.
    """
    system, path = _system(url)
    with _listing(url):
        if any(sign in path for sign in _GLOB) and not system.exists(path):
            yield from (str(system.unstrip_protocol(found)) for found in sorted(system.glob(path)))
        elif not system.isdir(path):
            yield url
        else:
            yield from _below(system, path)


def _below(system: "AbstractFileSystem", folder: str) -> Iterator[str]:
    # Its own walk passes over folders that cannot be listed.
    found = {entry["name"].rstrip("/"): entry["type"] for entry in system.ls(folder, detail=True)}
    visible = [path for path in sorted(found) if not PurePosixPath(path).name.startswith(".")]
    for path in visible:
        if found[path] != "directory" and PurePosixPath(path).suffix.lower() in SUFFIXES:
            yield str(system.unstrip_protocol(path))
    for path in visible:
        if found[path] == "directory" and path != folder.rstrip("/"):
            yield from _below(system, path)


@contextmanager
def _listing(url: str) -> Iterator[None]:
    try:
        yield
    except GeneratorExit:
        raise
    except Exception as error:  # each protocol has exceptions of its own
        raise UsageError(f"{url} cannot be listed: {_reason(error)}.") from error


def _system(url: str) -> tuple["AbstractFileSystem", str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ExtraMissing(f"{url} needs fsspec: pip install 'goen[ray]'.") from error
    try:
        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:  # a protocol that is not installed, or not known
        raise UsageError(f"{url} cannot be opened: {_reason(error)}.") from error
    return system, path


def _reason(error: Exception) -> str:
    return (str(error) or type(error).__name__).strip().removesuffix(".")
