"""Scores, p-values and decisions worked by hand."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from goen.errors import FitError
from goen.gate.decision import Decided, Reference, decide, require_finite
from goen.gate.threshold import HeldOut
from goen.outputs import Outputs


class TwoCues:
    """The score is the first cue less the second, which is unusual when it is low."""

    features = ("z",)
    cue_directions = (1.0, -1.0)

    def cues(self, outputs: Outputs) -> Tensor:
        return outputs.features["z"].double()

    def score_cues(self, cues: Tensor) -> Tensor:
        return cues[:, 0] - cues[:, 1]

    def probability(self, score: Tensor) -> Tensor:
        return torch.sigmoid(score)

    def calibrated(self, outputs: Outputs) -> Outputs:
        return outputs


DETECTOR = TwoCues()
# Scores 1, 2, 3 and 3; the second cue from most to least unusual: -3, -1, 0, 1.
HELD_OUT = HeldOut(
    np.array([3.0, 1.0, 2.0, 3.0]),
    np.array([0, 0, 1, 1]),
    np.array([[4.0, 1.0], [-2.0, -3.0], [1.0, -1.0], [3.0, 0.0]]),
)


def of(rows: list[list[float]], labels: list[int] | None = None) -> Outputs:
    logits = torch.zeros(len(rows), 2)
    for row, label in enumerate(labels or [0] * len(rows)):
        logits[row, label] = math.log(3)  # confidence 3/4
    return Outputs(logits, {"z": torch.tensor(rows)})


def decided(
    outputs: Outputs,
    *,
    per_class: bool = False,
    tolerance: float = 0.0,
    threshold: Tensor | None = None,
    held_out: HeldOut = HELD_OUT,
) -> Decided:
    reference = Reference.of(DETECTOR, held_out, per_class=per_class, tolerance=tolerance)  # type: ignore[arg-type]
    limit = torch.tensor(3.0).double() if threshold is None else threshold
    return decide(DETECTOR, outputs, reference, limit)  # type: ignore[arg-type]


def test_p_values_and_decisions_count_held_out_images_that_score_as_high() -> None:
    found = decided(of([[0.5, 0.0], [2.0, 0.0], [3.0, 0.0], [3.25, 0.0]]))
    assert found.p_value.tolist() == [5 / 5, 4 / 5, 3 / 5, 1 / 5]
    assert found.is_ood.tolist() == [False, False, False, True]
    assert found.score.tolist() == [0.5, 2.0, 3.0, 3.25]
    assert found.label.tolist() == [0, 0, 0, 0]
    assert found.confidence.tolist() == pytest.approx([0.75] * 4)


def test_within_the_tolerance_a_score_counts_as_equal() -> None:
    found = decided(of([[3.25, 0.0], [3.75, 0.0]]), tolerance=0.25)
    assert found.p_value.tolist() == [3 / 5, 1 / 5]
    assert found.is_ood.tolist() == [False, True]
    assert found.score.tolist() == [3.25, 3.75]


def test_each_cue_has_a_p_value_in_its_own_direction() -> None:
    found = decided(of([[3.0, -1.0], [5.0, 2.0]]))
    assert found.cue_p_values is not None
    # First cue: 4 and 3 are at least 3. Second: -3 and -1 are at most -1.
    assert found.cue_p_values.tolist() == [[3 / 5, 3 / 5], [1 / 5, 5 / 5]]
    assert found.cues.tolist() == [[3.0, -1.0], [5.0, 2.0]]


def test_within_a_class_only_its_held_out_images_count() -> None:
    limits = torch.tensor([1.5, 2.5]).double()
    outputs = of([[2.0, 0.0], [2.0, 0.0]], [0, 1])
    found = decided(outputs, per_class=True, threshold=limits)
    # Class 0 has the scores 1 and 3, class 1 has 2 and 3.
    assert found.p_value.tolist() == [2 / 3, 3 / 3]
    assert found.is_ood.tolist() == [True, False]
    assert found.label.tolist() == [0, 1]


def test_held_out_images_in_groups_count_once_a_group() -> None:
    grouped = HeldOut(HELD_OUT.scores, HELD_OUT.labels, HELD_OUT.cues, np.array([0, 1, 1, 1]))
    found = decided(of([[0.5, 0.0], [1.5, 0.0], [2.5, 0.0], [9.0, 0.0]]), held_out=grouped)
    steps = grouped.p_value_steps
    assert steps is not None
    assert found.p_value.tolist() == [steps[0], steps[1], steps[2], steps[4]]
    assert found.cue_p_values is not None
    assert found.cue_p_values[3].tolist() == [steps[4], decided_alone(grouped, 0.0)]


def decided_alone(grouped: HeldOut, second: float) -> float:
    """The p-value of a second cue by counting: each group by its share of images as unusual."""
    assert grouped.cues is not None
    assert grouped.groups is not None
    as_unusual = grouped.cues[:, 1] <= second
    shares = [as_unusual[grouped.groups == group].mean() for group in np.unique(grouped.groups)]
    return float((1 + sum(shares)) / (len(shares) + 1))


def test_what_is_not_finite_is_flagged_and_changes_no_other_image() -> None:
    rows = [[2.0, 0.0], [math.nan, 0.0], [0.0, -math.inf], [2.0, 0.0]]
    outputs = of(rows)
    outputs.logits[3, 1] = math.inf
    found = decided(outputs)
    assert found.score.tolist() == [2.0, math.inf, math.inf, math.inf]
    assert found.p_value.tolist() == [4 / 5, 1 / 5, 1 / 5, 1 / 5]
    assert found.is_ood.tolist() == [False, True, True, True]
    assert found.confidence.tolist() == pytest.approx([0.75, 0, 0, 0])
    assert found.cues.tolist() == [[2.0, 0.0]] + [[math.inf] * 2] * 3
    assert found.cue_p_values is not None
    assert found.cue_p_values[1:].tolist() == [[1 / 5, 1 / 5]] * 3
    assert found.probability is not None
    assert found.probability[1:].tolist() == [1.0] * 3
    assert found.probability[0] == torch.sigmoid(torch.tensor(2.0).double())


def test_a_score_of_nan_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DETECTOR, "score_cues", lambda cues: cues[:, 0] * math.nan, raising=False)
    assert decided(of([[0.0, 0.0]])).is_ood.tolist() == [True]


def test_held_out_images_that_are_not_finite_are_counted() -> None:
    require_finite(of([[1.0, 0.0]] * 3), DETECTOR)  # type: ignore[arg-type]
    with pytest.raises(FitError, match="for 2 of the 3 held-out images hold NaN or infinity"):
        require_finite(of([[1.0, 0.0], [math.nan, 0.0], [math.inf, 0.0]]), DETECTOR)  # type: ignore[arg-type]
