"""Tar files from strangers, read as a stream: damage is an error and never the end of the file.

The standard library takes a damaged header for the end of the archive, and skips a member of any
length that its header claims, whether the file is as long or not.
"""

import bz2
import gzip
import io
import lzma
import tarfile
from typing import BinaryIO, Protocol, Self

# Reads at the end of a file before it counts as cut short; an intact tar needs two or three.
_READS_AT_END = 100
_CHUNK = 1 << 16
# Zeros after the end; writers pad to ten kilobytes, or to a tape's block.
_MOST_PADDING = 1 << 26


def open_tar(file: BinaryIO) -> tarfile.TarFile:
    """The members of a tar, compressed or not, one after the other; for ``require_end`` after that.

    Args:
        file: read from where it is; it need not be seekable.
    """
    plain = _CutShort(_decompressed(io.BufferedReader(file)))  # type: ignore[arg-type]
    return tarfile.open(fileobj=plain, mode="r|", tarinfo=_Member)  # type: ignore[call-overload, no-any-return]


def _decompressed(file: io.BufferedReader) -> "Readable":
    """The content, a little at a time: tarfile's own way takes what a block of a file expands to.

    That may be twenty thousand times as much.
    """
    start = file.peek(6)[:6]
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file, mode="rb")
    if start.startswith(b"BZh"):
        return bz2.BZ2File(file)
    if start == b"\xfd7zXZ\0":
        return lzma.LZMAFile(file)
    return file


def require_end(tar: tarfile.TarFile) -> None:
    """Look at what follows the last member.

    Raises:
        ReadError: something else than the zeros that end an archive, or too many of them to look
            behind: members may be hidden there.
    """
    assert tar.fileobj is not None
    left = _MOST_PADDING
    while left > 0 and (chunk := tar.fileobj.read(_CHUNK)):
        if chunk.strip(b"\0"):
            raise tarfile.ReadError("there is more after the end of the archive")
        left -= len(chunk)
    if left <= 0:
        raise tarfile.ReadError(f"more than {_MOST_PADDING:,} zeros follow the end of the archive")


class _Member(tarfile.TarInfo):
    """A member whose header must be whole."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        try:
            member = super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # the zeros at the end
            raise
        except tarfile.EmptyHeaderError as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError("the archive ends without its end mark: cut short") from error
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"a damaged header: {error}") from error
        if member.size < 0:
            raise tarfile.ReadError(f"a member of {member.size} bytes")
        return member


class Readable(Protocol):
    """What is needed of a file here."""

    def read(self, size: int = -1, /) -> bytes: ...


class _CutShort:
    """A file that ends with an error for whoever goes on reading behind its end."""

    def __init__(self, file: Readable) -> None:
        self._file = file
        self._reads = 0

    def read(self, size: int = -1) -> bytes:
        content = self._file.read(size)
        self._reads = 0 if content else self._reads + 1
        if self._reads > _READS_AT_END:
            raise EOFError("the file is shorter than its header says")
        return content
