from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from goen.data import load_set
from goen.data.images.decoding import read_image
from goen.data.images.pixel_format import COLOUR, GREY, PixelFormat
from goen.data.sets.folders import (
    image_size,
    open_folder,
    open_image_set,
    open_part,
    pixel_formats_of_set,
)
from goen.errors import DataCorrupt, UsageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two images of cats, one of a dog."""
    root = tmp_path / "animals"
    for number, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png")):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 10), (40 * number, 0, 0)).save(path)
    return root


def test_class_folders_are_a_labelled_set(folder: Path) -> None:
    images = open_image_set(str(folder), None, None)
    assert images.name == "animals"
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [0, 0, 1]
    assert images.image_shape == (3, 10, 12)
    assert open_image_set(str(folder), (8, 8), None).image_shape == (3, 8, 8)


def test_an_opened_folder_is_a_set(folder: Path) -> None:
    images = open_folder(folder)
    assert (images.name, images.classes) == ("animals", ("cat", "dog"))
    assert open_folder(str(folder), size=(8, 6)).image_shape == (3, 8, 6)
    other = open_folder(folder, classes=("mouse", "dog", "cat"))
    assert (other.labels.tolist(), other.classes) == ([1, 2, 2], ("mouse", "dog", "cat"))
    flat = open_folder(folder / "cat", pixel_format=GREY)
    assert (flat.name, flat.classes, flat.image_shape) == ("cat", ("cat",), (1, 10, 12))
    with pytest.raises(UsageError, match=r"is neither a folder nor a known set"):
        open_folder(folder / "nothing")


def test_files_that_cannot_be_read_are_left_out_with_a_warning(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = open_image_set(str(folder), None, None)
    files = whole.files()
    for number in range(12):
        (folder / "cat" / f"0{number:02}.png").write_bytes(b"no image")  # the first in the folder
    for _ in range(2):  # the second time they lie prepared
        caplog.clear()
        images = open_image_set(str(folder), None, None)
        assert images.fingerprint == whole.fingerprint
        (message,) = caplog.messages
        assert message == (
            f"{folder}: 12 files cannot be read and are left out: "
            f"{', '.join(f'cat/0{n:02}.png' for n in range(10))}, ...."
        )
    assert images.files() == files
    assert images.take([2, 0]).files() == [files[2], files[0]]
    assert images.take([2, 0]).files([1]) == [files[0]]
    assert whole.files() == []  # the folder has others by now
    assert image_size(str(folder), COLOUR) == (10, 12)
    assert pixel_formats_of_set(str(folder)) == [COLOUR, GREY]
    (folder / "cat" / "001.png").unlink()
    caplog.clear()
    alone = open_image_set(str(folder / "cat"), None, ())
    assert len(alone.files()) == len(alone) == 2
    assert "11 files cannot be read" in caplog.text


def test_a_folder_without_an_image_that_can_be_read_is_an_error(folder: Path) -> None:
    for file in folder.glob("*/*.png"):
        file.write_bytes(b"no image")
    with pytest.raises(DataCorrupt, match=r"3 images cannot be read\. .*1\.png is not an image"):
        open_image_set(str(folder), None, None)
    with pytest.raises(DataCorrupt, match=r"1\.png is not an image that goen reads"):
        image_size(str(folder), COLOUR)


def test_images_outside_of_class_folders_are_said_to_be_left_out(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "loose.PNG").touch()
    (folder / "notes.txt").touch()
    assert len(open_image_set(str(folder), None, None)) == 3
    (message,) = caplog.messages
    assert message.endswith(f"{folder.name}: images outside of class folders are left out: 1")


def test_the_classes_decide_the_numbers_and_others_are_left_out(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    turned = open_image_set(str(folder), None, ("dog", "cat"))
    assert turned.classes == ("dog", "cat")
    assert sorted(turned.labels.tolist()) == [0, 1, 1]
    assert not caplog.messages
    dogs = open_image_set(str(folder), None, ("dog",))
    assert len(dogs) == 1
    (message,) = caplog.messages
    assert message.endswith("these folders are not among the classes and are left out: cat")


def test_a_part_of_the_images_may_lack_classes(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    classes = ("dog", "cow", "cat")
    part = open_part(str(folder), None, classes, COLOUR)
    assert caplog.messages == [f"{folder} has no folder for 1 of 3 classes: cow"]
    assert part.classes == classes
    whole = open_image_set(str(folder), None, ("cat", "dog"))
    assert part.labels.tolist() == [0, 2, 2]
    assert np.isin(part.digests[1:], whole.digests[whole.labels == 0]).all()
    caplog.clear()
    every = open_part(str(folder), None, ("dog", "cat"), COLOUR)
    assert not caplog.messages
    assert every.fingerprint == open_image_set(str(folder), None, ("dog", "cat")).fingerprint


def test_a_part_needs_one_of_the_classes(folder: Path) -> None:
    with pytest.raises(DataCorrupt, match=r"no folder for class 'cow'; its folders: cat, dog\."):
        open_part(str(folder), None, ("cow", "hen"), COLOUR)


def test_ten_folders_that_are_left_out_are_named(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(12):
        (folder / f"more{number:02}").mkdir()
        Image.new("RGB", (12, 10), (0, 0, 9 * number)).save(folder / f"more{number:02}" / "1.png")
    assert len(open_image_set(str(folder), None, ("dog", "cat"))) == 3
    (message,) = caplog.messages
    assert message.endswith(f": {', '.join(f'more{number:02}' for number in range(10))}")


def test_folders_that_are_not_among_the_classes_do_not_decide_how_images_are_read(
    folder: Path,
) -> None:
    (folder / "bad").mkdir()
    with pytest.raises(DataCorrupt, match=r"bad holds no images\. Put images there"):
        pixel_formats_of_set(str(folder))
    Image.new("L", (3, 4)).save(folder / "bad" / "1.png")
    assert image_size(str(folder), GREY) == (4, 3)
    (folder / "bad" / "1.png").unlink()
    assert pixel_formats_of_set(str(folder), ("dog", "cat")) == pixel_formats_of_set(
        str(folder), ("cat",)
    )
    assert image_size(str(folder), GREY, ("dog", "cat")) == (10, 12)


@pytest.mark.parametrize("classes", [None, (), ("dog", "cat")])
def test_how_many_files_are_no_images_is_logged(
    classes: tuple[str, ...] | None, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="goen")
    (folder / "cat" / "notes.txt").touch()
    (folder / "dog" / "1.png").rename(folder / "dog" / "without_ending")
    assert len(open_image_set(str(folder), None, classes)) == 3
    skipped = "1 file skipped, not in a format that goen reads (1 .txt)"
    assert f"{folder}: {skipped}" in caplog.messages


def test_images_of_different_sizes_are_a_warning_unless_a_size_is_given(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # on its side: upright it has the size of the others
    Image.new("RGB", (10, 12), (9, 9, 9)).save(folder / "cat" / "3.png", exif=exif)
    assert open_image_set(str(folder), None, None).image_shape == (3, 10, 12)
    assert not caplog.messages
    Image.new("RGB", (10, 12), (8, 8, 8)).save(folder / "dog" / "2.png")
    assert open_image_set(str(folder), (10, 12), None).image_shape == (3, 10, 12)
    assert not caplog.messages
    for classes in (None, ()):
        open_image_set(str(folder), None, classes)
        (message,) = caplog.messages
        assert message.startswith("The images differ in size: ")
        assert f"{Path('dog', '2.png')} has 12×10. All are resized to 10×12, the size" in message
        caplog.clear()


def test_without_classes_all_images_are_one(folder: Path) -> None:
    images = open_image_set(str(folder), None, ())
    assert len(images) == 3
    assert images.classes == ("animals",)


def test_a_known_set_is_taken_by_its_name() -> None:
    digits = load_set("digits")
    found = open_image_set("digits", (32, 32), None)
    assert np.array_equal(found.read(range(5)), digits.read(range(5)))
    sevens = open_image_set("digits", None, ("7", "3"))
    assert sevens.classes == ("7", "3")
    with pytest.raises(UsageError, match=r"has images of 32×32, and 8×8 are needed"):
        open_image_set("digits", (8, 8), None)


def test_what_is_neither_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere is neither a folder nor a known set \(.*svhn"):
        open_image_set("nowhere", None, None)
    with pytest.raises(UsageError, match="has no class folders"):
        open_image_set(str(tmp_path), None, None)


@pytest.mark.parametrize("classes", [None, ("dog", "cat"), ("dog",)])
def test_every_image_of_a_folder_has_its_file(
    folder: Path, classes: tuple[str, ...] | None
) -> None:
    (folder / "cat" / "more").mkdir()
    Image.new("RGB", (12, 10), "blue").save(folder / "cat" / "more" / "0.png")
    images = open_image_set(str(folder), None, classes)
    files = images.files()
    assert len(files) == len(images)
    for pixels, file in zip(images.read(), files, strict=True):
        assert (read_image(file) == pixels).all()


def test_what_is_no_set_has_one_pixel_format_and_whoever_opens_it_gets_the_reason(
    folder: Path, tmp_path: Path
) -> None:
    for name in ("digits", tmp_path / "nowhere.npy", tmp_path / "nowhere"):
        assert pixel_formats_of_set(str(name)) == [COLOUR]
    for name in (folder, folder / "cat", folder / "cat" / "1.png"):
        assert pixel_formats_of_set(str(name)) == [COLOUR, GREY]
    array_named = folder.rename(tmp_path / "animals.npy")  # a folder all the same
    assert image_size(str(array_named), COLOUR) == (10, 12)


def test_a_known_set_has_no_files() -> None:
    assert load_set("digits").files() == []


def test_arrays_in_class_folders_are_a_set_if_there_are_no_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tiles = rng.integers(0, 65536, (4, 13, 6, 8), dtype=np.uint16)
    for number, tile in enumerate(tiles):
        folder = tmp_path / "tiles" / ("field" if number < 3 else "town")
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{number}.npy", tile if number % 2 else tile.transpose(1, 2, 0))
    name = str(tmp_path / "tiles")
    form = PixelFormat(13, 16)
    # The first is (6, 8, 13): the shorter end comes first, and the model decides.
    assert pixel_formats_of_set(name) == [PixelFormat(6, 16), form]
    assert image_size(name, form) == (6, 8)
    images = open_image_set(name, None, None, form)
    assert images.classes == ("field", "town")
    assert images.labels.tolist() == [0, 0, 0, 1]
    assert np.array_equal(images.read(), tiles)
    assert len(images.files()) == 4
    assert open_image_set(name, (5, 7), None, form).image_shape == (13, 5, 7)
    # Beside images they are not: a set of images is what it was.
    for folder in ("field", "town"):
        Image.new("RGB", (8, 6)).save(tmp_path / "tiles" / folder / "plot.png")
    assert len(open_image_set(name, None, None)) == 2


def test_a_stack_with_labels_is_a_set(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stack = rng.integers(0, 256, (6, 2, 4, 5), dtype=np.uint8)
    names = np.array(["cat", "dog", "eel"])
    labels = np.array([2, 0, 1, 0, 2, 1])
    form = PixelFormat(2)
    np.savez(tmp_path / "names.npz", images=stack, labels=names[labels])
    np.savez(tmp_path / "numbers.npz", images=stack, labels=labels, names=names)
    for file in ("names", "numbers"):
        images = open_image_set(str(tmp_path / f"{file}.npz"), None, None, form)
        assert images.classes == ("cat", "dog", "eel")
        assert images.labels.tolist() == labels.tolist()
        assert np.array_equal(images.read(), stack)
        some = open_image_set(str(tmp_path / f"{file}.npz"), (2, 2), ("eel", "dog"), form)
        assert some.labels.tolist() == [0, 1, 0, 1]
        assert some.image_shape == (2, 2, 2)
    np.savez(tmp_path / "plain.npz", images=stack, labels=labels)
    assert open_image_set(str(tmp_path / "plain.npz"), None, None, form).classes == ("0", "1", "2")
    np.save(tmp_path / "other.npy", stack)
    other = open_image_set(str(tmp_path / "other.npy"), None, (), form)
    assert other.classes == ("other",)
    assert len(other) == 6
    with pytest.raises(DataCorrupt, match="has no labels: give an NPZ file"):
        open_image_set(str(tmp_path / "other.npy"), None, None, form)
    with pytest.raises(DataCorrupt, match="has no images of the classes cow"):
        open_image_set(str(tmp_path / "names.npz"), None, ("cow",), form)
