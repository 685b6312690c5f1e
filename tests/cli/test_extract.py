"""``goen extract``: a dataset to a file of features, and a gate fitted to it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from goen.cli.main import main
from goen.data.feature_files import read_features
from goen.data.sets.folders import open_image_set
from goen.extraction import extract
from goen.features.preprocess import Preprocess
from goen.gate import load
from goen.outputs import check_classifier
from tests.cli.test_fit import MODULE, write
from tests.features.tiny_models import CLASSES, labelled, saved
from tests.own_model import LAYERS, digits, trained

MODEL = [
    "--model", "my_nets:digit_net", "--weights", "w.safetensors", "--mean", "0.3", "--std", "0.35",
]  # fmt: skip


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Code, weights, pictures."""
    desk, p = tmp_path_factory.mktemp("desk"), digits()
    (desk / "my_nets.py").write_text(MODULE)
    save_file(trained().state_dict(), desk / "w.safetensors")
    write(p.train.take(range(300)), desk / "train")
    write(p.validation.take(range(120)), desk / "held")
    write(p.calibration_ood["noise"].take(range(40)), desk / "noise", by_class=False)
    return desk


@pytest.fixture
def goen(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.chdir(desk)
    return lambda *words: main([str(word) for word in words])


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_the_file_holds_what_extract_gives(
    goen: Callable[..., int], suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"train.{suffix}"
    assert goen("extract", "train", *MODEL, "--layers", *LAYERS, "--out", out) == 0
    printed = capsys.readouterr()
    assert not printed.out
    assert "300 rows: early, late, logits" in printed.err
    assert f"goen fit --features {out}" in " ".join(printed.err.split())
    read = read_features(out)
    assert read.classes == tuple(f"digit-{name}" for name in digits().train.classes)
    found, images = read.outputs(), open_image_set("train", None, None)
    expected = extract(
        trained(), images, layers=LAYERS, preprocess=Preprocess(mean=(0.3,), std=(0.35,))
    )
    assert [*found.features] == [*LAYERS]
    for name in LAYERS:
        assert torch.allclose(found.features[name], expected.features[name], atol=1e-5)
    assert torch.allclose(found.logits, expected.logits, atol=1e-5)
    assert torch.equal(found.labels, torch.from_numpy(images.labels))  # type: ignore[arg-type]
    assert check_classifier(found).feature == "late"
    assert goen("extract", "train", *MODEL, "--out", out) == 2
    assert "--overwrite" in capsys.readouterr().err


def test_a_gate_is_fitted_to_extracted_features_and_parts_are_joined(
    goen: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = tmp_path / "train"
    parts.mkdir()
    for number in (1, 2, 3):
        out = parts / f"{number}.safetensors"
        assert goen("extract", "train", *MODEL, "--part", f"{number}/3", "--out", out) == 0
    held, noise = tmp_path / "held.npz", tmp_path / "noise.npz"
    assert goen("extract", "held", *MODEL, "--out", held) == 0
    assert f"goen fit --features {held} --held-out HELD_OUT --out GATE" in capsys.readouterr().err
    assert goen("extract", "noise", *MODEL, "--unlabelled", "--out", noise) == 0
    assert f"--features TRAIN --held-out HELD_OUT --ood {noise} --out" in capsys.readouterr().err
    assert read_features(noise).labels is None
    assert read_features(noise).classes == ()
    whole = tmp_path / "whole.safetensors"
    assert goen("extract", "train", *MODEL, "--out", whole) == 0
    joined, one = read_features(parts), read_features(whole)
    assert [*joined.arrays] == [*one.arrays]
    for name, values in one.arrays.items():
        assert np.allclose(joined.arrays[name], values, atol=1e-5)
    assert np.array_equal(joined.labels, one.labels)  # type: ignore[arg-type]
    words = ("fit", "--features", parts, "--held-out", held, "--ood", noise)
    assert goen(*words, "--false-alarm-rate", "0.1", "--out", tmp_path / "gate") == 0
    gate = load(tmp_path / "gate")
    assert gate.classes == one.classes
    assert gate.predict_outputs(dict(read_features(noise).arrays)).is_ood.mean() > 0.8


def test_parts_that_do_not_belong_together_are_refused(
    goen: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    words = ("--held-out", parts, "--out", tmp_path / "gate")
    assert goen("fit", "--features", parts, *words) == 2
    assert "holds no files of features" in capsys.readouterr().err
    assert goen("extract", "held", *MODEL, "--out", parts / "a.npz") == 0
    for options in (("--layers", "late"), ("--unlabelled",)):
        other = parts / "b.npz"
        assert goen("extract", "held", *MODEL, *options, "--out", other, "--overwrite") == 0
        capsys.readouterr()
        assert goen("fit", "--features", parts, *words) == 2
        assert "extract both in one way" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("part", ["0/3", "4/3", "3", "1/0", "1/9999", "a/b"])
def test_a_part_is_one_of_so_many(
    goen: Callable[..., int], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.npz"
    assert goen("extract", "held", *MODEL, "--part", part, "--out", out) == 2
    assert f"such as 3/16; got {part}" in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_the_kind_of_file_is_checked_before_anything_is_read(
    goen: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert goen("extract", "nowhere", *MODEL, "--out", tmp_path / "a.parquet") == 2
    assert "written to .npz or .safetensors files" in " ".join(capsys.readouterr().err.split())


@pytest.mark.xdist_group("transformers")
def test_inputs_in_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = f"hf:{saved('text', tmp_path / 'bert')}"
    inputs, labels = labelled("text", 30, 0)
    np.savez(tmp_path / "in.npz", **inputs, labels=np.array(CLASSES)[labels])
    out = tmp_path / "out.safetensors"
    words = ["extract", str(tmp_path / "in.npz"), "--model", model, "--out", str(out)]
    assert main([*words, "--part", "2/2"]) == 0
    assert "the file has no classifier" in " ".join(capsys.readouterr().err.split())
    found = read_features(out)
    assert found.classes == CLASSES
    assert found.outputs().labels.tolist() == labels[15:].tolist()  # type: ignore[union-attr]
    assert main([*words, "--layers", "bert.pooler", "--overwrite"]) == 0
    assert check_classifier(read_features(out).outputs()).feature == "bert.pooler"
