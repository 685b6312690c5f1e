import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from goen.errors import UsageError
from goen.gate import Gate
from goen.monitor import Monitor
from goen.monitor.inputs import MonitoredGate, checked_scores, held_out_values
from goen.monitor.state import CLASS, SCORE
from tests.monitor.predictions import digit_gate, like_held_out, predicted, without_cues
from tests.own_model import digits, preprocess, trained

PROPERTIES = ["brightness", "contrast", "sharpness", "entropy", "colour"]
NAMES = [SCORE, "early", "late", "entropy", CLASS, *(f"image {name}" for name in PROPERTIES)]


def test_the_numbers_of_a_prediction() -> None:
    gate = digit_gate()
    prediction = like_held_out(gate, 10)
    values = MonitoredGate.of(gate).values(prediction)
    assert list(values) == NAMES
    assert (values[SCORE] == prediction.score).all()
    assert (values["late"] == prediction.cues["late"]).all()
    assert (values[CLASS] == prediction.label).all()
    assert (values["image entropy"] == prediction.properties["entropy"]).all()


def test_a_monitor_may_leave_the_properties_out() -> None:
    gate = digit_gate()
    bare = replace(like_held_out(gate, 10), properties={})
    with pytest.raises(UsageError, match=r"prediction has none.*properties=False"):
        MonitoredGate.of(gate).values(bare)
    monitored = MonitoredGate.of(gate, properties=False)
    assert list(monitored.values(bare)) == NAMES[:5]
    assert list(held_out_values(gate, properties=False)) == NAMES[:5]
    assert not monitored.same_as(MonitoredGate.of(gate))
    state = Monitor(gate, properties=False).update(bare)
    assert list(state.streams) == NAMES[:5]


def test_a_gate_without_the_properties_of_its_held_out_images_is_followed_without() -> None:
    """One that was saved before they were kept."""
    earlier = replace(digit_gate(), held_out=replace(digit_gate().held_out, properties=None))
    assert earlier.property_names == ()
    assert list(held_out_values(earlier)) == NAMES[:5]
    assert list(Monitor(earlier).streams.names) == NAMES[:5]


def test_rows_bring_the_properties_along() -> None:
    gate = digit_gate()
    prediction = like_held_out(gate, 10)
    rows = [json.loads(json.dumps(row)) for row in prediction.rows()]
    found = MonitoredGate.of(gate).from_rows(rows)
    for name in PROPERTIES:
        assert (found.properties[name] == prediction.properties[name]).all()
    without = [{k: v for k, v in row.items() if k != "image_contrast"} for row in rows]
    with pytest.raises(UsageError, match="image_contrast"):
        MonitoredGate.of(gate).from_rows(without)


def test_held_out_images_have_no_tolerance_and_belong_together() -> None:
    gate = digit_gate()
    held_out = gate.held_out
    assert held_out.cues is not None
    values = held_out_values(gate)
    expected = gate.detector.score_cues(torch.tensor(held_out.cues)).numpy()
    assert (values[SCORE] == expected).all()
    assert (values[SCORE] < held_out.scores).all()  # the threshold's have the tolerance
    assert (values["entropy"] == held_out.cues[:, 2]).all()
    assert (values[CLASS] == held_out.labels).all()
    assert held_out.properties is not None
    assert (values["image brightness"] == held_out.properties[:, 0]).all()


def test_classes_of_one_name_are_one_class_in_rows_and_predictions_alike() -> None:
    gate = replace(digit_gate(), classes=("crane", "b", "crane", "d", "e", "f", "g"))
    prediction = replace(like_held_out(gate, 60), label=np.arange(60) % 7)
    prediction = replace(prediction, p_value=gate.p_values(prediction.score, prediction.label))
    rows = json.loads(json.dumps(list(prediction.rows())))
    expected = np.where(prediction.label == 2, 0, prediction.label)
    watched = MonitoredGate.of(gate)
    for given in (prediction, watched.from_rows(rows)):
        assert (watched.values(given)[CLASS] == expected).all()
    assert gate.held_out.labels is not None
    assert 2 in gate.held_out.labels
    assert 2 not in held_out_values(gate)[CLASS]
    by_class = MonitoredGate.of(gate.with_false_alarm_rate(0.3).with_per_class())
    with pytest.raises(UsageError, match="Two classes of this gate have one name"):
        by_class.from_rows(rows)


