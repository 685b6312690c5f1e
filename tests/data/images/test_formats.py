import io
import os
import re
import struct
import subprocess
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import goen
from goen.data.images.decoding import read_image, read_thumbnail
from goen.data.images.formats import FORMATS, SUFFIXES, count_scans, open_image
from goen.errors import DataCorrupt
from tests.data.encoded import COLOUR, encoded


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    with pytest.raises(DataCorrupt, match=r"bomb\.png .*(60000|pixels)"):
        read_image(bomb, (32, 32), "bomb.png")
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    milder = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as programs do that read maps
    with pytest.raises(DataCorrupt, match="20000×20000 pixels; at most 178,956,970 are read"):
        read_image(milder, (32, 32), "large.png")


def jpeg_with_scans(more: int) -> bytes:
    """A progressive JPEG of six scans, and its last one so often again."""
    whole = encoded(Image.new("L", (64, 48), 128), "JPEG", progressive=True)
    last = whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + last * more + whole[-2:]


@pytest.mark.parametrize("at_once", [1, 7, 1 << 20])
def test_the_scans_of_a_jpeg_are_counted(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goen.data.images.formats._READ_AT_ONCE", at_once)
    grey, colour = Image.new("L", (64, 48), 128), Image.fromarray(COLOUR)
    cases = {
        encoded(colour, "JPEG"): 1,
        encoded(grey, "JPEG", progressive=True): 6,
        encoded(colour, "JPEG", progressive=True): 10,
        jpeg_with_scans(30): 36,
        encoded(colour, "PNG") + jpeg_with_scans(0): 0,
    }
    for data, scans in cases.items():
        with open_image(io.BytesIO(data)) as image:
            assert count_scans(image) == scans
            image.load()  # the file is where it was
            assert count_scans(image) in (0, scans)  # Pillow closes it, or not


def test_a_jpeg_of_thousands_of_scans_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    assert read_image(jpeg_with_scans(100)).shape == (3, 48, 64)
    with pytest.raises(DataCorrupt, match=r"slow\.jpg is a JPEG of 5,006 scans; at most 200"):
        read_image(jpeg_with_scans(5000), (32, 32), "slow.jpg")
    (tmp_path / "slow.jpg").write_bytes(jpeg_with_scans(5000))
    with pytest.raises(DataCorrupt, match="5,006 scans"):
        read_thumbnail(tmp_path / "slow.jpg", 16)
    with (
        Image.open(tmp_path / "slow.jpg") as image,
        pytest.raises(DataCorrupt, match="5,006 scans"),
    ):
        read_image(image, (32, 32))


def bmp_of_run_lengths(width: int, height: int) -> bytes:
    """A BMP with white in each row's first pixel."""
    colours = b"".join(bytes((n, n, n, 0)) for n in range(256))
    rows = b"\x01\xff\x00\x00" * height + b"\x00\x01"
    start = 14 + 40 + len(colours)
    about = struct.pack("<LllHHLLllLL", 40, width, height, 1, 8, 1, len(rows), 0, 0, 256, 0)
    head = b"BM" + struct.pack("<LHHL", start + len(rows), 0, 0, start)
    return head + about + colours + rows


def test_a_large_bmp_of_run_lengths_is_refused_before_it_is_decoded() -> None:
    small = read_image(bmp_of_run_lengths(5, 4))
    assert small.shape == (3, 4, 5)
    assert (small[:, :, 0] == 255).all()
    assert (small[:, :, 1:] == 0).all()
    with pytest.raises(DataCorrupt, match=r"slow\.bmp is a run-length encoded BMP of 10,001,000 "):
        read_image(bmp_of_run_lengths(10_001_000, 1), (8, 8), "slow.bmp")
    plain = encoded(Image.new("L", (3200, 3200), 9), "BMP")
    assert (read_image(plain, (2, 2)) == 9).all()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])
def test_a_file_cut_anywhere_or_scrambled_is_one_kind_of_error(form: str) -> None:
    whole = encoded(Image.fromarray(COLOUR), form)
    rng = np.random.default_rng(1)
    for cut in rng.integers(0, len(whole) - 1, 60):
        try:
            read_image(whole[:cut], (8, 8), "cut")
        except DataCorrupt as error:
            assert "cut" in str(error)
    for _ in range(120):
        broken = np.frombuffer(whole, np.uint8).copy()
        broken[rng.integers(0, len(broken), 4)] = rng.integers(0, 256, 4)
        try:
            assert read_image(broken.tobytes(), (8, 8)).shape == (3, 8, 8)
        except DataCorrupt:
            continue


Image.init()
OTHERS = sorted(set(Image.OPEN) - set(FORMATS))


