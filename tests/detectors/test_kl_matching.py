import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy

from goen.detectors import KLMatching
from goen.errors import FitError, UsageError
from goen.outputs import Outputs


def logits(count: int, seed: int) -> torch.Tensor:
    return 3 * torch.randn(count, 4, generator=torch.manual_seed(seed), dtype=torch.float64)


def test_it_is_the_least_divergence_from_a_mean_of_predicted_classes() -> None:
    train, held_out, other = (Outputs(logits(n, n), {}) for n in (30, 80, 40))
    matching = KLMatching().fit(train, torch.zeros(30).long(), held_out=held_out)
    p = softmax(held_out.logits.numpy(), axis=1)
    means = [p[p.argmax(1) == c].mean(0) for c in range(4)]
    expected = [
        min(entropy(row, mean) for mean in means) for row in softmax(other.logits.numpy(), axis=1)
    ]
    assert np.allclose(matching.score(other).numpy(), expected, rtol=1e-9)


def test_by_hand() -> None:
    # The means are (3/4, 1/4) and (1/4, 3/4); from either, (1/2, 1/2) is log 2 - log 3 / 2 away.
    held_out = torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64).log()
    matching = KLMatching().fit(Outputs(held_out, {}), torch.tensor([1, 1]))
    query = Outputs(torch.zeros(1, 2), {})
    assert matching.score(query).item() == pytest.approx(np.log(2) - np.log(3) / 2)


def test_a_class_that_is_never_predicted_and_a_probability_of_zero() -> None:
    sure = torch.tensor([[2000.0, 0.0, -2000.0], [0.0, 2000.0, -2000.0]])
    matching = KLMatching().fit(Outputs(sure, {}), torch.tensor([0, 1]))
    assert matching.log_means_.shape == (2, 3)
    scores = matching.score(Outputs(torch.tensor([[2000.0, 0, -2000], [0, 0, 2000]]), {}))
    assert scores[0] == 0
    assert 1000 < scores[1] < 10_000


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(UsageError, match="needs at least two"):
        KLMatching().fit(Outputs(torch.zeros(3, 1), {}), torch.zeros(3).long())
    spoilt = logits(9, 0)
    spoilt[2, 1] = torch.nan
    with pytest.raises(FitError, match="1 of 9 logit rows"):
        KLMatching().fit(Outputs(spoilt, {}), torch.zeros(9).long())
