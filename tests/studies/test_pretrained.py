"""A run with a pretrained network: fitted once, found again, loaded without a model."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import goen
from goen.data import ImageSet, Protocol
from goen.errors import UsageError
from goen.features.package_networks import open_package_network
from goen.io.results import read_results
from goen.io.stages import Stages
from goen.models.seeding import seeded
from goen.studies import BenchConfig, RunConfig, bench, run
from goen.studies import pretrained as module
from goen.studies.experiment import AS_PRESET
from goen.studies.pretrained import PretrainedExperiment, can_be_pretrained


def stripes(count: int, seed: int) -> ImageSet:
    """Two classes that any network tells apart: stripes across, and stripes down."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 60, (count, 3, 32, 32)).astype(np.uint8)
    labels = np.arange(count) % 2
    pixels[labels == 0, :, ::4] += 150
    pixels[labels == 1, :, :, ::4] += 150
    return ImageSet(f"stripes {seed}", pixels, labels, ("across", "down"))


@pytest.fixture
def drawn_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network of the package with weights that are drawn: tests pass without the package."""

    def opened(name: str) -> object:
        with seeded(0):
            return open_package_network("efficientnet-lite0", num_classes=1000)

    monkeypatch.setattr("goen.training.probe._opened", opened)
    for place in (sys.modules["goen.studies.run"], module):
        monkeypatch.setattr(place, "is_installed", lambda name: True)


def small() -> Protocol:
    sets = [stripes(count, seed) for seed, count in enumerate((40, 60, 30))]
    ood = ImageSet("grey", np.full((20, 3, 32, 32), 90, np.uint8), np.zeros(20), ("grey",))
    return Protocol.from_sets(*sets, ood={"grey": ood}, name="stripes")


def test_a_run_fits_a_probe_once_and_its_gate_needs_no_model(
    tmp_path: Path, drawn_weights: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = run(RunConfig(), small(), tmp_path / "run")
    assert "backbone" in gate.metadata["recipe"]
    assert gate.detector.name == "goen"
    assert not gate.detector.head_epochs_  # its distance: generated images fit no head here
    batch = stripes(4, 9).read()
    loaded = goen.load(tmp_path / "run")
    np.testing.assert_allclose(loaded.predict(batch).score, gate.predict(batch).score, rtol=1e-5)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr(module, "fit_probe", never)
    again = run(RunConfig(), small(), tmp_path / "again", Stages(tmp_path / "stages"))
    assert again.threshold == gate.threshold


def test_detectors_are_compared_on_the_network_of_the_run(
    tmp_path: Path, drawn_weights: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages = Stages(tmp_path / "stages")
    run(RunConfig(detector="knn"), small(), tmp_path / "run", stages)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr(module, "fit_probe", never)
    asked = BenchConfig(("knn", "energy", "goen_m_last"))
    command = "goen run --data stripes"
    results = bench(asked, small(), tmp_path / "bench", stages, command=command)
    assert {r.method for r in results} == {"knn", "energy", "goen_m_last"}
    of_run = read_results(tmp_path / "run" / "results.jsonl")
    mine, theirs = (
        next(r for r in rows if (r.method, r.metric) == ("knn", "auroc"))
        for rows in (results, of_run)
    )
    assert (mine.value, mine.network) == (theirs.value, theirs.network)
    summary = json.loads((tmp_path / "bench" / "run.json").read_text())
    best = summary["ranking"]["means"]
    assert summary["next_step"] == f"{command} --detector {max(best, key=best.get)}"


def test_which_comparisons_train_networks_of_their_own(drawn_weights: None) -> None:
    assert BenchConfig().may_be_pretrained
    assert BenchConfig(("knn", "vim_tuned"), seed=3).may_be_pretrained
    for wanted in (
        BenchConfig(from_scratch=True),
        BenchConfig(preset="short"),
        BenchConfig(budget="paper"),
        BenchConfig(("knn", "mc_dropout")),
    ):
        assert not wanted.may_be_pretrained
    assert can_be_pretrained(small())
    assert not can_be_pretrained(goen.data.protocol("digits"))


def test_which_runs_are_pretrained(drawn_weights: None) -> None:
    own = small()
    assert RunConfig().is_pretrained(own)
    for config in (
        RunConfig(from_scratch=True),
        RunConfig(preset="digits"),
        RunConfig(center_loss=0.1),
        RunConfig(budget="paper"),
    ):
        assert not config.is_pretrained(own)
    assert not RunConfig().is_pretrained(goen.data.protocol("digits"))
    grey = [
        ImageSet(s.name, s.pixels[:, :1], s.labels, s.classes)
        for s in (own.train, own.validation, own.test)
    ]
    assert not RunConfig().is_pretrained(Protocol.from_sets(*grey))


def test_what_a_pretrained_network_cannot_do_is_said(
    tmp_path: Path, drawn_weights: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = PretrainedExperiment(small(), Stages(tmp_path), seed=1)
    with pytest.raises(UsageError, match="--from-scratch"):
        experiment.members("dropout")
    with pytest.raises(UsageError, match="--from-scratch"):
        experiment.outputs(AS_PRESET, small().test, "last_map_max")
    with pytest.raises(UsageError, match="--fine-tune trains a pretrained network further"):
        run(RunConfig(fine_tune="last", from_scratch=True), small(), tmp_path / "run")
    monkeypatch.setattr(sys.modules["goen.studies.run"], "is_installed", lambda name: False)
    assert not RunConfig().is_pretrained(small())


def test_the_last_part_is_trained_further(tmp_path: Path, drawn_weights: None) -> None:
    from goen.training.fine_tuning import FineTuning

    torch.manual_seed(0)
    tuning = FineTuning("last", epochs=1, batch_size=8)
    experiment = PretrainedExperiment(small(), Stages(tmp_path), seed=1, tuning=tuning)
    assert experiment.budget == "fine-tuned"
    assert len(experiment.recipe["validation_losses"]) == 2
