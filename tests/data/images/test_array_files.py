import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from goen.data.images.array_files import read_array_header, read_labels, read_stack
from goen.data.images.decoding import read_image
from goen.data.images.headers import pixel_formats, read_image_size
from goen.data.images.limits import MAX_PIXELS
from goen.data.images.pixel_format import COLOUR, GREY, PixelFormat
from goen.errors import DataCorrupt
from goen.functional._rows import PIXEL_SLACK

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 65536, (13, 6, 8), dtype=np.uint16)
BANDS = PixelFormat(13, 16)


def saved(folder: Path, values: np.ndarray, name: str = "a.npy") -> Path:
    np.save(folder / name, values)
    return folder / name


@contextmanager
def within(most: int) -> Iterator[None]:
    """No more bytes than this are held at any moment of this block."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def header_only(shape: str, descr: str = "<u2") -> bytes:
    """An NPY file that claims much and holds nothing."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


@pytest.mark.parametrize(
    "values",
    [IMAGE, IMAGE.transpose(1, 2, 0), np.asfortranarray(IMAGE), IMAGE.astype(">u2")],
    ids=["channels first", "channels last", "Fortran", "big-endian"],
)
def test_one_image_per_file(values: np.ndarray, tmp_path: Path) -> None:
    file = saved(tmp_path, values)
    assert np.array_equal(read_image(file, pixel_format=BANDS), IMAGE)
    assert BANDS in pixel_formats(file)
    assert read_image_size(file, BANDS) == (6, 8)
    assert read_image(file, (3, 4), pixel_format=BANDS).shape == (13, 3, 4)
    np.savez_compressed(tmp_path / "a.npz", anything=values)
    assert np.array_equal(read_image(tmp_path / "a.npz", pixel_format=BANDS), IMAGE)


def test_grey_has_no_axis_and_floats_are_shares_of_white(tmp_path: Path) -> None:
    assert read_image(saved(tmp_path, IMAGE[0]), pixel_format=PixelFormat(1, 16)).shape == (1, 6, 8)
    assert read_image_size(tmp_path / "a.npy", PixelFormat(1, 16)) == (6, 8)
    assert pixel_formats(tmp_path / "a.npy") == [PixelFormat(1, 16)]
    eight = saved(tmp_path, np.full((4, 5), 7, np.uint8))
    assert pixel_formats(eight) == [GREY]
    assert (read_image(eight, pixel_format=PixelFormat(1, 16)) == 7 * 257).all()
    for dtype in (np.float16, np.float32, np.float64):
        half = saved(tmp_path, np.full((2, 4, 5), 0.5, dtype))
        assert (read_image(half, pixel_format=PixelFormat(2, 8)) == 128).all()
    for value, grey in ((-PIXEL_SLACK, 0), (1 + PIXEL_SLACK, 255)):
        assert (
            read_image(saved(tmp_path, np.full((4, 5), value)), pixel_format=GREY) == grey
        ).all()
    beyond = (-1.01 * PIXEL_SLACK, 1 + 1.01 * PIXEL_SLACK, 200.0, np.nan)
    for wrong in (np.full((4, 5), value) for value in beyond):
        with pytest.raises(DataCorrupt, match=r"float images lie in \[0, 1\]"):
            read_image(saved(tmp_path, wrong), pixel_format=GREY)


