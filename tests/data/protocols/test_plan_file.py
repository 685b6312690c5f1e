"""Protocol files: what is written is read, and what cannot be meant is named."""

from dataclasses import replace
from pathlib import Path

import pytest

from goen.data.images.pixel_format import PixelFormat
from goen.data.protocols.plan import Plan
from goen.data.protocols.plan_file import read_plan, write_plan
from goen.errors import UsageError
from tests.data.protocols.folders import write_classes, write_images


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_classes(tmp_path / "my photos", {"a": 1, "b": 1})
    write_images(tmp_path / 'odd "name"', 1)
    return tmp_path / "my photos"


def written(tmp_path: Path, text: str) -> Path:
    (tmp_path / "p.toml").write_text(text)
    return tmp_path / "p.toml"


def test_what_is_written_is_read(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = photos.parent
    monkeypatch.chdir(folder)
    plan = Plan.of_folder(
        Path("my photos"),
        {"ood": ['odd "name"'], "far": ["svhn"]},
        calibration=["noise", 'odd "name"'],
    )
    plan = replace(plan, name="päper", size=(32, 48), flip=False, classes=("b", "a"), test=0.25)
    (folder / "below").mkdir()
    path = folder / "below" / "p.toml"
    write_plan(plan, path)
    found = read_plan(path)
    assert found.ood["far"] == {"svhn": "svhn"}
    assert found.calibration is not None
    assert list(found.calibration) == ["noise", 'odd "name"']
    assert found.calibration["noise"] is None
    for place in (found.train, found.ood["ood"]['odd "name"'], found.calibration['odd "name"']):
        assert Path(str(place)).is_dir()
    assert (found.name, found.size, found.flip) == ("päper", (32, 48), False)
    assert (found.classes, found.test, found.validation) == (("b", "a"), 0.25, None)
    with pytest.raises(UsageError, match="overwrite"):
        write_plan(plan, path)
    with pytest.raises(UsageError, match=r"ends in \.toml"):
        write_plan(plan, folder / "p.txt")


def test_a_small_file_has_the_defaults(photos: Path) -> None:
    found = read_plan(written(photos.parent, '[id]\nfolder = "my photos"\n'))
    assert (found.name, found.flip, found.size, found.calibration) == ("p", True, None, None)
    assert found.train == photos
    text = '[id]\ntrain = "my photos"\ntest = "digits"\nvalidation = 0.5\n[calibration]\n'
    found = read_plan(written(photos.parent, f"channels = 5\nbits = 16\nsize = 64\n{text}"))
    assert (found.validation, found.test, found.calibration) == (0.5, "digits", {})
    assert (found.size, found.pixel_format) == ((64, 64), PixelFormat(5, 16))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[id]\nfoldr = 'x'", r"p.toml: Unknown key in \[id\] 'foldr'. Did you mean 'folder'"),
        ("nme = 'x'\n[id]\nfolder = 'my photos'", "Unknown key 'nme'. Did you mean 'name'"),
        ("[ood.nea]\na = 'x'\n[id]\ntrain = 'x'", "Unknown group of OOD sets 'nea'. Did you"),
        ("[id]", r"\[id\] has a folder of class folders, or train"),
        ("[id]\nfolder = 'a'\ntrain = 'b'", r"\[id\] has a folder of class folders, or train"),
        ("[id]\nfolder = 'nowhere'", "nowhere is not a folder"),
        ("[id]\ntrain = 3", "id.train is a path in quotes, got 3"),
        ("[id]\ntrain = 'https://a/b'", "id.train is a path in quotes"),
        ("[id]\ntrain = 'x'\nclasses = [1]", "id.classes is a list of names"),
        ("size = true\n[id]\ntrain = 'x'", "size is a number of pixels"),
        ("size = [3]\n[id]\ntrain = 'x'", "size is a number of pixels"),
        ("flip = 'no'\n[id]\ntrain = 'x'", "flip is true or false, got 'no'"),
        ("ood = 3\n[id]\ntrain = 'x'", "ood is a table, got 3"),
        ("[calibration]\nsvhn = true\n[id]\ntrain = 'x'", "calibration.svhn is a path in quotes"),
        ("[id", "is not a TOML file"),
        ("a = " + "[" * 5000, "is not a TOML file"),
        ("#" * 1_100_000, "more than 1,048,576 bytes"),
    ],
)
def test_mistakes_are_named(photos: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_plan(written(photos.parent, text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"p\.toml cannot be read"):
        read_plan(tmp_path / "p.toml")
