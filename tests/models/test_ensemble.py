import numpy as np
import pytest
import torch
from scipy.special import softmax

from goen.errors import UsageError
from goen.models import NetworkConfig, ResNet18
from goen.models.ensemble import LogitEnsemble, ensemble
from goen.models.flip_averaging import FlipAveraged
from goen.outputs import Outputs


def members(count: int = 5, images: int = 12, scale: float = 3.0) -> list[Outputs]:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(count, images, 4)) * scale).float()
    return [Outputs(said, {"z": torch.zeros(images, 2)}) for said in logits]


def test_it_is_the_mean_and_the_summed_variance() -> None:
    said = members()
    p = np.stack([softmax(m.logits.double().numpy(), axis=1) for m in said])
    both = ensemble(said)
    assert np.allclose(torch.softmax(both.logits.double(), 1), p.mean(0), atol=1e-6)
    assert np.allclose(both.uncertainty, p.var(0).sum(1), rtol=1e-12)
    assert both.logits.dtype == torch.float32
    assert not both.features


def test_by_hand() -> None:
    # (0.8, 0.2) and (0.4, 0.6): mean (0.6, 0.4), variance 0.04 for each class.
    a, b = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.4, 0.6]]).log() + 7
    both = ensemble([Outputs(a, {}), Outputs(b, {})])
    assert torch.allclose(both.logits.exp(), torch.tensor([[0.6, 0.4]]))
    assert both.uncertainty is not None
    assert both.uncertainty.item() == pytest.approx(0.08, abs=1e-7)


def test_members_that_are_one_network_do_not_disagree() -> None:
    one = members(1)[0]
    three = ensemble([one, one, one])
    assert torch.allclose(three.logits, torch.log_softmax(one.logits, 1), atol=1e-6)
    assert three.uncertainty is not None
    assert three.uncertainty.max() < 1e-30


def test_sure_members_stay_finite_and_untied() -> None:
    # Probabilities of 1e-300 and less: their mean is still told apart.
    a, b = torch.tensor([[0.0, -700.0], [0.0, -2000.0]]), torch.tensor([[0.0, -690.0], [0.0, -900]])
    logits = ensemble([Outputs(a, {}), Outputs(b, {})]).logits
    expected = torch.tensor([-690 - np.log(2), -900 - np.log(2)]).float()
    assert torch.allclose(logits[:, 1], expected)


def test_order_and_batches_do_not_matter() -> None:
    said = members()
    whole = ensemble(said)
    backwards = ensemble(said[::-1])
    assert torch.allclose(whole.logits, backwards.logits)
    parts = [ensemble([m[rows] for m in said]) for rows in (slice(0, 5), slice(5, 12))]
    joined = Outputs.concatenate(parts)
    assert torch.equal(joined.logits, whole.logits)
    assert torch.equal(joined.uncertainty, whole.uncertainty)


# -- the mean of logits ------------------------------------------------------------------------


def member(seed: int, **settings: object) -> ResNet18:
    torch.manual_seed(seed)
    return ResNet18(NetworkConfig(width=4, **settings)).eval()  # type: ignore[arg-type]


@pytest.fixture
def images() -> torch.Tensor:
    torch.manual_seed(9)
    return torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)


def test_logits_are_averaged(images: torch.Tensor) -> None:
    members = [member(seed) for seed in range(3)]
    with torch.no_grad():
        found = LogitEnsemble(members)(images)
        expected = sum(one(images).logits for one in members) / 3
    torch.testing.assert_close(found.logits, expected)
    assert found.uncertainty is None
    assert found.classifier is None  # logits are not linear in features of unit length


def test_the_squared_distance_of_two_images_is_the_mean_of_the_members(
    images: torch.Tensor,
) -> None:
    members = [member(seed) for seed in range(2)]
    with torch.no_grad():
        found = LogitEnsemble(members)(images)
        each = [one(images) for one in members]
    for layer in ("layer2", "layer4", "z"):
        apart = torch.stack([_distances(output.features[layer]) for output in each])
        torch.testing.assert_close(
            _distances(found.features[layer]), apart.square().mean(dim=0).sqrt()
        )


def _distances(features: torch.Tensor) -> torch.Tensor:
    """Between the unit vectors of all pairs, one by one."""
    unit = [row.double() / row.double().norm() for row in features]
    return torch.stack([torch.stack([(a - b).norm() for b in unit]) for a in unit])


def test_a_dead_feature_stays_finite(images: torch.Tensor) -> None:
    members = [member(seed) for seed in range(2)]
    assert members[0].projection is not None
    torch.nn.init.zeros_(members[0].projection[1].weight)
    torch.nn.init.constant_(members[0].projection[1].bias, -1.0)
    with torch.no_grad():
        z = LogitEnsemble(members)(images).features["z"]
    assert (z[:, : z.shape[1] // 2] == 0).all()
    assert torch.isfinite(z).all()


def test_it_can_be_averaged_over_flips(images: torch.Tensor) -> None:
    network = FlipAveraged(LogitEnsemble([member(0), member(1)]))
    with torch.no_grad():
        one, other = network(images), network(images.flip(3))
    torch.testing.assert_close(one.logits, other.logits)
    torch.testing.assert_close(one.features["layer4"], other.features["layer4"])


def test_other_networks_are_refused() -> None:
    with pytest.raises(UsageError, match="two or more networks of the same settings, got 1 of 1"):
        LogitEnsemble([member(0)])
    with pytest.raises(UsageError, match="got 0 of 0"):
        LogitEnsemble([])
    with pytest.raises(UsageError, match="got 2 of 2 settings"):
        LogitEnsemble([member(0), member(1, num_classes=3)])
    dropout = [member(seed, classifier="dropout") for seed in range(2)]
    with pytest.raises(UsageError, match="classifier dropout have their own uncertainty"):
        LogitEnsemble(dropout)
