from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)

from goen.errors import UsageError
from goen.features.extractor import FeatureExtractor
from goen.features.layers import list_layers
from goen.features.pooling import axis_by_weights, mask_of_frames
from tests.features.architectures import (
    CASES,
    ChannelsLast,
    build,
    pictures,
    vit_by_hand,
)
from tests.features.comparing import close


def test_the_class_token_is_the_first() -> None:
    model, images = build("vit"), pictures("vit")
    outputs = FeatureExtractor(model, CASES["vit"].layers, tokens="class")(images)
    _, expected = vit_by_hand(model, images.float() / 255, tokens="class")
    for layer in CASES["vit"].layers:
        assert close(outputs.features[layer], expected[layer])
    # What the head sees is the class token after the norm.
    assert close(outputs.logits, F.linear(outputs.features["norm"], *model.head.parameters()))


def test_half_maps_are_averaged_in_float32() -> None:
    # 64 · 64 values of 100 sum to more than the largest half, 65,504; 2,049 is none, 2,048 is.
    class Maps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.full((len(x), 2, 64, 64), 100.0, dtype=torch.half)

    model = nn.Sequential(OrderedDict(maps=Maps(), pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten()))
    outputs = FeatureExtractor(model, ["maps"])(torch.zeros(1, 3, 4, 4))
    assert outputs.features["maps"].tolist() == [[100.0, 100.0]]


@pytest.mark.parametrize("layout", ["auto", "channels_last"])
def test_a_convolution_has_its_channels_first_whatever_the_layout(layout: str) -> None:
    case, model, images = CASES["channels_last"], build("channels_last"), pictures("channels_last")
    outputs = FeatureExtractor(model, case.layers, layout=layout)(images)
    _, expected = case.by_hand(model, images.float() / 255)
    assert close(outputs.features["mix"], expected["mix"])
    assert close(outputs.features["patches"], expected["patches"])


def test_a_layout_that_neither_shape_nor_weights_say_must_be_said() -> None:
    model, images = ChannelsLast(3).eval(), torch.rand(2, 3, 24, 24)  # (N, 6, 6, 6)
    with pytest.raises(UsageError, match=r"'mix' gives \(N, .* layout to channels_first"):
        FeatureExtractor(model, ["mix"])(images)
    _, expected = CASES["channels_last"].by_hand(model, images)
    last = FeatureExtractor(model, ["mix"], layout="channels_last")(images)
    assert close(last.features["mix"], expected["mix"])
    first = FeatureExtractor(model, ["mix"], layout="channels_first")(images)
    assert first.features["mix"].shape == (2, 6)
    assert list_layers(model, images)[-1].width is None
    assert list_layers(model, images, layout="channels_last")[-1].width == 6


@pytest.mark.parametrize(("height", "width"), [(24, 24), (24, 32), (32, 24)])
def test_a_block_of_convolutions_has_its_channels_first(height: int, width: int) -> None:
    # (N, 6, 6, 6) of square images; (N, 6, 6, 8), which looks like 6×6 pixels of eight channels.
    block = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.Sequential(nn.BatchNorm2d(6), nn.ReLU()))
    model, images = nn.Sequential(block, nn.Flatten()).eval(), torch.rand(2, 3, height, width)
    features = FeatureExtractor(model, ["0"])(images).features["0"]
    assert close(features, block(images).mean((2, 3)))
    assert list_layers(model, images)[0].width == 6
    # One linear layer in it, and it may be either.
    mixed = nn.Sequential(*block, nn.Linear(width // 4, width // 4))
    with pytest.raises(UsageError, match=r"'0' gives .* layout to channels_first"):
        FeatureExtractor(nn.Sequential(mixed, nn.Flatten()), ["0"])(images)


def test_maps_of_oblong_images_are_as_the_nearest_weights_say() -> None:
    # (N, 6, 6, 8) is six channels of 6×8 here, and looks like 6×6 pixels of eight channels.
    model = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.ReLU(), nn.Flatten())
    images = torch.rand(2, 3, 24, 32)
    outputs = FeatureExtractor(model, ["1"])(images)
    assert close(outputs.features["1"], model[:2](images).mean((2, 3)))
    last, oblong = ChannelsLast(3).eval(), torch.rand(2, 3, 16, 32)
    _, expected = CASES["channels_last"].by_hand(last, oblong)
    assert close(FeatureExtractor(last, ["mix"])(oblong).features["mix"], expected["mix"])
    # Without weights, or behind weights that fit no axis, nothing is guessed.
    for plain in (nn.Sequential(nn.ReLU()), nn.Sequential(nn.Linear(32, 32), nn.ZeroPad2d(1))):
        layer = str(len(plain) - 1)
        with pytest.raises(UsageError, match="does not determine which axis is the channels"):
            FeatureExtractor(plain, [layer])(images)


@pytest.mark.parametrize("frames", [8, 9])
def test_sound_is_averaged_over_time_also_where_it_has_as_many_frames_as_channels(
    frames: int,
) -> None:
    convolutions = nn.Sequential(nn.Conv1d(1, 8, 1), nn.ReLU(), nn.BatchNorm1d(8))
    model = nn.Sequential(*convolutions, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 2))
    sound = torch.randn(3, 1, frames)
    outputs = FeatureExtractor(model.eval(), ["0", "1", "2"], inputs="tensors")(sound)
    for depth, features in enumerate(outputs.features.values(), 1):
        assert close(features, model[:depth](sound).mean(2))
    # Of tokens, which are as many as their channels, the channels stay the last axis.
    tokens = nn.Sequential(nn.Linear(4, frames), nn.ReLU(), nn.Flatten())
    text = torch.randn(3, 8, 4)
    outputs = FeatureExtractor(tokens, ["1"], inputs="tensors")(text)
    assert close(outputs.features["1"], tokens[:2](text).mean(1))


