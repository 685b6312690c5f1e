import io
import os
import re
import shutil
import struct
import subprocess
import tracemalloc
import warnings
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from time import sleep

import numpy as np
import pytest
from PIL import Image

import goen
from goen.data.byte_budget import ByteBudget
from goen.data.find_pictures import describe_skipped, find_pictures
from goen.data.forms import GREY, PixelForm
from goen.data.open_picture import FORMATS, SUFFIXES
from goen.data.pictures import (
    are_pictures,
    picture_batches,
    picture_forms,
    picture_size,
    read_header,
    read_picture,
    read_thumbnail,
)
from goen.errors import DataCorrupt, UsageError

COLOUR = np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)


def encoded(picture: Image.Image, form: str = "PNG", **options: object) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, form, **options)
    return buffer.getvalue()


def test_an_rgb_png_comes_back_exactly() -> None:
    assert (read_picture(encoded(Image.fromarray(COLOUR)), None) == COLOUR.transpose(2, 0, 1)).all()


def test_a_header_is_read_without_the_pixels(tmp_path: Path) -> None:
    data = encoded(Image.fromarray(COLOUR))
    assert read_header(data[:-30], "it") == ("PNG", 20, 12)
    (tmp_path / "picture").write_bytes(encoded(Image.fromarray(COLOUR), "JPEG"))
    assert read_header(tmp_path / "picture", "it") == ("JPEG", 20, 12)
    with pytest.raises(DataCorrupt, match="it is not a picture"):
        read_header(b"text", "it")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I", "I;16", "YCbCr", "F"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    picture = Image.fromarray(COLOUR).convert("L" if mode in ("1", "I", "I;16", "F") else "RGB")
    form = "PNG" if mode in ("1", "L", "LA", "P", "RGBA", "I;16") else "TIFF"
    pixels = read_picture(encoded(picture.convert(mode), form), (8, 10))
    assert pixels.shape == (3, 8, 10)
    assert pixels.dtype == np.uint8
    assert pixels.std() > 0


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    values = np.array([[0, 257], [32896, 65535]], dtype=np.uint16)
    pixels = read_picture(encoded(Image.fromarray(values)), None)
    assert pixels[0].tolist() == [[0, 1], [128, 255]]


def test_transparency_is_over_black() -> None:
    rgba = np.zeros((1, 2, 4), np.uint8)
    rgba[0, 0] = (200, 100, 50, 0)
    rgba[0, 1] = (200, 100, 50, 255)
    pixels = read_picture(encoded(Image.fromarray(rgba)), None)
    assert pixels[:, 0, 0].tolist() == [0, 0, 0]
    assert pixels[:, 0, 1].tolist() == [200, 100, 50]


def test_the_orientation_a_camera_noted_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise to see it upright
    data = encoded(Image.fromarray(COLOUR), exif=exif)
    upright = np.rot90(COLOUR, k=-1)
    assert (read_picture(data, None) == upright.transpose(2, 0, 1)).all()


