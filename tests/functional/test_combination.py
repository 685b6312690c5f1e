import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import false_discovery_control

from goen.functional.combination import count_at_least, simes, two_sided_p_values
from tests.functional.tracing import traced


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=30))
def test_simes_is_the_least_p_value_that_benjamini_and_hochberg_adjust(p: list[float]) -> None:
    expected = false_discovery_control(p, method="bh").min()
    assert simes(torch.tensor(p, dtype=torch.float64)).item() == pytest.approx(expected, rel=1e-12)


def test_simes_is_taken_over_the_last_axis() -> None:
    p = torch.tensor([[[0.5, 0.01, 0.04], [1.0, 1.0, 1.0]]])
    assert torch.allclose(simes(p), torch.tensor([[0.03, 1.0]]))


def test_two_sided_p_values_are_those_of_a_slow_loop() -> None:
    rng = np.random.default_rng(0)
    reference = rng.integers(0, 6, (3, 20)).astype(np.float32)  # with ties
    values = rng.integers(-2, 9, (15, 3)).astype(np.float32)
    ordered = torch.from_numpy(np.sort(reference, axis=1))
    found = two_sided_p_values(torch.from_numpy(values), ordered)
    for i, row in enumerate(values):
        for d, x in enumerate(row):
            low = (1 + (reference[d] <= x).sum()) / 21
            high = (1 + (reference[d] >= x).sum()) / 21
            assert found[i, d].item() == pytest.approx(min(1, 2 * min(low, high)), rel=1e-12)


def test_p_values_of_the_same_distribution_are_not_too_small() -> None:
    rng = torch.Generator().manual_seed(0)
    ordered = torch.randn(2000, 39, generator=rng).sort(dim=1).values
    p = two_sided_p_values(torch.randn(1, 2000, generator=rng), ordered)
    for level in (0.05, 0.1, 0.5):
        share = float((p <= level).double().mean())
        assert share == pytest.approx(level, abs=4 * (level * (1 - level) / 2000) ** 0.5)


def test_counts_and_p_values_are_the_same_traced() -> None:
    generator = torch.Generator().manual_seed(0)
    ordered = torch.randint(0, 9, (3, 20), generator=generator).float().sort(dim=1).values
    values = torch.randint(-1, 10, (40, 3), generator=generator).float()  # with many ties
    for function in (
        lambda given: two_sided_p_values(given, ordered),
        lambda given: count_at_least(ordered[0], given[:, 1]),
    ):
        program = traced(function, values)
        for count in (40, 1, 0):
            assert torch.equal(program(values[:count]), function(values[:count]))


def test_columns_that_are_not_contiguous_are_counted_without_a_warning() -> None:
    values = torch.rand(7, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ordered = torch.linspace(0, 1, 11, dtype=torch.float64)
    expected = [(ordered >= value).sum().item() for value in values[:, 1]]
    assert count_at_least(ordered, values.unbind(dim=1)[1]).tolist() == expected
