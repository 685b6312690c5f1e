"""Protocol files are written, checked and used by studies."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from goen.cli.main import main
from goen.cli.protocols import _small_classes
from goen.data import ImageSet, Protocol
from tests.data.protocols.folders import write_classes, write_images

Printed = pytest.CaptureFixture[str]


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_classes(tmp_path / "my photos", {"a": 60, "b b": 60, "rare": 4}, side=32)
    write_images(tmp_path / "screens", 20, seed=50, side=40)
    write_images(tmp_path / "textures", 20, seed=51, side=40, ending="jpg")
    return tmp_path


def test_a_protocol_file_is_written_and_checked(photos: Path, capsys: Printed) -> None:
    new = ["data", "new", "p.toml", "--id", "my photos", "--ood", "screens"]
    assert main([*new, "--far-ood", "textures", "--size", "16", "--no-flip"]) == 0
    made = Protocol.from_toml("p.toml")
    assert (made.name, made.flip, made.train.image_shape) == ("p", False, (3, 16, 16))
    assert {n: o.group for n, o in made.evaluation.items()} == {"screens": "ood", "textures": "far"}
    (photos / "my photos" / "a" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    shutil.copy(photos / "my photos" / "a" / "0-0.png", photos / "screens" / "leak.png")
    shutil.copy(photos / "my photos" / "a" / "0-1.png", photos / "my photos" / "b b" / "x.png")
    capsys.readouterr()
    assert main(["data", "check", "p.toml"]) == 1
    printed = capsys.readouterr()
    assert "classes: 3: a, b b, rare" in printed.out
    assert "images:  16×16 pixels, 3 channels of 8 bits" in printed.out
    assert "problems: 5" in printed.out
    assert "photos: 1 image lies in several classes, of which at most one is right" in printed.err
    assert "they are kept: a/0-1.png = b b/x.png." in printed.err
    assert "a/broken.png" in printed.err
    assert "left out of screens: screens/leak.png" in printed.err
    assert "fewer than 20 training images" in printed.err
    assert "rare (1)" in printed.err
    assert main(new) == 2  # it is there
    assert "overwrite" in capsys.readouterr().err


def test_a_folder_is_checked_and_near_copies_are_named(photos: Path, capsys: Printed) -> None:
    from PIL import Image

    shutil.rmtree(photos / "my photos" / "rare")
    (photos / "my photos" / "b b").rename(photos / "my photos" / "b, b")
    folder = photos / "two parts"
    shutil.copytree(photos / "my photos", folder / "train")
    write_classes(folder / "test", {"a": 20, "b, b": 20}, seed=7, side=32)
    assert main(["data", "check", "two parts"]) == 0
    printed = capsys.readouterr().out
    assert "no problems" in printed
    assert "classes: 2: a, 'b, b'\n" in printed
    first = folder / "train" / "a" / "0-7.png"
    soft = Image.open(first).resize((8, 8), Image.Resampling.BOX).resize((32, 32), 3)
    soft.save(first)
    soft.save(folder / "test" / "a" / "again.jpg", quality=95)
    assert main(["data", "check", "two parts"]) == 1
    assert "test: near-copies of training images, 1 of 41" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--data", "nowhere"], "nowhere is neither a folder, nor a protocol file"),
        (["--ood", "screens"], "--ood: these go with your own folder"),
        (["--data", "my photos", "--extra", "mnist"], "--extra: these go with cifar10"),
        (["--data", "p.toml", "--ood", "screens"], "write them into the protocol file"),
        (["--data", "my photos", "--size", "-3"], "size must be an integer, at least 0"),
    ],
)
def test_options_that_do_not_go_together_are_said(
    photos: Path, capsys: Printed, argv: list[str], message: str
) -> None:
    (photos / "p.toml").write_text("[id]\nfolder = 'my photos'\n")
    assert main(["run", *argv]) == 2
    import re

    assert re.search(message, " ".join(capsys.readouterr().err.split()))


def test_a_run_on_a_folder_makes_a_gate_that_needs_no_model(photos: Path, capsys: Printed) -> None:
    run = ["run", "--data", "my photos", "--ood", "screens", "--from-scratch", "--preset", "tiny"]
    from tests import tiny

    tiny.register()
    assert main([*run, "--size", "16"]) == 0
    summary = json.loads((photos / "runs" / "my photos" / "run.json").read_text())
    assert summary["data"] == "my photos"
    assert set(summary["calibration_ood"]) == {"noise", "augmented"}
    page = (photos / "runs" / "my photos" / "report.html").read_text()
    assert "was fitted without OOD images" in page  # generated ones do not fit the gate's detector
    capsys.readouterr()
    assert main(["score", "screens", "--gate", "runs/my photos"]) in (0, 1)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 20
    assert {row["label"] for row in rows} <= {"a", "b b", "rare"}


def test_the_table_counts_images_of_each_class_and_broken_files_once(
    photos: Path, capsys: Printed
) -> None:
    (photos / "my photos" / "a" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (photos / "screens" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (photos / "p.toml").write_text(
        "[id]\nfolder = 'my photos'\n[ood.far]\nscreens = 'screens'\n[calibration]\nnoise = true\n"
    )
    made = Protocol.from_toml("p.toml")
    assert main(["data", "check", "p.toml"]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = {words[0]: words for words in lines if len(words) > 5}
    counts = made.train.counts()
    assert len({*counts.values()}) > 1
    span = f"{min(counts.values())}-{max(counts.values())}"
    content = made.train.fingerprint[:8]
    assert rows["train"] == ["train", "training", str(len(made.train)), span, "1", content]
    assert rows["validation"][-2:] == ["0", made.validation.fingerprint[:8]]
    assert rows["test"][-2:] == ["0", made.test.fingerprint[:8]]
    assert rows["screens"][1:6] == ["evaluation,", "far", "20", "20", "1"]
    assert rows["noise"][1:3] == ["calibration,", "OOD"]


def test_a_class_of_twenty_is_large_enough() -> None:
    labels = np.repeat([0, 1], [20, 19])
    train = ImageSet("train", np.zeros((39, 3, 4, 4), np.uint8), labels, ("a", "b"))
    (sentence,) = _small_classes(train)
    assert sentence.endswith("hardly learns: b (19).")
    assert _small_classes(train.take(range(20)).of_classes(("a",), "a")) == []


@pytest.mark.parametrize("count", [5, 6])
def test_at_most_five_near_copies_are_named(photos: Path, capsys: Printed, count: int) -> None:
    from PIL import Image

    shutil.rmtree(photos / "my photos" / "rare")
    shutil.copytree(photos / "my photos", photos / "two" / "train")
    for seed, part in ((7, "test"), (8, "val")):
        write_classes(photos / "two" / part, {"a": 20, "b b": 20}, seed=seed, side=32)
    for number in range(count):
        first = photos / "two" / "train" / "a" / f"0-{number}.png"
        soft = Image.open(first).resize((8, 8), Image.Resampling.BOX).resize((32, 32), 3)
        soft.save(first)
        soft.save(photos / "two" / "test" / "a" / f"again {number}.jpg", quality=95)
    assert main(["data", "check", "two"]) == 1
    told = capsys.readouterr().err.replace("\n", " ")
    assert f"near-copies of training images, {count} of {40 + count}, " in told
    assert told.count("again ") == 5
    assert ("; a/" in told, ", ...." in told) == (True, count > 5)