def test_of_an_animation_the_first_frame_counts() -> None:
    frames = [Image.new("RGB", (4, 4), c) for c in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert read_picture(data, None)[:, 0, 0].tolist() == [255, 0, 0]


def test_a_large_jpeg_is_resized() -> None:
    picture = Image.fromarray(COLOUR).resize((640, 480))
    assert read_picture(encoded(picture, "JPEG"), (32, 32)).shape == (3, 32, 32)


@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_a_thumbnail_is_the_picture_made_small_and_upright(form: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise to see it upright
    smooth = Image.fromarray(COLOUR).resize((1600, 1200), Image.Resampling.BICUBIC)
    (tmp_path / "p").write_bytes(encoded(smooth, form, exif=exif))
    small = read_thumbnail(tmp_path / "p", 80)
    assert small.shape == (3, 80, 60)
    assert picture_size(tmp_path / "p") == read_picture(tmp_path / "p").shape[1:] == (1600, 1200)
    expected = read_picture(tmp_path / "p", (80, 60))
    assert np.abs(small.astype(int) - expected).mean() < 4  # of 255; a turned one differs by 50
    assert np.abs(small[:, ::-1].astype(int) - expected).mean() > 30


def test_a_small_picture_is_its_own_thumbnail(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    Image.fromarray(COLOUR).save(path)
    assert (read_thumbnail(path, 20) == read_picture(path)).all()
    assert read_thumbnail(path, 5).shape == (3, 3, 5)
    assert picture_size(path) == (12, 20)
    Image.new("RGB", (500, 1), "red").save(path)
    assert read_thumbnail(path, 50).shape == (3, 1, 50)
    path.write_text("no picture")
    with pytest.raises(DataCorrupt, match=r"p\.png is not a picture"):
        read_thumbnail(path, 50)


def test_a_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    with pytest.raises(DataCorrupt, match=r"bomb\.png .*(60000|pixels)"):
        read_picture(bomb, (32, 32), "bomb.png")
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    milder = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # as programs do that read maps
    with pytest.raises(DataCorrupt, match="20000×20000 pixels; at most 178,956,970 are read"):
        read_picture(milder, (32, 32), "large.png")


def test_a_photograph_of_108_megapixels_is_read() -> None:
    picture = Image.new("L", (12_000, 9_000), 130)
    assert (read_picture(encoded(picture, "JPEG"), (8, 8)) == 130).all()


def test_the_file_format_does_not_change_the_pixels() -> None:
    rng = np.random.default_rng(3)
    for number in range(40):
        height, width = rng.integers(20, 230, 2).tolist()
        coarse = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
        jpeg = encoded(
            Image.fromarray(coarse).resize((width, height)), "JPEG", quality=70 + number % 30
        )
        whole = Image.open(io.BytesIO(jpeg)).convert("RGB")
        expected = read_picture(jpeg, (32, 32))
        # An independent antialiased resize: a triangle filter over the source pixels.
        assert np.abs(expected.astype(float) - triangle(np.asarray(whole), 32)).max() <= 1
        for form, options in (("PNG", {}), ("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True})):
            assert np.array_equal(read_picture(encoded(whole, form, **options), (32, 32)), expected)


def test_files_may_be_named_by_texts_and_a_size_has_two_sides(tmp_path: Path) -> None:
    picture = Image.fromarray(COLOUR)
    picture.save(tmp_path / "a.png")
    expected = read_picture(tmp_path / "a.png", (5, 9))
    assert np.array_equal(goen.read_picture(str(tmp_path / "a.png"), (5, 9)), expected)
    with pytest.raises(DataCorrupt, match=r"b\.png does not exist"):
        goen.read_picture(str(tmp_path / "b.png"))
    for size in [(0, 5), (5, -1), (5,), (1, 2, 3)]:
        with pytest.raises(UsageError, match=r"size is \(height, width\)"):
            goen.read_picture(picture, size)


def test_the_width_is_resized_first_in_every_version_of_pillow() -> None:
    rng = np.random.default_rng(5)
    for height, width in [(300, 20), (57, 33), (20, 300), (90, 400)]:
        picture = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        wide = picture.resize((32, height), Image.Resampling.BILINEAR)
        expected = np.asarray(wide.resize((32, 24), Image.Resampling.BILINEAR))
        assert np.array_equal(read_picture(picture, (24, 32)), expected.transpose(2, 0, 1))
        tall = picture.resize((width, 24), Image.Resampling.BILINEAR)
        other = np.asarray(tall.resize((32, 24), Image.Resampling.BILINEAR))
        assert not np.array_equal(expected, other)  # the order can be seen


def test_a_narrow_picture_is_refused_before_it_becomes_huge() -> None:
    long = encoded(Image.new("L", (1, 900_000), 9))
    with pytest.raises(DataCorrupt, match="1×900000 pixels: too narrow for its height"):
        read_picture(long, (224, 224), "long.png")
    assert (read_picture(long, (2, 16)) == 9).all()
    assert (read_picture(encoded(Image.new("L", (900_000, 1), 9)), (224, 224)) == 9).all()


def triangle(image: np.ndarray, side: int) -> np.ndarray:
    """The image resized to a square by separate triangle filters, ``(3, side, side)``."""
    out = image.astype(np.float64)
    for axis in (0, 1):
        length = out.shape[axis]
        scale = length / side
        support = max(scale, 1.0)
        centres = (np.arange(side) + 0.5) * scale
        places = np.arange(length) + 0.5
        weights = np.clip(1 - np.abs(places - centres[:, None]) / support, 0, None)
        weights /= weights.sum(axis=1, keepdims=True)
        out = np.moveaxis(np.tensordot(weights, out, (1, axis)), 0, axis)
        out = out.round() if axis else out
    return out.transpose(2, 0, 1)


@pytest.mark.parametrize("white", [1, 255, 65535])
def test_floats_are_the_same_picture_as_their_8_bits(white: int) -> None:
    for grey in (COLOUR[..., 0], COLOUR[..., 0] // 2):  # the brightest pixel is white, or is not
        values = (grey / 255 * white).astype(np.float32)
        pixels = read_picture(encoded(Image.fromarray(values), "TIFF"))
        assert (pixels == grey).all()


def test_grey_of_32_bits_is_taken_by_its_values() -> None:
    def read(values: list[list[int]]) -> list[int]:
        picture = Image.fromarray(np.array(values, np.int32))
        return read_picture(encoded(picture, "TIFF"))[0].ravel().tolist()

    assert read([[0, 100, 255]]) == [0, 100, 255]
    assert read([[0, 257, 65535]]) == [0, 1, 255]
    assert read([[-100, 0, 100]]) == [0, 128, 255]


def test_deep_grey_takes_little_more_memory_than_its_pixels() -> None:
    deep = encoded(Image.fromarray(np.full((3000, 3000), 40_000, np.uint16)))
    tracemalloc.start()
    assert (read_picture(deep, (4, 4)) == round(40_000 / 257)).all()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * 3000 * 3000  # 2 bytes twice as they come, 1 as they go, and some rows


def test_large_pictures_are_decoded_one_at_a_time() -> None:
    budget, most, lock = ByteBudget(10), [0], Lock()

    def decode(needed: int) -> None:
        with budget.hold(needed):
            with lock:
                most[0] = max(most[0], budget.used)
            sleep(0.002)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decode, [3, 4, 25, 2, 9, 1, 30, 5] * 5))
    assert budget.used == 0
    assert most[0] == 30  # alone; never 30 and anything else
    with pytest.raises(KeyError), budget.hold(7):
        raise KeyError
    assert budget.used == 0


def test_reading_in_threads_leaves_the_warning_filters_alone() -> None:
    before = list(warnings.filters), warnings.showwarning
    odd = encoded(Image.fromarray(COLOUR), "TIFF")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: read_picture(odd, (8, 8)), range(300)))
    assert (list(warnings.filters), warnings.showwarning) == before


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF"])
def test_a_file_cut_anywhere_or_scrambled_is_one_kind_of_error(form: str) -> None:
    whole = encoded(Image.fromarray(COLOUR), form)
    rng = np.random.default_rng(1)
    for cut in rng.integers(0, len(whole) - 1, 60):
        try:
            read_picture(whole[:cut], (8, 8), "cut")
        except DataCorrupt as error:
            assert "cut" in str(error)
    for _ in range(120):
        broken = np.frombuffer(whole, np.uint8).copy()
        broken[rng.integers(0, len(broken), 4)] = rng.integers(0, 256, 4)
        try:
            assert read_picture(broken.tobytes(), (8, 8)).shape == (3, 8, 8)
        except DataCorrupt:
            continue


def test_nan_in_a_picture_is_said() -> None:
    values = np.ones((4, 4), np.float32)
    values[1, 1] = np.nan
    with pytest.raises(DataCorrupt, match="NaN"):
        read_picture(encoded(Image.fromarray(values), "TIFF"), None)


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
        with pytest.raises(DataCorrupt, match=rf"{name} is not a picture that goen reads \(BMP, "):
            read_picture(tmp_path / name, (32, 32))
    with pytest.raises(DataCorrupt, match="is not a picture that goen reads"):
        read_picture((tmp_path / "cat").read_bytes(), None)


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
    with pytest.raises(DataCorrupt, match=rf"{name} is not a picture that goen reads"):
        read_picture(tmp_path / name, (32, 32))


@pytest.mark.parametrize("form", ["AVIF", "ICO", "JPEG2000", "TGA", "PCX", "SGI", "DDS"])
def test_a_whole_picture_of_another_format_is_refused(form: str) -> None:
    if form not in Image.SAVE:
        pytest.skip(f"this Pillow cannot write {form}")
    data = encoded(Image.fromarray(COLOUR).resize((16, 16)), form)
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.format == form
    with pytest.raises(DataCorrupt, match=r"BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP\)\. Convert it"):
        read_picture(data, None)


def test_the_pictures_of_phones_are_jpegs() -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], "MPO", save_all=True, append_images=frames[1:])
    with Image.open(io.BytesIO(data)) as picture:
        assert picture.format == "MPO"
    red, green, blue = read_picture(data, None)[:, 0, 0].tolist()
    assert red > 250
    assert max(green, blue) < 5


