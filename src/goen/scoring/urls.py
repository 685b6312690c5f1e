"""Files behind URLs (``s3://``, ``gs://``, ``https://``, ...), through fsspec.

Which protocols there are, and where credentials come from, is for fsspec and its packages to say:
``s3://`` needs s3fs, ``gs://`` gcsfs, and so on. What a server sends is bounded here: the bytes of
an answer, the depth and the number of the folders that it names.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from io import BytesIO
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, TypeVar

from goen.data.images.formats import SUFFIXES
from goen.errors import DataCorrupt, ExtraMissing, UsageError
from goen.scoring.tar_stream import Readable

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_ATTEMPTS = 3
_SECONDS_BETWEEN = 1.0
MOST_BYTES = 1 << 29
"""Of the content of an image file, which is held in memory: more than almost any image needs."""
# Of a page that lists files: a hundred thousand links have ten megabytes.
_MOST_LISTED_BYTES = 1 << 26
# A server may name a folder in every folder, or ten.
_DEEPEST = 32
_MOST_FOLDERS = 100_000
_PART = 1 << 20
# Seconds for one answer, and without any of its bytes: a server may stop sending.
_SECONDS, _SILENT_SECONDS = 300.0, 60.0
_GLOB = ("*", "?", "[")
_HTTP = ("http", "https")
# Answers of the web: there is nothing; too slow or too many requests.
_GONE = (404, 410)
_LATER = (408, 429)

T = TypeVar("T")


class FoundUrl(NamedTuple):
    """A file behind a URL.

    Attributes:
        url: of the file.
        error: in place of files, why there are none; the URL is that of their folder.
    """

    url: str
    error: str | None = None


def is_url(place: str) -> bool:
    """Whether this is a URL and not a path.

    Example:
        >>> is_url("s3://bucket/photos"), is_url("photos/1.png"), is_url("C:/photos")
        (True, False, False)
    """
    return "://" in place


def url_name(url: str) -> str:
    """The part of a URL that names a file: without the query of a URL of the web.

    Example:
        >>> url_name("https://host/a.png?key=1"), url_name("s3://bucket/what?.png")
        ('https://host/a.png', 's3://bucket/what?.png')
    """
    first = next(part for part in url.split("::") if "://" in part)
    if first.partition("://")[0].lower() in _HTTP:
        return first.partition("#")[0].partition("?")[0]
    return first


def is_pattern(url: str) -> bool:
    """Whether a URL has signs that stand for others; in URLs of the web ``?`` and ``[`` do not."""
    protocol, _, path = url_name(url).partition("://")
    signs = _GLOB[:1] if protocol.lower() in _HTTP else _GLOB
    return any(sign in path for sign in signs)


def check_protocol(url: str) -> None:
    """Raise a UsageError if the protocol of a URL is not known or its package not installed."""
    try:
        from fsspec.core import get_filesystem_class, split_protocol
    except ImportError as error:
        raise ExtraMissing(f"{url} needs fsspec: pip install 'goen[ray]'.") from error
    protocol = split_protocol(url)[0] or url.partition("://")[0]
    if "::" in url:
        return  # each of its parts is looked at when it is opened
    try:
        get_filesystem_class(protocol)
    except (ImportError, ValueError) as error:
        raise UsageError(f"{url} cannot be opened: {_reason(error)}.") from error


def open_url(url: str) -> BinaryIO:
    """The file behind the URL, opened for reading.

    Raises:
        UsageError: an unknown protocol.
    """
    system, path = _system(url)
    opened: BinaryIO = system.open(path, "rb")
    return opened


def read_url(url: str) -> bytes:
    """The content of a picture file behind the URL; failures that may pass are tried again.

    Raises:
        DataCorrupt: it is not there, may not be read, or is too large for a picture.
    """

    def read() -> bytes:
        with open_url(url) as file:
            return read_at_most(file, MOST_BYTES + 1)

    content = tried(url, "opened", read)
    if len(content) > MOST_BYTES:
        raise DataCorrupt(f"{url} is larger than {MOST_BYTES:,} bytes, the most read.")
    return content


def read_at_most(file: Readable, size: int, start: bytes = b"") -> bytes:
    """So many bytes of a file, or all there are, held once in memory.

    Args:
        file: whose ``read`` may give fewer bytes than it is asked for, as one far away does.
        size: of the result.
        start: what was read of the file before, and is its beginning.
    """
    content = BytesIO()
    content.write(start)
    while content.tell() < size and (part := file.read(min(_PART, size - content.tell()))):
        content.write(part)
    return content.getvalue()


def tried(url: str, done: str, act: Callable[[], T]) -> T:
    """What ``act`` returns; failures that may pass are tried again, three times in all.

    Args:
        url: for error messages.
        done: what the URL cannot be, if it fails.
        act: is called.

    Raises:
        DataCorrupt: it failed.
    """
    for attempt in range(_ATTEMPTS):
        try:
            return act()
        except Exception as error:  # each protocol has exceptions of its own
            # fsspec says of every failure of the web that the file was not found.
            cause = error.__cause__ if isinstance(error, FileNotFoundError) else error
            if cause is None or getattr(cause, "status", None) in _GONE:
                raise DataCorrupt(f"{url} does not exist.") from error
            if attempt + 1 == _ATTEMPTS or not _may_pass(cause):
                raise DataCorrupt(f"{url} cannot be {done}: {_reason(cause)}.") from error
            time.sleep(_SECONDS_BETWEEN * 2**attempt)
    raise AssertionError("the last attempt returns or raises")


def _may_pass(error: BaseException) -> bool:
    if isinstance(error, (PermissionError, IsADirectoryError, ValueError, TooMuch)):
        return False
    status = getattr(error, "status", None)
    return not isinstance(status, int) or not 400 <= status < 500 or status in _LATER


def is_lost(error: Exception) -> bool:
    """Whether the connection to a file was lost, which is no damage of the file."""
    of = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, (ConnectionError, TimeoutError)) or "aiohttp" in of


def find_urls(url: str, ends: Sequence[str] = tuple(SUFFIXES)) -> Iterator[FoundUrl]:
    """The files that a URL stands for: itself, those of a pattern, or the pictures below a folder.

    A URL that ends like a file is one, and nothing is asked of its server. Pictures in a folder are
    recognised by the ends of their names, since their content is far away. They come in the order
    of ``find_images``: sorted within each folder, without hidden ones. What cannot be listed is
    found with its error.

    Args:
        url: of a file or folder, or a pattern.
        ends: of the names of files.
    """
    pattern = is_pattern(url)
    if not pattern and url_name(url).lower().endswith(tuple(ends)):
        yield FoundUrl(url)
        return
    try:
        system, path = tried(url, "opened", lambda: _system(url))
        if pattern and not tried(url, "listed", lambda: system.exists(path)):
            for found in tried(url, "listed", lambda: _matching(system, path)):
                yield FoundUrl(str(system.unstrip_protocol(found)))
        elif pattern or not tried(url, "listed", lambda: system.isdir(path)):
            yield FoundUrl(url)
        else:
            yield from _Listing(url, system).below(path)
    except DataCorrupt as error:
        yield FoundUrl(url, str(error))


def _matching(system: "AbstractFileSystem", pattern: str) -> list[str]:
    if "**" not in pattern:
        return sorted(system.glob(pattern))
    if pattern.startswith(tuple(f"{name}://" for name in _HTTP)):
        raise UsageError("** is no pattern of the web, where each page names others; name a folder")
    return sorted(system.glob(pattern, maxdepth=_DEEPEST))


class _Listing:
    """The pictures below a folder; its own walk passes over folders that cannot be listed."""

    def __init__(self, url: str, system: "AbstractFileSystem") -> None:
        self._url, self._system = url, system
        self._folders = 0

    def below(self, folder: str, depth: int = 0) -> Iterator[FoundUrl]:
        """Those of a folder, then those of the folders in it."""
        self._folders += 1
        address = str(self._system.unstrip_protocol(folder)) if depth else self._url
        if depth > _DEEPEST or self._folders > _MOST_FOLDERS:
            limit = f"{_DEEPEST} folders deep" if depth > _DEEPEST else f"{_MOST_FOLDERS:,} folders"
            error = f"{address} and what follows in its folder is not listed: more than {limit}."
            yield FoundUrl(address, error)
            return
        try:
            kinds = tried(address, "listed", lambda: self._kinds(folder))
        except DataCorrupt as error:
            yield FoundUrl(address, str(error))
            return
        for path in sorted(kinds):
            if kinds[path] != "directory" and PurePosixPath(path).suffix.lower() in SUFFIXES:
                yield FoundUrl(str(self._system.unstrip_protocol(path)))
        for path in sorted(kinds):
            if kinds[path] == "directory" and self._folders <= _MOST_FOLDERS:
                yield from self.below(path, depth + 1)

    def _kinds(self, folder: str) -> dict[str, str]:
        """What is in a folder, by path; not itself, what is hidden or what lies elsewhere."""
        found = {e["name"].rstrip("/"): e["type"] for e in self._system.ls(folder, detail=True)}
        return {
            path: kind
            for path, kind in found.items()
            if path != folder.rstrip("/")
            and not PurePosixPath(path).name.startswith(".")
            and not {".", ".."} & {*path.split("/")}
        }


def _system(url: str) -> tuple["AbstractFileSystem", str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ExtraMissing(f"{url} needs fsspec: pip install 'goen[ray]'.") from error
    try:
        system, path = url_to_fs(url, **_bounded(url))
    except (ImportError, ValueError) as error:  # a protocol that is not installed, or not known
        raise UsageError(f"{url} cannot be opened: {_reason(error)}.") from error
    return system, path


class TooMuch(Exception):  # noqa: N818  (reads as a sentence in `except TooMuch`)
    """An answer that is larger than anything that was asked for."""


def _bounded(url: str) -> dict[str, dict[str, dict[str, object]]]:
    """The options of fsspec with which answers from the web are bounded, in bytes and in time.

    fsspec reads a page with links, and the part of a file that it asked for, to their end, which a
    server may never send.
    """
    parts = (part.partition("://")[0] for part in url.split("::") if "://" in part)
    protocols = [part for part in parts if part in _HTTP]
    if not protocols:
        return {}
    from aiohttp import ClientTimeout
    from fsspec.config import conf

    timeout = ClientTimeout(_SECONDS, sock_connect=_SILENT_SECONDS, sock_read=_SILENT_SECONDS)
    return {
        name: {
            "client_kwargs": {
                "timeout": timeout,
                **conf.get(name, {}).get("client_kwargs", {}),
                "response_class": _bounded_response(),
            }
        }
        for name in protocols
    }


@cache
def _bounded_response() -> type:
    from aiohttp import ClientResponse

    class BoundedResponse(ClientResponse):
        """An answer of which no more is read than there should be."""

        async def read(self) -> bytes:
            return await self._read_at_most(MOST_BYTES + _PART)

        async def text(self, encoding: str | None = None, errors: str = "strict") -> str:
            content = await self._read_at_most(_MOST_LISTED_BYTES)
            return content.decode(encoding or "utf-8", errors)

        async def _read_at_most(self, size: int) -> bytes:
            content = BytesIO()
            while part := await self.content.read(_PART):
                content.write(part)
                if content.tell() > size:
                    self.close()
                    raise TooMuch(f"its answer has more than {size:,} bytes")
            return content.getvalue()

    return BoundedResponse


def _reason(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().removesuffix(".")
