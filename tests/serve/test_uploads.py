"""Images from clients: formats, limits, and multipart bodies whole and broken."""

import io
import struct
import zlib

import numpy as np
import pytest
import requests
import tifffile
from PIL import Image

from goen.data.images.decoding import read_image
from goen.data.images.pixel_format import PixelFormat
from goen.serve.rejection import Rejected
from goen.serve.settings import Limits
from goen.serve.threads import Deferred, PixelBudget
from goen.serve.uploads import FORMATS, Upload, decode_upload, is_multipart, read_multipart
from tests.data.encoded import tiff_of_one_tile
from tests.serve.running import encoded, png

IMAGE = np.random.default_rng(0).integers(0, 256, (3, 20, 30), dtype=np.uint8)


def body_of(*files: tuple[str, bytes]) -> tuple[str, bytes]:
    """The type and the content of a multipart body, made by another library."""
    made = requests.Request("POST", "http://x", files=[("f", file) for file in files]).prepare()
    assert isinstance(made.body, bytes)
    return made.headers["Content-Type"], made.body


@pytest.mark.parametrize("form", ["BMP", "GIF", "JPEG", "PNG", "TIFF", "WEBP"])
def test_an_image_is_what_goen_score_reads(form: str) -> None:
    assert form in FORMATS
    data = encoded(IMAGE, form)
    expected = read_image(data, (8, 9))
    assert np.array_equal(decode_upload(Upload(data), (8, 9), Limits()), expected)


@pytest.mark.parametrize("data", [b"", b"GIF", b"%!PS-Adobe-3.0", encoded(IMAGE, "PPM")])
def test_other_formats_are_refused(data: bytes) -> None:
    with pytest.raises(Rejected, match="Send JPEG, PNG, WebP, GIF, BMP or TIFF") as refused:
        decode_upload(Upload(data), (8, 8), Limits())
    assert refused.value.status == 415


def test_a_broken_image_is_refused() -> None:
    with pytest.raises(Rejected, match="This image is broken or cut short") as refused:
        decode_upload(Upload(png(IMAGE)[:-40]), (8, 8), Limits())
    assert refused.value.status == 422


