import pytest
import torch

from goen.errors import UsageError
from goen.models import ARCHITECTURES, Backbone, NetworkConfig, new_network
from goen.models.backbone import REPRESENTATIONS, Architecture, Representation
from goen.models.pooling import pool

IMAGES = torch.randint(
    0, 256, (3, 3, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)


def network_of(architecture: Architecture, representation: Representation) -> Backbone:
    config = NetworkConfig(width=2, representation=representation, architecture=architecture)
    return new_network(config).eval()


@every_architecture
@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_scales_are_as_declared(architecture: Architecture, representation: Representation) -> None:
    network = network_of(architecture, representation)
    outputs = network(IMAGES)
    maps = list(network.maps(network._normalised(IMAGES)))
    assert [*outputs.features] == [*(scale.name for scale in network.scales), "z"]
    for scale, found in zip(network.scales, maps, strict=True):
        assert found.shape[1] == scale.channels
        assert found.shape[2] == pytest.approx(24 / scale.stride, abs=1)
        pooled = pool(found, scale.pooling)
        assert torch.allclose(outputs.features[scale.name], pooled, atol=1e-6)
    assert outputs.features["z"].shape == (3, network.z_width)
    assert outputs.logits.shape == (3, 10)
    # The representations of two scales, of the last scale, and their widths.
    channels = {scale.name: scale.channels for scale in network.scales}
    last = network.scales[-1].channels
    both = channels[network.middle] + last
    assert network.z_width == (both if representation == "concat" else last)


@every_architecture
def test_the_projection_reads_the_middle_and_the_last_scale(architecture: Architecture) -> None:
    network = network_of(architecture, "multi_scale")
    features = network(IMAGES).features
    both = torch.cat([features[network.middle], features[network.scales[-1].name]], 1)
    assert network.projection is not None
    assert torch.allclose(features["z"], network.projection(both), atol=1e-6)


@every_architecture
def test_settings_travel_as_json(architecture: Architecture) -> None:
    config = NetworkConfig(width=3, architecture=architecture)
    assert NetworkConfig.from_json(config.to_json()) == config
    # Stage keys of the paper's network are as they were before there was a second.
    assert ("architecture" in config.to_json()) == (architecture != "resnet18")


@every_architecture
def test_an_image_does_not_depend_on_its_batch(architecture: Architecture) -> None:
    network = network_of(architecture, "multi_scale")
    alone = network(IMAGES[1:2])
    assert torch.allclose(network(IMAGES).logits[1:2], alone.logits, atol=1e-5)


def test_an_unknown_architecture_is_an_error() -> None:
    with pytest.raises(UsageError, match="resnet18"):
        NetworkConfig(architecture="resnet")  # type: ignore[arg-type]
