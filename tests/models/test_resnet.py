import pytest
import torch

from goen.errors import UsageError
from goen.models import CLASSIFIERS, NetworkConfig, ResNet18
from goen.models.backbone import REPRESENTATIONS

IMAGES = torch.randint(
    0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def test_the_plain_network_is_the_well_known_one() -> None:
    # ResNet-18 for CIFAR-10 has 11,173,962 parameters in every public implementation.
    network = ResNet18(NetworkConfig(representation="plain"))
    assert sum(p.numel() for p in network.parameters()) == 11_173_962


@pytest.mark.parametrize("representation", REPRESENTATIONS)
@pytest.mark.parametrize("width", [1, 4])
def test_features_are_as_declared(representation: str, width: int) -> None:
    network = ResNet18(NetworkConfig(width=width, representation=representation)).eval()
    outputs = network(IMAGES)
    maps = {}
    for scale in network.scales:
        module = network.get_submodule(scale.name)
        module.register_forward_hook(lambda m, i, o, name=scale.name: maps.update({name: o}))
    network(IMAGES)
    for scale in network.scales:
        assert outputs.features[scale.name].shape == (3, scale.channels)
        found = maps[scale.name]
        assert found.shape[2:] == (32 // scale.stride, 32 // scale.stride)
        assert torch.allclose(found.mean((2, 3)), outputs.features[scale.name], atol=1e-6)
    z = {"multi_scale": 8, "single_scale": 8, "concat": 10, "plain": 8}[representation] * width
    assert outputs.features["z"].shape == (3, z)
    assert outputs.logits.shape == (3, 10)


def test_the_projection_is_linear_batchnorm_relu_of_both_scales() -> None:
    network = ResNet18(NetworkConfig(width=2)).eval()
    outputs = network(IMAGES)
    both = torch.cat([outputs.features["layer2"], outputs.features["layer4"]], 1)
    linear, norm, _ = network.projection
    hidden = both @ linear.weight.T + linear.bias
    hidden = (hidden - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    expected = (hidden * norm.weight + norm.bias).clamp_min(0)
    assert torch.allclose(outputs.features["z"], expected, atol=1e-6)
    assert torch.allclose(outputs.logits, network.classifier(expected), atol=1e-6)


def test_concat_normalises_each_scale_apart_for_the_density_only() -> None:
    network = ResNet18(NetworkConfig(width=2, representation="concat")).eval()
    f = network(IMAGES).features
    assert torch.allclose(f["z"][:, :4].norm(dim=1), torch.ones(3))
    assert torch.allclose(f["z"][:, 4:].norm(dim=1), torch.ones(3))
    logits = network.classifier(torch.cat([f["layer2"], f["layer4"]], 1))
    assert torch.allclose(network(IMAGES).logits, logits, atol=1e-6)


@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_manifests_and_stage_keys_call_the_representation_head(representation: str) -> None:
    config = NetworkConfig(width=3, representation=representation)
    assert list(config.to_json()) == ["num_classes", "width", "head", "mean", "std", "classifier"]
    assert config.to_json()["head"] == representation
    assert NetworkConfig.from_json(config.to_json()) == config


def test_uint8_and_unit_floats_say_the_same() -> None:
    network = ResNet18(NetworkConfig(width=2)).eval()
    assert torch.allclose(network(IMAGES).logits, network(IMAGES.float() / 255).logits, atol=1e-5)


def test_images_are_standardised_by_channel() -> None:
    seen = []
    network = ResNet18(NetworkConfig(width=1, mean=(0.1, 0.2, 0.3), std=(0.5, 0.25, 0.125))).eval()
    network.conv1.register_forward_hook(lambda m, i, o: seen.append(i[0]))
    network(torch.full((1, 3, 8, 8), 255, dtype=torch.uint8))
    assert torch.allclose(seen[0][0, :, 0, 0], torch.tensor([1.8, 3.2, 5.6]))


def test_other_sizes_work() -> None:
    network = ResNet18(NetworkConfig(width=1)).eval()
    assert network(torch.zeros(1, 3, 20, 26, dtype=torch.uint8)).logits.shape == (1, 10)


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_the_classifier_speaks_on_what_the_network_hands_it(kind: str, representation: str) -> None:
    config = NetworkConfig(width=2, representation=representation, classifier=kind)
    network = ResNet18(config).eval()
    outputs = network(IMAGES)
    hidden, features = network.encode(IMAGES)
    logits, uncertainty = network.classifier.predict(hidden)
    assert torch.equal(outputs.logits, logits)
    assert (outputs.uncertainty is None) == (uncertainty is None) == (kind == "linear")
    assert uncertainty is None or torch.equal(outputs.uncertainty, uncertainty)
    assert list(outputs.features) == list(features) == ["layer1", "layer2", "layer3", "layer4", "z"]
    assert hidden.shape[1] == network.z_width


def test_the_classifier_changes_nothing_before_it() -> None:
    states = []
    for kind in CLASSIFIERS:
        torch.manual_seed(0)
        config = NetworkConfig(width=1, representation="plain", classifier=kind)
        state = ResNet18(config).state_dict()
        states.append({k: v.shape for k, v in state.items() if not k.startswith("classifier")})
    assert all(state == states[0] for state in states)
    linear = ResNet18(NetworkConfig(width=1)).state_dict()
    assert [k for k in linear if "classifier" in k] == ["classifier.weight", "classifier.bias"]


def test_an_unknown_classifier_is_told_its_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'dropout'"):
        NetworkConfig(classifier="dropuot")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"width": 0}, "width must be an integer, at least 1; got 0"),
        ({"num_classes": 0}, "num_classes must be an integer, at least 1; got 0"),
        ({"representation": "double"}, "Unknown representation 'double'"),
        ({"architecture": "resnet"}, "Did you mean 'resnet18'"),
        ({"mean": (0.5,)}, "mean and std must have a number for each channel of the images"),
        ({"mean": (), "std": ()}, "mean and std must have a number for each channel"),
        ({"stem_stride": 3}, "The stem of resnet18 has a stride of 1 or 2 or 4; got 3"),
        ({"stem_stride": 2, "architecture": "fast_cnn"}, "The stem of fast_cnn has a stride of 1"),
        ({"mean": (0.5, 0.5, float("nan"))}, "Each mean must be a number; got nan"),
        ({"std": (0.5, 0.0, 0.5)}, "Each std must be a number, above 0; got 0.0"),
    ],
)
def test_what_cannot_be_built_is_said(bad: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        NetworkConfig(**bad)


@pytest.mark.parametrize(
    ("stride", "sides"), [(1, (64, 32, 16, 8)), (2, (32, 16, 8, 4)), (4, (16, 8, 4, 2))]
)
def test_the_stem_shrinks_by_its_stride(stride: int, sides: tuple[int, ...]) -> None:
    network = ResNet18(NetworkConfig(width=2, stem_stride=stride)).eval()
    maps = [values.shape[2:] for values in network.maps(torch.zeros(1, 3, 64, 64))]
    assert maps == [(side, side) for side in sides]
    assert [scale.stride for scale in network.scales] == [64 // side for side in sides]
    settings = network.config.to_json()
    assert ("stem_stride" in settings) == (stride > 1)
    assert NetworkConfig.from_json(settings) == network.config


@pytest.mark.parametrize("channels", [1, 5])
def test_images_may_have_any_channels_and_16_bits(channels: int) -> None:
    config = NetworkConfig(width=2, mean=(0.5,) * channels, std=(0.25,) * channels)
    network = ResNet18(config).eval()
    short = torch.randint(0, 256, (2, channels, 16, 16), dtype=torch.uint8)
    deep = (short.to(torch.int32) * 257).to(torch.uint16)
    torch.testing.assert_close(network(short).logits, network(deep).logits)
