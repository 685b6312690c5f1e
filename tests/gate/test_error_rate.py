"""What a gate accepts for an error rate: by hand, against its bound, kept in files and rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import goen
from goen.errors import ArtifactError, FitError, UsageError
from goen.functional.selective import select
from goen.gate import Gate, HeldOut
from goen.gate.error_rate import ErrorRate, find_acceptance
from goen.gate.export.onnx import export_metadata
from goen.gate.fitting.summary import fit_summary
from goen.gate.threshold import Answers
from goen.scoring.rows import all_columns, sort_rows, unreadable_row
from goen.scoring.scorer import Scorer
from tests.gate.storage.test_saving import forge_field, forge_tensor

Rows = tuple[dict[str, NDArray[np.float32]], NDArray[np.int64]]


def rows(count: int, seed: int, noise: float = 1.1) -> Rows:
    """Features of three classes with the logits of a classifier that is sometimes wrong."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    features = rng.normal(0, noise, (count, 8)).astype(np.float32)
    features[np.arange(count), labels] += 3
    logits = 2 * features[:, :3] - (features[:, :3] ** 2).sum(axis=1, keepdims=True) / 20
    return {"z": features, "logits": logits}, labels


def make_gate(held_out: int = 4000, labelled: bool = True, **settings: object) -> Gate:
    train, labels = rows(600, 0)
    given, truth = rows(held_out, 1)
    return Gate.fit_outputs(
        train,
        labels,
        given,
        held_out_labels=truth if labelled else None,
        detector="knn",
        **settings,  # type: ignore[arg-type]
    )


@pytest.fixture(scope="module")
def gate() -> Gate:
    return make_gate()


@pytest.fixture(scope="module")
def new() -> Rows:
    return rows(20_000, 2)


def wrong_of(gate: Gate, given: Rows) -> tuple[goen.Prediction, NDArray[np.bool_]]:
    prediction = gate.predict_outputs(given[0])
    return prediction, prediction.label != given[1]


@pytest.mark.parametrize("by", ["confidence", "score"])
def test_accepted_images_are_rarely_wrong_and_never_flagged(gate: Gate, new: Rows, by: str) -> None:
    before, wrong = wrong_of(gate, new)
    assert wrong[~before.is_ood].mean() > 0.03
    assert before.accepted is None
    bounded = gate.with_error_rate(0.02, by=by)  # type: ignore[arg-type]
    prediction, _ = wrong_of(bounded, new)
    assert prediction.accepted is not None
    assert not (prediction.accepted & prediction.is_ood).any()
    assert wrong[prediction.accepted].mean() < 0.02
    assert 0.3 < prediction.accepted.mean() < (~before.is_ood).mean()
    # Nothing else changes.
    for name in ("label", "score", "p_value", "is_ood", "confidence"):
        assert np.array_equal(getattr(prediction, name), getattr(before, name))
    acceptance = bounded.acceptance
    assert acceptance is not None
    assert prediction.accepted.mean() == pytest.approx(acceptance.coverage, abs=0.03)
    order = prediction.confidence if by == "confidence" else -prediction.score
    others = ~prediction.accepted & ~prediction.is_ood
    assert order[prediction.accepted].min() > order[others].max() - 1e-12


@pytest.mark.parametrize("by", ["confidence", "score"])
def test_the_limits_are_those_of_the_held_out_images(gate: Gate, by: str) -> None:
    held_out, truth = rows(4000, 1)
    own = gate.predict_outputs(held_out)
    wrong = own.label != truth
    # The threshold is the 200th highest score; images that score below it are candidates.
    limit = np.sort(own.score)[-200]
    below = own.score < limit
    assert below.sum() == 3800
    order = own.score if by == "score" else -own.confidence
    expected = select(order[below], wrong[below], 0.02, 0.95)
    assert expected is not None
    acceptance = gate.with_error_rate(0.02, by=by).acceptance  # type: ignore[arg-type]
    assert acceptance is not None
    assert acceptance.selection.count == expected.count
    assert acceptance.selection.errors == expected.errors
    assert acceptance.coverage == expected.count / 4000
    score, confidence = acceptance.below_score, acceptance.above_confidence
    if by == "score":
        assert (score, confidence) == (pytest.approx(expected.limit, abs=1e-5), -np.inf)
    else:
        assert score == pytest.approx(limit, abs=1e-5)
        assert confidence == pytest.approx(-expected.limit, abs=1e-6)
    accepted = acceptance.accepts(own.score, own.confidence)
    assert accepted.sum() == pytest.approx(expected.count, abs=2)


