from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import Tensor, nn

from goen.data import ImageSet
from goen.detectors import ODIN, Perturbed
from goen.errors import UsageError
from goen.extraction import extract
from goen.features.extractor import FeatureExtractor
from goen.gate import Gate
from goen.models import NetworkConfig, ResNet18
from goen.models.flip_averaging import FlipAveraged
from goen.outputs import Outputs


class Linear(nn.Module):
    """Logits by hand; the last pixel means nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([[4.0, -1.0, 0.0], [1.0, 2.0, 0.0]]))

    def forward(self, images: Tensor) -> Outputs:
        return Outputs(images.flatten(1) @ self.weight.T, {"pixels": images.flatten(1)})


class Curved(nn.Module):
    """A smooth network in float64 that normalises its images."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 4))
        self.double()

    def forward(self, images: Tensor) -> Outputs:
        return Outputs(self.layers((images - 0.5) / 0.2), {})


def grey(*pixels: float) -> Tensor:
    return torch.tensor(pixels).view(1, 1, 1, -1)


def random_images(count: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 3, 2, 2, generator=generator, dtype=torch.float64)


def perturbed(outputs: Outputs) -> Tensor:
    return outputs.feature("perturbed_logits")


def test_of_one_value_only_the_one_with_the_largest_gradient_moves() -> None:
    # The logit of class 0 less the other has the gradient (3, -3.5, 0): the second pixel moves.
    network = Linear()
    network.weight.data = torch.tensor([[4.0, -1.0, 0.0], [1.0, 2.5, 0.0]])
    moved = Perturbed(network, epsilon=0.125, one_value=True).move(grey(0.75, 0.5, 0.25))[0]
    assert moved.flatten().tolist() == [0.75, 0.375, 0.25]
    images = random_images()
    shifted = Perturbed(Curved(), epsilon=0.1, one_value=True).move(images)[0] - images
    whole = Perturbed(Curved(), epsilon=0.1).move(images)[0] - images
    assert (shifted.flatten(1) != 0).sum(dim=1).tolist() == [1] * 5
    assert torch.equal(shifted[shifted != 0], whole[shifted != 0])
    prepared = ODIN(one_value=True, epsilon=0.1).prepare_network(network)
    assert isinstance(prepared, Perturbed)
    assert prepared.one_value


def test_a_linear_network_by_hand() -> None:
    # Class 0 wins by 2 to 1.5. Its logit less the other rises with the first pixel (4 - 1) and
    # falls with the second (-1 - 2): the step goes up, down, and nowhere.
    moved = Perturbed(Linear(), epsilon=0.1).move(grey(0.625, 0.5, 0.25))[0]
    assert torch.allclose(moved, grey(0.725, 0.4, 0.25))
    assert moved[0, 0, 0, 2] == 0.25


def test_the_step_makes_the_network_surer() -> None:
    network = Curved()
    images = random_images(50)
    before = network(images).logits.log_softmax(1)
    after = perturbed(Perturbed(network, epsilon=1e-4, temperature=1)(images)).log_softmax(1)
    own = before.argmax(1, keepdim=True)
    assert (after.gather(1, own) > before.gather(1, own)).all()


@pytest.mark.parametrize("temperature", [1.0, 1000.0])
def test_the_step_follows_finite_differences(temperature: float) -> None:
    network, images = Curved(), random_images()
    own = network(images).logits.argmax(1)

    def log_p(x: Tensor) -> Tensor:
        scaled = network(x).logits.detach() / temperature
        return scaled.log_softmax(1).gather(1, own[:, None]).squeeze(1)

    slope = torch.zeros_like(images)
    for place in np.ndindex(3, 2, 2):
        nudge = torch.zeros(3, 2, 2, dtype=torch.float64)
        nudge[place] = 1e-5
        slope[(slice(None), *place)] = (log_p(images + nudge) - log_p(images - nudge)) / 2e-5
    moved, _ = Perturbed(network, epsilon=0.01, temperature=temperature).move(images)
    # x - eps * sign(-d log p / dx)
    assert torch.allclose(moved, images + 0.01 * slope.sign(), atol=1e-12)


def test_the_step_is_in_pixels_whatever_the_network_divides_by() -> None:
    step = Perturbed(Curved()).move(random_images())[0] - random_images()
    assert torch.allclose(step.abs(), torch.full_like(step, 0.0014))


