import pytest
import torch
from torch import Tensor, nn

from goen.detectors._gradient import image_gradient
from goen.errors import UsageError
from goen.outputs import Outputs


class Square(nn.Module):
    """Logits are the squares of the pixels."""

    def forward(self, images: Tensor) -> Outputs:
        return Outputs(images.flatten(1) ** 2, {"z": images.flatten(1)})


def test_the_gradient_is_that_of_the_objective_where_gradients_are_off() -> None:
    images = torch.tensor([[[[0.5, 0.25]]], [[[1.0, 0.0]]]])
    with torch.inference_mode():
        pixels, gradient, outputs = image_gradient(Square(), images, torch.sum, "It")
    assert torch.equal(pixels, images)
    assert gradient.flatten().tolist() == [1.0, 0.5, 2.0, 0.0]
    assert not outputs.logits.requires_grad
    assert not outputs.features["z"].requires_grad


def test_images_of_8_bits_are_divided_by_255() -> None:
    image = torch.tensor([255, 0], dtype=torch.uint8).view(1, 1, 1, 2)
    assert image_gradient(Square(), image, torch.sum, "It")[0].flatten().tolist() == [1.0, 0.0]


def test_what_has_no_gradient_is_refused() -> None:
    class Cut(Square):
        def forward(self, images: Tensor) -> Outputs:
            with torch.no_grad():
                return super().forward(images)

    with pytest.raises(UsageError, match="Images are uint8, uint16, or floats in"):
        image_gradient(Square(), torch.zeros(1, 1, 1, 2, dtype=torch.int64), torch.sum, "It")
    with pytest.raises(UsageError, match="It needs the gradient of Cut's logits"):
        image_gradient(Cut(), torch.zeros(1, 1, 1, 2), torch.sum, "It")
    with pytest.raises(UsageError, match=r"needs one tensor, .* \(dict\)"):
        image_gradient(Square(), {}, torch.sum, "It")  # type: ignore[arg-type]
