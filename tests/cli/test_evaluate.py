"""``goen evaluate`` as a person would type it."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from goen.cli.main import main
from goen.data import ImageSet
from goen.gate import Gate, load
from tests.own_model import LAYERS, DigitNet, digits, preprocess, trained


def write(images: ImageSet, folder: Path, *, by_class: bool = True) -> Path:
    for row, (pixels, label) in enumerate(zip(images.read(), images.labels, strict=True)):
        place = folder / images.classes[label] if by_class else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.transpose(1, 2, 0)).save(place / f"{row:04d}.png")
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("evaluate")
    p = digits()
    gate = Gate.fit(
        trained(), p.train, p.validation, detector="knn", layers=LAYERS, preprocess=preprocess
    )
    gate.save(root / "gate")
    write(p.test.take(range(80)), root / "test")
    write(p.validation.take(range(30)), root / "used")
    for name in ("noise", "photographs"):
        write(p.evaluation[name].images.take(range(30)), root / name, by_class=False)
    return root


def command(root: Path, *more: str, id_: str = "test") -> list[str]:
    model = ["--model", "tests.own_model:DigitNet", "--preprocess", "tests.own_model:preprocess"]
    return ["evaluate", str(root / "gate"), *model, "--id", str(root / id_), *more]


def test_a_table_a_page_and_the_promise(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ood = ["--near-ood", str(folders / "noise"), "--far-ood", str(folders / "photographs")]
    out = tmp_path / "out"
    assert main(command(folders, *ood, "--out", str(out))) == 0
    printed = capsys.readouterr().out
    assert "test (ID)" in printed
    assert "noise (near)" in printed
    assert "promised: at most 0.05 on average" in printed
    page = (out / "report.html").read_text()
    assert f"A gate on {folders.name}" in page  # of the folder above test
    assert "The false alarms agree with it" in page
    assert main(command(folders, *ood, "--out", str(out), "--json")) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    flagged = {r["dataset"]: r for r in rows if r["metric"] == "flagged"}
    assert flagged["noise"]["low"] <= flagged["noise"]["value"] <= flagged["noise"]["high"]
    assert {r["group"] for r in rows} == {"id", "near", "far"}


@pytest.mark.parametrize(
    ("id_", "more", "message"),
    [
        ("used", ["--ood", "noise"], "30 of its 30 images with the gate's held_out images"),
        ("test", [], "give --ood"),
        ("nowhere", ["--ood", "noise"], "neither a folder nor a known set"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    folders: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    id_: str,
    more: list[str],
    message: str,
) -> None:
    words = [str(folders / one) if one == "noise" else one for one in more]
    out = tmp_path / "out"
    assert main(command(folders, *words, "--out", str(out), id_=id_)) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_a_folder_without_class_folders_has_no_labels(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(digits().test.take(range(80, 140)), tmp_path / "loose", by_class=False)
    ood = ["--ood", str(folders / "noise"), "--out", str(tmp_path / "out")]
    words = command(folders, *ood)
    words[words.index("--id") + 1] = str(tmp_path / "loose")
    assert main(words) == 0
    captured = capsys.readouterr()
    assert "evaluated without labels" in captured.err
    assert '"metric": "accuracy"' not in (tmp_path / "out" / "results.jsonl").read_text()


def test_class_folders_that_the_gate_does_not_have_are_left_out(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(digits().test.take(range(40)), tmp_path / "mine")
    (tmp_path / "mine" / "empty class").mkdir()
    write(digits().evaluation["noise"].images.take(range(5)), tmp_path / "mine" / "other")
    out = tmp_path / "out"
    words = command(folders, "--ood", str(folders / "noise"), "--out", str(out), "--json")
    words[words.index("--id") + 1] = str(tmp_path / "mine")
    assert main(words) == 0
    captured = capsys.readouterr()
    assert "not among the classes and are left out: empty class, other" in captured.err
    assert "evaluated without labels" not in captured.err
    rows = [json.loads(line) for line in captured.out.splitlines()]
    assert "scoring test, 40 images" in captured.err
    assert any(row["metric"] == "accuracy" for row in rows)


def test_images_of_some_of_the_classes_are_enough(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = digits().test
    images = test.take(np.flatnonzero(np.isin(test.labels, (1, 4)))[:40])
    write(images, tmp_path / "some")
    words = command(folders, "--ood", str(folders / "noise"), "--out", str(tmp_path / "out"))
    words[words.index("--id") + 1] = str(tmp_path / "some")
    assert main([*words, "--json"]) == 0
    captured = capsys.readouterr()
    assert "A gate on some" in (tmp_path / "out" / "report.html").read_text()
    assert f"some has no folder for 5 of 7 classes: {test.classes[0]}, " in captured.err
    rows = [json.loads(line) for line in captured.out.splitlines()]
    gate = load(folders / "gate", DigitNet(), preprocess)
    right = float((gate.predict(images).label == images.labels).mean())
    assert right > 0.5
    assert next(r["value"] for r in rows if r["metric"] == "accuracy") == pytest.approx(right)


def test_a_gate_of_features(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 2
    z = (rng.normal(size=(600, 4)) + 3 * labels[:, None]).astype(np.float32)
    logits = np.stack([-z.sum(1), z.sum(1)], 1)
    gate = Gate.fit_outputs(
        {"z": z[:300], "logits": logits[:300]},
        labels[:300],
        {"z": z[300:450], "logits": logits[300:450]},
        detector="knn",
        classes=["a", "b"],
    )
    gate.save(tmp_path / "gate")
    np.savez(tmp_path / "test.npz", z=z[450:], logits=logits[450:], labels=labels[450:])
    far = (rng.normal(size=(50, 4)) * np.array([1, -1, 1, -1]) + [9, -9, 9, -9]).astype(np.float32)
    np.savez(tmp_path / "ood.npz", z=far, logits=np.zeros((50, 2), np.float32))
    words = ["evaluate", str(tmp_path / "gate"), "--id", str(tmp_path / "test.npz")]
    words += ["--ood", str(tmp_path / "ood.npz"), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert "test (ID)" in capsys.readouterr().out
