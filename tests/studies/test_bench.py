"""The benchmark on a tiny scale: every method, one pass, results that follow from the scores."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.special import logsumexp, softmax
from torch import Tensor

from goen.data import Protocol
from goen.detectors import Detector
from goen.errors import UsageError
from goen.io.results import Result, read_results
from goen.io.stages import Stages
from goen.metrics import id_metrics, ood_metrics
from goen.outputs import Outputs
from goen.studies import METHODS, PRESETS, BenchConfig, Method, RunConfig, bench, run
from goen.studies.experiment import Experiment
from tests.extras import MISSING
from tests.tiny import FAST, tiny_protocol

# All named, since this preset trains without flips and skips flip averaging otherwise.
NAMED = {key for key, method in METHODS.items() if method.section in ("training", "tuned")}
TUNED = {key for key, method in METHODS.items() if method.section == "tuned"}
ALL = tuple(key for key in METHODS if key not in TUNED and (key != "flow" or "zuko" not in MISSING))
EVERY = BenchConfig(preset="fast", methods=ALL)
TIMES = ("fit_seconds", "score_ms_per_image")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Protocol, list[Result]]:
    folder = tmp_path_factory.mktemp("bench")
    protocol = tiny_protocol()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "fast", FAST)  # type: ignore[arg-type]
        results = bench(EVERY, protocol, folder / "bench", Stages(folder / "stages"))
    return folder, protocol, results


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "fast", FAST)  # type: ignore[arg-type]


def test_every_method_has_every_number(finished: tuple[Path, Protocol, list[Result]]) -> None:
    folder, protocol, results = finished
    assert read_results(folder / "bench" / "results.jsonl") == results
    for key in ALL:
        for name in protocol.evaluation:
            metrics = {r.metric for r in results if (r.method, r.dataset) == (key, name)}
            assert {"auroc", "fpr95_ood_positive", "fpr95_id_positive", "aupr_out"} <= metrics
        at_home = {r.metric for r in results if (r.method, r.dataset) == (key, "test")}
        assert {"accuracy", "ece", "nll", "brier", "training_seconds"} <= at_home
    assert all(np.isfinite(r.value) for r in results)


def test_every_number_has_its_origin(finished: tuple[Path, Protocol, list[Result]]) -> None:
    _, protocol, results = finished
    calibration = protocol.calibration_id.identity
    ood = [images.identity for images in protocol.calibration_ood.values()]
    for r in results:
        outliers = ood if r.method == "outlier_exposure" else []
        assert r.fitted_on == (protocol.train.identity, *outliers)
        with_ood = [calibration, *ood]
        expected = {
            "temperature_scaling": [calibration],
            "kl_matching": [calibration],
            "adascale": [calibration],
            "adascale_l": [calibration],
            "goen": with_ood,
            "goen_m_plain": [calibration],
            "goen_m": [calibration],
            "goen_m_last": [calibration],
            "goen_m_flip_averaged": [calibration],
            "goen_m_ood": with_ood,
            "outlier_exposure": outliers,
        }
        assert list(r.calibrated_on) == expected.get(r.method, []), r.method
        with_ood_images = r.method in ("goen", "goen_m_ood", "outlier_exposure")
        seen = with_ood_images and r.dataset in protocol.calibration_ood
        assert r.seen_in_calibration == seen
        assert r.seconds is not None
        assert r.seconds > 0
    members = {r.network for r in results if r.method == "deep_ensemble"}.pop().split("+")
    standard = {r.network for r in results if r.method == "max_softmax"}.pop()
    assert len(set(members)) == 5
    assert members[0] == standard  # not a sixth training


def test_the_numbers_are_those_of_the_scores(
    finished: tuple[Path, Protocol, list[Result]],
) -> None:
    folder, _, results = finished
    scores = load_file(folder / "bench" / "scores.safetensors")
    for r in results:
        if r.metric == "auroc":
            m = ood_metrics(scores[f"test/{r.method}"], scores[f"{r.dataset}/{r.method}"])
            assert (r.value, r.low, r.high) == (m.auroc, m.auroc_low, m.auroc_high)


def test_davis_is_the_energy_of_the_last_map_pooled_otherwise(
    finished: tuple[Path, Protocol, list[Result]],
) -> None:
    folder, protocol, results = finished
    scores = load_file(folder / "bench" / "scores.safetensors")
    experiment = Experiment("fast", "full", 42, protocol, Stages(folder / "stages"))
    network = experiment.members("standard")[0].network
    images = torch.from_numpy(protocol.evaluation["noise"].images.read(range(6)))
    *_, last = network.maps(network._normalised(images))
    flat = last.detach().flatten(2).double().numpy()
    linear = network.classifier.state_dict()
    weight, bias = (linear[name].double().numpy() for name in ("weight", "bias"))
    for key, rows in (("davis", flat.max(2)), ("davis_std", flat.mean(2) + flat.std(2))):
        expected = -logsumexp(rows @ weight.T + bias, axis=1)
        assert scores[f"noise/{key}"][:6] == pytest.approx(expected, rel=1e-3)
    accuracy = {r.method: r.value for r in results if (r.dataset, r.metric) == ("test", "accuracy")}
    assert accuracy["davis"] == accuracy["davis_std"] == accuracy["energy"]


def test_the_best_of_a_set_is_compared_with_all_others_that_its_kind_did_not_calibrate(
    finished: tuple[Path, Protocol, list[Result]],
) -> None:
    _, protocol, results = finished
    for name in protocol.evaluation:
        here = {r.method: r.value for r in results if (r.dataset, r.metric) == (name, "auroc")}
        tested = {r.method for r in results if (r.dataset, r.metric) == (name, "p_against_best")}
        if name in protocol.calibration_ood:
            del here["goen"], here["goen_m_ood"], here["outlier_exposure"]
        best = max(here, key=lambda method: here[method])
        assert tested == set(here) - {best}


def test_the_sets_that_may_calibrate_are_recorded_whatever_methods_are_compared(
    finished: tuple[Path, Protocol, list[Result]],
) -> None:
    folder, protocol, _ = finished
    out = folder / "one"
    bench(replace(EVERY, methods=("energy",)), protocol, out, Stages(folder / "stages"))
    recorded = json.loads((out / "run.json").read_text())["calibration_ood"]
    assert recorded == list(protocol.calibration_ood)


def test_a_second_call_trains_nothing_and_passes_no_image(
    finished: tuple[Path, Protocol, list[Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, protocol, results = finished
    monkeypatch.setattr("goen.studies.networks.train_backbone", None)
    monkeypatch.setattr("goen.studies.networks.stream", None)
    again = bench(EVERY, protocol, folder / "again")  # beside the first: the stages are shared
    timeless = [
        [replace(r, seconds=0.0) for r in rows if r.metric not in TIMES]
        for rows in (again, results)
    ]
    assert timeless[0] == timeless[1]


def test_goen_run_reuses_the_benchmarks_network_and_agrees_with_it(
    finished: tuple[Path, Protocol, list[Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, protocol, results = finished
    monkeypatch.setattr("goen.studies.networks.train_backbone", None)
    run(RunConfig(preset="fast"), protocol, folder / "run")  # beside the benchmark
    ours = {(r.method, r.dataset): r.value for r in results if r.metric == "auroc"}
    theirs = read_results(folder / "run" / "results.jsonl")
    for r in theirs:
        if r.metric == "auroc" and r.method in ("goen", "goen_distance"):
            assert np.isclose(ours[r.method, r.dataset], r.value, atol=1e-9)


def test_flip_averaging_averages_the_logits_of_both_views(
    finished: tuple[Path, Protocol, list[Result]],
) -> None:
    folder, protocol, results = finished
    experiment = Experiment("fast", "full", 42, protocol, Stages(folder / "stages"))
    (member,) = experiment.members("goen")
    images = torch.from_numpy(protocol.test.read())
    with torch.no_grad():
        both = [
            member.network(x) for x in (images, torch.from_numpy(images.numpy()[..., ::-1].copy()))
        ]
    mean = (both[0].logits + both[1].logits) / 2
    expected = id_metrics(logits=mean.numpy(), labels=protocol.test.labels).nll
    found = {(r.method, r.metric): r.value for r in results if r.dataset == "test"}
    assert found["goen_m_flip_averaged", "nll"] == pytest.approx(expected, rel=1e-6)
    assert found["goen_m_flip_averaged", "nll"] != pytest.approx(found["goen_m", "nll"], rel=1e-6)
    seconds = {r.method: r.seconds for r in results}
    assert seconds["goen_m_flip_averaged"] > seconds["goen_m"]  # its passes are its own


def test_temperature_changes_the_probabilities_and_not_the_labels(
    finished: tuple[Path, Protocol, list[Result]],
) -> None:
    _, _, results = finished
    by_key = {(r.method, r.metric): r.value for r in results if r.dataset == "test"}
    assert by_key["max_softmax", "accuracy"] == by_key["temperature_scaling", "accuracy"]
    assert by_key["max_softmax", "nll"] != by_key["temperature_scaling", "nll"]


def test_flip_averaging_is_skipped_for_networks_trained_without_flips(
    finished: tuple[Path, Protocol, list[Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, protocol, _ = finished
    two = {key: METHODS[key] for key in ("goen_m", "goen_m_flip_averaged")}
    monkeypatch.setattr(sys.modules["goen.studies.bench"], "METHODS", two)
    stages = Stages(folder / "stages")
    assert FAST.training.flip == "never"
    results = bench(BenchConfig(preset="fast"), protocol, folder / "not-named", stages)
    assert {r.method for r in results} == {"goen_m"}
    flipping = replace(FAST, training=replace(FAST.training, flip="random"))
    monkeypatch.setitem(PRESETS, "flipping", flipping)  # type: ignore[arg-type]
    results = bench(BenchConfig(preset="flipping"), protocol, folder / "flipping", stages)
    assert {r.method for r in results} == set(two)


def test_the_maximum_of_the_last_map_is_skipped_for_a_network_that_was_trained_on_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = replace(FAST, network=replace(FAST.network, architecture="fast_cnn"))
    monkeypatch.setitem(PRESETS, "other", other)  # type: ignore[arg-type]
    for preset, skipped in (("fast", set()), ("other", {"davis"})):
        experiment = Experiment(preset, "full", 42, tiny_protocol(), Stages(tmp_path))
        chosen = {key for key, method in METHODS.items() if experiment.is_default(method)}
        assert {*METHODS} - chosen == skipped | {"goen_m_flip_averaged", *NAMED}


def test_methods_that_need_ood_images_are_skipped_without_any_and_refused_if_named(
    tmp_path: Path,
) -> None:
    without = replace(tiny_protocol(), calibration_ood={})
    experiment = Experiment("fast", "full", 42, without, Stages(tmp_path))
    skipped = {key for key, method in METHODS.items() if not experiment.is_default(method)}
    assert skipped == {"goen", "goen_m_ood", "goen_m_flip_averaged", *NAMED}
    with pytest.raises(UsageError, match=r"GOEN is fitted with OOD images, and no set calibrates"):
        bench(BenchConfig(("goen",), preset="fast"), without, tmp_path / "out")


def test_methods_and_sets_can_be_chosen(
    finished: tuple[Path, Protocol, list[Result]], tmp_path: Path
) -> None:
    folder, protocol, _ = finished
    config = BenchConfig(("knn", "max_softmax"), ("noise",), preset="fast")
    results = bench(config, protocol, tmp_path, Stages(folder / "stages"))
    assert {r.method for r in results} == {"max_softmax", "knn"}
    assert {r.dataset for r in results} == {"test", "noise"}
    with pytest.raises(UsageError, match=r"Unknown method 'kn'\. Did you mean 'knn'"):
        bench(BenchConfig(("kn",)), protocol, tmp_path)
    with pytest.raises(UsageError, match=r"Unknown OOD set 'noize'\. Did you mean 'noise'"):
        bench(BenchConfig(sets=("noize",)), protocol, tmp_path)


class Length(Detector):
    """A custom method: the shorter the feature, the higher the score."""

    name = "length"
    needs_fit = False

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        pass

    def _score(self, outputs: Outputs) -> Tensor:
        return -outputs.features["z"].norm(dim=1)


def test_a_custom_method_is_a_row(
    finished: tuple[Path, Protocol, list[Result]], tmp_path: Path
) -> None:
    folder, protocol, _ = finished
    own = Method("length", "Length of z", lambda data: Length())
    config = BenchConfig(("max_softmax",), preset="fast")
    results = bench(config, protocol, tmp_path, Stages(folder / "stages"), extra_methods=[own])
    assert {r.method for r in results} == {"max_softmax", "length"}
    scores = load_file(tmp_path / "scores.safetensors")
    assert scores["noise/length"].max() < 0


def test_a_custom_method_takes_no_others_place(tmp_path: Path) -> None:
    def own(key: str, title: str = "Mine") -> Method:
        return Method(key, title, lambda data: Length())

    config = BenchConfig(("energy",), preset="fast")
    for methods, message in (
        ([own("max_softmax")], "key 'max_softmax' of your method 'Mine' is also that of a method"),
        ([own("a"), own("a", "Second")], "key 'a' of your method 'Second' is also that of another"),
        (own("a"), r"extra_methods is a list of methods, got one: write extra_methods=\[method\]"),
    ):
        with pytest.raises(UsageError, match=message):
            bench(config, tiny_protocol(), tmp_path, extra_methods=methods)  # type: ignore[arg-type]
    assert not [*tmp_path.iterdir()]


def test_pytorch_ood_is_left_out_with_a_warning_if_it_is_not_installed(
    finished: tuple[Path, Protocol, list[Result]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, protocol, _ = finished
    monkeypatch.setitem(sys.modules, "pytorch_ood", None)  # as if not installed
    config = BenchConfig(("max_softmax", "pytorch_ood.KNN"), preset="fast")
    results = bench(config, protocol, tmp_path, Stages(folder / "stages"))
    assert {r.method for r in results} == {"max_softmax"}
    assert "Left out: pytorch_ood.KNN. " in caplog.text
    with pytest.raises(UsageError, match="No method is left"):
        bench(BenchConfig(("pytorch_ood.KNN",)), protocol, tmp_path)


def test_the_flow_is_left_out_with_a_warning_if_zuko_is_not_installed(
    finished: tuple[Path, Protocol, list[Result]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, protocol, _ = finished
    monkeypatch.setitem(sys.modules, "zuko", None)  # as if not installed
    two = {key: METHODS[key] for key in ("max_softmax", "flow")}
    monkeypatch.setattr(sys.modules["goen.studies.bench"], "METHODS", two)
    results = bench(BenchConfig(preset="fast"), protocol, tmp_path, Stages(folder / "stages"))
    assert {r.method for r in results} == {"max_softmax"}
    assert re.search(r"Left out: flow\. zuko is not here .*goen\[flow\]", caplog.text)
    assert json.loads((tmp_path / "run.json").read_text())["skipped"].keys() == {"flow"}
    with pytest.raises(UsageError, match="No method is left"):
        bench(BenchConfig(("flow",)), protocol, tmp_path / "none")


def test_a_mistyped_detector_of_pytorch_ood_is_an_error(
    finished: tuple[Path, Protocol, list[Result]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("pytorch_ood", "pytorch_ood.detector"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    with pytest.raises(UsageError, match="has no 'KNM'"):
        bench(BenchConfig(("max_softmax", "pytorch_ood.KNM")), finished[1], tmp_path)


def test_the_ensembles_numbers_are_those_of_its_members_mean(
    finished: tuple[Path, Protocol, list[Result]],
) -> None:
    folder, protocol, results = finished
    members = {r.network for r in results if r.method == "deep_ensemble"}.pop().split("+")
    logits = []
    for path in (folder / "stages").glob("outputs-*"):
        made_of = json.loads((path / "inputs.json").read_text())
        if made_of["images"] == protocol.test.fingerprint and made_of["network"] in members:
            logits.append(load_file(path / "outputs.safetensors")["logits"].astype(np.float64))
    assert len(logits) == 5  # each network has passed over the test images once
    mean = softmax(np.stack(logits), axis=2).mean(0)
    expected = id_metrics(probabilities=mean, labels=protocol.test.labels)
    found = {r.metric: r.value for r in results if r.method == "deep_ensemble"}
    assert np.isclose(found["nll"], expected.nll, rtol=1e-5)
    scores = load_file(folder / "bench" / "scores.safetensors")["test/deep_ensemble"]
    spread = softmax(np.stack(logits), axis=2).var(0).sum(1)
    assert np.allclose(scores, spread, rtol=1e-6)


def test_the_folder_may_be_a_text(tmp_path: Path) -> None:
    bench(BenchConfig(("energy",), preset="fast"), tiny_protocol(), str(tmp_path / "out"))
    assert (tmp_path / "out" / "run.json").is_file()


@pytest.mark.parametrize(
    "wrong", [{"preset": "none"}, {"sets": ("foo",)}, {"methods": ("foo",)}], ids=str
)
def test_a_wrong_option_leaves_no_folder(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="Unknown"):
        bench(BenchConfig(**wrong), tiny_protocol(), tmp_path / "out")
    assert not [*tmp_path.iterdir()]