def test_a_gate_without_labels_is_watched_without_classes() -> None:
    gate = digit_gate()
    bare = replace(gate, held_out=replace(gate.held_out, labels=None))
    assert CLASS not in held_out_values(bare)
    assert CLASS not in MonitoredGate.of(bare).values(like_held_out(gate, 3))


def test_an_only_cue_is_the_score_and_no_stream_of_its_own() -> None:
    p = digits()
    gate = Gate.fit(trained(), p.train, p.validation, preprocess=preprocess, detector="energy")
    plain = replace(gate, held_out=replace(gate.held_out, labels=None))
    assert [*held_out_values(plain, properties=False)] == [SCORE]
    monitor = Monitor(plain, properties=False)
    assert [(s.name, s.weight) for s in monitor.streams.streams] == [(SCORE, 1.0)]
    seen = like_held_out(gate, 5)
    assert [*MonitoredGate.of(plain, properties=False).values(seen)] == [SCORE]
    assert len(monitor.update(seen).streams) == 1
    weights = {s.name: s.weight for s in Monitor(gate).streams.streams}
    assert "energy" not in weights
    assert weights.pop(SCORE) == 0.5
    assert sum(weights.values()) == pytest.approx(0.5)


def test_a_gate_without_cues_is_refused() -> None:
    with pytest.raises(UsageError, match="without the cues of its held-out images"):
        held_out_values(without_cues())


def test_a_prediction_of_another_gate_is_refused() -> None:
    gate = digit_gate()
    watched = MonitoredGate.of(gate)
    prediction = like_held_out(gate, 20)
    assert gate.held_out.cues is not None
    other = replace(gate, held_out=replace(gate.held_out, scores=gate.held_out.scores + 0.3))
    for stranger, why in (
        (like_held_out(other, 20), "p-values"),
        (replace(prediction, classes=tuple("abcdefg")), "classes or cues"),
        (replace(prediction, cues={"early": prediction.cues["early"]}), "classes or cues"),
        (replace(prediction, p_value=prediction.p_value[:-1]), "p-values"),
    ):
        with pytest.raises(UsageError, match=f"not of the gate.*{why}"):
            watched.values(stranger)
    bad = prediction.score.copy()
    bad[3] = np.nan
    with pytest.raises(UsageError, match="NaN"):
        watched.values(replace(prediction, score=bad))


@pytest.mark.parametrize("per_class", [False, True])
def test_predictions_of_another_engine_are_of_the_gate(per_class: bool) -> None:
    gate = digit_gate().with_false_alarm_rate(0.3).with_per_class(per_class)
    tolerance = 1e-3 * float(np.std(gate.held_out.scores))  # as far as engines may differ
    compiled = replace(gate, compiled=SimpleNamespace(tolerance=tolerance))  # type: ignore[arg-type]
    labels = np.asarray(gate.held_out.labels)
    some = predicted(gate, np.array(gate.held_out.cues), labels)
    score = gate.held_out.scores + 0.5 * tolerance  # above a held-out score, and equal to it there
    p_value = compiled.p_values(score, labels)
    assert (p_value > gate.p_values(score, labels)).any()
    MonitoredGate.of(gate).values(replace(some, score=score, p_value=p_value))
    with pytest.raises(UsageError, match="p-values"):
        MonitoredGate.of(gate).values(replace(some, score=score + 100 * tolerance, p_value=p_value))
    with pytest.raises(UsageError, match="p-values"):
        MonitoredGate.of(gate).values(replace(some, score=score - 100 * tolerance, p_value=p_value))


def test_the_same_gate_at_another_rate_is_the_same_gate() -> None:
    gate = digit_gate()
    prediction = like_held_out(gate.with_false_alarm_rate(0.2), 20)
    values = MonitoredGate.of(gate).values(prediction)
    assert list(values) == NAMES
    same = MonitoredGate.of(gate).values(like_held_out(gate, 20))
    assert all((values[name] == same[name]).all() for name in same)