@pytest.mark.parametrize(
    ("convolution", "norm", "axes"),
    [
        (nn.Conv1d, nn.BatchNorm1d, 1),
        (nn.Conv2d, nn.BatchNorm2d, 2),
        (nn.Conv3d, nn.BatchNorm3d, 3),
    ],
)
def test_weights_tell_the_channels_of_maps_of_any_number_of_axes(
    convolution: type[nn.Module], norm: type[nn.Module], axes: int
) -> None:
    first, last = (2, 8, *range(9, 9 + axes)), (2, *range(9, 9 + axes), 8)
    for layer in (convolution(1, 8, 3), norm(8)):
        model = nn.Sequential(layer, nn.ReLU())
        assert axis_by_weights(model, "1", first) == 1
        assert axis_by_weights(model, "1", last) is None
    assert axis_by_weights(nn.Sequential(nn.Linear(3, 8), nn.ReLU()), "1", last) == axes + 1


def test_a_layer_is_pooled_as_its_name_says() -> None:
    # One channel: 3 · pixel − 1.2 is -0.6 and 1.8.
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.fill_(3.0)
        model[0].bias.fill_(-1.2)
    images = torch.tensor([[[[51, 255]]]], dtype=torch.uint8)
    names = ["0", "0:mean_abs", "0:std", "0:max"]
    outputs = FeatureExtractor(model, names, example=(1, 1, 2))(images)
    assert list(outputs.features) == names
    values = [outputs.features[name].item() for name in names]
    assert values == pytest.approx([0.6, 1.2, 1.2, 1.8], abs=1e-6)


def test_maps_with_channels_last_are_pooled_over_space() -> None:
    model, images = build("channels_last"), pictures("channels_last")
    taps = FeatureExtractor(model, ["mix", "mix:max"])
    maps: list[Tensor] = []
    handle = model.get_submodule("mix").register_forward_hook(lambda m, i, o: maps.append(o))
    outputs = taps(images)
    handle.remove()
    assert close(outputs.features["mix:max"], maps[0].amax((1, 2)))


@pytest.mark.parametrize("tokens", ["mean", "class"])
def test_vectors_cannot_be_pooled_otherwise(tokens: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2))
    with pytest.raises(UsageError, match=r"'2:std' gives \(N, 4\).*nothing to pool by std"):
        FeatureExtractor(model, ["2:std"], tokens=tokens)(torch.zeros(1, 3, 2, 2))


def test_a_wrong_pooling_and_a_wrong_layer_are_told_apart() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten(), nn.Linear(8, 2))
    with pytest.raises(UsageError, match=r"pooling .median..*mean_abs"):
        FeatureExtractor(model, ["0:median"])
    with pytest.raises(UsageError, match="no layer '7'"):
        FeatureExtractor(model, ["7:max"])


def test_a_mask_of_samples_becomes_one_of_frames() -> None:
    mask = (torch.arange(400) < torch.tensor([[400], [100], [0]])).long()
    assert mask_of_frames(mask, 20).sum(1).tolist() == [20, 5, 0]
    assert torch.equal(mask_of_frames(mask, 400), mask)
    assert mask_of_frames(mask, 7).shape == (3, 7)
