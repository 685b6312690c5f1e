import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from goen.detectors import NNGuide
from goen.errors import FitError, GoenWarning, UsageError
from goen.outputs import Outputs
from tests.detectors.linear import labels, of, some, weights
from tests.detectors.saving import reloaded


def shifted(count: int, seed: int = 0) -> Outputs:
    """With positive log-sum-exps."""
    weight, bias = weights()
    return of(some(count, seed).features["z"] + 0.1, weight, bias + 9)


@pytest.mark.parametrize("k", [1, 7, 60])
def test_it_is_the_energy_times_the_mean_guided_similarity(k: int) -> None:
    train, other = shifted(60), shifted(30, 1)
    guide = NNGuide(k=k).fit(train, labels(60))
    bank, energy = train.features["z"].numpy(), logsumexp(train.logits.numpy(), axis=1)
    expected = []
    for row, logits in zip(other.features["z"].numpy(), other.logits.numpy(), strict=True):
        cosines = bank @ row / np.linalg.norm(bank, axis=1) / np.linalg.norm(row)
        expected.append(-logsumexp(logits) * np.sort(energy * cosines)[-k:].mean())
    assert np.allclose(guide.score(other).numpy(), expected, rtol=1e-6)


def test_by_hand() -> None:
    # Similarities 2 * 0.6, 3 * 0.8 and 5 * -0.6: the best two have a mean of 1.8.
    train = Outputs(
        torch.tensor([[2.0], [3.0], [5.0]]), {"z": torch.tensor([[4.0, 0], [0, 1], [-2, 0]])}
    )
    guide = NNGuide(k=2).fit(train, torch.zeros(3).long())
    score = guide.score(Outputs(torch.tensor([[10.0]]), {"z": torch.tensor([[3.0, 4.0]])}))
    assert score.item() == pytest.approx(-18)


def test_the_bank_is_a_sample_of_every_class() -> None:
    guide = NNGuide(k=1, rows=9).fit(shifted(300), labels(300))
    assert guide.bank_.shape == (9, 8)
    whole = NNGuide(k=1).fit(shifted(300), labels(300)).bank_
    places = [int((whole == row).all(1).nonzero()) for row in guide.bank_]
    assert places != [*range(9)]  # not the first


def test_negative_energies_are_a_warning() -> None:
    train = Outputs(torch.tensor([[-2.0], [3.0]]), {"z": torch.eye(2)})
    with pytest.warns(GoenWarning, match="1 of 2 training rows have a negative one"):
        NNGuide(k=1).fit(train, torch.zeros(2).long())


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(UsageError, match="k must be an integer, at least 1"):
        NNGuide(k=0)
    with pytest.raises(FitError, match=r"k = 10 similarities needs as many .* there are 9"):
        NNGuide().fit(shifted(9), labels(9))
    guide = NNGuide(k=3).fit(shifted(9), labels(9))
    with pytest.raises(ValueError, match="bank should have at least 3 rows, got 2"):
        reloaded(guide, {"bank": guide.bank_[:2]})
