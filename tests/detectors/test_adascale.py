import numpy as np
import pytest
import torch
from scipy.special import logsumexp
from torch import Tensor, nn

from goen.detectors import AdaSCALE
from goen.detectors.adascale import MOVED, Moved
from goen.errors import GoenWarning, UsageError
from goen.extraction import extract
from goen.models import NetworkConfig, ResNet18
from goen.outputs import LinearClassifier, Outputs

DIM = 40


def classifier() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(3, DIM, generator=generator, dtype=torch.float64)
    return weight, torch.randn(3, generator=generator, dtype=torch.float64)


def outputs(count: int, seed: int) -> Outputs:
    generator = torch.Generator().manual_seed(seed)
    z = torch.rand(count, DIM, generator=generator, dtype=torch.float64)
    moved = z + 0.1 * torch.randn(count, DIM, generator=generator, dtype=torch.float64)
    weight, bias = classifier()
    linear = LinearClassifier(weight, bias, "z")
    return Outputs(z @ weight.T + bias, {"z": z, MOVED: moved}, classifier=linear)


def stability(row: np.ndarray, moved: np.ndarray) -> float:
    """Of forty entries, two are 5 %, and one stands for 1 %."""
    order = np.argsort(-row)
    return float(np.maximum(moved[order[:2]], 0).sum() + 10 * np.abs(row - moved)[order[:1]].sum())


@pytest.mark.parametrize("scaled", ["features", "logits"])
def test_it_is_that_of_a_slow_loop(scaled: str) -> None:
    train, held_out, other = (outputs(n, n) for n in (30, 80, 50))
    detector = AdaSCALE(scaled=scaled)  # type: ignore[arg-type]
    detector.fit(train, torch.zeros(30).long(), held_out=held_out)
    pairs = zip(*(held_out.features[name].numpy() for name in ("z", MOVED)), strict=True)
    known = [stability(*pair) for pair in pairs]
    weight, bias = (part.numpy() for part in classifier())
    expected = []
    for row, moved in zip(*(other.features[n].numpy() for n in ("z", MOVED)), strict=True):
        share = np.mean([q <= stability(row, moved) for q in known])
        percentile = 75 + (1 - share) * 10
        count = DIM - round(DIM * percentile / 100)
        ratio = row.sum() / np.sort(row)[-count:].sum()
        if scaled == "features":
            expected.append(-logsumexp(weight @ row * np.exp(ratio) + bias))
        else:
            expected.append(-logsumexp((weight @ row + bias) * ratio**2))
    assert len({*np.round(expected, 6)}) == 50
    assert np.allclose(detector.score(other).numpy(), expected, rtol=1e-9)


def test_by_hand() -> None:
    # Q of the held-out images: 4 + 10 * 0 and 4 + 10 * 1. That of (4, 2, 2, 0), moved by half,
    # is 4.5 + 5: one of the two is lower, so the percentile is 50 + 25 / 2 = 62.5, and of four
    # entries 2.5 rounded to 2 go: 8 / 6.
    weight = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    z = torch.tensor([[4.0, 0, 0, 0], [4.0, 0, 0, 0]])
    linear = LinearClassifier(weight, torch.zeros(1), "z")
    moved = torch.tensor([[4.0, 0, 0, 0], [5.0, 0, 0, 0]])
    held_out = Outputs(z @ weight.T, {"z": z, MOVED: moved}, classifier=linear)
    detector = AdaSCALE(scaled="logits", low=50, high=75).fit(held_out, torch.zeros(2).long())
    assert detector.stability_.tolist() == [4, 15]
    query = torch.tensor([[4.0, 2.0, 2.0, 0.0]])
    scored = Outputs(query @ weight.T, {"z": query, MOVED: query + 0.5})
    assert detector.score(scored).item() == pytest.approx(-4 * (8 / 6) ** 2)


class Linear(nn.Module):
    """A feature of four pixels and a logit."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[3.0, -0.1, 0.2, -5.0]]))

    def forward(self, images: Tensor) -> Outputs:
        z = images.flatten(1)
        weight = self.weight.detach()
        linear = LinearClassifier(weight, torch.zeros(1), "z")
        return Outputs(z @ self.weight.T, {"z": z}, classifier=linear)


def test_the_values_that_matter_least_move_by_the_sign_of_their_gradient() -> None:
    image = torch.full((1, 1, 1, 4), 0.5)
    network = Moved(Linear(), epsilon=0.25, share=0.5)
    with torch.inference_mode():
        found = network(image)
    assert found.features["z"].tolist() == [[0.5, 0.5, 0.5, 0.5]]
    assert found.features[MOVED].tolist() == [[0.5, 0.25, 0.75, 0.5]]
    assert not found.logits.requires_grad


def test_it_runs_on_a_network_of_goen() -> None:
    torch.manual_seed(0)
    network = ResNet18(NetworkConfig(num_classes=3, width=2, representation="plain")).eval()
    images = torch.randint(0, 256, (12, 3, 8, 8), dtype=torch.uint8)
    detector = AdaSCALE()
    found = extract(detector.prepare_network(network), images)
    assert not torch.equal(found.features[MOVED], found.features["z"])
    scores = detector.fit(found, torch.arange(12) % 3).score(found)
    assert torch.isfinite(scores).all()


def test_what_cannot_be_meant_is_refused_and_negative_features_are_a_warning() -> None:
    with pytest.raises(UsageError, match="high must be a number, above 80 and below 100"):
        AdaSCALE(low=80, high=80)
    with pytest.raises(UsageError, match="Unknown scaled 'logit'"):
        AdaSCALE(scaled="logit")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="AdaSCALE moves the input of a network by its gradient"):
        Moved(Linear(), epsilon=0.1, share=0.5)({"z": torch.zeros(1, 4)})
    z = torch.tensor([[1.0, -1.0]])
    linear = LinearClassifier(torch.ones(1, 2), torch.zeros(1), "z")
    negative = Outputs(z.sum(1, keepdim=True), {"z": z}, classifier=linear)
    with pytest.warns(GoenWarning, match="AdaSCALE is made for features behind a ReLU"):
        AdaSCALE().fit(negative, torch.tensor([0]))
