import pytest
import torch

from goen.errors import UsageError
from goen.functional.bounds import log_density_bounds, mixture_log_density


def test_bounds_refuse_what_are_no_priors() -> None:
    with pytest.raises(UsageError, match="sum to 1"):
        mixture_log_density(torch.zeros(1, 2), torch.tensor([0.5, 0.6]))
    with pytest.raises(UsageError, match="at least 0"):
        log_density_bounds(torch.zeros(1, 2), torch.tensor([1.5, -0.5]))
    with pytest.raises(UsageError, match=r"priors \(C,\), got \(1, 2\) and \(3,\)"):
        mixture_log_density(torch.zeros(1, 2), torch.full((3,), 1 / 3))
