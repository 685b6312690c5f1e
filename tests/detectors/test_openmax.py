import numpy as np
import pytest
import torch
from scipy.stats import weibull_min

from goen.detectors import OpenMax
from goen.detectors.openmax import fit_weibull
from goen.errors import FitError, UsageError
from goen.outputs import Outputs


def logits(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(count) % 4
    noise = torch.randn(count, 4, generator=torch.manual_seed(seed), dtype=torch.float64)
    return 5 * torch.eye(4, dtype=torch.float64)[labels] + 2 * noise + 1, labels


@pytest.mark.parametrize(("tail", "alpha"), [(20, 3), (5, 9)])
def test_it_is_openmax_by_a_slow_loop_and_scipys_weibull(tail: int, alpha: int) -> None:
    train, labels = logits(400, 0)
    openmax = OpenMax(tail=tail, alpha=alpha).fit(Outputs(train, {}), labels)
    rows, truth = train.numpy(), labels.numpy()
    models = []
    for c in range(4):
        correct = rows[(rows.argmax(1) == c) & (truth == c)]
        mean = correct.mean(0)
        largest = np.sort(np.linalg.norm(correct - mean, axis=1))[-tail:]
        shape, scale = fit_weibull(largest - largest[0] + 10_000)
        models.append((mean, weibull_min(shape, largest[0] - 10_000, scale)))
    other, _ = logits(50, 1)
    expected = []
    for row in other.numpy():
        revised = row.copy()
        for rank, c in enumerate(np.argsort(-row)[:alpha]):
            mean, model = models[c]
            weight = 1 - rank / min(alpha, 4)
            revised[c] = row[c] * (1 - weight * model.cdf(np.linalg.norm(row - mean)))
        unknown = np.exp((row - revised).sum())
        probability = unknown / (np.exp(revised).sum() + unknown)
        expected.append(np.log(probability / (1 - probability)))
    assert np.allclose(openmax.score(Outputs(other, {})).numpy(), expected, rtol=1e-8)


@pytest.mark.parametrize("shape", [0.7, 3.0, 80.0, 5000.0])
def test_the_fit_is_scipys(shape: float) -> None:
    values = weibull_min(shape, scale=5).rvs(50, random_state=np.random.default_rng(0))
    expected = weibull_min.fit(values, floc=0)
    assert fit_weibull(values) == pytest.approx([expected[0], expected[2]], rel=1e-3)


def test_by_hand() -> None:
    # Class 0 is always 2 or 3 from its mean; class 1 is never right and gives nothing.
    rows = torch.tensor([[10.0, 0.0], [14.0, 0.0], [9.0, 0.0], [15.0, 0.0], [5.0, 0.0]])
    openmax = OpenMax(tail=4).fit(Outputs(rows, {}), torch.tensor([0, 0, 0, 0, 1]))
    assert openmax.means_.tolist() == [[12, 0], [0, 0]]
    assert openmax.least_.tolist() == [2, 0]
    # Near its mean class 0 keeps nearly all of its logit; far beyond, it gives all of it.
    near, far = openmax.score(Outputs(torch.tensor([[12.0, 0.0], [200.0, 0.0]]), {})).tolist()
    assert -np.log(np.exp(12) + 1) < near < -11.5
    assert far == pytest.approx(200 - np.log(2))


def test_the_scale_of_the_logits_changes_no_weight() -> None:
    train, labels = logits(400, 0)
    one, hundred = (OpenMax().fit(Outputs(s * train, {}), labels) for s in (1, 100))
    beyond = [
        -torch.expm1(-(((s * 3 - d.least_ + 10_000) / d.scale_) ** d.shape_))
        for s, d in ((1, one), (100, hundred))
    ]
    assert torch.allclose(beyond[0], beyond[1], atol=0.02)


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(UsageError, match="tail must be an integer, at least 2"):
        OpenMax(tail=1)
    with pytest.raises(UsageError, match="needs at least two"):
        OpenMax().fit(Outputs(torch.zeros(3, 1), {}), torch.zeros(3).long())
    with pytest.raises(FitError, match="No class has two correctly classified training images at"):
        OpenMax().fit(Outputs(torch.eye(2).repeat(3, 1), {}), torch.tensor([0, 1] * 3))
