"""What clients send: bodies within bounds, their parts, the checks of an image and its decoding."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO

from PIL import Image
from python_multipart import FormParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, parse_options_header
from starlette.requests import Request

from goen.data.images.decoding import read_image
from goen.data.images.headers import ImageHeader
from goen.data.images.pixel_format import COLOUR, PixelFormat, Pixels
from goen.errors import DataCorrupt
from goen.serve.rejection import Rejected
from goen.serve.settings import MEGABYTE, Limits
from goen.serve.threads import LARGE, Deferred, PixelBudget

FORMATS = ("BMP", "GIF", "JPEG", "MPO", "PNG", "TIFF", "WEBP")
"""What is decoded, in Pillow's names. A phone's MPO is a JPEG."""
_NO_IMAGE = "This is not an image that is read here. Send JPEG, PNG, WebP, GIF, BMP or TIFF."


@dataclass(frozen=True)
class Upload:
    """An image as it came.

    Attributes:
        data: the file's content.
        name: as the client calls it; text for people, never the name of a file here.
    """

    data: bytes
    name: str | None = None


def decode_upload(
    upload: Upload,
    size: tuple[int, int],
    limits: Limits,
    pixel_format: PixelFormat = COLOUR,
    budget: PixelBudget | None = None,
) -> Pixels:
    """The image as ``goen score`` would give it to a gate of this image size and pixel format.

    Format and pixels are read from its header, and checked before anything is decoded.

    Raises:
        Rejected: it is no image of ``FORMATS``, has too many pixels, alone or with the others of
            its request, or is broken.
        Deferred: it is large.
    """

    def check(header: ImageHeader) -> None:
        if header.format not in FORMATS:
            raise Rejected("not_an_image", _NO_IMAGE)
        if header.decoded > limits.pixels:
            tiled = header.decoded > header.width * header.height
            raise Rejected(
                "too_many_pixels",
                f"This image has {header.width}×{header.height} pixels"
                f"{f', {header.decoded:,} values to decode' * tiled}; at most {limits.pixels:,} "
                "are read here. Send a smaller one.",
            )
        if budget is not None:
            budget.take(header.decoded)
        if header.decoded >= LARGE:
            raise Deferred(partial(_decoded, upload, size, pixel_format))

    try:
        return _decoded(upload, size, pixel_format, check)
    except DataCorrupt as error:
        if isinstance(error.__cause__, Image.DecompressionBombError):
            raise Rejected(
                "too_many_pixels",
                f"This image has more than the {limits.pixels:,} pixels that are read here. Send "
                "a smaller one.",
            ) from error
        raise Rejected("not_an_image", _NO_IMAGE) from error


def _decoded(
    upload: Upload,
    size: tuple[int, int],
    pixel_format: PixelFormat,
    check: Callable[[ImageHeader], None] = lambda header: None,
) -> Pixels:
    """The image; one that is broken is refused if its header could be read."""
    opened = False

    def checked(header: ImageHeader) -> None:
        nonlocal opened
        opened = True
        check(header)

    try:
        return read_image(upload.data, size, "This image", pixel_format, checked)
    except DataCorrupt as error:
        if opened and not isinstance(error.__cause__, Image.DecompressionBombError):
            raise Rejected("broken_image", str(error)) from error
        raise


class Bodies:
    """The bodies that a service holds in memory.

    Starlette's ``max_body_size`` bounds one body, but neither all together nor their time.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[bytes]:
        """The body, for as long as the block lasts.

        Raises:
            Rejected: it is too large, comes too slowly, is compressed, or all bodies together are
                too large.
            ClientDisconnect: the client left.
        """
        if request.headers.get("content-encoding", "identity") != "identity":
            raise Rejected("bad_request", "Send the body as it is, without a Content-Encoding.")
        length = request.headers.get("content-length", "0")
        if not length.isdigit() or int(length) > self.limits.body:  # checked by the parser
            raise self._too_large()
        parts: list[bytes] = []
        taken = 0
        try:
            try:
                async with asyncio.timeout(self.limits.body_seconds):
                    async for part in request.stream():
                        taken += len(part)
                        self.held += len(part)
                        parts.append(part)
                        if taken > self.limits.body:
                            raise self._too_large()
                        if self.held > self.limits.bodies:
                            text = "Too many large requests at once. Try again in a second."
                            raise Rejected("busy", text)
            except TimeoutError as error:
                seconds = f"{self.limits.body_seconds:g} seconds"
                raise Rejected("slow", f"The body did not come within {seconds}.") from error
            body = b"".join(parts)
            parts.clear()  # else it would be in memory twice
            yield body
        finally:
            self.held -= taken

    def _too_large(self) -> Rejected:
        most = f"{self.limits.body / MEGABYTE:g} MB"
        return Rejected("too_large", f"A request has at most {most}. Send a smaller one, or fewer.")


def is_multipart(content_type: str) -> bool:
    """Whether a body of this type holds files in parts."""
    return content_type.partition(";")[0].strip().lower() == "multipart/form-data"


def read_multipart(content_type: str, body: bytes, limits: Limits) -> list[Upload]:
    """The files of a multipart body, in memory: nothing is written to a disk.

    With python-multipart's parser of forms: Starlette's ``Request.form`` parses on the event loop,
    and writes files above 1 MB to a disk.

    Raises:
        Rejected: it is malformed, holds no file or too many, or a field that is no file.
    """
    uploads: list[Upload] = []
    ended = False

    def on_file(file: File) -> None:
        if len(uploads) == limits.images:
            raise Rejected(
                "too_many_images", f"A request holds at most {limits.images} images; send several."
            )
        assert file.file_name is not None  # else it would be a field
        assert isinstance(file.file_object, BytesIO)  # all of the body fits into the memory
        name = file.file_name.decode("utf-8", "replace")
        uploads.append(Upload(file.file_object.getvalue(), name))

    def on_field(field: Field) -> None:
        raise Rejected("bad_request", "Each part of the multipart body must be a file.")

    def on_end() -> None:
        nonlocal ended
        ended = True

    _, options = parse_options_header(content_type)
    boundary = options.get(b"boundary")
    if not boundary:
        raise Rejected("bad_request", "The multipart body has no boundary in its Content-Type.")
    config = {"MAX_MEMORY_FILE_SIZE": len(body)}
    try:
        parser = FormParser(
            "multipart/form-data", on_field, on_file, on_end, boundary=boundary, config=config
        )
        parser.write(body)
        parser.finalize()
    except (FormParserError, ValueError) as error:
        raise Rejected("bad_request", f"The multipart body is malformed: {error}.") from error
    if not ended:
        raise Rejected("bad_request", "The multipart body ends before its last boundary.")
    if not uploads:
        raise Rejected("bad_request", "The multipart body holds no file.")
    return uploads
