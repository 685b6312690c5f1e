"""``goen fit``, ``score`` and ``export`` with features, and with a model of text, in files."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

import goen
from goen.cli.main import main
from goen.cli.options.fit_inputs import class_numbers, is_tensor_file
from goen.data.feature_files import FeatureFile
from goen.errors import UsageError
from tests.features.tiny_models import CLASSES, KINDS, labelled, saved

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
    assert re.search(r"accuracy .*1\.000 on held_out", capsys.readouterr().out)
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


def test_the_labels_of_a_calibration_file_are_read(tmp_path: Path) -> None:
    files = {}
    for name, count, seed in (("train", 300, 0), ("held", 200, 1), ("calibration", 100, 2)):
        file = rows(tmp_path / f"{name}.npz", count, seed)
        with np.load(file) as found:
            files[name] = rows(file, count, seed, logits=found["clip"][:, :3])
    command = ["fit", "--features", str(files["train"]), "--held-out", str(files["held"])]
    command += ["--detector", "temperature_scaling", "--calibration", str(files["calibration"])]
    assert main([*command, "--out", str(tmp_path / "gate")]) == 0
    assert len(goen.load(tmp_path / "gate").held_out) == 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "a:b"], "Give --features, or --model and its images, not both"),
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
    assert "Give --model with --train and --held-out, or with --data; or --features" in " ".join(
        capsys.readouterr().err.split()
    )


def test_images_for_a_gate_of_features_are_rows_that_name_the_files_it_takes(
    gate: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.png", "b.png"):
        Image.new("L", (4, 4)).save(tmp_path / name)
    files = [str(tmp_path / "a.png"), str(tmp_path / "b.png")]
    assert main(["score", *files, "--gate", str(gate)]) == 1
    scored = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["path"] for row in scored] == files
    assert all("are in .npy, .npz, .safetensors, .parquet files" in row["error"] for row in scored)


def test_pictures_are_not_copied_from_features(
    gate: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["score", str(tmp_path / "held.npz"), "--gate", str(gate)]
    assert main([*command, "--copy-flagged", str(tmp_path / "copies")]) == 2
    assert "are for images, not tensors clip float" in " ".join(capsys.readouterr().err.split())


def written(file: Path, count: int, seed: int, *, names: bool = False) -> str:
    inputs, labels = labelled("text", count, seed)
    np.savez(file, **inputs, labels=np.array(CLASSES)[labels] if names else labels)
    return str(file)


@pytest.mark.xdist_group("transformers")
def test_from_files_of_tokens_to_scores_and_an_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"hf:{saved('text', tmp_path / 'bert')}"
    train = written(tmp_path / "train.npz", 300, 0)
    held_out = written(tmp_path / "held.npz", 300, 1, names=True)
    other = str(tmp_path / "other.npz")
    np.savez(other, **KINDS["text"].unlike(np.random.default_rng(2), 50))
    out = str(tmp_path / "gate")
    words = ["fit", "--model", model, "--held-out", held_out, "--false-alarm-rate", "0.1"]
    assert main([*words, "--train", train, "--out", out]) == 0
    printed = capsys.readouterr()
    assert ", 1.000 on held_out" in printed.out
    assert f"goen score FILE --gate {out} --model {model}" in printed.err
    assert json.loads((Path(out) / "manifest.json").read_text())["classes"] == list(CLASSES)

    new = written(tmp_path / "new.npz", 100, 3)
    assert main(["score", new, other, "--gate", out, "--model", model, "--batch-size", "64"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [rows[0]["path"], rows[100]["path"]] == [f"{new}#0", f"{other}#0"]
    assert {row["label"] for row in rows} <= {*CLASSES}
    flagged = np.array([row["is_ood"] for row in rows])
    assert flagged[:100].mean() < 0.25
    assert flagged[100:].mean() > 0.8
    assert main(["score", new, "--gate", out, "--model", model, "--report", f"{out}.html"]) == 2
    assert "are for images, not tensors input_ids int" in capsys.readouterr().err

    file = tmp_path / "gate.onnx"
    export = ["export", out, "--model", model, "--out", str(file)]
    assert main([*export, "--images", new]) == 0
    assert file.is_file()

    np.savez(train, **labelled("text", 10, 0)[0])
    assert main([*words, "--train", train, "--out", f"{out}2"]) == 2
    assert "has no labels: add an array labels" in " ".join(capsys.readouterr().err.split())


def test_files_of_arrays_are_told_from_folders_and_sets(tmp_path: Path) -> None:
    def file(name: str, **arrays: np.ndarray) -> bool:
        np.savez(tmp_path / name, **arrays)  # type: ignore[arg-type]
        return is_tensor_file(str(tmp_path / name))

    ids, waves = np.ones((4, 7), np.int64), np.ones((4, 7), np.float32)
    labels, images = np.zeros(4, np.int64), np.zeros((4, 3, 8, 8), np.uint8)
    assert file("tokens.npz", input_ids=ids, attention_mask=ids, labels=labels)
    assert file("one.npz", input_ids=ids, labels=labels)
    assert file("waves.npz", input_values=waves, labels=labels)
    assert not file("images.npz", images=images, labels=labels)
    assert not file("stack.npz", x=images, labels=labels)
    assert not file("more.npz", images=images, other=waves)
    save_file({"input_ids": ids}, tmp_path / "tokens.safetensors")
    assert is_tensor_file(str(tmp_path / "tokens.safetensors"))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    (tmp_path / "folder.npz").mkdir()
    for name in ("broken.npz", "folder.npz", "none.npz"):
        assert not is_tensor_file(str(tmp_path / name))
    assert not is_tensor_file("cifar10/train")


def test_five_labels_that_are_no_class_and_ten_classes_are_named() -> None:
    rows = FeatureFile({"features": np.zeros((6, 1))}, np.array([*"uvwxyz"]))
    with pytest.raises(UsageError, match=r"no class: u, v, w, x, y\. The classes are a, .*, j\."):
        class_numbers(rows, [*"abcdefghijk"], Path("a.npz"))
