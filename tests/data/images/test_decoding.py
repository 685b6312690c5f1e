import io
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from time import sleep
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

import goen
from goen.data.images import decoding
from goen.data.images.decoding import (
    ByteBudget,
    ImageHeader,
    are_pil_images,
    image_batches,
    pixel_formats,
    read_image,
    read_image_size,
    read_thumbnail,
)
from goen.data.images.pixel_format import GREY, PixelFormat
from goen.data.images.tiff_bands import TiffBands
from goen.errors import DataCorrupt, LeakError, UsageError
from tests.data.encoded import COLOUR, encoded, tiff_of_one_tile
from tests.data.images.test_formats import bmp_of_run_lengths, jpeg_with_scans

Size = tuple[int, int] | None


def test_an_rgb_png_comes_back_exactly() -> None:
    assert (read_image(encoded(Image.fromarray(COLOUR)), None) == COLOUR.transpose(2, 0, 1)).all()


def test_a_header_is_checked_before_the_pixels_are_decoded(tmp_path: Path) -> None:
    def check(header: ImageHeader) -> None:
        raise LeakError(f"{header.format} {header.width} {header.height} {header.decoded}")

    data = encoded(Image.fromarray(COLOUR))
    with pytest.raises(LeakError, match="PNG 20 12 240"):
        read_image(data[:-30], check=check)
    (tmp_path / "image").write_bytes(encoded(Image.fromarray(COLOUR), "JPEG"))
    with pytest.raises(LeakError, match="JPEG 20 12 240"):
        read_image(tmp_path / "image", check=check)
    with pytest.raises(LeakError, match=f"TIFF 1 1 {16_384**2}"):
        read_image(tiff_of_one_tile(1, 1, (16_384, 16_384)), check=check)
    with pytest.raises(DataCorrupt, match="image is not an image"):
        read_image(b"text", check=check)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I", "I;16", "YCbCr", "F"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    image = Image.fromarray(COLOUR).convert("L" if mode in ("1", "I", "I;16", "F") else "RGB")
    form = "PNG" if mode in ("1", "L", "LA", "P", "RGBA", "I;16") else "TIFF"
    pixels = read_image(encoded(image.convert(mode), form), (8, 10))
    assert pixels.shape == (3, 8, 10)
    assert pixels.dtype == np.uint8
    assert pixels.std() > 0


def test_sixteen_bit_grey_is_scaled_not_clipped() -> None:
    values = np.array([[0, 257], [32896, 65535]], dtype=np.uint16)
    pixels = read_image(encoded(Image.fromarray(values)), None)
    assert pixels[0].tolist() == [[0, 1], [128, 255]]


def test_transparency_is_over_black() -> None:
    rgba = np.zeros((1, 2, 4), np.uint8)
    rgba[0, 0] = (200, 100, 50, 0)
    rgba[0, 1] = (200, 100, 50, 255)
    pixels = read_image(encoded(Image.fromarray(rgba)), None)
    assert pixels[:, 0, 0].tolist() == [0, 0, 0]
    assert pixels[:, 0, 1].tolist() == [200, 100, 50]


def test_the_orientation_a_camera_noted_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise to see it upright
    data = encoded(Image.fromarray(COLOUR), exif=exif)
    upright = np.rot90(COLOUR, k=-1)
    assert (read_image(data, None) == upright.transpose(2, 0, 1)).all()


def test_of_an_animation_the_first_frame_counts() -> None:
    frames = [Image.new("RGB", (4, 4), c) for c in ("red", "blue")]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert read_image(data, None)[:, 0, 0].tolist() == [255, 0, 0]


def test_a_large_jpeg_is_resized() -> None:
    image = Image.fromarray(COLOUR).resize((640, 480))
    assert read_image(encoded(image, "JPEG"), (32, 32)).shape == (3, 32, 32)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF"])
