from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from goen.data import ImageSet, load_set
from goen.errors import UsageError
from goen.extraction import extract, stream
from goen.models import NetworkConfig, ResNet18
from goen.outputs import Outputs


@pytest.fixture
def network() -> ResNet18:
    torch.manual_seed(0)
    return ResNet18(NetworkConfig(width=2))


@pytest.fixture
def images() -> ImageSet:
    return load_set("digits").take(range(0, 330, 11))


def test_it_is_what_the_network_says_in_evaluation_mode(
    network: ResNet18, images: ImageSet
) -> None:
    outputs = extract(network, images, batch_size=7)
    network.eval()
    with torch.no_grad():
        direct = network(torch.from_numpy(images.read()))
    assert torch.allclose(outputs.logits, direct.logits, atol=1e-5)
    for name, feature in direct.features.items():
        assert torch.allclose(outputs.features[name], feature, atol=1e-5), name


def test_the_network_is_left_as_it_was_found(network: ResNet18, images: ImageSet) -> None:
    network.train()
    network.bn1.eval()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    extract(network, images)
    assert network.training
    assert network.layer1.training
    assert not network.bn1.training
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_it_is_left_as_found_even_after_an_error(network: ResNet18, images: ImageSet) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    network.layer3.register_forward_hook(fail)
    with pytest.raises(RuntimeError):
        extract(network, images)
    assert network.training


def test_streaming_holds_one_batch_at_a_time(network: ResNet18, images: ImageSet) -> None:
    sizes = [len(outputs) for outputs in stream(network, images, batch_size=8)]
    assert sizes == [8, 8, 8, 6]


def test_outputs_can_be_cut_and_joined() -> None:
    whole = Outputs(torch.arange(12.0).view(6, 2), {"z": torch.arange(6.0).view(6, 1)})
    joined = Outputs.concatenate([whole[:2], whole[torch.tensor([2, 3])], whole[4:]])
    assert len(joined) == 6
    assert torch.equal(joined.logits, whole.logits)
    assert torch.equal(joined.features["z"], whole.features["z"])


def test_no_images_are_an_error(network: ResNet18, images: ImageSet) -> None:
    with pytest.raises(UsageError, match="Cannot concatenate: there are no batches"):
        extract(network, images.take([]))


class Plain(nn.Module):
    """A model of floats, as most are, that returns its logits alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 32 * 32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear(x.flatten(1))
        return logits


def test_a_plain_model_is_to_be_wrapped(images: ImageSet) -> None:
    plain = Plain()
    with pytest.raises(UsageError, match=r"^Plain cannot take .*goen\.Tapped\(model, layers\)"):
        extract(plain, images)
    plain.register_forward_pre_hook(lambda module, given: (given[0].float(),))
    with pytest.raises(UsageError, match=r"Plain returns Tensor\. .*goen\.Tapped"):
        extract(plain, images)
    plain.register_forward_hook(lambda module, given, logits: Outputs(logits, {}))
    assert len(extract(plain, images)) == len(images)


@pytest.mark.parametrize("kind", [lambda array: array, torch.from_numpy, list])
def test_an_image_set_is_needed(
    network: ResNet18, images: ImageSet, kind: Callable[[object], Any]
) -> None:
    with pytest.raises(UsageError, match=r"extract reads a goen\.data\.ImageSet, got .*pixels"):
        extract(network, kind(images.read()))