def test_bytes_are_images_in_0_to_1() -> None:
    values = torch.randint(0, 256, (6, 1, 1, 3), dtype=torch.uint8, generator=torch.manual_seed(0))
    wrapped = Perturbed(Linear())
    assert torch.equal(wrapped.move(values)[0], wrapped.move(values / 255)[0])


def test_pixels_may_leave_0_to_1() -> None:
    moved, _ = Perturbed(Linear(), epsilon=0.1).move(grey(1.0, 0.0, 0.0))
    assert torch.allclose(moved, grey(1.1, -0.1, 0.0))


class ByChannel(nn.Module):
    """Two classes by two channels: the step goes up in the first and down in the second."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=(2, 3))[:, :2] * torch.tensor([2.0, 1.0])


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("wrap", [lambda network: network, FlipAveraged])
def test_a_large_step_on_white_and_black_images_of_a_tapped_model(
    dtype: torch.dtype, wrap: Callable[[nn.Module], nn.Module]
) -> None:
    network = Perturbed(
        wrap(FeatureExtractor(ByChannel(), [], preprocess=lambda x: x)), epsilon=0.25
    )
    white = torch.ones(2, 3, 4, 4) * (255 if dtype == torch.uint8 else 1)
    # (1.25 · 2, 0.75 · 1): the second pixel of white goes down, the first leaves [0, 1].
    assert torch.allclose(perturbed(network(white.to(dtype))), torch.tensor([[2.5, 0.75]]))
    black = torch.zeros(1, 3, 4, 4, dtype=dtype)
    assert torch.allclose(perturbed(network(black)), torch.tensor([[0.5, -0.25]]))


def test_images_outside_0_to_1_are_still_refused_by_a_tapped_model() -> None:
    network = Perturbed(FeatureExtractor(ByChannel(), []), epsilon=0.25)
    with pytest.raises(UsageError, match=r"Float images lie in \[0, 1\]; got 1\.1\.\.1\.1"):
        network(torch.full((1, 3, 4, 4), 1.1))
    with pytest.raises(UsageError, match=r"got 1\.1\.\.1\.1"):  # outside a step
        network.network(torch.full((1, 3, 4, 4), 1.1))


def test_no_step_gives_the_networks_own_outputs() -> None:
    images = random_images()
    outputs = Perturbed(Curved(), epsilon=0)(images)
    assert torch.equal(perturbed(outputs), Curved()(images).logits)
    assert torch.equal(perturbed(outputs), outputs.logits)


def test_an_image_is_moved_alone() -> None:
    network, images = Perturbed(Curved()), random_images(7)
    alone = torch.cat([network.move(images[i : i + 1])[0] for i in range(7)])
    assert torch.equal(network.move(images)[0], alone)


def test_the_logits_of_the_moved_images_are_one_more_feature() -> None:
    wrapped = Perturbed(Linear(), epsilon=0.1)
    image = grey(0.625, 0.5, 0.25)
    outputs = wrapped(image)
    assert list(outputs.features) == ["pixels", "perturbed_logits"]
    assert torch.allclose(perturbed(outputs), torch.tensor([[2.5, 1.525]]))
    assert torch.equal(outputs.logits, Linear()(image).logits)
    assert torch.equal(outputs.features["pixels"], image.flatten(1))
    # Two classes apart by 0.975 after the step, at T = 1000.
    assert ODIN().score(outputs).item() == pytest.approx(-0.975e-3)


@pytest.mark.parametrize("outer", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_gradients_may_be_switched_off_around_it(outer: type) -> None:
    network = Perturbed(Curved())
    expected = network(random_images())
    with outer():
        outputs = network(random_images())  # images of this mode's own making, too
    for found in (outputs, expected):
        assert not found.logits.requires_grad
        assert not perturbed(found).requires_grad
    assert torch.equal(outputs.logits, expected.logits)
    assert torch.equal(perturbed(outputs), perturbed(expected))
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_the_network_is_left_as_it_was() -> None:
    network = Curved().train()
    frozen = network.layers[1].weight.requires_grad_(False)
    network.layers[3].eval()
    images = random_images()
    kept = images.clone()
    Perturbed(network).move(images)
    assert not frozen.requires_grad
    assert network.layers[3].weight.requires_grad
    assert all(p.grad is None for p in network.parameters())
    assert [module.training for module in network.modules()] == [True] * 5 + [False]
    assert torch.equal(images, kept)
    assert not images.requires_grad


def test_earlier_gradients_of_the_parameters_stay() -> None:
    network = Curved()
    network(random_images()).logits.sum().backward()
    before = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    Perturbed(network).move(random_images())
    after = [p.grad for p in network.parameters() if p.grad is not None]
    assert len(before) == len(after) == 4
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_network_that_fails_is_left_as_it_was() -> None:
    network = Curved()
    with torch.no_grad(), pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        Perturbed(network)(torch.rand(1, 3, 4, 4, dtype=torch.float64))
    assert torch.is_grad_enabled()
    assert all(p.requires_grad and p.grad is None for p in network.parameters())


def test_a_frozen_network_can_be_moved_in() -> None:
    network = Curved().requires_grad_(False)
    expected, _ = Perturbed(Curved()).move(random_images())
    assert torch.equal(Perturbed(network).move(random_images())[0], expected)


def test_no_gradient_of_the_weights_is_computed() -> None:
    network = Curved()
    seen = []
    for parameter in network.parameters():
        parameter.register_hook(lambda gradient: seen.append(gradient))
    Perturbed(network).move(random_images())
    assert not seen


def test_a_network_without_gradient_is_refused() -> None:
    class Cut(nn.Module):
        def forward(self, images: Tensor) -> Outputs:
            return Outputs(images.flatten(1).detach(), {})

    with pytest.raises(UsageError, match="Cut's logits with respect to the images"):
        Perturbed(Cut())(grey(0.1, 0.2))


def test_features_and_several_inputs_are_refused() -> None:
    rows = np.random.default_rng(0).normal(size=(60, 4))
    with pytest.raises(UsageError, match="takes gradients of a network, and features have none"):
        Gate.fit_outputs({"clip": rows}, np.arange(60) % 2, {"clip": rows + 1}, detector="odin")


def test_it_goes_through_the_one_loop_over_images(small_set: ImageSet) -> None:
    network = ResNet18(NetworkConfig(num_classes=3, width=2)).train()
    plain = extract(network, small_set)
    outputs = extract(ODIN().prepare_network(network), small_set, batch_size=5)
    assert [*outputs.features] == [*plain.features, "perturbed_logits"]
    assert torch.allclose(outputs.logits, plain.logits, atol=1e-5)
    assert not torch.allclose(perturbed(outputs), plain.logits, atol=1e-6)
    assert torch.allclose(perturbed(outputs), plain.logits, atol=0.1)
    assert network.training
    assert all(p.grad is None for p in network.parameters())
    assert torch.isfinite(ODIN().score(outputs)).all()
    assert not torch.equal(ODIN().score(outputs), ODIN().score(plain))


@pytest.mark.parametrize("epsilon", [-0.1, 1.0, 255.0, np.nan])
def test_a_step_that_is_no_step_in_a_pixel_is_refused(epsilon: float) -> None:
    with pytest.raises(UsageError, match="epsilon must be a number, at least 0 and below 1"):
        Perturbed(Linear(), epsilon=epsilon)


def test_other_images_and_temperatures_are_refused() -> None:
    with pytest.raises(UsageError, match=r"got torch\.int64"):
        Perturbed(Linear())(torch.zeros(1, 1, 1, 3, dtype=torch.int64))
    for make in (lambda: Perturbed(Linear(), temperature=0), lambda: ODIN(temperature=-1)):
        with pytest.raises(UsageError, match="temperature must be a number, above 0"):
            make()
    with pytest.raises(UsageError, match="at least two"):
        ODIN().score(Outputs(torch.zeros(2, 1), {}))


def test_the_score_ranks_as_the_largest_probability_at_its_temperature() -> None:
    logits = np.random.default_rng(0).normal(size=(300, 10)) * 5
    p = softmax(logits / 1000, axis=1).max(1)
    score = ODIN().score(Outputs(torch.from_numpy(logits), {})).numpy()
    assert np.allclose(score, np.log((1 - p) / p), rtol=1e-12)


def test_the_score_by_hand() -> None:
    # Two classes apart by 4, at T = 8: log((1 - p) / p) = -4 / 8.
    outputs = Outputs(torch.tensor([[4.0, 0.0]]), {})
    assert ODIN(temperature=8).score(outputs).item() == -0.5


def test_a_high_temperature_does_not_tie() -> None:
    logits = torch.zeros(3000, 10)
    logits[:, 0] = 15.75 + torch.arange(3000) * 2**-20  # each the next that float32 has
    assert (ODIN().score(Outputs(logits, {})).diff() < 0).all()