@pytest.mark.parametrize("form", ["GIF", "TIFF", "WEBP"])
def test_of_many_frames_the_first_alone_is_read(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue", "lime")]
    extra = {"lossless": True} if form == "WEBP" else {}
    data = encoded(frames[0], form, save_all=True, append_images=frames[1:], **extra)
    with Image.open(io.BytesIO(data)) as picture:
        assert getattr(picture, "n_frames", 1) == 3
        kind = type(picture)
    asked: list[int] = []
    seek = kind.seek

    def noted(self: Image.Image, frame: int) -> None:
        asked.append(frame)
        seek(self, frame)

    monkeypatch.setattr(kind, "seek", noted)
    assert read_picture(data, None)[:, 0, 0].tolist() == [255, 0, 0]
    assert not any(asked)


def test_pictures_are_opened_in_one_place() -> None:
    root = Path(goen.__file__).parent
    places = [
        path.name
        for path in root.rglob("*.py")
        for _ in re.findall(r"\bImage\.open\(|\bimread\(|import open as", path.read_text())
    ]
    assert places == ["open_picture.py"]


def test_text_and_absence_have_their_sentences(tmp_path: Path) -> None:
    with pytest.raises(DataCorrupt, match=r"note\.png is not a picture"):
        read_picture(b"hello", None, "note.png")
    with pytest.raises(DataCorrupt, match=r"gone\.png does not exist"):
        read_picture(tmp_path / "gone.png", None)


def test_what_is_no_file_is_said_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "round.png").symlink_to(tmp_path / "round.png")
    for name in ("pipe.png", "folder.png"):
        with pytest.raises(DataCorrupt, match=rf"{name} is not a file"):
            read_picture(tmp_path / name, None)
    with pytest.raises(DataCorrupt, match=r"cannot be opened: Too many levels of symbolic links"):
        read_picture(tmp_path / "round.png", None)


