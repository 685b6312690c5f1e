"""Folders nobody prepared: broken files, copies, other sizes and formats, few images."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from goen.data import Protocol
from goen.data.images.pixel_format import PixelFormat
from goen.data.protocols.opening import _choose_format, _sample, open_plan
from goen.data.protocols.plan import Plan
from goen.errors import DataCorrupt, UsageError
from tests.data.protocols.folders import write_classes, write_images


def contents(protocol: Protocol) -> list[set[bytes]]:
    parts = (protocol.train, protocol.validation, protocol.test)
    return [{bytes(one) for one in images.digests} for images in parts]


def test_a_folder_of_classes_is_split(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "my photos", {"a b": 200, "c": 12}, side=40)
    made = Protocol.from_folder(folder, validation=0.25, test=0.1, size=8)
    assert made.name == "my photos"
    assert made.train.classes == ("a b", "c")
    assert made.validation.counts() == {"a b": 50, "c": 3}
    assert made.test.counts() == {"a b": 20, "c": 2}
    assert made.train.image_shape == (3, 8, 8)


def test_the_split_depends_on_the_content_alone(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "one", {"a": 60, "b": 60}, side=40)
    other = tmp_path / "two"
    for number, file in enumerate(sorted(folder.rglob("*.png"))):
        target = other / file.parent.name / f"{(number * 7) % 120}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    first, second = Protocol.from_folder(folder), Protocol.from_folder(other)
    assert first.train.fingerprint == second.train.fingerprint
    assert first.held_out.fingerprint == second.held_out.fingerprint
    # At another size the pixels are others, and the split is the same.
    plans = [open_plan(Plan.of_folder(folder)), open_plan(Plan.of_folder(other))]
    small = Protocol.from_folder(folder, size=16)
    files = {
        part: sorted(plans[0].roles[part].names(range(len(plans[0].roles[part].images))))
        for part in plans[0].roles
    }
    assert len(small.test) == len(files["test"])
    shrunk = [
        np.asarray(Image.open(folder / name).resize((16, 16), Image.Resampling.BILINEAR))
        for name in files["test"]
    ]
    expected = {image.transpose(2, 0, 1).tobytes() for image in shrunk}
    assert {image.tobytes() for image in small.test.read()} == expected


def test_parts_that_are_there_are_used_and_others_are_split_off(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", {"a": 90, "b": 90}, seed=1)
    write_classes(tmp_path / "test", {"b": 10}, seed=2)
    made = Protocol.from_folder(tmp_path, size=8)
    assert made.test.counts() == {"a": 0, "b": 10}
    assert made.validation.counts() == {"a": 25, "b": 25}  # 50 of 180, each class rounded up
    assert len(made.train) == 130


def test_broken_files_are_left_out_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_classes(tmp_path / "photos", {"a": 70, "b": 70})
    (folder / "a" / "0-0.png").write_bytes(b"\x89PNG\r\n\x1a\n nothing")
    (folder / "b" / "cut.jpg").write_bytes(b"\xff\xd8\xff\xe0")
    opened = open_plan(Plan.of_folder(folder))
    assert "photos: 2 files cannot be read and are left out: a/0-0.png, b/cut.jpg." in caplog.text
    every = [name for part in opened.roles.values() for name in part.names(range(len(part.images)))]
    assert len(every) == len({*every}) == 139
    assert "a/0-0.png" not in every
    # The names are those of the images that they are read from.
    for part in opened.roles.values():
        row = len(part.images) // 2
        pixels = np.asarray(Image.open(folder / part.names([row])[0]).resize((32, 32), 2))
        assert (part.images.read([row])[0] == pixels.transpose(2, 0, 1)).all()


def test_copies_stay_in_the_first_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "photos"
    for number, part in enumerate(("train", "val", "test")):
        write_classes(folder / part, {"a": 20, "b": 20}, seed=number)
    write_images(tmp_path / "ood", 5, seed=9)
    shutil.copy(folder / "train" / "a" / "0-0.png", folder / "val" / "a" / "leak.png")
    shutil.copy(folder / "train" / "b" / "1-1.png", folder / "test" / "b" / "leak too.png")
    shutil.copy(folder / "val" / "b" / "101-1.png", tmp_path / "ood" / "also.png")
    shutil.copy(folder / "val" / "b" / "101-1.png", folder / "val" / "b" / "again.png")
    made = Protocol.from_folder(folder, [tmp_path / "ood"])
    assert [len(part) for part in contents(made)] == [40, 40, 40]
    assert (len(made.validation), len(made.test)) == (40, 40)
    assert len(made.evaluation["ood"].images) == 5
    assert "validation shares 1 of its 42 images with train, pixel for pixel" in caplog.text
    assert "left out of test: b/leak too.png." in caplog.text
    assert "left out of ood: ood/also.png." in caplog.text
    assert "validation has copies of its own images, which are left out: 1." in caplog.text


def test_a_set_of_copies_alone_is_refused(tmp_path: Path) -> None:
    folder = write_classes(tmp_path / "photos", {"a": 70, "b": 70})
    shutil.copytree(folder / "a", tmp_path / "ood")
    with pytest.raises(UsageError, match=r"ood has no image that photos.* does not have"):
        Protocol.from_folder(folder, [tmp_path / "ood"])


@pytest.mark.parametrize(
    ("side", "chosen"), [(20, 32), (64, 64), (75, 72), (300, 96)], ids=lambda n: str(n)
)
def test_the_size_is_that_of_most_images(tmp_path: Path, side: int, chosen: int) -> None:
    folder = write_classes(tmp_path / "photos", {"a": 5, "b": 5}, side=side)
    Image.new("RGB", (1000, 500)).save(folder / "a" / "large.png")
    opened = open_plan(Plan.of_folder(folder))
    assert opened.roles["train"].images.image_shape == (3, chosen, chosen)


def test_grey_images_stay_grey_and_deep(tmp_path: Path) -> None:
    folder = tmp_path / "grey"
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            pixels = rng.integers(0, 65_536, (32, 32)).astype(np.uint16)
            Image.fromarray(pixels).save(folder / name / f"{number}.tif")
    images = open_plan(Plan.of_folder(folder)).roles["train"].images
    assert (images.image_shape, images.pixels.dtype) == ((1, 32, 32), np.uint16)
    # One image in colour: all are.
    Image.new("RGB", (32, 32), (9, 8, 7)).save(folder / "a" / "colour.png")
    assert open_plan(Plan.of_folder(folder)).roles["train"].images.image_shape == (3, 32, 32)


def test_stacks_and_known_sets_are_places_too(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (150, 8, 8, 3), dtype=np.uint8)
    np.savez(tmp_path / "stack.npz", images=pixels, labels=np.arange(150) % 2, names=["x", "y"])
    (tmp_path / "p.toml").write_text(
        "[id]\ntrain = 'stack.npz'\n[ood.far]\ndigits = 'digits'\n[calibration]\nnoise = true\n"
    )
    made = Protocol.from_toml(tmp_path / "p.toml")
    assert made.train.classes == ("x", "y")
    assert made.train.image_shape == (3, 32, 32)  # the smallest
    assert list(made.calibration_ood) == ["noise"]
    assert len(made.evaluation["digits"].images) == 1797
    small = open_plan(Plan("p", tmp_path / "stack.npz", ood={"far": {"d": "digits"}}, size=(8, 8)))
    digits = small.ood["far"]["d"].images
    assert (digits.image_shape, len(digits)) == ((3, 8, 8), 1797)


def test_classes_without_images_and_too_few_images_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_classes(tmp_path / "photos", {"a": 70, "b": 70, "rare": 2})
    (folder / "empty").mkdir()
    made = Protocol.from_folder(folder)
    assert made.train.classes == ("a", "b", "rare")
    assert made.train.counts()["rare"] == 2
    assert "Too few images to split, so that all are training images: rare." in caplog.text
    assert "left out: empty" in caplog.text


def test_a_folder_without_readable_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.png").write_bytes(b"nothing")
    with pytest.raises(DataCorrupt, match=r"x\.png is not an image"):
        Protocol.from_folder(tmp_path)
    with pytest.raises(UsageError, match="is neither a folder, nor a file with a stack"):
        open_plan(Plan("p", tmp_path / "nowhere"))


def test_images_in_several_classes_are_kept_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_classes(tmp_path / "photos", {"a": 80, "b": 80}, side=32)
    shutil.copy(folder / "a" / "0-0.png", folder / "a" / "again.png")  # of one class
    assert not open_plan(Plan.of_folder(folder)).warnings
    shutil.copy(folder / "a" / "0-1.png", folder / "b" / "too.png")
    warning, *_ = open_plan(Plan.of_folder(folder)).warnings
    assert warning in caplog.text
    start = (
        "photos: 1 image lies in several classes, of which at most one is right; they are kept: "
    )
    assert warning.startswith(start)
    assert {*warning.removeprefix(start)[:-1].split(" = ")} == {"a/0-1.png", "b/too.png"}
    for number in range(2, 12):
        shutil.copy(folder / "a" / f"0-{number}.png", folder / "b" / f"copy {number}.png")
    warning, *_ = open_plan(Plan.of_folder(folder)).warnings
    assert "photos: 11 images lie in several classes" in warning
    assert warning.count(" = ") == 10


@pytest.mark.parametrize("count", [10, 11])
def test_at_most_ten_copies_are_named(tmp_path: Path, count: int) -> None:
    for seed, part in enumerate(("train", "val", "test")):
        write_classes(tmp_path / "p" / part, {"a": 20, "b": 20}, seed=seed, side=32)
    write_images(tmp_path / "ood", 3, seed=9)
    for number in range(count):
        copied = tmp_path / "p" / "train" / "a" / f"0-{number}.png"
        shutil.copy(copied, tmp_path / "ood" / f"copy {number:02}.png")
    plan = replace(Plan.of_folder(tmp_path / "p"), ood={"far": {"ood": tmp_path / "ood"}})
    opened = open_plan(plan)
    assert len(opened.ood["far"]["ood"].images) == 3
    (warning,) = opened.warnings
    assert warning.startswith(f"ood shares {count} of its {count + 3} images with train, pixel")
    assert warning.count("copy ") == 10
    assert warning.endswith(".png, ....") == (count > 10)


def write_bands(folder: Path, channels: int, dtype: str, side: int = 128) -> None:
    rng = np.random.default_rng(channels)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(4):
            pixels = rng.integers(0, np.iinfo(dtype).max, (side, side, channels)).astype(dtype)
            np.save(folder / name / f"{channels} {number}.npy", pixels)


@pytest.mark.parametrize(
    ("channels", "dtype", "chosen"),
    [
        (1, "uint8", (1, 8)),
        (2, "uint8", (3, 8)),  # with transparency, as is that of four
        (3, "uint8", (3, 8)),
        (4, "uint8", (3, 8)),
        (5, "uint8", (5, 8)),
        (2, "uint16", (2, 16)),
        (4, "uint16", (4, 16)),
    ],
)
def test_bands_are_kept_unless_they_may_be_transparency(
    tmp_path: Path, channels: int, dtype: str, chosen: tuple[int, int]
) -> None:
    write_bands(tmp_path, channels, dtype)
    found = _choose_format(tmp_path, None)
    assert (found.channels, found.bits) == chosen


def test_bands_of_different_numbers_are_read_in_colour(tmp_path: Path) -> None:
    write_bands(tmp_path, 5, "uint8")
    write_bands(tmp_path, 6, "uint8")
    assert _choose_format(tmp_path, None) == PixelFormat(3, 8)


@pytest.mark.parametrize(("channels", "side"), [(1, 96), (3, 128)])
def test_only_images_in_colour_may_be_larger_for_a_pretrained_network(
    tmp_path: Path, channels: int, side: int
) -> None:
    write_bands(tmp_path, channels, "uint8")
    opened = open_plan(Plan("p", tmp_path), largest_side=224)
    assert opened.roles["train"].images.image_shape == (channels, side, side)
    assert opened.chosen[0].startswith(f"Images are read at {side}×{side}, ")


@pytest.mark.parametrize(("count", "looked_at"), [(4, 4), (5, 3), (8, 4), (9, 3)])
def test_some_files_evenly_spread_are_looked_at(
    tmp_path: Path, count: int, looked_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.data.protocols.opening._LOOKED_AT", 4)
    write_images(tmp_path / "a", count, side=8)
    found = _sample(tmp_path, ("a", "none"))
    assert len(found) == looked_at
    assert found == sorted((tmp_path / "a").iterdir())[:: -(-count // 4)]
