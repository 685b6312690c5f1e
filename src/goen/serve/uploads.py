"""Pictures that clients send: multipart bodies, the checks of a picture, and its decoding."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from goen.data.forms import COLOUR, PixelForm, Pixels
from goen.data.pictures import read_header, read_picture
from goen.errors import DataCorrupt
from goen.serve.rejection import Rejected
from goen.serve.settings import Limits

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FORMATS = {
    "BMP": "bmp",
    "GIF": "gif",
    "JPEG": "jpg",
    "MPO": "jpg",
    "PNG": "png",
    "TIFF": "tif",
    "WEBP": "webp",
}
"""What is decoded, in Pillow's names, and the suffix of a file of this kind. A phone's MPO is a
JPEG."""
_NO_PICTURE = "This is not a picture that is read here. Send JPEG, PNG, WebP, GIF, BMP or TIFF."


@dataclass(frozen=True)
class Upload:
    """A picture as it came.

    Attributes:
        data: the file's content.
        name: as the client calls it; text for people, never the name of a file here.
    """

    data: bytes
    name: str | None = None


def decode_upload(
    upload: Upload, size: tuple[int, int], limits: Limits, form: PixelForm = COLOUR
) -> Pixels:
    """The picture as ``goen score`` would give it to a gate with images of this size and form.

    Format and pixels are read from its header, and checked before anything is decoded.

    Raises:
        Rejected: it is no picture of ``FORMATS``, has too many pixels, or is broken.
    """
    try:
        header = read_header(upload.data, "This picture")
    except DataCorrupt as error:
        if isinstance(error.__cause__, Image.DecompressionBombError):
            raise Rejected(
                "too_many_pixels",
                f"This picture has more than the {limits.pixels:,} pixels that are read here. "
                "Send a smaller one.",
            ) from error
        raise Rejected("not_a_picture", _NO_PICTURE) from error
    if header.format not in FORMATS:
        raise Rejected("not_a_picture", _NO_PICTURE)
    if header.decoded > limits.pixels:
        tiled = header.decoded > header.width * header.height
        raise Rejected(
            "too_many_pixels",
            f"This picture has {header.width}×{header.height} pixels"
            f"{f', {header.decoded:,} values to decode' * tiled}; at most {limits.pixels:,} are "
            "read here. Send a smaller one.",
        )
    try:
        return read_picture(upload.data, size, "This picture", form)
    except DataCorrupt as error:
        raise Rejected("broken_picture", str(error)) from error


def is_multipart(content_type: str) -> bool:
    """Whether a body of this type holds files in parts."""
    return content_type.partition(";")[0].strip().lower() == "multipart/form-data"


def read_multipart(content_type: str, body: bytes, limits: Limits) -> list[Upload]:
    """The files of a multipart body, in memory: nothing is written to a disk.

    Raises:
        Rejected: it is malformed, holds no file or too many, or a field that is no file.
    """
    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise Rejected("bad_request", "The multipart body has no boundary in its Content-Type.")
    parts = _Parts(limits.images)
    try:
        parser = MultipartParser(boundary, parts.callbacks())
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError) as error:
        raise Rejected("bad_request", f"The multipart body is malformed: {error}.") from error
    if parts.open or not parts.finished:
        raise Rejected("bad_request", "The multipart body ends before its last boundary.")
    if not parts.found:
        raise Rejected("bad_request", "The multipart body holds no file.")
    return parts.found


class _Parts:
    """Collects the parts of a body as the parser meets them."""

    def __init__(self, most: int) -> None:
        self.found: list[Upload] = []
        self.open = self.finished = False
        self._most = most
        self._data = bytearray()
        self._name: str | None = None
        self._header, self._value = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}

    def callbacks(self) -> "MultipartCallbacks":
        return {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_end,
            "on_part_data": lambda data, start, end: self._data.extend(data[start:end]),
            "on_part_end": self._end,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        if len(self.found) == self._most:
            raise Rejected(
                "too_many_images", f"A request holds at most {self._most} pictures; send several."
            )
        self.open = True
        self._data, self._headers = bytearray(), {}

    def _header_end(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if b"filename" not in options:
            raise Rejected("bad_request", "Each part of the multipart body must be a file.")
        self._name = options[b"filename"].decode("utf-8", "replace")

    def _end(self) -> None:
        self.found.append(Upload(bytes(self._data), self._name))
        self.open = False

    def _finish(self) -> None:
        self.finished = True
