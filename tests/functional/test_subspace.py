import numpy as np
import pytest
import torch

from goen.errors import FitError, UsageError
from goen.functional.subspace import (
    mean_residual_length,
    principal_dim,
    residual_directions,
    residual_length,
    zero_logits_point,
)


def test_directions_and_length_are_those_of_a_singular_value_decomposition() -> None:
    rows = torch.randn(3_000, 6, generator=torch.manual_seed(0), dtype=torch.float64)
    rows *= torch.arange(1, 7)
    origin = torch.ones(6, dtype=torch.float64)
    residual = residual_directions(rows, origin, 4)
    *_, directions = np.linalg.svd((rows - origin).numpy(), full_matrices=False)
    last = directions[4:]
    assert np.allclose(residual.numpy() @ residual.numpy().T, last.T @ last, atol=1e-10)
    expected = np.linalg.norm((rows - origin).numpy() @ last.T, axis=1)
    assert np.allclose(residual_length(rows, origin, residual).numpy(), expected)
    assert mean_residual_length(rows, origin, residual) == pytest.approx(expected.mean())


def test_all_logits_are_zero_at_the_point() -> None:
    weight = torch.randn(3, 6, generator=torch.manual_seed(1), dtype=torch.float64)
    bias = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    assert torch.allclose(weight @ zero_logits_point(weight, bias), -bias)


def test_a_residual_needs_a_direction_and_rows_outside_of_the_others() -> None:
    widths = (1501, 1500, 768, 767)
    assert [principal_dim(width, 45_000) for width in widths] == [1000, 512, 512, 383]
    assert [principal_dim(width, 600) for width in widths] == [300, 300, 300, 300]
    assert principal_dim(1501, 1) == 0
    origin = torch.zeros(2, dtype=torch.float64)
    with pytest.raises(UsageError, match=r"dim lies in 0 \.\. 1"):
        residual_directions(torch.eye(2), origin, 2)
    with pytest.raises(FitError, match="The 3 training rows lie within 1 of 2 dimensions"):
        residual_directions(torch.tensor([[1.0, 0.0]]).repeat(3, 1), origin, 1)