def test_the_formats_are_those_of_the_suffixes() -> None:
    assert {Image.registered_extensions()[suffix] for suffix in SUFFIXES} == set(FORMATS)


@pytest.mark.parametrize("form", OTHERS)
def test_no_other_decoder_is_reached(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reached(*_: object) -> Image.Image:
        pytest.fail(f"the decoder of {form} was asked")

    for name in OTHERS:  # one that takes everything, and one that nobody may ask
        accept = (lambda prefix: True) if name == form else None
        monkeypatch.setitem(Image.OPEN, name, (reached, accept))
    for name in ("cat.png", "cat.jpg", "cat"):
        (tmp_path / name).write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n" + bytes(200))
        with pytest.raises(DataCorrupt, match=rf"{name} is not an image that goen reads \(BMP, "):
            read_image(tmp_path / name, (32, 32))
    with pytest.raises(DataCorrupt, match="is not an image that goen reads"):
        read_image((tmp_path / "cat").read_bytes(), None)


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
0 0 8 8 rectfill
showpage
%%EOF
"""


@pytest.mark.parametrize("name", ["cat.png", "cat.jpg", "cat.eps", "cat"])
def test_an_eps_file_starts_no_other_program(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object, **__: object) -> None:
        pytest.fail("another program was started")

    for function in ("Popen", "run", "call", "check_call", "check_output"):
        monkeypatch.setattr(subprocess, function, started)
    monkeypatch.setattr(os, "system", started)
    (tmp_path / name).write_bytes(EPS)
    with pytest.raises(DataCorrupt, match=rf"{name} is not an image that goen reads"):
        read_image(tmp_path / name, (32, 32))


@pytest.mark.parametrize("form", ["AVIF", "ICO", "JPEG2000", "TGA", "PCX", "SGI", "DDS"])
def test_a_whole_image_of_another_format_is_refused(form: str) -> None:
    if form not in Image.SAVE:
        pytest.skip(f"this Pillow cannot write {form}")
    data = encoded(Image.fromarray(COLOUR).resize((16, 16)), form)
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == form
    with pytest.raises(DataCorrupt, match=r"BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP\)\. Convert it"):
        read_image(data, None)


def test_the_images_of_phones_are_jpegs() -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "MPO", save_all=True, append_images=frames[1:])
    with Image.open(io.BytesIO(data)) as image:
        assert image.format == "MPO"
    red, green, blue = read_image(data, None)[:, 0, 0].tolist()
    assert red > 250
    assert max(green, blue) < 5


@pytest.mark.parametrize("form", ["GIF", "TIFF", "WEBP"])
def test_of_many_frames_the_first_alone_is_read(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue", "lime")]
    extra = {"lossless": True} if form == "WEBP" else {}
    data = encoded(frames[0], form, save_all=True, append_images=frames[1:], **extra)
    with Image.open(io.BytesIO(data)) as image:
        assert getattr(image, "n_frames", 1) == 3
        kind = type(image)
    asked: list[int] = []
    seek = kind.seek

    def noted(self: Image.Image, frame: int) -> None:
        asked.append(frame)
        seek(self, frame)

    monkeypatch.setattr(kind, "seek", noted)
    assert read_image(data, None)[:, 0, 0].tolist() == [255, 0, 0]
    assert not any(asked)


def test_images_are_opened_in_one_place() -> None:
    root = Path(goen.__file__).parent
    places = [
        path.name
        for path in root.rglob("*.py")
        for _ in re.findall(r"\bImage\.open\(|\bimread\(|import open as", path.read_text())
    ]
    assert places == ["formats.py"]


def test_text_and_absence_have_their_sentences(tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match=r"note\.png is not an image"):
        read_image(b"hello", None, "note.png")
    with pytest.raises(DataCorrupt, match=r"gone\.png does not exist"):
        read_image(tmp_path / "gone.png", None)


def test_what_is_no_file_is_said_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "round.png").symlink_to(tmp_path / "round.png")
    for name in ("pipe.png", "folder.png"):
        with pytest.raises(DataCorrupt, match=rf"{name} is not a file"):
            read_image(tmp_path / name, None)
    with pytest.raises(DataCorrupt, match=r"cannot be opened: Too many levels of symbolic links"):
        read_image(tmp_path / "round.png", None)


def test_reading_in_threads_leaves_the_warning_filters_alone() -> None:
    before = list(warnings.filters), warnings.showwarning
    odd = encoded(Image.fromarray(COLOUR), "TIFF")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: read_image(odd, (8, 8)), range(300)))
    assert (list(warnings.filters), warnings.showwarning) == before