def test_an_array_is_not_converted_to_other_channels(tmp_path: Path) -> None:
    file = saved(tmp_path, IMAGE)
    for form in (COLOUR, GREY, PixelFormat(12, 16)):
        with pytest.raises(DataCorrupt, match=rf"shape \(13, 6, 8\); images of {form.channels} ch"):
            read_image(file, pixel_format=form)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header_only("(60000, 60000)"), "it ends early"),
        (header_only("(4, 5)", "|O") + bytes(160), "it holds object"),
        (header_only("(4, 5)", "<i4") + bytes(160), "it holds int32"),
        (header_only("(4, 5)", "<c8") + bytes(160), "it holds complex64"),
        (header_only("(4,)") + bytes(160), r"its shape is \(4,\)"),
        (header_only("(0, 4)"), r"its shape is \(0, 4\)"),
        (header_only("(4, 5)"), "it ends early"),
        (header_only("(4, 1, 9000, 9000)", "<f8"), "it ends early"),
        (header_only("(9000, 9000)", "<f8"), "it ends early"),
        (header_only("(-4, 5)"), "shape"),
        (b"\x93NUMPY\x09\x00", "version"),
        (b"no array at all", "magic"),
        (b"", "magic"),
    ],
    ids=range(13),
)
def test_what_is_no_image_is_refused_from_its_header(
    content: bytes, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "a.npy"
    file.write_bytes(content)
    with within(1_000_000), pytest.raises(DataCorrupt, match=message):
        read_image(file, pixel_format=PixelFormat(1, 16))


def test_images_above_a_limit_are_refused_from_their_header(tmp_path: Path) -> None:
    file = saved(tmp_path, np.zeros((3, 4, 5), np.uint8))
    assert read_array_header(file, "a", 60).shape == (3, 4, 5)
    with pytest.raises(DataCorrupt, match="a has an image of 60 values; at most 59 are read"):
        read_array_header(file, "a", 59)


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_pickled_arrays_run_nothing(tmp_path: Path) -> None:
    values = np.array([[Trap(tmp_path / "sprung")]], dtype=object)
    np.save(tmp_path / "a.npy", values, allow_pickle=True)
    np.savez(tmp_path / "a.npz", images=values, labels=values)
    for name in ("a.npy", "a.npz"):
        with pytest.raises(DataCorrupt, match="it holds object"):
            read_image(tmp_path / name, pixel_format=GREY)
    with pytest.raises(DataCorrupt):
        read_labels(tmp_path / "a.npz", 1, "a.npz")
    assert not (tmp_path / "sprung").exists()


def test_a_stack_is_read_a_few_images_at_a_time(tmp_path: Path) -> None:
    stack = RNG.integers(0, 256, (300, 2, 60, 80), dtype=np.uint8)
    np.savez_compressed(tmp_path / "s.npz", images=stack, labels=np.arange(300))
    seen = 0
    with within(stack.nbytes // 2):  # a batch is a twentieth of it; the rest are zlib's buffers
        for images in read_stack(tmp_path / "s.npz", PixelFormat(2), "s", MAX_PIXELS, 16):
            assert np.array_equal(images, stack[seen : seen + len(images)])
            seen += len(images)
    assert seen == 300
    last = saved(tmp_path, stack.transpose(0, 2, 3, 1), "s.npy")
    found = np.concatenate([*read_stack(last, PixelFormat(2), "s", MAX_PIXELS, 128)])
    assert np.array_equal(found, stack)
    with pytest.raises(DataCorrupt, match="holds 300 images; one per file was expected"):
        read_image(last, pixel_format=PixelFormat(2))
    with pytest.raises(DataCorrupt, match="in Fortran order"):
        bad = saved(tmp_path, np.asfortranarray(stack), "f.npy")
        next(read_stack(bad, PixelFormat(2), "f", MAX_PIXELS, 4))


def test_a_bomb_is_read_only_as_far_as_it_is_needed(tmp_path: Path) -> None:
    content = header_only("(40, 1, 1000, 1000)") + bytes(80_000_000)
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", content)
        archive.writestr("labels.npy", header_only("(100000000000,)", "<i8") + bytes(1_000_000))
    assert (tmp_path / "b.npz").stat().st_size < 100_000
    with within(40_000_000):
        batches = read_stack(tmp_path / "b.npz", PixelFormat(1, 16), "b", MAX_PIXELS, 4)
        assert [len(images) for images in batches] == [4] * 10
    with pytest.raises(DataCorrupt, match="it ends early"):
        read_labels(tmp_path / "b.npz", 100_000_000_000, "b")


def test_labels_are_numbers_or_names(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=IMAGE[None], labels=np.array(["cat"]), names=["x", "y"])
    labels, names = read_labels(tmp_path / "a.npz", 1, "a")
    assert labels is not None
    assert labels.tolist() == ["cat"]
    assert names == ("x", "y")
    with pytest.raises(DataCorrupt, match="2 images need as many labels"):
        read_labels(tmp_path / "a.npz", 2, "a")
    np.savez(tmp_path / "none.npz", IMAGE[None])
    assert read_labels(tmp_path / "none.npz", 1, "none") == (None, ())
    assert read_labels(saved(tmp_path, IMAGE), 1, "npy") == (None, ())
    np.savez(tmp_path / "two.npz", a=IMAGE, b=IMAGE)
    with pytest.raises(
        DataCorrupt, match=r"called images; it holds a, b\. A file of features"
    ) as caught:
        read_array_header(tmp_path / "two.npz", "two.npz", MAX_PIXELS)
    assert "broken" not in str(caught.value)
