import pytest
import torch

import goen.features.extractor  # noqa: F401  (which lets torch.export return Outputs)
from goen.errors import UsageError
from goen.models import (
    ARCHITECTURES,
    CLASSIFIERS,
    Backbone,
    ClassifierKind,
    NetworkConfig,
    new_network,
)
from goen.models.backbone import (
    CIFAR10_MEAN,
    CIFAR10_STD,
    REPRESENTATIONS,
    Architecture,
    Representation,
)
from goen.models.flip_averaging import FlipAveraged
from goen.models.pooling import pool
from goen.outputs import LinearClassifier, Outputs, check_classifier

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


@every_architecture
@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_the_classifier_of_the_outputs_reproduces_the_logits(
    architecture: Architecture, representation: Representation
) -> None:
    network = network_of(architecture, representation)
    for outputs in (network(IMAGES), FlipAveraged(network)(IMAGES)):
        if representation == "concat":  # its z is of unit length, what the classifier reads is not
            assert outputs.classifier is None
            continue
        found = check_classifier(outputs)
        assert found.feature == "z"
        logits = outputs.features["z"] @ found.weight.T + found.bias
        assert torch.allclose(logits, outputs.logits, atol=1e-5)
        wrong = LinearClassifier(-found.weight, found.bias, "z")
        with pytest.raises(UsageError, match="does not reproduce"):
            check_classifier(Outputs(outputs.logits, outputs.features, classifier=wrong))


@pytest.mark.parametrize("kind", [kind for kind in CLASSIFIERS if kind != "linear"])
def test_other_classifiers_are_not_linear(kind: ClassifierKind) -> None:
    network = new_network(NetworkConfig(width=2, representation="plain", classifier=kind)).eval()
    assert network(IMAGES).classifier is None


@every_architecture
def test_an_exported_network_returns_outputs_without_a_classifier(
    architecture: Architecture,
) -> None:
    network = network_of(architecture, "plain")
    found = torch.export.export(network, (IMAGES,), strict=False).module()(IMAGES)
    assert isinstance(found, Outputs)
    assert found.classifier is None
    assert torch.allclose(found.logits, network(IMAGES).logits, atol=1e-5)


def test_images_are_normalised_with_the_papers_numbers() -> None:
    assert CIFAR10_MEAN == (0.4914, 0.4822, 0.4465)
    assert CIFAR10_STD == (0.2023, 0.1994, 0.2010)
