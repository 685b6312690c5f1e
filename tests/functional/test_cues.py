import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy as scipy_entropy

from goen.errors import FitError
from goen.functional.cues import entropy, log_distance, max_inner_product, normalise
from goen.functional.gaussian import ClassStatistics


def test_normalise_gives_unit_rows_and_keeps_zero_rows() -> None:
    rows = torch.tensor([[3.0, -4.0], [0.0, 0.0], [1e-30, 0.0], [1e30, 1e30]])
    unit = normalise(rows)
    half = math.sqrt(0.5)
    expected = torch.tensor([[0.6, -0.8], [0, 0], [1, 0], [half, half]], dtype=torch.float64)
    torch.testing.assert_close(unit, expected, rtol=1e-15, atol=0)


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1.0, 1e200])
def test_normalise_neither_overflows_nor_vanishes(scale: float) -> None:
    rows = torch.tensor([[3.0, 4.0]], dtype=torch.float64) * scale
    torch.testing.assert_close(
        normalise(rows), torch.tensor([[0.6, 0.8]], dtype=torch.float64), rtol=1e-12, atol=0
    )


def test_normalise_leaves_what_is_not_finite_to_be_refused() -> None:
    unit = normalise(torch.tensor([[math.nan, 1.0], [math.inf, 1.0], [1.0, 0.0]]))
    assert unit[:2].isnan().any(dim=1).all()
    assert unit[2].tolist() == [1.0, 0.0]
    with pytest.raises(FitError, match="2 of 3"):
        ClassStatistics(1, 2).update(unit, torch.zeros(3, dtype=torch.int64))


def test_max_inner_product_keeps_the_length_of_the_means() -> None:
    unit = normalise(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    means = torch.tensor([[0.5, 0.0], [0.0, -1.0]])
    product = max_inner_product(unit, means)
    expected = torch.tensor([0.5, 0.0, math.sqrt(0.5) / 2], dtype=torch.float64)
    torch.testing.assert_close(product, expected, rtol=1e-14, atol=0)


def test_log_distance_is_log_of_one_more() -> None:
    value = log_distance(torch.tensor([0.0, math.e - 1, 1e-20, math.inf], dtype=torch.float64))
    assert value.tolist() == pytest.approx([0.0, 1.0, 1e-20, math.inf], rel=1e-15)


def test_entropy_matches_scipy_and_the_extremes() -> None:
    logits = torch.from_numpy(5 * np.random.default_rng(28).normal(size=(50, 10)))
    reference = scipy_entropy(torch.softmax(logits, dim=1).numpy(), axis=1)
    np.testing.assert_allclose(entropy(logits), reference, rtol=1e-10)
    extreme = torch.tensor([[7.0] * 4, [0.0, -math.inf, -math.inf, 0.0], [1e4, 0.0, 0.0, -1e4]])
    assert entropy(extreme).tolist() == pytest.approx([math.log(4), math.log(2), 0.0], rel=1e-14)
    assert entropy(torch.tensor([[math.nan, 0.0]])).isnan().all()


def test_entropy_is_float64_for_half_precision_logits() -> None:
    logits = torch.tensor([[10.0, 0.0, -3.0]], dtype=torch.bfloat16)
    p = [math.exp(x) / (math.exp(10) + 1 + math.exp(-3)) for x in (10, 0, -3)]
    expected = -sum(x * math.log(x) for x in p)
    assert entropy(logits).item() == pytest.approx(expected, rel=1e-12)
