"""``goen fit --features`` and ``goen score`` of such gates."""

import csv
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import goen
from goen.cli.main import main

CENTRES = 3 * np.eye(3, 8)


def rows(file: Path, count: int, seed: int, **more: np.ndarray) -> Path:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    features = CENTRES[labels] + 0.4 * rng.normal(size=(count, 8))
    names = np.array(["cat", "dog", "eel"])[labels]
    np.savez(file, clip=features.astype(np.float32), labels=names, **more)  # type: ignore[arg-type]
    return file


@pytest.fixture
def gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    train, held_out = rows(tmp_path / "train.npz", 300, 0), rows(tmp_path / "held.npz", 200, 1)
    command = ["fit", "--features", str(train), "--held-out", str(held_out)]
    assert main([*command, "--out", str(tmp_path / "gate")]) == 0
    assert "accuracy           1.000 on held_out" in capsys.readouterr().out
    return tmp_path / "gate"


def test_from_files_to_scores(gate: Path, tmp_path: Path) -> None:
    assert goen.load(gate).classes == ("cat", "dog", "eel")
    new, out = rows(tmp_path / "new.npz", 100, 2), tmp_path / "scores.csv"
    unlike = tmp_path / "unlike.npy"
    np.save(unlike, np.random.default_rng(3).normal(size=(50, 8)))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    files = [str(new), str(unlike), str(tmp_path / "broken.npz")]
    assert main(["score", *files, "--gate", str(gate), "--out", str(out)]) == 1
    with out.open(encoding="utf-8") as content:
        found = list(csv.DictReader(content))
    assert [row["path"] for row in found[:2]] == [f"{new}#0", f"{new}#1"]
    assert found[-1]["path"].endswith("broken.npz")
    assert "cannot be read" in found[-1]["error"]
    flagged = np.array([row["is_ood"] == "True" for row in found[:-1]])
    assert flagged[:100].mean() < 0.15
    # An array without a name is the only feature.
    assert len(found) == 151
    assert found[100]["path"] == f"{unlike}#0"
    assert flagged[100:].mean() > 0.8


def test_without_labels_it_is_a_novelty_detector(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seed in (("train", 0), ("held", 1), ("ood", 2)):
        scale = 3 if name == "ood" else 0.3
        values = np.random.default_rng(seed).normal(0, scale, (200, 8)) + (name != "ood")
        np.save(tmp_path / f"{name}.npy", values)
    command = ["fit", "--features", str(tmp_path / "train.npy"), "--held-out",
               str(tmp_path / "held.npy"), "--ood", str(tmp_path / "ood.npy")]  # fmt: skip
    assert main([*command, "--out", str(tmp_path / "gate")]) == 0
    assert "novelty detector" in capsys.readouterr().err
    loaded = goen.load(tmp_path / "gate")
    assert loaded.predict_outputs(np.load(tmp_path / "ood.npy")).is_ood.mean() > 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "a:b"], "Give --features, or --model and --train, not both"),
        (["--classes", "cat", "dog"], "has labels that are no class: eel"),
        (["--classes", "cat", "cat"], "must name each class once"),
    ],
)
def test_options_that_do_not_fit(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, held_out = rows(tmp_path / "train.npz", 300, 0), rows(tmp_path / "held.npz", 200, 1)
    command = ["fit", "--features", str(train), "--held-out", str(held_out), *options]
    assert main([*command, "--out", str(tmp_path / "gate")]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "gate").exists()


def test_a_model_or_features_are_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "--held-out", "digits", "--out", str(tmp_path / "gate")]) == 2
    assert "Give --model and --train; or --features" in " ".join(capsys.readouterr().err.split())


def test_pictures_for_a_gate_of_features_are_one_sentence(
    gate: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.png", "b.png"):
        Image.new("L", (4, 4)).save(tmp_path / name)
    assert (
        main(["score", str(tmp_path / "a.png"), str(tmp_path / "b.png"), "--gate", str(gate)]) == 2
    )
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "This gate takes rows of .npy, .npz" in " ".join(captured.err.split())


def test_pictures_are_not_copied_from_features(
    gate: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["score", str(tmp_path / "held.npz"), "--gate", str(gate)]
    assert main([*command, "--copy-flagged", str(tmp_path / "copies")]) == 2
    assert "this gate takes features" in " ".join(capsys.readouterr().err.split())
