import numpy as np
import pytest
import torch
from torch import nn

from goen.errors import UsageError
from goen.models import FastCNN, NetworkConfig
from goen.models.fast_cnn import ConvBlock


def small(representation: str = "plain", width: int = 2) -> FastCNN:
    settings = {"representation": representation, "width": width, "architecture": "fast_cnn"}
    return FastCNN(NetworkConfig(**settings))  # type: ignore[arg-type]


def test_it_has_the_size_of_the_published_network() -> None:
    # 1.97 million with width 64, of which the bias of ten classes is ours.
    network = small(width=64)
    convolutions = 24 * 13 + 9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256)
    norms = 2 * 2 * (64 + 256 + 256)
    assert sum(p.numel() for p in network.parameters()) == convolutions + norms + 2560 + 10


def test_whitening_makes_patches_uncorrelated_with_equal_variance() -> None:
    # Smooth images: neighbouring pixels and channels are alike.
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(200, 3, 4, 4, generator=generator)
    images = nn.functional.interpolate(coarse, size=16, mode="bilinear")
    noise = 0.1 * torch.rand(200, 3, 16, 16, generator=generator)
    pixels = ((0.9 * images + noise) * 255).to(torch.uint8)
    network = small().eval()
    network.prepare(pixels)
    with torch.no_grad():
        white = network.whitening(network._normalised(pixels))
    rows = white.permute(0, 2, 3, 1).reshape(-1, 24).double()
    assert torch.allclose(rows[:, :12], -rows[:, 12:], atol=1e-5)
    moments = (rows[:, :12].T @ rows[:, :12] / len(rows)).numpy()
    np.testing.assert_allclose(moments - np.diag(np.diag(moments)), 0, atol=1e-3)
    # Just below 1: the ridge of the smallest variances.
    assert np.all(np.diag(moments) <= 1 + 1e-4)
    assert np.diag(moments)[-1] == pytest.approx(1, abs=1e-3)


def test_preparing_twice_gives_the_same_filters_and_changes_nothing_else() -> None:
    pixels = torch.randint(0, 256, (50, 3, 12, 12), dtype=torch.uint8)
    a, b = small(), small()
    b.load_state_dict(a.state_dict())
    a.prepare(pixels)
    b.prepare(pixels)
    for name, values in a.state_dict().items():
        assert torch.equal(values, b.state_dict()[name]), name
    assert not a.whitening.weight.requires_grad


def test_filters_start_as_the_identity_on_as_many_channels_as_fit() -> None:
    network = small(width=16)
    for block in (network.block1, network.block2, network.block3):
        for conv in (block.conv1, block.conv2):
            fits = min(conv.in_channels, conv.out_channels)
            x = torch.randn(1, conv.in_channels, 5, 5)
            with torch.no_grad():
                y = conv(x)
            assert torch.allclose(y[:, :fits], x[:, :fits], atol=1e-6)


def test_a_block_by_hand() -> None:
    block = ConvBlock(2, 3).eval()
    nn.init.uniform_(block.bn1.bias)
    nn.init.uniform_(block.bn2.running_mean)
    x = torch.randn(2, 2, 8, 8)
    with torch.no_grad():
        first, last = block(x)
        conv1 = nn.functional.conv2d(x, block.conv1.weight, padding=1)
        pooled = conv1.unfold(2, 2, 2).unfold(3, 2, 2).flatten(4).max(4).values
        hidden = nn.functional.gelu(pooled + block.bn1.bias.view(1, 3, 1, 1))
        conv2 = nn.functional.conv2d(hidden, block.conv2.weight, padding=1)
        expected = nn.functional.gelu(conv2 - block.bn2.running_mean.view(1, 3, 1, 1))
    assert torch.allclose(first, conv1, atol=1e-6)
    assert torch.allclose(last, expected, atol=1e-5)
    assert not block.bn1.weight.requires_grad
    assert block.bn1.bias.requires_grad


def test_the_logits_of_a_plain_network_are_scaled() -> None:
    network = small().eval()
    outputs = network(torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8))
    z = outputs.features["z"]
    assert torch.equal(z, outputs.features["block3"])
    expected = z @ network.classifier.weight.T / 9 + network.classifier.bias
    assert torch.allclose(outputs.logits, expected, atol=1e-5)
    assert float(network.classifier.weight.detach().std()) == pytest.approx(1)


def test_the_smallest_images() -> None:
    network = small().eval()
    assert network(torch.zeros(1, 3, 9, 9)).logits.shape == (1, 10)
    with pytest.raises(UsageError, match="9 pixels or more, got 8×12"):
        network(torch.zeros(1, 3, 8, 12))
