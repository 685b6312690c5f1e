import numpy as np
import pytest
import torch

from goen.detectors import Residual
from goen.errors import FitError, UsageError
from tests.detectors.linear import labels, of, some, weights


@pytest.mark.parametrize("dim", [None, 0, 7])
def test_it_is_what_numpys_principal_directions_leave(dim: int | None) -> None:
    train, other = some(60), some(30, 1)
    detector = Residual(dim=dim).fit(train, labels(60))
    weight, bias = (part.numpy() for part in weights())
    origin = -np.linalg.pinv(weight) @ bias
    *_, directions = np.linalg.svd(train.features["z"].numpy() - origin)
    principal = directions[: 4 if dim is None else dim].T
    expected = []
    for row in other.features["z"].numpy() - origin:
        expected.append(np.linalg.norm(row - principal @ (principal.T @ row)))
    assert np.allclose(detector.score(other).numpy(), expected, rtol=1e-8)


def test_by_hand() -> None:
    # Logits are 0 at (-1, 0); seen from there the rows are 5 long in the first direction and 1 in
    # the second, which is the residual.
    weight, bias = torch.tensor([[1.0, 0.0]]), torch.tensor([1.0])
    train = of(torch.tensor([[4.0, 1.0], [-6.0, 1.0], [4.0, -1.0], [-6.0, -1.0]]), weight, bias)
    fitted = Residual().fit(train, torch.zeros(4).long())
    assert fitted.origin_.tolist() == [-1, 0]
    assert fitted.score(of(torch.tensor([[7.0, -3.0]]), weight, bias)).tolist() == [3]


def test_rows_without_a_residual_and_too_many_directions_are_refused() -> None:
    flat = torch.tensor([[4.0, 0.0], [-4.0, 0.0]])
    with pytest.raises(FitError, match="lie within 1 of 2 dimensions"):
        Residual().fit(of(flat, torch.tensor([[1.0, 0.0]])), torch.tensor([0, 0]))
    with pytest.raises(UsageError, match=r"dim lies in 0 \.\. 7"):
        Residual(dim=8).fit(some(60), labels(60))
