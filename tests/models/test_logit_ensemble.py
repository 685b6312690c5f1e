import pytest
import torch

from goen.errors import UsageError
from goen.models import NetworkConfig, ResNet18
from goen.models.flip_averaging import FlipAveraged
from goen.models.logit_ensemble import LogitEnsemble


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
    pair = LogitEnsemble([member(0), member(1)])
    with pytest.raises(UsageError, match="of goen's own, got FlipAveraged, LogitEnsemble"):
        LogitEnsemble([pair, FlipAveraged(member(2))])  # type: ignore[list-item]
    dropout = [member(seed, classifier="dropout") for seed in range(2)]
    with pytest.raises(UsageError, match="classifier dropout have their own uncertainty"):
        LogitEnsemble(dropout)
