import numpy as np
import pytest

from goen.errors import UsageError
from goen.metrics._inputs import as_probabilities


@pytest.mark.parametrize("total", [0.5, 1.01, 1.5, 2.0])
def test_one_row_that_does_not_sum_to_1_is_named(total: float) -> None:
    rows = np.full((5, 4), 0.25)
    assert as_probabilities(rows) is rows
    rows[3] *= total
    with pytest.raises(UsageError, match=rf"\(number 3\) that sums to {total:g}"):
        as_probabilities(rows)
