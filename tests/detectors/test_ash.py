import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from goen.detectors import ASH, Energy
from goen.errors import GoenWarning, UsageError
from tests.detectors.linear import labels, of, some, weights
from tests.detectors.saving import reloaded


def shaped(row: np.ndarray, treatment: str, percentile: float) -> np.ndarray:
    """As the paper's algorithms have it."""
    before = row.sum()
    threshold = np.sort(row)[::-1][: len(row) - round(len(row) * percentile / 100)].min()
    row = np.where(row < threshold, 0, row)
    if treatment == "binarise":
        return np.where(row > 0, before / (row > 0).sum(), 0)
    return row * np.exp(before / row.sum()) if treatment == "scale" else row


@pytest.mark.parametrize("percentile", [0, 50, 80])
@pytest.mark.parametrize("treatment", ["scale", "binarise", "prune"])
def test_it_is_the_energy_of_shaped_features(treatment: str, percentile: float) -> None:
    z = torch.rand(30, 8, dtype=torch.float64, generator=torch.manual_seed(1))  # without ties
    other = of(z, *weights())
    ash = ASH(treatment=treatment, percentile=percentile)  # type: ignore[arg-type]
    ash.fit(some(60), labels(60))
    weight, bias = (part.numpy() for part in weights())
    expected = [
        -logsumexp(weight @ shaped(row, treatment, percentile) + bias)
        for row in other.features["z"].numpy()
    ]
    assert np.allclose(ash.score(other).numpy(), expected, rtol=1e-10)


def test_by_hand() -> None:
    # Half of (6, 2, 1, 1) are (6, 2): P (6, 2), B (5, 5), S (6, 2) times e^(10 / 8).
    weight = torch.tensor([[1.0, 1.0, 9.0, 9.0]])
    outputs = of(torch.tensor([[6.0, 2.0, 1.0, 1.0]]), weight)
    found = {
        treatment: ASH(treatment=treatment, percentile=50).fit(outputs, torch.tensor([0]))
        for treatment in ("prune", "binarise", "scale")
    }
    scores = [detector.score(outputs).item() for detector in found.values()]
    assert scores == pytest.approx([-8, -10, -8 * np.exp(1.25)])


def test_a_factor_that_float32_cannot_hold() -> None:
    z = torch.ones(1, 200)
    z[0, :2] = 1.001
    even = of(z, torch.full((1, 200), 0.01), torch.zeros(1))
    score = ASH(percentile=99).fit(even, torch.tensor([0])).score(even).item()
    assert score == pytest.approx(-0.02002 * np.exp(200.002 / 2.002), rel=1e-4)


def test_without_pruning_it_is_the_energy() -> None:
    ash = ASH(treatment="prune", percentile=0).fit(some(60), labels(60))
    assert torch.allclose(ash.score(some(9, 1)), Energy().score(some(9, 1)))


def test_the_default_percentile_leaves_the_predictions_of_training_images() -> None:
    # Of ten entries one decides the class, and nine are alike for both: all may go.
    z = torch.ones(40, 10)
    z[torch.arange(40), torch.arange(40) % 2] = 5
    weight = torch.eye(2, 10)
    ash = ASH().fit(of(z, weight), torch.arange(40) % 2)
    assert ash.percentile_ == 95
    # Where two entries decide together, three quarters may go.
    z = torch.zeros(40, 8)
    z[:, :2] = torch.tensor([[3.0, 2.9], [3.1, 3.05]]).repeat(20, 1)
    weight = torch.zeros(2, 8)
    weight[0, :2], weight[1, :2] = torch.tensor([1.0, 1.0]), torch.tensor([1.5, 0.45])
    ash = ASH(treatment="prune").fit(of(z, weight), torch.zeros(40).long())
    assert ash.percentile_ == 80
    assert torch.equal(reloaded(ash).percentile_, ash.percentile_)


def test_what_cannot_be_meant_is_refused_and_negative_features_are_a_warning() -> None:
    with pytest.raises(UsageError, match="percentile must be a number, at least 0 and below 100"):
        ASH(percentile=100)
    with pytest.raises(UsageError, match="Unknown treatment 'b'"):
        ASH(treatment="b")  # type: ignore[arg-type]
    negative = of(some(9).features["z"] - 1, *weights())
    with pytest.warns(GoenWarning, match="ASH is made for features behind a ReLU"):
        ASH().fit(negative, labels(9))
