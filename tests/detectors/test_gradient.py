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


def test_large_images_are_few_in_a_backward_pass_with_the_same_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []

    class Counted(Square):
        def forward(self, images: Tensor) -> Outputs:
            seen.append(len(images))
            return super().forward(images)

    images = torch.rand(7, 1, 2, 3, generator=torch.Generator().manual_seed(0))
    whole = image_gradient(Counted(), images, torch.sum, "It")
    monkeypatch.setattr("goen.detectors._gradient._AT_ONCE", 3 * 2 * 3 + 1)
    parts = image_gradient(Counted(), images, torch.sum, "It")
    assert seen == [7, 3, 3, 1]
    assert torch.equal(parts[0], whole[0])
    assert torch.equal(parts[1], whole[1])
    assert torch.equal(parts[1], 2 * images)
    assert torch.equal(parts[2].logits, whole[2].logits)
    assert torch.equal(parts[2].features["z"], whole[2].features["z"])


def test_256_images_of_32_pixels_are_one_pass_and_32_of_224_are_not() -> None:
    shapes: list[int] = []

    class Mean(nn.Module):
        def forward(self, images: Tensor) -> Outputs:
            shapes.append(len(images))
            return Outputs(images.mean((1, 2, 3), keepdim=True).flatten(1), {})

    image_gradient(Mean(), torch.zeros(256, 3, 32, 32), torch.sum, "It")
    image_gradient(Mean(), torch.zeros(32, 3, 224, 224), torch.sum, "It")
    image_gradient(Mean(), torch.zeros(2, 1, 1000, 1000), torch.sum, "It")
    assert shapes == [256, 10, 10, 10, 2, 1, 1]