def test_a_high_rate_accepts_all_that_passes(gate: Gate, new: Rows) -> None:
    for by in ("confidence", "score"):
        bounded = gate.with_error_rate(0.5, by=by)  # type: ignore[arg-type]
        prediction = bounded.predict_outputs(new[0])
        assert np.array_equal(prediction.accepted, ~prediction.is_ood)


def test_a_lower_false_alarm_rate_may_accept_more(gate: Gate) -> None:
    few = gate.with_false_alarm_rate(0.5).with_error_rate(0.02).acceptance
    many = gate.with_error_rate(0.02).acceptance
    assert few is not None
    assert many is not None
    assert few.coverage <= 0.5 < many.coverage
    changed = gate.with_error_rate(0.02).with_false_alarm_rate(0.5)
    assert changed.acceptance == few


def test_rate_and_confidence_move_the_coverage(gate: Gate) -> None:
    def coverage(rate: float, confidence: float = 0.95) -> float:
        acceptance = gate.with_error_rate(rate, confidence=confidence).acceptance
        assert acceptance is not None
        return acceptance.coverage

    assert coverage(0.01) < coverage(0.02) < coverage(0.05)
    assert coverage(0.02, 0.999) <= coverage(0.02) <= coverage(0.02, 0.5)
    assert gate.with_error_rate(0.02).with_error_rate(None).acceptance is None


