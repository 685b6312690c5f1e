"""Corruption by severity."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from goen.data.corruptions import CORRUPTIONS, corrupt
from goen.errors import UsageError
from goen.functional.conformal import threshold
from goen.report.tables import robust_tables
from goen.runs.stages import Stages
from goen.studies import METHODS, PRESETS, RobustConfig, robust
from goen.studies.experiment import Panel

from ..tiny import FAST, tiny_protocol


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "fast", FAST)  # type: ignore[arg-type]


CONFIG = RobustConfig(
    methods=("softmax", "temperature_scaling", "goen"),
    corruptions=("fog", "pixelate"),
    severities=(1, 5),
    images=40,
    preset="fast",
)


def test_every_number_is_what_a_pass_over_the_corrupted_images_gives(tmp_path: Path) -> None:
    protocol, stages = tiny_protocol(), Stages(tmp_path / "stages")
    results = robust(CONFIG, protocol, tmp_path / "r", stages)
    found = {(r.method, r.dataset, r.metric): r.value for r in results}
    names = ["clean", "fog-1", "fog-5", "pixelate-1", "pixelate-5"]
    metrics = ["accuracy", "ece", "nll", "brier", "mean_score", "flagged"]
    assert list(dict.fromkeys(r.dataset for r in results)) == names
    assert all((m, n, k) in found for m in CONFIG.methods for n in names for k in metrics)

    panel = Panel("fast", "full", 42, protocol, stages)
    network = panel.members("standard")[0].network
    pixels = corrupt(protocol.test.read(range(40)), "fog", 5)
    logits = network(torch.from_numpy(pixels)).logits.detach()
    right = (logits.argmax(1).numpy() == protocol.test.labels[:40]).mean()
    assert found["softmax", "fog-5", "accuracy"] == pytest.approx(right)
    assert found["temperature_scaling", "fog-5", "accuracy"] == pytest.approx(right)
    fitted = panel.fit(METHODS["softmax"])
    limit = threshold(panel.score(fitted, panel.roles.held_out)[0], 0.05)
    scores = (
        METHODS["softmax"]
        .fit(None)
        .score(  # type: ignore[arg-type]
            __import__("goen").Outputs(logits, {})
        )
    )
    assert found["softmax", "fog-5", "flagged"] == pytest.approx((scores.numpy() > limit).mean())
    assert found["softmax", "fog-5", "mean_score"] == pytest.approx(scores.mean().item())

    summary = json.loads((tmp_path / "r" / "run.json").read_text())
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


def test_what_cannot_be_meant_is_said_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.studies.networks.train_backbone", None)
    with pytest.raises(UsageError, match="Did you mean 'goen'"):
        robust(RobustConfig(methods=("goan",)), tiny_protocol(), tmp_path)
    with pytest.raises(UsageError, match="Did you mean 'fog'"):
        robust(RobustConfig(corruptions=("fogg",)), tiny_protocol(), tmp_path)
    with pytest.raises(UsageError, match="9999 were asked for"):
        robust(RobustConfig(images=9999), tiny_protocol(), tmp_path)
    with pytest.raises(UsageError, match="made of CIFAR-10's test images; the study is on digits"):
        robust(RobustConfig(cifar10c=tmp_path), tiny_protocol(), tmp_path)
    with pytest.raises(UsageError, match="1 to 5"):
        robust(RobustConfig(severities=(6,)), tiny_protocol(), tmp_path)