def test_a_thumbnail_is_the_image_made_small_and_upright(form: str, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise to see it upright
    smooth = Image.fromarray(COLOUR).resize((1600, 1200), Image.Resampling.BICUBIC)
    (tmp_path / "p").write_bytes(encoded(smooth, form, exif=exif))
    small = read_thumbnail(tmp_path / "p", 80)
    assert small.shape == (3, 80, 60)
    assert read_image_size(tmp_path / "p") == read_image(tmp_path / "p").shape[1:] == (1600, 1200)
    expected = read_image(tmp_path / "p", (80, 60))
    assert np.abs(small.astype(int) - expected).mean() < 4  # of 255; a turned one differs by 50
    assert np.abs(small[:, ::-1].astype(int) - expected).mean() > 30


def test_a_thumbnail_is_decoded_within_the_memory_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.fromarray(COLOUR).save(tmp_path / "p.png")
    held, load = [], PngImageFile.load

    @contextmanager
    def hold(needed: int) -> Iterator[None]:
        held.append(needed)
        yield
        held.clear()

    def loaded(image: PngImageFile) -> object:
        assert held
        return load(image)

    monkeypatch.setattr("goen.data.images.decoding._decoding", SimpleNamespace(hold=hold))
    monkeypatch.setattr(PngImageFile, "load", loaded)
    assert read_thumbnail(tmp_path / "p.png", 5).shape == (3, 3, 5)


def test_the_memory_for_an_array_is_that_of_its_values_and_of_its_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []

    def hold(needed: int) -> AbstractContextManager[None]:
        held.append(needed)
        return nullcontext()

    monkeypatch.setattr("goen.data.images.decoding._decoding", SimpleNamespace(hold=hold))
    for dtype in (np.uint8, np.uint16, np.float64):
        np.save(tmp_path / "a.npy", np.zeros((2, 4, 5), dtype))
        read_image(tmp_path / "a.npy", pixel_format=PixelFormat(2))
    assert held == [40 * (1 + 2), 40 * (2 + 2), 40 * (8 + 2)]


def test_a_small_image_is_its_own_thumbnail(tmp_path: Path) -> None:
    path = tmp_path / "p.png"
    Image.fromarray(COLOUR).save(path)
    assert (read_thumbnail(path, 20) == read_image(path)).all()
    assert read_thumbnail(path, 5).shape == (3, 3, 5)
    assert read_image_size(path) == (12, 20)
    Image.new("RGB", (500, 1), "red").save(path)
    assert read_thumbnail(path, 50).shape == (3, 1, 50)
    path.write_text("no image")
    with pytest.raises(DataCorrupt, match=r"p\.png is not an image"):
        read_thumbnail(path, 50)


def test_the_tiles_of_a_tiff_file_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (read_image(tiff_of_one_tile(20, 10, (256, 128)), None) == 0).all()
    huge = tiff_of_one_tile(1, 1, (16_384, 16_384))  # 0.3 MB that would become 268
    with pytest.raises(DataCorrupt, match="1×1 pixels in tiles of 268,435,456; at most"):
        read_image(huge, (4, 4), "tiles.tif")
    held: list[int] = []
    budget = SimpleNamespace(hold=lambda needed: (held.append(needed), nullcontext())[1])
    monkeypatch.setattr("goen.data.images.decoding._decoding", budget)
    read_image(tiff_of_one_tile(1, 1, (512, 1024)), (4, 4))
    assert held[0] >= 512 * 1024


def test_the_tiles_of_bands_count() -> None:
    tiff = TiffBands(5, 16, 3, 4, {322: 16_384, 323: 16_384, 324: 8})
    assert tiff.values_at_once == 5 * 16_384**2
    assert TiffBands(5, 16, 3, 4, {273: 8}).values_at_once == 5 * 3 * 4
    assert TiffBands(5, 16, 3, 1, {273: 8}).values_at_once == 5 * 3
    assert TiffBands(2, 8, 40, 20, {322: 16, 323: 16, 324: 8}).values_at_once == 2 * 40 * 32


def test_a_photograph_of_108_megapixels_is_read() -> None:
    image = Image.new("L", (12_000, 9_000), 130)
    assert (read_image(encoded(image, "JPEG"), (8, 8)) == 130).all()


def test_the_file_format_does_not_change_the_pixels() -> None:
    rng = np.random.default_rng(3)
    for number in range(40):
        height, width = rng.integers(20, 230, 2).tolist()
        coarse = rng.integers(0, 256, (5, 6, 3), dtype=np.uint8)
        jpeg = encoded(
            Image.fromarray(coarse).resize((width, height)), "JPEG", quality=70 + number % 30
        )
        whole = Image.open(io.BytesIO(jpeg)).convert("RGB")
        expected = read_image(jpeg, (32, 32))
        # An independent antialiased resize: a triangle filter over the source pixels.
        assert np.abs(expected.astype(float) - triangle(np.asarray(whole), 32)).max() <= 1
        for form, options in (("PNG", {}), ("BMP", {}), ("TIFF", {}), ("WEBP", {"lossless": True})):
            assert np.array_equal(read_image(encoded(whole, form, **options), (32, 32)), expected)


def test_files_may_be_named_by_texts_and_a_size_has_two_sides(tmp_path: Path) -> None:
    image = Image.fromarray(COLOUR)
    image.save(tmp_path / "a.png")
    expected = read_image(tmp_path / "a.png", (5, 9))
    assert np.array_equal(goen.read_image(str(tmp_path / "a.png"), (5, 9)), expected)
    with pytest.raises(DataCorrupt, match=r"b\.png does not exist"):
        goen.read_image(str(tmp_path / "b.png"))
    for size in [(0, 5), (5, -1), (5,), (1, 2, 3)]:
        with pytest.raises(UsageError, match=r"size is \(height, width\)"):
            goen.read_image(image, size)


def test_the_width_is_resized_first_in_every_version_of_pillow() -> None:
    rng = np.random.default_rng(5)
    for height, width in [(300, 20), (57, 33), (20, 300), (90, 400)]:
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        wide = image.resize((32, height), Image.Resampling.BILINEAR)
        expected = np.asarray(wide.resize((32, 24), Image.Resampling.BILINEAR))
        assert np.array_equal(read_image(image, (24, 32)), expected.transpose(2, 0, 1))
        tall = image.resize((width, 24), Image.Resampling.BILINEAR)
        other = np.asarray(tall.resize((32, 24), Image.Resampling.BILINEAR))
        assert not np.array_equal(expected, other)  # the order can be seen


@pytest.mark.parametrize(
    ("limit", "value", "image", "size"),
    [
        ("MAX_PIXELS", 240, encoded(Image.fromarray(COLOUR)), None),
        ("MAX_PIXELS", 2600, encoded(Image.new("L", (3, 200), 9)), (2, 13)),
        ("MAX_SCANS", 7, jpeg_with_scans(1), None),
        ("MAX_RUN_LENGTH_PIXELS", 20, bmp_of_run_lengths(5, 4), None),
    ],
)
def test_what_is_as_large_as_it_may_be_is_read(
    limit: str, value: int, image: bytes, size: Size, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, limit, value)
    assert read_image(image, size).ndim == 3
    monkeypatch.setattr(decoding, limit, value - 1)
    with pytest.raises(DataCorrupt, match=r"image has|image is a"):
        read_image(image, size)


def test_the_limits_are_those_their_reasons_speak_of() -> None:
    assert decoding.MAX_PIXELS == 2 * (2**30 // 4 // 3)  # where Pillow refuses
    assert decoding.MAX_SCANS == 200
    assert decoding.MAX_RUN_LENGTH_PIXELS == 10_000_000
    assert decoding.DECODING_BYTES == decoding._decoding.limit == 512 * 2**20


def test_a_narrow_image_is_refused_before_it_becomes_huge() -> None:
    long = encoded(Image.new("L", (1, 900_000), 9))
    with pytest.raises(DataCorrupt, match="1×900000 pixels: too narrow for its height"):
        read_image(long, (224, 224), "long.png")
    assert (read_image(long, (2, 16)) == 9).all()
    assert (read_image(encoded(Image.new("L", (900_000, 1), 9)), (224, 224)) == 9).all()


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
def test_floats_are_the_same_image_as_their_8_bits(white: int) -> None:
    for grey in (COLOUR[..., 0], COLOUR[..., 0] // 2):  # the brightest pixel is white, or is not
        values = (grey / 255 * white).astype(np.float32)
        pixels = read_image(encoded(Image.fromarray(values), "TIFF"))
        assert (pixels == grey).all()


def test_grey_of_32_bits_is_taken_by_its_values() -> None:
    def read(values: list[list[int]]) -> list[int]:
        image = Image.fromarray(np.array(values, np.int32))
        return read_image(encoded(image, "TIFF"))[0].ravel().tolist()

    assert read([[0, 100, 255]]) == [0, 100, 255]
    assert read([[0, 257, 65535]]) == [0, 1, 255]
    assert read([[-100, 0, 100]]) == [0, 128, 255]


def test_deep_grey_takes_little_more_memory_than_its_pixels() -> None:
    deep = encoded(Image.fromarray(np.full((3000, 3000), 40_000, np.uint16)))
    tracemalloc.start()
    assert (read_image(deep, (4, 4)) == round(40_000 / 257)).all()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 6 * 3000 * 3000  # 2 bytes twice as they come, 1 as they go, and some rows


def test_nan_in_an_image_is_said() -> None:
    values = np.ones((4, 4), np.float32)
    values[1, 1] = np.nan
    with pytest.raises(DataCorrupt, match="NaN"):
        read_image(encoded(Image.fromarray(values), "TIFF"), None)


def test_a_transparent_colour_of_an_rgb_image_is_over_black(tmp_path: Path) -> None:
    image = Image.new("RGB", (2, 1), (9, 200, 9))
    image.putpixel((1, 0), (50, 60, 70))
    image.save(tmp_path / "t.png", transparency=(9, 200, 9))
    pixels = read_image(tmp_path / "t.png", None)
    assert pixels[:, 0].T.tolist() == [[0, 0, 0], [50, 60, 70]]


# Images of Pillow in place of files


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16", "F"])
def test_an_image_in_memory_becomes_what_its_file_becomes(mode: str) -> None:
    grey = mode in ("1", "I;16", "F")
    image = Image.fromarray(COLOUR).convert("L" if grey else "RGB").convert(mode)
    form = "TIFF" if mode in ("CMYK", "F") else "PNG"
    before = np.array(image)
    for size in (None, (8, 10), (30, 7)):
        expected = read_image(encoded(image, form), size)
        assert np.array_equal(read_image(image, size), expected)
        opened = Image.open(io.BytesIO(encoded(image, form)))
        assert np.array_equal(read_image(opened, size), expected)
    assert np.array_equal(np.array(image), before)
    assert image.mode == mode


def test_the_orientation_of_an_image_in_memory_is_applied_to_a_copy() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(Image.fromarray(COLOUR), exif=exif)
    opened = Image.open(io.BytesIO(data))
    assert np.array_equal(read_image(opened, (9, 9)), read_image(data, (9, 9)))
    assert opened.size == (20, 12)
    assert opened.getexif()[0x0112] == 6


def test_an_image_in_memory_that_cannot_be_used_is_named() -> None:
    cut = Image.open(io.BytesIO(encoded(Image.fromarray(COLOUR))[:200]))
    with pytest.raises(DataCorrupt, match="image 3 is broken or cut short"):
        read_image(cut, (8, 8), "image 3")
    with pytest.raises(DataCorrupt, match="20000×20000 pixels; at most"):
        read_image(Image.new("1", (20_000, 20_000)), (8, 8))


def test_only_a_list_of_images_is_one() -> None:
    image = Image.new("L", (2, 2))
    assert are_pil_images([image, image])
    assert are_pil_images((image,))
    for other in ([], image, [image, np.zeros((3, 2, 2))], iter([image]), "text"):
        assert not are_pil_images(other)


def test_images_come_in_batches_in_their_order() -> None:
    images = [Image.new("L", (5, 4), grey) for grey in range(7)]
    batches = list(image_batches(images, (2, 3), 3))
    assert [batch.shape for batch in batches] == [(3, 3, 2, 3), (3, 3, 2, 3), (1, 3, 2, 3)]
    assert np.concatenate(batches)[:, 0, 0, 0].tolist() == list(range(7))
    cut = Image.open(io.BytesIO(encoded(Image.fromarray(COLOUR))[:200]))
    with pytest.raises(DataCorrupt, match="image 7 is broken"):
        list(image_batches([*images, cut], (2, 3), 3))


# -- grey, 16 bits and several channels --------------------------------------------------------

DEEP = PixelFormat(1, 16)


def test_grey_of_16_bits_stays_so_in_png_and_tiff(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 65536, (9, 7), dtype=np.uint16)
    for name in ("a.png", "a.tif"):
        Image.fromarray(values).save(tmp_path / name)
        assert np.array_equal(read_image(tmp_path / name, pixel_format=DEEP), values[None])
        assert pixel_formats(tmp_path / name) == [PixelFormat(), DEEP]
        eight = read_image(tmp_path / name, pixel_format=GREY)
        assert np.array_equal(eight[0], np.round(values / 257))
        # As colour it is what it was before: three equal channels of 8 bits.
        assert np.array_equal(read_image(tmp_path / name), np.repeat(eight, 3, axis=0))


def test_grey_of_8_bits_is_one_channel(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (9, 7), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    for size in (None, (4, 5), (20, 11)):
        found = read_image(tmp_path / "a.png", size, pixel_format=GREY)
        assert np.array_equal(found, read_image(tmp_path / "a.png", size)[:1])
    assert np.array_equal(
        read_image(tmp_path / "a.png", pixel_format=DEEP)[0], values.astype(int) * 257
    )
    assert pixel_formats(tmp_path / "a.png") == [PixelFormat(), GREY]


def test_a_grey_gate_reads_colour_as_its_luma() -> None:
    # By hand: 0.299 · 200 + 0.587 · 100 + 0.114 · 50 = 124.2
    assert (read_image(Image.new("RGB", (2, 2), (200, 100, 50)), pixel_format=GREY) == 124).all()
    assert (read_image(Image.new("RGB", (2, 2), (77, 77, 77)), pixel_format=GREY) == 77).all()
    half = Image.new("RGBA", (2, 2), (200, 200, 200, 128))  # over black
    assert (read_image(half, pixel_format=GREY) == 100).all()
    assert (read_image(Image.new("P", (2, 2), 0), pixel_format=GREY).shape) == (1, 2, 2)


def test_transparency_is_a_channel_where_four_are_needed(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (5, 6, 4), dtype=np.uint8)
    Image.fromarray(values).save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png", pixel_format=PixelFormat(4))
    assert np.array_equal(found, values.transpose(2, 0, 1))
    assert pixel_formats(tmp_path / "a.png") == [PixelFormat(), PixelFormat(4), GREY]
    Image.fromarray(values[..., :3]).save(tmp_path / "rgb.png")
    assert pixel_formats(tmp_path / "rgb.png") == [PixelFormat(), GREY]
    with pytest.raises(DataCorrupt, match=r"rgb.png has 3 channels; 4 are needed \(4 channels\)"):
        read_image(tmp_path / "rgb.png", pixel_format=PixelFormat(4))
    deep = read_image(tmp_path / "rgb.png", pixel_format=PixelFormat(3, 16))
    assert np.array_equal(deep, values[..., :3].transpose(2, 0, 1).astype(int) * 257)


def test_a_narrow_array_is_refused_before_it_is_resized(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1, 500_000, 1), np.uint8))
    with pytest.raises(DataCorrupt, match="too narrow for its height to be resized to a width"):
        read_image(tmp_path / "a.npy", (1000, 1000), pixel_format=GREY)


def test_large_images_are_decoded_one_at_a_time() -> None:
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


def test_the_shorter_side_is_resized_and_the_middle_kept(tmp_path: Path) -> None:
    image = Image.fromarray(np.arange(8 * 12 * 3, dtype=np.uint8).reshape(8, 12, 3))
    whole = np.asarray(image).transpose(2, 0, 1)
    assert np.array_equal(read_image(image, (8, 6), shorter_side=8), whole[:, :, 3:9])
    halved = np.asarray(image.resize((6, 8), 2).resize((6, 4), 2)).transpose(2, 0, 1)
    assert np.array_equal(read_image(image, (4, 3), shorter_side=4), halved[:, :, 2:5])  # 1.5: 2
    for size in (None, (9, 4)):
        with pytest.raises(UsageError, match="shorter_side is at least the size that is cropped"):
            read_image(image, size, shorter_side=8)
    Image.new("L", (1, 60_000)).save(tmp_path / "line.png")
    with pytest.raises(DataCorrupt, match="too narrow for its shorter side to be resized to 256"):
        read_image(tmp_path / "line.png", (224, 224), shorter_side=256)


def test_one_number_is_a_square() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8))
    assert (read_image(image, 5) == read_image(image, (5, 5))).all()
    assert read_image(image, 4, shorter_side=6).shape == (3, 4, 4)
    with pytest.raises(UsageError, match="one number, at least 1"):
        read_image(image, 0)
