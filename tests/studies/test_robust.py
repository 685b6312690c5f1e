"""Corruption by severity."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from goen.data.transforms.corruptions import CORRUPTIONS, corrupt
from goen.detectors import MaxSoftmax
from goen.errors import UsageError
from goen.functional.conformal import threshold
from goen.io.stages import Stages
from goen.outputs import Outputs
from goen.report.pages.robust import robust_tables
from goen.report.summary import read_summary
from goen.studies import METHODS, PRESETS, RobustConfig, robust
from goen.studies.experiment import Experiment
from tests.tiny import FAST, tiny_protocol


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "fast", FAST)  # type: ignore[arg-type]


CONFIG = RobustConfig(
    methods=("max_softmax", "temperature_scaling", "goen"),
    corruptions=("fog", "pixelate"),
    severities=(1, 5),
    images=40,
    preset="fast",
)


def test_every_number_is_what_a_pass_over_the_corrupted_images_gives(tmp_path: Path) -> None:
    protocol, stages = tiny_protocol(), Stages(tmp_path / "stages")
    results = robust(CONFIG, protocol, tmp_path / "r")
    found = {(r.method, r.dataset, r.metric): r.value for r in results}
    names = ["clean", "fog-1", "fog-5", "pixelate-1", "pixelate-5"]
    metrics = ["accuracy", "ece", "nll", "brier", "mean_score", "flagged"]
    assert list(dict.fromkeys(r.dataset for r in results)) == names
    assert all((m, n, k) in found for m in CONFIG.methods for n in names for k in metrics)

    experiment = Experiment("fast", "full", 42, protocol, stages)
    network = experiment.members("standard")[0].network
    pixels = corrupt(protocol.test.read(range(40)), "fog", 5)
    logits = network(torch.from_numpy(pixels)).logits.detach()
    right = (logits.argmax(1).numpy() == protocol.test.labels[:40]).mean()
    assert found["max_softmax", "fog-5", "accuracy"] == pytest.approx(right)
    assert found["temperature_scaling", "fog-5", "accuracy"] == pytest.approx(right)
    fitted = experiment.fit(METHODS["max_softmax"])
    limit = threshold(experiment.score(fitted, protocol.held_out)[0], 0.05)
    scores = MaxSoftmax().score(Outputs(logits, {}))
    assert found["max_softmax", "fog-5", "flagged"] == pytest.approx(
        (scores.numpy() > limit).mean()
    )
    assert found["max_softmax", "fog-5", "mean_score"] == pytest.approx(scores.mean().item())

    summary = read_summary(tmp_path / "r")
    tables = {table.name: table for table in robust_tables(results, summary)}
    accuracy = tables["accuracy"]
    assert accuracy.columns == ("clean", "severity 1", "severity 5")
    mean = np.mean([found["goen", f"{c}-5", "accuracy"] for c in ("fog", "pixelate")])
    assert accuracy.rows[2].cells[2].value == pytest.approx(mean)
    by_corruption = tables["flagged_by_corruption"]
    assert [row.label for row in by_corruption.rows] == ["fog", "pixelate"]


def test_there_are_fifteen_at_five(tmp_path: Path) -> None:
    assert len(CORRUPTIONS) == 15
    assert RobustConfig().severities == (1, 2, 3, 4, 5)


def test_invalid_arguments_are_found_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.studies.networks.train_backbone", None)
    with pytest.raises(UsageError, match="Did you mean 'goen'"):
        robust(RobustConfig(methods=("goan",)), tiny_protocol(), tmp_path)
    with pytest.raises(UsageError, match="Did you mean 'fog'"):
        robust(RobustConfig(corruptions=("fogg",)), tiny_protocol(), tmp_path)
    with pytest.raises(UsageError, match="9999 were requested"):
        robust(RobustConfig(images=9999), tiny_protocol(), tmp_path)
    with pytest.raises(UsageError, match="made of CIFAR-10's test images; the study is on digits"):
        robust(RobustConfig(cifar10c=tmp_path), tiny_protocol(), tmp_path)
    with pytest.raises(UsageError, match="1 to 5"):
        robust(RobustConfig(severities=(6,)), tiny_protocol(), tmp_path)
    with pytest.raises(UsageError, match="GOEN is fitted with OOD images"):
        robust(RobustConfig(), replace(tiny_protocol(), calibration_ood={}), tmp_path)


def test_the_folder_may_be_a_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Unknown preset 'none'"):  # after the folder was made
        robust(RobustConfig(preset="none"), tiny_protocol(), str(tmp_path / "out"))
    assert (tmp_path / "out").is_dir()
