"""A gate on images that it was not fitted with: shares, intervals, the promise, leaks."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from scipy.stats import binomtest

from goen.data import ImageSet, OodSet
from goen.errors import LeakError, UsageError
from goen.functional.conformal import false_alarm_interval, false_alarm_p_value
from goen.gate import Gate
from goen.io.results import read_results
from goen.metrics import ood_metrics
from goen.studies.given_gate import Evaluated, evaluate
from tests.own_model import LAYERS, digits, preprocess, trained


@pytest.fixture(scope="module")
def gate() -> Gate:
    p = digits()
    return Gate.fit(
        trained(), p.train, p.validation, detector="knn", layers=LAYERS, preprocess=preprocess
    )


def images(**changes: object) -> Evaluated:
    p = digits()
    ood = {n: OodSet(o.images.take(range(60)), o.group) for n, o in p.evaluation.items()}
    return replace(Evaluated(p.test.take(range(200)), ood), **changes)  # type: ignore[arg-type]


def test_the_numbers_are_those_of_the_predictions(gate: Gate, tmp_path: Path) -> None:
    given = images()
    results = evaluate(gate, given, tmp_path / "out")
    assert read_results(tmp_path / "out" / "results.jsonl") == results
    found = {(r.method, r.dataset, r.metric): r for r in results}
    at_home = gate.predict(given.test)
    alarms = found["gate", "test", "false_alarm_rate"]
    counted = binomtest(int(at_home.is_ood.sum()), 200)
    assert alarms.value == counted.statistic
    assert (alarms.low, alarms.high) == tuple(counted.proportion_ci())
    accuracy = found["classifier", "test", "accuracy"].value
    assert accuracy == (at_home.label == given.test.labels).mean()
    p = false_alarm_p_value(int(at_home.is_ood.sum()), 200, gate.num_held_out, 0.05)
    assert found["gate", "test", "p_false_alarms"].value == p
    for name, ood in given.ood.items():
        prediction = gate.predict(ood.images)
        measured = ood_metrics(at_home.score, prediction.score)
        assert found["knn", name, "auroc"].value == pytest.approx(measured.auroc, abs=1e-6)
        assert found["gate", name, "flagged"].value == prediction.is_ood.mean()
        assert not found["gate", name, "flagged"].seen_in_calibration
    summary = json.loads((tmp_path / "out" / "run.json").read_text())
    assert summary["gate"]["held_out"] == gate.num_held_out
    assert "they agree" in summary["conclusion"]


@pytest.mark.parametrize("role", ["train", "held_out"])
def test_images_that_fitted_the_gate_are_refused_unless_asked_for(
    gate: Gate, tmp_path: Path, role: str
) -> None:
    own = digits().train if role == "train" else digits().validation
    given = images(test=own.take(range(50)))
    with pytest.raises(LeakError, match=f"50 of its 50 images with the gate's {role}"):
        evaluate(gate, given, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    results = evaluate(gate, replace(given, reuse=True), tmp_path / "out")
    marked = {r.dataset for r in results if r.method == "gate" and r.seen_in_calibration}
    assert "test" in marked


def test_more_false_alarms_than_chance_explains_are_named(gate: Gate, tmp_path: Path) -> None:
    odd = replace(digits().evaluation["noise"].images.take(range(60)))
    strange = ImageSet("odd", odd.pixels, np.zeros(60, np.int64), gate.classes, odd.rows)
    ood = {"far": digits().evaluation["photographs"]}
    evaluate(gate, Evaluated(strange, ood), tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "run.json").read_text())
    assert "more than chance explains" in summary["conclusion"]


def test_without_labels_there_is_no_accuracy(gate: Gate, tmp_path: Path) -> None:
    test = digits().test.take(range(60))
    unlabelled = ImageSet("test", test.read(), np.zeros(60, np.int64), ("test",))
    with pytest.raises(UsageError, match="other classes than the gate"):
        evaluate(gate, images(test=unlabelled), tmp_path / "out")
    results = evaluate(gate, images(test=unlabelled, labelled=False), tmp_path / "out")
    assert "accuracy" not in {r.metric for r in results}


def test_every_number_names_the_images_of_its_gate(gate: Gate, tmp_path: Path) -> None:
    results = evaluate(gate, images(), tmp_path / "out")
    origins = {(r.fitted_on, r.calibrated_on) for r in results}
    assert origins == {((digits().train.identity,), (digits().validation.identity,))}
    of_parts = replace(gate, metadata={})
    unknown = evaluate(of_parts, images(), tmp_path / "unknown")
    assert {(r.fitted_on, r.calibrated_on) for r in unknown} == {((), ())}


def test_only_the_set_with_images_of_the_gate_is_marked(gate: Gate, tmp_path: Path) -> None:
    p = digits()
    noise = p.evaluation["noise"].images.take(range(30))
    ood = {"copies": OodSet(p.train.take(range(40)), "far"), "noise": OodSet(noise, "far")}
    results = evaluate(gate, images(ood=ood, reuse=True), tmp_path / "out")
    assert {r.dataset for r in results if r.seen_in_calibration} == {"copies"}
    of_copies = {r.seen_in_calibration for r in results if r.dataset == "copies"}
    assert of_copies == {True}


def test_a_gate_per_class_promises_no_rate_over_all_images(gate: Gate, tmp_path: Path) -> None:
    per_class = gate.with_per_class()
    results = evaluate(per_class, images(), tmp_path / "out")
    assert {r.metric for r in results if r.method == "gate"} == {"false_alarm_rate", "flagged"}
    summary = json.loads((tmp_path / "out" / "run.json").read_text())
    assert summary["threshold"] is None
    assert summary["conclusion"].endswith("promised: at most 0.05 on average")
    low, expected, high = false_alarm_interval(per_class.num_held_out, 0.05)
    assert [summary["gate"][name] for name in ("low", "expected", "high")] == [low, expected, high]


def test_mistakes_have_their_images(gate: Gate, tmp_path: Path) -> None:
    given = images()
    evaluate(gate, given, tmp_path / "out")
    kept = load_file(tmp_path / "out" / "mistakes.safetensors")
    missed = np.flatnonzero(~gate.predict(given.ood["unseen-digits"].images).is_ood)
    assert sorted(kept["rows/unseen-digits"]) == list(missed)
    rows = kept["rows/unseen-digits"]
    assert np.array_equal(
        kept["images/unseen-digits"], given.ood["unseen-digits"].images.read(rows)
    )
