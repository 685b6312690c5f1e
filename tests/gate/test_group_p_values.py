"""P-values of groups: against a loop, by hand, and how often ID groups have a low one."""

import numpy as np
import pytest

from goen.errors import UsageError
from goen.gate import Gate, HeldOut
from goen.gate.group_p_values import group_p_values
from tests.gate.test_gate import make_gate


def gate_of(scores: np.ndarray, groups: np.ndarray | None) -> Gate:
    made = make_gate()
    object.__setattr__(made, "held_out", HeldOut(scores, groups=groups))
    return made


def test_a_group_is_compared_by_its_highest_score() -> None:
    gate = gate_of(np.array([1.0, 5.0, 2.0, 3.0, 4.0]), np.array([0, 0, 1, 1, 2]))
    # The highest are 5, 3 and 4.
    p = gate.group_p_values(np.array([0.0, 4.0, 9.0, 2.0]), np.array([1, 1, 0, 3]), 5)
    assert p.tolist() == [1 / 4, 3 / 4, 1.0, 1.0, 1.0]
    assert group_p_values(gate, np.array([4.5]), np.array([0])).tolist() == [2 / 4]


def test_scores_that_are_not_finite_have_the_least() -> None:
    gate = gate_of(np.arange(9.0), np.arange(9) // 3)
    p = gate.group_p_values(np.array([np.nan, np.inf, 1.0]), np.array([0, 1, 1]))
    assert p.tolist() == [1 / 4, 1 / 4]


def test_the_gate_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match="fit it with groups="):
        make_gate().group_p_values(np.zeros(2), np.zeros(2, np.int64))
    gate = gate_of(np.arange(9.0), np.arange(9) // 3)
    assert gate.group_p_values(np.zeros(0), np.array([]), 2).tolist() == [1.0, 1.0]
    with pytest.raises(UsageError, match="2 groups have numbers up to 1; got 5"):
        gate.group_p_values(np.zeros(2), np.array([0, 5]), 2)
    for groups in (np.zeros(1, np.int64), np.array([-1, 0]), np.zeros(2), np.array(["a", "b"])):
        with pytest.raises(UsageError, match="one for each of 2 scores"):
            gate.group_p_values(np.zeros(2), groups)
    with pytest.raises(UsageError, match="5 groups have numbers up to 4; got 9"):
        gate.group_p_values(np.zeros(2), np.array([0, 9]), 5)


@pytest.mark.parametrize("levels", [0, 5], ids=["no ties", "ties"])
def test_id_groups_are_rarely_flagged(levels: int) -> None:
    rng = np.random.default_rng(0)
    gate, flagged, repetitions = make_gate(), 0, 2000

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        groups = np.arange(count).repeat(rng.integers(1, 6, count))
        scores = rng.normal(size=count)[groups] + 0.5 * rng.normal(size=len(groups))
        return (np.round(scores * levels / 2) if levels else scores), groups

    for _ in range(repetitions):
        scores, groups = draw(29)
        object.__setattr__(gate, "held_out", HeldOut(scores, groups=groups))
        flagged += bool(group_p_values(gate, *draw(1))[0] <= 0.1)
    # 0.1 at most; three deviations of the count.
    assert flagged / repetitions < 0.1 + 3 * np.sqrt(0.09 / repetitions)
    assert levels or flagged / repetitions > 0.1 - 3 * np.sqrt(0.09 / repetitions)
