import io
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

import goen
from goen.data.images.decoding import are_pil_images, image_batches, read_image, read_thumbnail
from goen.data.images.headers import read_image_size
from goen.data.images.pixel_format import GREY, PixelFormat
from goen.data.images.tiff_bands import TiffBands
from goen.errors import DataCorrupt, UsageError
from tests.data.encoded import COLOUR, encoded, tiff_of_one_tile


def test_an_rgb_png_comes_back_exactly() -> None:
    assert (read_image(encoded(Image.fromarray(COLOUR)), None) == COLOUR.transpose(2, 0, 1)).all()


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

    monkeypatch.setattr("goen.data.images.decoding.memory", SimpleNamespace(hold=hold))
    monkeypatch.setattr(PngImageFile, "load", loaded)
    assert read_thumbnail(tmp_path / "p.png", 5).shape == (3, 3, 5)


def test_the_memory_for_an_array_is_that_of_its_values_and_of_its_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []

    def hold(needed: int) -> AbstractContextManager[None]:
        held.append(needed)
        return nullcontext()

    monkeypatch.setattr("goen.data.images.decoding.memory", SimpleNamespace(hold=hold))
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
    monkeypatch.setattr("goen.data.images.decoding.memory", budget)
    read_image(tiff_of_one_tile(1, 1, (512, 1024)), (4, 4))
    assert held[0] >= 512 * 1024


def test_the_tiles_of_bands_count() -> None:
    tiff = TiffBands(5, 16, 3, 4, {322: 16_384, 323: 16_384, 324: 8})
    assert tiff.values_at_once == 5 * 16_384**2
    assert TiffBands(5, 16, 3, 4, {273: 8}).values_at_once == 5 * 3 * 4
    assert TiffBands(5, 16, 3, 1, {273: 8}).values_at_once == 5 * 3
    assert TiffBands(2, 8, 40, 20, {322: 16, 323: 16, 324: 8}).values_at_once == 2 * 40 * 32


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


def test_a_narrow_array_is_refused_before_it_is_resized(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((1, 500_000, 1), np.uint8))
    with pytest.raises(DataCorrupt, match="too narrow for its height to be resized to a width"):
        read_image(tmp_path / "a.npy", (1000, 1000), pixel_format=GREY)


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
