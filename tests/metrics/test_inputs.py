import numpy as np
import pytest
import torch

from goen.errors import UsageError
from goen.metrics._inputs import as_floats, as_probabilities


@pytest.mark.parametrize("total", [0.5, 1.01, 1.5, 2.0])
def test_one_row_that_does_not_sum_to_1_is_named(total: float) -> None:
    rows = np.full((5, 4), 0.25)
    assert as_probabilities(rows) is rows
    rows[3] *= total
    with pytest.raises(UsageError, match=rf"\(number 3\) that sums to {total:g}"):
        as_probabilities(rows)


def test_the_advice_for_a_tensor_numpy_cannot_read_works() -> None:
    tensor = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    with pytest.raises(UsageError, match=r"pass tensor\.detach\(\)\.float\(\)\.cpu\(\)\.numpy\(\)"):
        as_floats(tensor, "id_scores")  # type: ignore[arg-type]
    assert as_floats(tensor.detach().float().cpu().numpy(), "id_scores").tolist() == [1, 1, 1]
