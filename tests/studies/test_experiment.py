"""The networks of a study."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import goen
from goen.errors import UsageError
from goen.io.stages import Stages
from goen.studies import PRESETS, AblateConfig, BenchConfig, RunConfig, bench, geometry, run
from goen.studies.experiment import AS_PRESET, NETWORKS, Experiment, variant_of
from goen.studies.geometry import NETWORK_VARIANTS
from goen.studies.methods import METHODS, Method
from tests.tiny import FAST, TINY, tiny_protocol

ROOT = Path(__file__).parents[2]


def test_the_papers_budget_trains_baselines_longer_and_stops_early() -> None:
    standard = variant_of(TINY, "standard", "paper")
    assert (standard.training.epochs, standard.network.representation) == (8, "plain")
    assert standard.training.label_smoothing == 0
    goen = variant_of(TINY, "goen", "paper")
    assert (goen.training.epochs, goen.training.label_smoothing) == (3, 0.1)
    same = {variant_of(TINY, name, "full").training.epochs for name in NETWORKS}
    assert same == {3}


def test_each_network_differs_from_the_standard_one_in_what_its_paper_says() -> None:
    changed: dict[str, dict[str, object]] = {}
    standard = variant_of(TINY, "standard", "full")
    for name in NETWORKS:
        preset = variant_of(TINY, name, "full")
        settings = {**vars(preset.network), **vars(preset.training)}
        usual = {**vars(standard.network), **vars(standard.training)}
        changed[name] = {key: new for key, new in settings.items() if new != usual[key]}
    rotations = {"rotations": True, "rotation_loss": 1.0, "rotated": 3.0}
    assert changed == {
        "standard": {},
        "dropout": {"classifier": "dropout"},
        "evidential": {"classifier": "evidential"},
        "epinet": {"classifier": "epinet"},
        "experts": {"classifier": "experts"},
        "logit_norm": {"logit_norm": 0.04},
        "t2fnorm": {"temperature": 0.1, "feature_norm": True},
        "pixmix": {"pixmix": 1.0},
        "rotations": rotations,
        "rotations_pixmix": {**rotations, "pixmix": 1.0},
        "outliers": {"outlier_loss": 0.5},
        "goen": {"representation": "multi_scale", "label_smoothing": 0.1},
    }


def test_a_method_may_score_the_network_that_the_preset_describes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = replace(TINY, network=replace(TINY.network, representation="plain"))
    assert variant_of(plain, AS_PRESET, "paper") is plain
    monkeypatch.setitem(PRESETS, "tiny", plain)  # type: ignore[arg-type]
    own = [replace(METHODS["energy"], network=AS_PRESET)]
    config = BenchConfig(methods=("energy",), preset="tiny")
    stages = Stages(tmp_path / "stages")
    results = bench(config, tiny_protocol(), tmp_path / "out", stages, extra_methods=own)
    trained = Experiment("tiny", "full", 42, tiny_protocol(), stages).members(AS_PRESET)[0]
    assert {result.network for result in results} == {trained.key}
    assert trained.network.config.representation == "plain"


_FIT = """
import sys
from types import SimpleNamespace
from goen.detectors import Energy
from goen.io.stages import Stages
from goen.studies.experiment import Experiment
from goen.studies.methods import Method
from tests.tiny import tiny_protocol

def fit(data):
    print("torch._dynamo" in sys.modules)
    return Energy()

trained = SimpleNamespace(network=None, key="network", trained_on=(), epochs=())
Experiment.members = lambda self, network: [trained]  # a stage of an earlier process: no training
experiment = Experiment("digits", "full", 42, tiny_protocol(), Stages(sys.argv[1]))
assert "torch._dynamo" not in sys.modules
experiment.fit(Method("own", "Own", fit, fits_on=()))
"""


def test_the_import_that_an_optimiser_causes_is_not_timed(tmp_path: Path) -> None:
    words = [sys.executable, "-c", _FIT, str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == "True\n"


def test_a_methods_fit_returns_a_detector(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "fast", FAST)  # type: ignore[arg-type]
    experiment = Experiment("fast", "full", 42, tiny_protocol(), Stages(tmp_path))
    nothing = Method("own", "Own", lambda data: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(UsageError, match=r"fit of method 'own' should return .*, got NoneType"):
        experiment.fit(nothing)


@pytest.fixture
def fast_cnn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny preset with the other backbone."""
    network = replace(TINY.network, architecture="fast_cnn")
    monkeypatch.setitem(PRESETS, "tiny", replace(TINY, network=network))  # type: ignore[arg-type]


@pytest.mark.usefixtures("fast_cnn")
def test_methods_work_on_another_backbone(tmp_path: Path) -> None:
    methods = ("mahalanobis", "vim", "knn_multi_scale", "goen", "goen_m_plain", "goen_m_ood")
    config = BenchConfig(preset="tiny", methods=methods)
    results = bench(config, tiny_protocol(), tmp_path / "out", Stages(tmp_path / "stages"))
    assert {result.method for result in results} == set(methods)
    assert all(np.isfinite(result.value) for result in results)


@pytest.mark.usefixtures("fast_cnn")
def test_a_gate_of_another_backbone_is_saved_with_its_network(tmp_path: Path) -> None:
    protocol = tiny_protocol()
    gate = run(RunConfig(preset="tiny"), protocol, tmp_path / "out", Stages(tmp_path / "stages"))
    loaded = goen.load(tmp_path / "out" / "gate")
    images = protocol.test.read(slice(0, 20))
    np.testing.assert_array_equal(loaded.predict(images).score, gate.predict(images).score)


@pytest.mark.usefixtures("fast_cnn")
def test_the_geometry_of_another_backbone(tmp_path: Path) -> None:
    config = AblateConfig(preset="tiny", variants=(NETWORK_VARIANTS[0],))
    results = geometry(config, tiny_protocol(), tmp_path / "out", Stages(tmp_path / "stages"))
    features = {result.metric.partition("/")[0] for result in results}
    assert features == {"block2", "block3", "z"}