def test_the_gate_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match="needs the labels of the held-out images"):
        make_gate(labelled=False).with_error_rate(0.02)
    with pytest.raises(FitError, match=r"takes 597 of them.*hold out more labelled"):
        make_gate(300).with_error_rate(0.01)
    with pytest.raises(UsageError, match="come in groups"):
        make_gate(groups=np.arange(4000) // 2).with_error_rate(0.02)
    made = make_gate()
    with pytest.raises(UsageError, match=r"with_per_class\(False\)"):
        made.with_per_class().with_error_rate(0.02)
    with pytest.raises(UsageError, match=r"with_per_class\(False\)"):
        made.with_error_rate(0.02).with_per_class()
    for wrong in (0, 1, -0.1, np.nan):
        with pytest.raises(UsageError, match="error rate"):
            made.with_error_rate(wrong)
        with pytest.raises(UsageError, match="confidence"):
            made.with_error_rate(0.02, confidence=wrong)
    with pytest.raises(UsageError, match="confidence, score"):
        made.with_error_rate(0.02, by="entropy")  # type: ignore[arg-type]


def test_when_all_scores_tie_nothing_is_accepted(gate: Gate) -> None:
    cues = torch.ones(500, len(gate.detector.cue_names), dtype=torch.float64)
    answers = Answers(np.zeros(500, np.int64), np.full(500, 0.9), np.zeros(500, bool))
    tied = HeldOut.from_cues(gate.detector, cues, answers=answers, rounding=0.0)
    with pytest.raises(FitError, match="0 errors among 0 of 500"):
        find_acceptance(ErrorRate(0.1), tied, gate.detector, 0.05)


def test_images_that_are_not_finite_are_not_accepted(gate: Gate) -> None:
    broken, _ = rows(3, 5)
    broken["z"][1] = np.nan
    prediction = gate.with_error_rate(0.5).predict_outputs(broken)
    assert prediction.accepted is not None
    assert prediction.is_ood[1]
    assert not prediction.accepted[1]


# -- rows, files, updates --------------------------------------------------------------------------


def test_rows_have_a_column_only_with_an_error_rate(gate: Gate, new: Rows) -> None:
    bounded = gate.with_error_rate(0.02)
    few = {name: part[:50] for name, part in new[0].items()}
    assert "accepted" not in gate.predict_outputs(few).columns()
    prediction = bounded.predict_outputs(few)
    columns = [*prediction.columns()]
    assert columns == all_columns(bounded)[1:-1]
    assert columns[columns.index("is_ood") + 1] == "accepted"
    found = [*prediction.rows()]
    assert [row["accepted"] for row in found] == prediction.accepted.tolist()
    assert prediction[3].accepted == prediction.accepted[3]
    assert prediction[:7].accepted.tolist() == prediction.accepted[:7].tolist()
    assert not sort_rows(found, "accepted")[0]["accepted"]
    assert unreadable_row(bounded, "broken")["accepted"] is None
    scored = Scorer(bounded)(few)
    assert scored["accepted"].dtype == bool
    assert np.array_equal(scored["accepted"], prediction.accepted)


def test_an_error_rate_is_saved_with_what_it_rests_on(
    gate: Gate, new: Rows, tmp_path: Path
) -> None:
    bounded = gate.with_error_rate(0.03, confidence=0.9, by="score")
    bounded.save(tmp_path / "gate")
    again = goen.load(tmp_path / "gate")
    assert again.error_rate == ErrorRate(0.03, 0.9, "score")
    assert again.acceptance == bounded.acceptance
    found, expected = (g.predict_outputs(new[0]) for g in (again, bounded))
    assert np.array_equal(found.accepted, expected.accepted)
    other = again.with_error_rate(0.02).acceptance
    assert other == gate.with_error_rate(0.02).acceptance
    make_gate(labelled=False).save(tmp_path / "unlabelled")
    assert goen.load(tmp_path / "unlabelled").held_out.wrong is None


def test_a_forged_error_rate_is_refused(gate: Gate, tmp_path: Path) -> None:
    bounded = gate.with_error_rate(0.03)
    for number, forged in enumerate(
        [
            {"rate": 0.0001, "confidence": 0.95, "by": "score"},
            {"rate": 0.03, "confidence": 0.95, "by": "luck"},
            {"rate": 0.03, "confidence": 1.5, "by": "score"},
            {"rate": 0.03, "confidence": 0.95, "by": "score", "more": 1},
        ]
    ):
        folder = tmp_path / str(number)
        bounded.save(folder)
        forge_field(folder, ("error_rate",), forged)
        with pytest.raises(ArtifactError):
            goen.load(folder)
    bounded.save(tmp_path / "short")
    forge_tensor(tmp_path / "short", "held_out_wrong", lambda whole: whole[:3])
    with pytest.raises(ArtifactError, match="held_out_wrong"):
        goen.load(tmp_path / "short")


def test_an_update_brings_labels(gate: Gate) -> None:
    unlabelled = make_gate(labelled=False)
    held_out, truth = rows(3000, 7)
    updated = unlabelled.update(held_out=(held_out, truth)).gate
    assert updated.with_error_rate(0.03).acceptance is not None
    # And an update that leaves the held-out images alone keeps them.
    bounded = replace(gate, error_rate=ErrorRate(0.03))
    again = bounded.update(held_out=(held_out, truth)).gate
    assert again.error_rate == ErrorRate(0.03)
    assert again.acceptance != bounded.acceptance
    assert again.acceptance == updated.with_error_rate(0.03).acceptance


def test_the_report_of_a_fit_and_the_exported_file_have_the_limits(gate: Gate) -> None:
    bounded = gate.with_error_rate(0.02)
    acceptance = bounded.acceptance
    assert acceptance is not None
    summary = fit_summary(bounded)
    assert "at most 0.02 of accepted ID images" in summary
    assert f"{acceptance.coverage:.1%} of the held-out images" in summary
    assert "error rate" not in fit_summary(gate)
    assert "error_rate=0.02" in repr(bounded)
    assert "accepted ID images" in bounded._repr_html_()
    limits = export_metadata(bounded)["accepted"]
    assert limits == {
        "below_score": acceptance.below_score,
        "above_confidence": acceptance.above_confidence,
    }
    by_score = export_metadata(gate.with_error_rate(0.02, by="score"))["accepted"]
    assert isinstance(by_score, dict)
    assert by_score["above_confidence"] is None
    assert "accepted" not in export_metadata(gate)


def test_new_gates_keep_the_rate_as_often_as_promised() -> None:
    """Gates of other held-out images: the error of accepted images exceeds the rate rarely."""
    gate, violations = make_gate(), 0
    everything, truth = rows(60_000, 9)
    prediction = gate.predict_outputs(everything)
    wrong = prediction.label != truth
    cues = torch.tensor(np.stack([*prediction.cues.values()], axis=1))
    repetitions = 200
    for seed in range(repetitions):
        chosen = np.random.default_rng(seed).integers(0, len(wrong), 800)
        answers = Answers(prediction.label[chosen], prediction.confidence[chosen], wrong[chosen])
        held_out = HeldOut.from_cues(gate.detector, cues[chosen], answers=answers, rounding=0.0)
        try:
            found = find_acceptance(ErrorRate(0.05, 0.8), held_out, gate.detector, 0.05)
        except FitError:
            continue
        accepted = found.accepts(prediction.score, prediction.confidence)
        violations += wrong[accepted].mean() > 0.05
    assert violations <= 0.2 * repetitions