def test_a_gate_with_thresholds_per_class_has_its_own_p_values() -> None:
    gate = digit_gate().with_false_alarm_rate(0.3).with_per_class()
    watched = MonitoredGate.of(gate)
    watched.values(like_held_out(gate, 30))
    with pytest.raises(UsageError, match="p-values"):
        watched.values(like_held_out(digit_gate(), 30))


def test_rows_of_goen_score_are_read_as_the_prediction_they_were_written_from() -> None:
    gate = digit_gate()
    prediction = like_held_out(gate, 12)
    lines = [json.dumps(row) for row in prediction.rows()]
    watched = MonitoredGate.of(gate)
    read = watched.from_rows([json.loads(line) for line in lines])
    found = watched.values(read)
    for name, values in watched.values(prediction).items():
        assert (found[name] == values).all()
    assert (read.is_ood == prediction.is_ood).all()


def test_rows_of_a_gate_with_other_cues_are_said_to_be_that() -> None:
    (row,) = like_held_out(digit_gate(), 1).rows()
    other = {name.replace("cue_late", "cue_block2"): value for name, value in row.items()}
    with pytest.raises(
        UsageError, match=r"not of the gate .*its cues are early, block2.*this gate"
    ):
        MonitoredGate.of(digit_gate()).from_rows([other])


def test_an_image_that_was_not_finite_is_infinitely_far_out() -> None:
    gate = digit_gate()
    prediction = predicted(gate, np.full((1, 3), np.inf))
    row = json.loads(json.dumps(next(iter(prediction.rows()))))
    assert row["score"] is None
    read = MonitoredGate.of(gate).from_rows([row])
    assert read.score.tolist() == read.cues["late"].tolist() == [np.inf]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": "high"}, "not a row of goen score: its score should be a number"),
        ({"label": 3}, "not a row of goen score: its label"),
        ({"label": "zebra"}, "no class 'zebra'"),
        ({"p_value": 0.5}, "p-values"),
        ({"is_ood": None}, "is_ood"),
        ({"cue_late": "x"}, "cue_late"),
    ],
)
def test_a_row_that_is_none_is_refused(change: dict[str, object], message: str) -> None:
    gate = digit_gate()
    row = next(iter(like_held_out(gate, 1).rows()))
    with pytest.raises(UsageError, match=message):
        Monitor(gate).update(MonitoredGate.of(gate).from_rows([{**row, **change}]))  # type: ignore[dict-item]
    del row["score"]
    with pytest.raises(UsageError, match="it has no score"):
        MonitoredGate.of(gate).from_rows([row])


def test_a_cue_with_a_name_of_the_monitors_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = digit_gate()
    monkeypatch.setattr(type(gate.detector), "cue_names", ("score", "late", "entropy"))
    with pytest.raises(UsageError, match="a cue called 'score'"):
        MonitoredGate.of(gate)


def test_scores_may_be_a_number_a_list_a_tensor_or_named() -> None:
    for given in ([1, 2], torch.tensor([1.0, 2.0]), {SCORE: (1, 2)}):
        assert checked_scores(given, "scores")[SCORE].tolist() == [1.0, 2.0]
    assert checked_scores(2, "scores")[SCORE].tolist() == [2.0]
    found = checked_scores({"a": [1], "b": 2}, "scores")
    assert {name: values.tolist() for name, values in found.items()} == {"a": [1], "b": [2]}
    with pytest.raises(UsageError, match="Expected scores"):
        checked_scores("high", "scores")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="a name that is text, got 0"):
        checked_scores({0: [1]}, "scores")  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": np.zeros(2)}, "Expected scores for a, b, got a"),
        ({"a": np.zeros(2), "b": np.zeros(2), "c": np.zeros(2)}, "got a, b, c"),
        ({"a": np.zeros(2), "b": np.zeros(3)}, "same number of scores"),
        ({"a": np.zeros((2, 1)), "b": np.zeros(2)}, r"shape \(N,\)"),
        ({"a": np.zeros(2), "b": np.array([0, np.nan])}, r"1 of 2 scores \(b\) are NaN"),
    ],
)
def test_bad_numbers_are_refused(given: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        checked_scores(given, "scores", ("a", "b"))
