import pickle

import numpy as np
import pytest
import torch

from goen.errors import UsageError
from goen.metrics import OODMetrics, ood_metrics

RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=200).round(1)  # with ties
IS_OOD = RNG.random(200) < 0.3


def test_batches_of_any_size_give_the_metrics_of_all_scores() -> None:
    expected = ood_metrics(SCORES[~IS_OOD], SCORES[IS_OOD], level=0.9)
    for size in (1, 7, 200):
        metric = OODMetrics(level=0.9)
        for start in range(0, 200, size):
            metric.update(SCORES[start : start + size], IS_OOD[start : start + size])
        assert metric.compute() == expected
        assert metric.compute() == expected  # it may be read again
        assert len(metric) == 200


def test_a_case_by_hand() -> None:
    metric = OODMetrics()
    metric.update([1.0, 3.0], is_ood=False)
    metric.update([2.0, 3.0], is_ood=True)
    # Pairs (ID, OOD): 1<2, 1<3, 3>2, 3=3: (1 + 1 + 0 + 1/2) / 4.
    assert metric.compute().auroc == 0.625
    assert repr(metric) == "OODMetrics(2 ID scores, 2 OOD scores)"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_of_a_training_loop_are_taken(dtype: torch.dtype) -> None:
    metric = OODMetrics()
    scores = torch.tensor([0.25, 0.5, 1.0], dtype=dtype, requires_grad=True)
    metric.update(scores, torch.tensor([False, False, True]))
    metric.update(scores * 2, torch.tensor([0, 0, 1]))
    metric.update(torch.zeros(0), torch.zeros(0))
    found = metric.compute()
    assert (found.auroc, found.num_id, found.num_ood) == (1 - 0.5 / 8, 4, 2)


def test_what_was_added_stays_though_its_array_changes() -> None:
    metric, scores = OODMetrics(), np.array([0.0, 1.0])
    metric.update(scores, [False, True])
    scores[:] = [5.0, 0.0]
    assert metric.compute().auroc == 1


def test_a_reset_forgets_and_parts_are_merged() -> None:
    whole, part = OODMetrics(), OODMetrics()
    whole.update(SCORES[:90], IS_OOD[:90])
    part.update(SCORES[90:], IS_OOD[90:])
    whole.merge_state(pickle.loads(pickle.dumps(part)))
    assert whole.compute() == ood_metrics(SCORES[~IS_OOD], SCORES[IS_OOD])
    assert len(part) == 110
    whole.reset()
    assert len(whole) == 0
    with pytest.raises(UsageError, match=r"0 ID scores, 0 OOD scores.* has none of one kind"):
        whole.compute()


@pytest.mark.parametrize(
    ("scores", "is_ood", "message"),
    [
        ([0.1, float("nan")], [0, 1], "scores holds 1 NaN"),
        ([[0.1]], [0], r"scores must be one number per sample"),
        ([0.1, 0.2], [0], r"is_ood must be one yes or no per sample, shape \(2,\)"),
        ([0.1, 0.2], [0, 2], "is_ood must be True and False"),
    ],
)
def test_a_batch_that_is_refused_adds_nothing(scores: list, is_ood: list, message: str) -> None:
    metric = OODMetrics()
    with pytest.raises(UsageError, match=message):
        metric.update(scores, is_ood)
    assert len(metric) == 0
    metric.update([0.0], is_ood=True)
    with pytest.raises(UsageError, match="0 ID scores, 1 OOD scores"):
        metric.compute()