def test_a_transparent_colour_of_an_rgb_picture_is_over_black(tmp_path: Path) -> None:
    picture = Image.new("RGB", (2, 1), (9, 200, 9))
    picture.putpixel((1, 0), (50, 60, 70))
    picture.save(tmp_path / "t.png", transparency=(9, 200, 9))
    pixels = read_picture(tmp_path / "t.png", None)
    assert pixels[:, 0].T.tolist() == [[0, 0, 0], [50, 60, 70]]


def test_pictures_are_found_through_links_but_not_in_hidden_folders(tmp_path: Path) -> None:
    (tmp_path / "set" / ".ipynb_checkpoints").mkdir(parents=True)
    (tmp_path / "far").mkdir()
    (tmp_path / "set" / "link").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "loop").symlink_to(tmp_path / "set")
    for name in ("set/b.png", "set/a.JPG", "set/note.txt", "set/.ipynb_checkpoints/c.png",
                 "far/d.png"):  # fmt: skip
        (tmp_path / name).touch()
    found = [str(p.relative_to(tmp_path)) for p in find_pictures(tmp_path / "set")]
    assert found == ["set/a.JPG", "set/b.png", "set/link/d.png"]


def test_a_folder_that_goes_away_meanwhile_does_not_end_the_search(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").touch()
    found = []
    for file in find_pictures(tmp_path):
        found.append(file)
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
    assert found == [tmp_path / "a" / "1.png", tmp_path / "c" / "1.png"]
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        list(find_pictures(tmp_path / "b"))


def test_in_a_folder_the_content_decides_where_the_ending_does_not(tmp_path: Path) -> None:
    picture = Image.fromarray(COLOUR)
    for form, name in (("PNG", "no_ending"), ("JPEG", "photo.jpe"), ("TIFF", "scan.2024")):
        (tmp_path / name).write_bytes(encoded(picture, form))
    (tmp_path / "huge.dat").write_bytes(b"P5 99999 99999 255\n")  # refused when it is read
    damaged = encoded(picture)[:60]
    (tmp_path / "damaged.PNG").write_bytes(damaged)
    (tmp_path / "empty.png").touch()
    (tmp_path / "icon.ico").write_bytes(encoded(picture, "ICO"))
    for name in ("notes.txt", "more.TXT", "Makefile", ".hidden.png", "data.csv"):
        (tmp_path / name).write_text("no picture")
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for ever
    skipped = Counter[str]()
    found = list(find_pictures(tmp_path, skipped))
    assert [path.name for path in found] == [
        "damaged.PNG", "empty.png", "huge.dat", "no_ending", "photo.jpe", "scan.2024",
    ]  # fmt: skip
    assert skipped == {".txt": 2, ".ico": 1, ".csv": 1, "no ending": 2, "hidden": 1}
    # What is skipped in a folder is refused by name: the rule is the same.
    for path in tmp_path.iterdir():
        if path not in found and path.is_file() and not path.name.startswith("."):
            with pytest.raises(DataCorrupt, match="is not a picture that goen reads"):
                read_picture(path, None)
    for name in ("no_ending", "photo.jpe", "scan.2024"):
        assert read_picture(tmp_path / name, None).shape == (3, 12, 20)


def test_what_several_calls_pass_over_is_shared(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.png", "deep/b.png", "deep/c.txt"):
        (tmp_path / name).touch()
    skipped, passed = Counter[str](), {str(tmp_path / "a.png")}
    first = list(find_pictures(tmp_path / "deep", skipped, passed))
    assert first == [tmp_path / "deep" / "b.png"]
    assert list(find_pictures(tmp_path, skipped, passed)) == []
    assert skipped == {".txt": 1}


def test_what_was_skipped_is_described_by_its_commonest_endings() -> None:
    assert describe_skipped(Counter({".txt": 1})).startswith("1 file skipped")
    many = Counter({f".{letter}": 1000 + number for number, letter in enumerate("abcdef")})
    assert describe_skipped(many) == (
        "6,015 files skipped, not in a format that goen reads "
        "(1,005 .f, 1,004 .e, 1,003 .d, 1,002 .c, 1,001 .b, ...)"
    )


# Pictures of Pillow in place of files


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F"])
def test_a_picture_in_memory_becomes_what_its_file_becomes(mode: str) -> None:
    grey = mode in ("1", "I;16", "F")
    picture = Image.fromarray(COLOUR).convert("L" if grey else "RGB").convert(mode)
    form = "TIFF" if mode in ("CMYK", "F") else "PNG"
    before = np.array(picture)
    for size in (None, (8, 10), (30, 7)):
        expected = read_picture(encoded(picture, form), size)
        assert np.array_equal(read_picture(picture, size), expected)
        opened = Image.open(io.BytesIO(encoded(picture, form)))
        assert np.array_equal(read_picture(opened, size), expected)
    assert np.array_equal(np.array(picture), before)
    assert picture.mode == mode


def test_the_orientation_of_a_picture_in_memory_is_applied_to_a_copy() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.fromarray(COLOUR), exif=exif)
    opened = Image.open(io.BytesIO(data))
    assert np.array_equal(read_picture(opened, (9, 9)), read_picture(data, (9, 9)))
    assert opened.size == (20, 12)
    assert opened.getexif()[0x0112] == 6


def test_a_picture_in_memory_that_cannot_be_used_is_named() -> None:
    cut = Image.open(io.BytesIO(encoded(Image.fromarray(COLOUR))[:200]))
    with pytest.raises(DataCorrupt, match="picture 3 is broken or cut short"):
        read_picture(cut, (8, 8), "picture 3")
    with pytest.raises(DataCorrupt, match="20000×20000 pixels; at most"):
        read_picture(Image.new("1", (20_000, 20_000)), (8, 8))


def test_only_a_list_of_pictures_is_one() -> None:
    picture = Image.new("L", (2, 2))
    assert are_pictures([picture, picture])
    assert are_pictures((picture,))
    for other in ([], picture, [picture, np.zeros((3, 2, 2))], iter([picture]), "text"):
        assert not are_pictures(other)


def test_pictures_come_in_batches_in_their_order() -> None:
    pictures = [Image.new("L", (5, 4), grey) for grey in range(7)]
    batches = list(picture_batches(pictures, (2, 3), 3))
    assert [batch.shape for batch in batches] == [(3, 3, 2, 3), (3, 3, 2, 3), (1, 3, 2, 3)]
    assert np.concatenate(batches)[:, 0, 0, 0].tolist() == list(range(7))
    cut = Image.open(io.BytesIO(encoded(Image.fromarray(COLOUR))[:200]))
    with pytest.raises(DataCorrupt, match="picture 7 is broken"):
        list(picture_batches([*pictures, cut], (2, 3), 3))


# -- grey, 16 bits and several channels --------------------------------------------------------

DEEP = PixelForm(1, 16)


def test_grey_of_16_bits_stays_so_in_png_and_tiff(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (9, 7), dtype=np.uint16)
    for name in ("a.png", "a.tif"):
        Image.fromarray(values).save(tmp_path / name)
        assert np.array_equal(read_picture(tmp_path / name, form=DEEP), values[None])
        assert picture_forms(tmp_path / name) == [PixelForm(), DEEP]
        eight = read_picture(tmp_path / name, form=GREY)
        assert np.array_equal(eight[0], np.round(values / 257))
        # As colour it is what it was before: three equal channels of 8 bits.
        assert np.array_equal(read_picture(tmp_path / name), np.repeat(eight, 3, axis=0))


def test_grey_of_8_bits_is_one_channel(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (9, 7), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    for size in (None, (4, 5), (20, 11)):
        found = read_picture(tmp_path / "a.png", size, form=GREY)
        assert np.array_equal(found, read_picture(tmp_path / "a.png", size)[:1])
    assert np.array_equal(read_picture(tmp_path / "a.png", form=DEEP)[0], values.astype(int) * 257)
    assert picture_forms(tmp_path / "a.png") == [PixelForm(), GREY]


def test_a_grey_gate_reads_colour_as_its_luma() -> None:
    # By hand: 0.299 · 200 + 0.587 · 100 + 0.114 · 50 = 124.2
    assert (read_picture(Image.new("RGB", (2, 2), (200, 100, 50)), form=GREY) == 124).all()
    assert (read_picture(Image.new("RGB", (2, 2), (77, 77, 77)), form=GREY) == 77).all()
    half = Image.new("RGBA", (2, 2), (200, 200, 200, 128))  # over black
    assert (read_picture(half, form=GREY) == 100).all()
    assert (read_picture(Image.new("P", (2, 2), 0), form=GREY).shape) == (1, 2, 2)


def test_transparency_is_a_channel_where_four_are_needed(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (5, 6, 4), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    found = read_picture(tmp_path / "a.png", form=PixelForm(4))
    assert np.array_equal(found, values.transpose(2, 0, 1))
    assert picture_forms(tmp_path / "a.png") == [PixelForm(), PixelForm(4), GREY]
    Image.fromarray(values[..., :3]).save(tmp_path / "rgb.png")
    assert picture_forms(tmp_path / "rgb.png") == [PixelForm(), GREY]
    with pytest.raises(DataCorrupt, match=r"rgb.png has 3 channels; 4 are needed \(4 channels\)"):
        read_picture(tmp_path / "rgb.png", form=PixelForm(4))
    deep = read_picture(tmp_path / "rgb.png", form=PixelForm(3, 16))
    assert np.array_equal(deep, values[..., :3].transpose(2, 0, 1).astype(int) * 257)


def test_arrays_are_found_only_where_they_are_asked_for(tmp_path: Path) -> None:
    for name in ("a.npy", "b.NPZ", "c.png", "d.txt"):
        (tmp_path / name).touch()
    assert [p.name for p in find_pictures(tmp_path)] == ["c.png"]
    assert [p.name for p in find_pictures(tmp_path, arrays=True)] == ["a.npy", "b.NPZ", "c.png"]


def test_a_narrow_array_is_refused_before_it_is_resized(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1, 500_000, 1), np.uint8))
    with pytest.raises(DataCorrupt, match="too narrow for its height to be resized to a width"):
        read_picture(tmp_path / "a.npy", (1000, 1000), form=GREY)