def png_that_claims(width: int, height: int) -> bytes:
    """A header, and one byte for all of the pixels."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b""))
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def test_pixels_are_counted_before_they_are_decoded() -> None:
    # There are none to decode: a reader that began would call the image broken.
    with pytest.raises(Rejected, match="3000×2001 pixels; at most 6,000,000") as refused:
        decode_upload(Upload(png_that_claims(3000, 2001)), (8, 8), Limits(pixels=6_000_000))
    assert refused.value.status == 413
    with pytest.raises(Rejected, match="broken or cut short"):
        decode_upload(Upload(png_that_claims(1500, 1000)), (8, 8), Limits(pixels=1_500_000))
    with pytest.raises(
        Rejected, match="more than the 50,000,000 pixels that are read here"
    ) as refused:
        decode_upload(Upload(png_that_claims(60_000, 60_000)), (8, 8), Limits())
    assert refused.value.kind == "too_many_pixels"


def test_large_images_are_left_to_other_threads() -> None:
    data = np.random.default_rng(0).integers(0, 256, (3, 2000, 2000), dtype=np.uint8)
    upload = Upload(encoded(data, "BMP"))
    with pytest.raises(Deferred) as deferred:
        decode_upload(upload, (8, 9), Limits())
    found = deferred.value.work()
    assert np.array_equal(np.asarray(found), read_image(upload.data, (8, 9)))
    with pytest.raises(Deferred) as deferred:
        decode_upload(Upload(png_that_claims(2000, 2000)), (8, 8), Limits())
    with pytest.raises(Rejected, match="broken or cut short") as refused:
        deferred.value.work()
    assert refused.value.status == 422
    with pytest.raises(Rejected, match="broken or cut short"):
        decode_upload(Upload(png_that_claims(1999, 2000)), (8, 8), Limits())


def test_the_images_of_a_request_share_a_budget() -> None:
    budget = PixelBudget(2 * IMAGE[0].size)
    data = png(IMAGE)
    for _ in range(2):
        decode_upload(Upload(data), (8, 8), Limits(), budget=budget)
    with pytest.raises(Rejected, match=r"this request have more than [\d,]+ pixels tog") as refused:
        decode_upload(Upload(data), (8, 8), Limits(), budget=budget)
    assert refused.value.status == 413


def test_the_tiles_of_a_tiff_file_count() -> None:
    with pytest.raises(Rejected, match="1×1 pixels, 64,000,000 values to decode; at most 50,000,0"):
        decode_upload(Upload(tiff_of_one_tile(1, 1, (8000, 8000))), (4, 4), Limits())


@pytest.mark.parametrize(("channels", "dtype"), [(5, "uint16"), (6, "uint8"), (3, "uint16")])
def test_bands_are_what_goen_score_reads(channels: int, dtype: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 200, (6, 7, channels)).astype(dtype)
    file = io.BytesIO()
    tifffile.imwrite(file, pixels, photometric="minisblack", planarconfig="contig")
    form = PixelFormat(channels, 8 * pixels.itemsize)
    found = decode_upload(Upload(file.getvalue()), (6, 7), Limits(), form)
    assert np.array_equal(found, pixels.transpose(2, 0, 1))
    if channels != 3:
        with pytest.raises(Rejected, match=f"has {channels} channels; 3 are needed"):
            decode_upload(Upload(file.getvalue()), (6, 7), Limits())


def test_a_multipart_body_gives_its_files() -> None:
    files = [("ä.png", png(IMAGE)), ("../../etc/passwd", b"\r\n--x\r\n"), ("", b"\0" * 100_000)]
    kind, body = body_of(*files)
    assert is_multipart(kind)
    found = read_multipart(kind, body, Limits())
    assert [upload.data for upload in found] == [data for _, data in files]
    assert [upload.name for upload in found][1] == "../../etc/passwd"


def test_too_many_files_are_refused() -> None:
    kind, body = body_of(*[("a", b"b")] * 4)
    assert len(read_multipart(kind, body, Limits(images=4))) == 4
    with pytest.raises(Rejected, match="at most 3 images") as refused:
        read_multipart(kind, body, Limits(images=3))
    assert refused.value.status == 413


def test_malformed_bodies_are_refused() -> None:
    kind, body = body_of(("a.png", b"data"))
    cases = {
        "no boundary": ("multipart/form-data", body),
        "malformed": (kind, body.replace(b"--", b"++", 1)),
        "ends before": (kind, body[: len(body) // 2]),
        "must be a file": (kind, body.replace(b'; filename="a.png"', b"")),
    }
    for sentence, (given, content) in cases.items():
        with pytest.raises(Rejected, match=sentence) as refused:
            read_multipart(given, content, Limits())
        assert refused.value.status == 400
    for end in range(len(body) - 4):  # wherever it is cut
        with pytest.raises(Rejected):
            read_multipart(kind, body[:end], Limits())


def test_other_types_are_one_image() -> None:
    assert not is_multipart("application/x-www-form-urlencoded")  # curl's, unless told otherwise
    assert not is_multipart("")
    assert is_multipart('Multipart/Form-Data ; boundary="x"')


def test_a_gate_of_grey_images_reads_grey() -> None:
    deep = np.random.default_rng(0).integers(0, 65536, (20, 30), dtype=np.uint16)
    content = io.BytesIO()
    Image.fromarray(deep).save(content, "PNG")
    form = PixelFormat(1, 16)
    found = decode_upload(Upload(content.getvalue()), (20, 30), Limits(), form)
    assert np.array_equal(found, deep[None])
    grey = decode_upload(Upload(png(IMAGE)), (8, 9), Limits(), PixelFormat(1))
    assert np.array_equal(grey, read_image(png(IMAGE), (8, 9), pixel_format=PixelFormat(1)))
    with pytest.raises(Rejected, match="has 3 channels; 5 are needed"):
        decode_upload(Upload(png(IMAGE)), (8, 9), Limits(), PixelFormat(5))
