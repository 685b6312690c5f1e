import pytest
import torch

from goen.errors import UsageError
from goen.models import NetworkConfig, ResNet18, new_network
from goen.models.repooled import Repooled


@pytest.mark.parametrize("architecture", ["resnet18", "fast_cnn"])
def test_the_classifier_reads_the_last_map_pooled_otherwise(architecture: str) -> None:
    torch.manual_seed(0)
    config = NetworkConfig(width=4, representation="plain", architecture=architecture)  # type: ignore[arg-type]
    network = new_network(config).eval()
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        *_, last = network.maps(network._normalised(images))
        flat = last.flatten(2).double().numpy()
        linear = network.classifier.state_dict()
        # The fast network divides what its classifier reads by 9.
        weight = linear["weight"].double().numpy() / (9 if architecture == "fast_cnn" else 1)
        bias = linear["bias"].double().numpy()
        for pooling, rows in (("max", flat.max(2)), ("mean_std", flat.mean(2) + flat.std(2))):
            found = Repooled(network, pooling)(images)  # type: ignore[arg-type]
            assert found.logits.numpy() == pytest.approx(rows @ weight.T + bias, rel=1e-4, abs=1e-4)
            assert not found.features


def test_the_fast_network_is_trained_on_maxima_already() -> None:
    torch.manual_seed(0)
    config = NetworkConfig(width=4, representation="plain", architecture="fast_cnn")
    network = new_network(config).eval()
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(Repooled(network, "max")(images).logits, network(images).logits)


def test_what_cannot_be_repooled_is_refused() -> None:
    with pytest.raises(UsageError, match="representation multi_scale"):
        Repooled(ResNet18(NetworkConfig(width=4)), "max")
