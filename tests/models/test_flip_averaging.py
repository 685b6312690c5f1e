import pytest
import torch
from torch import nn

from goen.errors import UsageError
from goen.models import NetworkConfig, ResNet18
from goen.models.flip_averaging import FlipAveraged
from goen.outputs import Outputs


class Corner(nn.Module):
    """Says what the top left pixel is."""

    def forward(self, images: torch.Tensor) -> Outputs:
        corner = images[:, :2, 0, 0].float()
        return Outputs(corner, {"twice": 2 * corner})


def test_the_mean_of_both_corners() -> None:
    image = torch.zeros(1, 3, 2, 2)
    image[0, :, 0] = torch.tensor([[1.0, 3.0], [10.0, 30.0], [0.0, 0.0]])
    outputs = FlipAveraged(Corner())(image)
    assert outputs.logits.tolist() == [[2.0, 20.0]]
    assert outputs.features["twice"].tolist() == [[4.0, 40.0]]
    assert outputs.uncertainty is None


def test_a_network_with_an_uncertainty_of_its_own_is_refused() -> None:
    network = FlipAveraged(ResNet18(NetworkConfig(width=4, classifier="dropout"))).eval()
    with pytest.raises(UsageError, match="use it without flip averaging"):
        network(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))


def test_images_of_16_bits_are_those_of_8_bits() -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (3, 3, 32, 32))
    plain = ResNet18(NetworkConfig(width=4)).eval()
    for network in (plain, FlipAveraged(plain)):
        with torch.no_grad():
            expected = network(images.to(torch.uint8))
            found = network((images * 257).to(torch.uint16))
        torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.features["z"], expected.features["z"])
