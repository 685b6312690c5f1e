"""``goen fit``, ``score`` and ``export`` with a model of text, whose inputs are in files."""

import json
from pathlib import Path

import numpy as np
import pytest
from goen.cli.fit_tensors import is_tensor_file
from safetensors.numpy import save_file

from goen.cli.main import main
from tests.features.tiny_models import CLASSES, KINDS, labelled, saved


def written(file: Path, count: int, seed: int, *, names: bool = False) -> str:
    inputs, labels = labelled("text", count, seed)
    np.savez(file, **inputs, labels=np.array(CLASSES)[labels] if names else labels)
    return str(file)


@pytest.mark.xdist_group("transformers")
def test_from_files_of_tokens_to_scores_and_a_program(
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
    assert "are for pictures; this gate takes tensors input_ids int" in capsys.readouterr().err

    program = tmp_path / "gate.pt2"
    export = ["export", out, "--model", model, "--program", str(program)]
    assert main([*export, "--images", new]) == 0
    assert program.is_file()

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
