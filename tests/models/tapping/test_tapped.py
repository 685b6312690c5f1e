import copy
import io
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)

from goen.errors import UsageError
from goen.extraction import extract
from goen.models.placement import placement
from goen.models.tapping.deterministic import check_deterministic
from goen.models.tapping.layers import layers
from goen.models.tapping.preprocess import Preprocess
from goen.models.tapping.tapped import Tapped
from goen.outputs import Outputs
from tests.models.tapping.architectures import (
    CASES,
    RETURNS,
    ChannelsLast,
    Talkative,
    build,
    pictures,
    vit_by_hand,
)

NAMES = sorted(CASES)


def close(one: Tensor, other: Tensor, atol: float = 1e-6) -> bool:
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-5, atol=atol)


def hooks_of(model: nn.Module) -> list[int]:
    return [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]


# What comes out


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_features_are_those_of_the_pass_by_hand(name: str) -> None:
    case, model, images = CASES[name], build(name), pictures(name)
    tapped = Tapped(model, case.layers)
    logits, features = case.by_hand(model, images.float() / 255)
    for given in (images, images.float() / 255, images.double() / 255):
        outputs = tapped(given)
        assert close(outputs.logits, logits)
        assert outputs.logits.shape == (3, case.classes)
        assert list(outputs.features) == list(case.layers)
        for layer in case.layers:
            assert close(outputs.features[layer], features[layer]), layer


def test_a_model_worked_by_hand() -> None:
    # A pixel of 51 is 0.2: the convolution gives 3 · 0.2 + 1 = 1.6 and 255 gives 4, the mean 2.8.
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(3.0)
        model[0].bias.fill_(1.0)
        model[2].weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    images = torch.tensor([[[[51, 255]]]], dtype=torch.uint8)
    outputs = Tapped(model, ["0", "1"])(images)
    assert torch.allclose(outputs.features["0"], torch.tensor([[2.8]]))
    assert torch.allclose(outputs.features["1"], torch.tensor([[1.6, 4.0]]))
    assert torch.allclose(outputs.logits, torch.tensor([[1.6, 5.6]]))


def test_the_class_token_is_the_first() -> None:
    model, images = build("vit"), pictures("vit")
    outputs = Tapped(model, CASES["vit"].layers, tokens="class")(images)
    _, expected = vit_by_hand(model, images.float() / 255, tokens="class")
    for layer in CASES["vit"].layers:
        assert close(outputs.features[layer], expected[layer])
    # What the head sees is the class token after the norm.
    assert close(outputs.logits, F.linear(outputs.features["norm"], *model.head.parameters()))


def test_features_are_those_before_a_layer_that_works_in_place() -> None:
    case, model, images = CASES["plain"], build("plain"), pictures("plain")
    outputs = Tapped(model, ["body.1", "neck.0"])(images)
    _, expected = case.by_hand(model, images.float() / 255)
    assert (expected["body.1"] < 0).any()
    assert (expected["neck.0"] < 0).any()
    assert close(outputs.features["body.1"], expected["body.1"])
    assert close(outputs.features["neck.0"], expected["neck.0"])


def test_the_callers_images_are_not_changed_by_a_model_that_works_in_place() -> None:
    model = nn.Sequential(nn.Hardtanh(0.4, 0.6, inplace=True), nn.Flatten(), nn.Linear(12, 2))
    images = torch.rand(2, 3, 2, 2)
    before = images.clone()
    Tapped(model, ["1"])(images)
    assert torch.equal(images, before)


def test_one_name_is_one_layer_and_no_name_is_logits_alone() -> None:
    model, images = build("resnet"), pictures("resnet")
    assert list(Tapped(model, "drop")(images).features) == ["drop"]
    assert not Tapped(model, [])(images).features


def test_extract_runs_a_tapped_model(small_set) -> None:
    model = build("plain")
    outputs = extract(Tapped(model, ["body"]), small_set, batch_size=5)
    logits, features = CASES["plain"].by_hand(model, torch.from_numpy(small_set.pixels) / 255)
    assert close(outputs.logits, logits)
    assert close(outputs.features["body"], features["body"])


# The abilities that a model in half precision needs; see tests/processor.py.
HALF = [
    pytest.param(torch.float16, marks=pytest.mark.needs("float16 convolution")),
    pytest.param(torch.bfloat16, marks=pytest.mark.needs("bfloat16 convolution")),
]
FLOAT_AND_HALF = [torch.float32, HALF[1]]


@pytest.mark.parametrize("dtype", HALF)
def test_a_model_in_half_precision_gives_float32(dtype: torch.dtype) -> None:
    case, images = CASES["resnet"], pictures("resnet")
    logits, features = case.by_hand(build("resnet"), images.float() / 255)
    outputs = Tapped(build("resnet").to(dtype), case.layers)(images)
    tolerance = 50 * torch.finfo(dtype).eps
    assert outputs.logits.dtype == torch.float32
    assert torch.allclose(outputs.logits, logits, atol=tolerance)
    for layer in case.layers:
        assert outputs.features[layer].dtype == torch.float32
        assert torch.allclose(outputs.features[layer], features[layer], atol=tolerance)


def test_half_maps_are_averaged_in_float32() -> None:
    # 64 · 64 values of 100 sum to more than the largest half, 65,504; 2,049 is none, 2,048 is.
    class Maps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.full((len(x), 2, 64, 64), 100.0, dtype=torch.half)

    model = nn.Sequential(OrderedDict(maps=Maps(), pool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten()))
    outputs = Tapped(model, ["maps"])(torch.zeros(1, 3, 4, 4))
    assert outputs.features["maps"].tolist() == [[100.0, 100.0]]


def test_a_float64_model_keeps_its_precision() -> None:
    outputs = Tapped(build("resnet").double(), ["drop"])(pictures("resnet"))
    assert outputs.logits.dtype == outputs.features["drop"].dtype == torch.float64


def test_half_images_are_images_too() -> None:
    tapped, images = Tapped(build("plain"), ["body"]), pictures("plain").float() / 255
    one, other = tapped(images.half()), tapped(images.half().float())
    assert torch.equal(one.logits, other.logits)


def test_the_layers_of_torchs_own_encoder_are_heard() -> None:
    # In evaluation mode it may take a fused path that calls none of its parts.
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, 8, 4, 4)
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.encoder(self.patches(x).flatten(2).transpose(1, 2)).mean(1)

    model, images = Model().eval(), torch.rand(3, 3, 16, 16)
    first, second = model.encoder.layers
    with torch.inference_mode():
        tapped = Tapped(model, ["encoder.layers.0", "encoder.layers.1.norm2"])(images)
        tokens = first(model.patches(images).flatten(2).transpose(1, 2))
        assert close(tapped.features["encoder.layers.0"], tokens.mean(1))
        assert close(tapped.features["encoder.layers.1.norm2"], second(tokens).mean(1))
        assert close(tapped.logits, model(images))


# Maps of either layout


@pytest.mark.parametrize("layout", ["auto", "channels_last"])
def test_a_convolution_has_its_channels_first_whatever_the_layout(layout: str) -> None:
    case, model, images = CASES["channels_last"], build("channels_last"), pictures("channels_last")
    outputs = Tapped(model, case.layers, layout=layout)(images)
    _, expected = case.by_hand(model, images.float() / 255)
    assert close(outputs.features["mix"], expected["mix"])
    assert close(outputs.features["patches"], expected["patches"])


@pytest.mark.parametrize(("height", "width"), [(24, 24), (16, 32)])
def test_a_layout_that_the_shape_does_not_say_must_be_said(height: int, width: int) -> None:
    # (N, 6, 6, 6) of square images, and any map of others.
    model, images = ChannelsLast(3).eval(), torch.rand(2, 3, height, width)
    with pytest.raises(UsageError, match=r"'mix' gives \(N, .* layout='channels_first'"):
        Tapped(model, ["mix"])(images)
    _, expected = CASES["channels_last"].by_hand(model, images)
    last = Tapped(model, ["mix"], layout="channels_last")(images)
    assert close(last.features["mix"], expected["mix"])
    first = Tapped(model, ["mix"], layout="channels_first")(images)
    assert first.features["mix"].shape == (2, height // 4)
    assert layers(model, images)[-1].width is None
    assert layers(model, images, layout="channels_last")[-1].width == 6


def test_maps_of_oblong_images_are_not_guessed() -> None:
    # (N, 6, 6, 8) is six channels of 6×8 here, and looks like 6×6 pixels of eight channels.
    model = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.ReLU(), nn.Flatten())
    with pytest.raises(UsageError, match=r"'1' gives \(N, 6, 6, 8\)"):
        Tapped(model, ["1"])(torch.rand(2, 3, 24, 32))


# Where the logits are


@pytest.mark.parametrize("returns", sorted(RETURNS))
def test_the_only_matrix_of_an_output_is_the_logits(returns: str) -> None:
    model, images = Talkative(5, returns).eval(), pictures("tuple")
    logits, _ = CASES["tuple"].by_hand(model, images.float() / 255)
    assert close(Tapped(model, [])(images).logits, logits)


@pytest.mark.parametrize(
    ("returns", "where"),
    [
        ("dict", "logits"),
        ("tuple", 1),
        ("tuple", -1),
        ("list", 1),
        ("namedtuple", "logits"),
        ("namedtuple", 1),
        ("dataclass", "logits"),
        ("object", "logits"),
    ],
)
def test_of_several_matrices_the_logits_are_named(returns: str, where: str | int) -> None:
    model, images = Talkative(5, returns, flat=True).eval(), pictures("tuple")
    with pytest.raises(UsageError, match=r"\(3, 7\) float32") as error:
        Tapped(model, [])(images)
    assert "(3, 5) float32" in str(error.value)
    logits, _ = CASES["tuple"].by_hand(model, images.float() / 255)
    assert close(Tapped(model, [], logits=where)(images).logits, logits)


@pytest.mark.parametrize(
    ("returns", "where"),
    [("dict", "logit"), ("tuple", 2), ("tuple", "logits"), ("object", 0), ("dict", "keys")],
)
def test_logits_that_are_not_there(returns: str, where: str | int) -> None:
    model = Talkative(5, returns, flat=True).eval()
    with pytest.raises(UsageError, match=f"No logits .* at {where!r}.*(3, 7).*Give logits="):
        Tapped(model, [], logits=where)(pictures("tuple"))


class Returns(nn.Module):
    """Whatever the function makes of the pixels."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(x.flatten(1))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x[:, :1], "one logit per image"),
        (lambda x: x[:, 0], r"No logits \(N, classes\)"),
        (lambda x: x.long(), r"\(2, 12\) int64"),
        (lambda x: x[:1], r"\(1, 12\) float32"),
        (lambda x: {}, "dict with nothing in it"),
        (lambda x: None, "NoneType with nothing in it"),
        (lambda x: {"probabilities": x[None], "names": ["a"]}, "'names' list"),
    ],
)
def test_an_output_without_logits(function, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Tapped(Returns(function), [])(torch.rand(2, 3, 2, 2))


# Layers that cannot be tapped


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    model = build("resnet")
    with pytest.raises(UsageError, match=r"no layer 'trunk\.1'\. Did you mean 'backbone.trunk.1'"):
        Tapped(model, ["trunk.1"])
    with pytest.raises(UsageError) as error:
        Tapped(model, ["trunk.1"], example=(3, 32, 32))
    assert "'backbone.trunk.1' (N, 6, 16, 16)" in str(error.value)
    with pytest.raises(UsageError, match=r"It has 'drop' \(N, 10\), 'judge' \(N, 10\)\. goen"):
        Tapped(model, ["xyz"], example=(3, 32, 32))
    with pytest.raises(UsageError, match=r"no layer ''"):
        Tapped(model, [""])


def test_a_layer_that_is_called_twice_is_named() -> None:
    tapped = Tapped(build("resnet"), ["backbone.trunk.0.act"])
    with pytest.raises(UsageError, match=r"'backbone\.trunk\.0\.act' is called 2 times"):
        tapped(pictures("resnet"))


def test_a_layer_that_is_not_called_is_named() -> None:
    # Attention uses the weights of its last layer without calling it.
    tapped = Tapped(build("vit"), ["blocks.0.attn.out_proj"])
    with pytest.raises(UsageError, match=r"'blocks\.0\.attn\.out_proj' is not called"):
        tapped(pictures("vit"))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.long(), r"\(2, 12\) int64"),
        (lambda x: x[0], r"\(12,\) float32"),
        (lambda x: x.view(2, 3, 2, 2, 1), r"\(2, 3, 2, 2, 1\) float32"),
        (lambda x: x.view(2, 3, 4).transpose(0, 1), r"\(3, 2, 4\) float32 for 2 images"),
        (lambda x: None, "NoneType"),
    ],
)
def test_a_layer_that_gives_no_rows(function, words: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.odd = Returns(function)

        def forward(self, x: Tensor) -> Tensor:
            self.odd(x)
            return x.flatten(1)

    with pytest.raises(UsageError, match=rf"'odd' gives {words}"):
        Tapped(Model(), ["odd"])(torch.rand(2, 3, 2, 2))
    assert not layers(Model(), torch.rand(2, 3, 2, 2))


def test_arguments_that_cannot_be_meant() -> None:
    model = build("plain")
    with pytest.raises(UsageError, match=r"Unknown tokens 'clas'\. Did you mean 'class'"):
        Tapped(model, ["body"], tokens="clas")
    with pytest.raises(UsageError, match="Unknown layout 'nhwc'"):
        Tapped(model, ["body"], layout="nhwc")
    with pytest.raises(UsageError, match="named once, got body, body"):
        Tapped(model, ["body", "body"])


def test_an_example_tries_everything_at_once() -> None:
    with pytest.raises(UsageError, match="called 2 times"):
        Tapped(build("resnet"), ["backbone.trunk.0.act"], example=(3, 32, 32))
    model = build("plain").train()
    before = copy.deepcopy(model.state_dict())
    Tapped(model, ["body"], example=pictures("plain"))
    assert model.training
    assert model.body[1].training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


# The model is left as it was found


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 2, 1)
        self.second = nn.Conv2d(2, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        self.first(x)
        raise RuntimeError("the model's own error")


def test_no_hook_stays_behind() -> None:
    model, images = build("resnet"), pictures("resnet")
    seen = []
    model.judge.register_forward_hook(lambda m, i, o: seen.append(len(o)))
    before = hooks_of(model)
    tapped = Tapped(model, CASES["resnet"].layers)
    tapped(images)
    layers(model, images)
    assert hooks_of(model) == before
    assert seen == [3, 3]
    with pytest.raises(UsageError):
        Tapped(model, ["drop", "backbone.trunk.0.act"])(images)
    assert hooks_of(model) == before


def test_no_hook_stays_behind_when_the_forward_pass_raises() -> None:
    model = Broken()
    with pytest.raises(RuntimeError, match="the model's own error"):
        Tapped(model, ["first", "second"])(torch.rand(1, 3, 2, 2))
    with pytest.raises(RuntimeError, match="the model's own error"):
        layers(model, (3, 2, 2))
    assert hooks_of(model) == [0, 0, 0]
    assert model.training


def test_mode_and_gradient_flags_and_weights_are_as_found() -> None:
    model, images = build("plain").train(), pictures("plain")
    model.body[0].eval()
    model.fc.weight.requires_grad_(False)
    modes = [m.training for m in model.modules()]
    flags = [p.requires_grad for p in model.parameters()]
    weights = copy.deepcopy(model.state_dict())
    tapped = Tapped(model, ["body"])
    assert tapped.training
    assert not Tapped(build("plain"), ["body"]).training
    layers(model, images)
    assert [m.training for m in model.modules()] == modes
    check_deterministic(tapped, images)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    model.eval()
    with torch.inference_mode():
        tapped(images)
    assert not any(m.training for m in model.modules())
    assert [p.requires_grad for p in model.parameters()] == flags
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())


def test_gradients_reach_the_images() -> None:
    model, images = build("resnet"), (pictures("resnet").float() / 255).requires_grad_()
    Tapped(model, ["drop"], preprocess=Preprocess(std=(0.5,)))(images).logits.sum().backward()
    other = images.detach().clone().requires_grad_()
    CASES["resnet"].by_hand(model, other / 0.5)[0].sum().backward()
    assert close(images.grad, other.grad, atol=1e-5)


def test_threads_do_not_hear_each_other() -> None:
    tapped = Tapped(build("resnet"), CASES["resnet"].layers)
    batches = [pictures("resnet", 2, seed=seed) for seed in range(40)]
    with torch.no_grad():
        expected = [tapped(batch) for batch in batches]

    def run(batch: Tensor) -> Outputs:
        with torch.no_grad():
            return tapped(batch)

    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(pool.map(run, batches), expected, strict=True):
            assert close(one.logits, other.logits)
            for layer in one.features:
                assert close(one.features[layer], other.features[layer])
    assert not any(hooks_of(tapped))


def test_a_model_without_parameters_is_on_the_cpu_in_float32() -> None:
    model = nn.Sequential(nn.AvgPool2d(2), nn.Flatten())
    assert placement(model) == (torch.device("cpu"), torch.float32)
    assert Tapped(model, ["0"])(torch.rand(2, 3, 4, 4)).features["0"].shape == (2, 3)
    norm = nn.BatchNorm2d(3, affine=False).double()
    assert placement(norm)[1] == torch.float64


# Preprocessing and the range of images


def test_images_are_normalised_by_channel() -> None:
    case, model, images = CASES["resnet"], build("resnet"), pictures("resnet")
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    x = images.float() / 255
    x = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], 1)
    logits, _ = case.by_hand(model, x)
    for given in (images, images.float() / 255):
        outputs = Tapped(model, [], preprocess=Preprocess(mean=mean, std=std))(given)
        assert close(outputs.logits, logits, atol=1e-5)


def test_normalisation_by_hand() -> None:
    # (0.2 - 0.1) / 0.5 = 0.2 and (1 - 0.1) / 0.5 = 1.8.
    found = Preprocess(mean=(0.1,), std=(0.5,))(torch.tensor([[[[0.2, 1.0]]]]))
    assert torch.allclose(found, torch.tensor([[[[0.2, 1.8]]]]))


@pytest.mark.parametrize("size", [20, (20, 20), (50, 33), (48, 48)])
def test_resizing_is_pillows(size: int | tuple[int, int]) -> None:
    images = pictures("dict", 2)
    found = Preprocess(size=size)(images.float() / 255)
    height, width = (size, size) if isinstance(size, int) else size
    for image, row in zip(images, found, strict=True):
        for plane, ours in zip(image, row, strict=True):
            pillow = Image.fromarray(plane.numpy().astype(np.float32))
            pillow = pillow.resize((width, height), Image.Resampling.BILINEAR)
            assert np.allclose(np.asarray(pillow) / 255, ours.numpy(), atol=1e-5)


def test_a_model_of_another_size_gets_its_size() -> None:
    model, images = build("vit"), pictures("resnet")
    tapped = Tapped(model, ["norm"], preprocess=Preprocess(size=224), example=(3, 32, 32))
    x = F.interpolate(images.float() / 255, (224, 224), mode="bilinear", antialias=True)
    logits, features = vit_by_hand(model, x)
    assert close(tapped(images).logits, logits)
    assert close(tapped(images).features["norm"], features["norm"])
    assert layers(model, (3, 32, 32), preprocess=Preprocess(size=224))[-1].shape == (50, 8)


def test_preprocessing_can_be_a_function() -> None:
    model, images = build("plain"), pictures("plain")
    logits, _ = CASES["plain"].by_hand(model, 2 * images.float() / 255)

    def double_in_place(x: Tensor) -> Tensor:
        assert x.dtype == torch.float32
        assert x.max() <= 1
        return x.mul_(2)

    floats = images.float() / 255
    before = floats.clone()
    for given in (images, floats):
        assert close(Tapped(model, [], preprocess=double_in_place)(given).logits, logits)
    assert torch.equal(floats, before)


@pytest.mark.needs("bfloat16 convolution")
def test_preprocessing_of_a_half_model_is_done_in_float32() -> None:
    seen = []
    model = build("plain").bfloat16()
    model.body[0].register_forward_pre_hook(lambda m, inputs: seen.append(inputs[0]))
    images = torch.full((1, 3, 8, 8), 201, dtype=torch.uint8)
    Tapped(model, [], preprocess=Preprocess(mean=(0.788,)))(images)
    # 201 / 255 - 0.788 is 0.000235; in bfloat16 201 / 255 is 0.7891 and 0.788 too.
    assert seen[0].dtype == torch.bfloat16
    assert abs(float(seen[0][0, 0, 0, 0]) - 0.000235) < 2e-6


@pytest.mark.parametrize(
    ("function", "words"), [(lambda x: x[0], "returned \\(3, 8, 8\\)"), (lambda x: [x], "list")]
)
def test_preprocessing_that_gives_no_batch(function, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Tapped(build("plain"), [], preprocess=function)(pictures("plain", 5))


def test_preprocessing_that_cannot_be_meant() -> None:
    with pytest.raises(UsageError, match="mean has 2 values, but the images have 3 channels"):
        Tapped(build("plain"), [], preprocess=Preprocess(mean=(0.5, 0.5)))(pictures("plain"))
    with pytest.raises(UsageError, match="std is one positive number"):
        Preprocess(std=(0.5, 0.0, 0.5))
    for size in (0, (32,), (32, 0), (3, 32, 32)):
        with pytest.raises(UsageError, match="size is a number of pixels"):
            Preprocess(size=size)
    assert Preprocess(mean=[0, 1]) == Preprocess(mean=(0.0, 1.0))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.rand(2, 3, 8, 8) * 255, r"lie in \[0, 1\]; got .* Are they 0-255"),
        (torch.randn(2, 3, 8, 8), r"lie in \[0, 1\]"),
        (torch.full((2, 3, 8, 8), -0.5), r"got -0\.5\.\.-0\.5"),
        (torch.full((2, 3, 8, 8), float("nan")), "NaN"),
        (torch.full((2, 3, 8, 8), float("inf")), r"lie in \[0, 1\]"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), "uint8, or floats"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"\(N, C, H, W\)"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.bool), "got torch.bool"),
    ],
)
def test_images_that_cannot_be_meant(images: Tensor, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Tapped(build("plain"), ["body"])(images)


def test_a_small_step_over_the_edge_is_allowed() -> None:
    outputs = Tapped(build("plain"), ["body"])(torch.full((2, 3, 8, 8), -0.0014))
    assert torch.isfinite(outputs.logits).all()
    assert len(Tapped(build("plain"), ["body"])(torch.rand(0, 3, 8, 8))) == 0


# The list of layers


def test_the_list_holds_what_is_worth_a_look() -> None:
    def names(case: str) -> list[str]:
        size = CASES[case].size
        return [info.name for info in layers(build(case), (3, size, size))]

    # The norm before a ReLU, the last layer of a Sequential and the logits are left out.
    assert names("plain") == ["body.2", "body.3", "body", "neck"]
    units = [f"backbone.trunk.{i}" for i in range(3)]
    assert names("resnet") == ["backbone.entry", *units, "drop"]
    assert names("vit") == ["patches", "blocks.0", "blocks.1", "norm"]
    assert names("dict") == ["conv"]


def test_a_layer_is_kept_when_the_activation_is_anothers() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.act = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 1), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return (self.left(x) + self.act(self.right(x))).flatten(1)

    assert [info.name for info in layers(Branches(), (3, 4, 4))] == ["left", "act"]


def test_every_layer_is_listed_when_asked() -> None:
    table = layers(build("resnet"), (3, 32, 32), every=True)
    found = {info.name: info for info in table}
    assert found["backbone.trunk.1.first"].shape == (6, 16, 16)
    assert found["judge"].width == 10
    assert "backbone.trunk.1.act" not in found  # it is called twice
    assert "" not in found
    order = [info.name for info in table]
    assert order.index("backbone.trunk.0.second") < order.index("backbone.trunk.0")
    attention = layers(build("vit"), (3, 224, 224), every=True)
    shapes = {info.name: info.shape for info in attention}
    assert shapes["blocks.0.attn"] == (50, 8)
    assert "blocks.0.attn.out_proj" not in shapes


@pytest.mark.parametrize("name", NAMES)
def test_everything_listed_can_be_tapped_and_is_as_wide_as_it_says(name: str) -> None:
    model, size = build(name), CASES[name].size
    for every in (False, True):
        table = layers(model, (3, size, size), every=every)
        known = [info for info in table if info.width is not None]
        outputs = Tapped(model, [info.name for info in known])(pictures(name))
        for info in known:
            assert outputs.features[info.name].shape == (3, info.width)


def test_the_table_reads_well() -> None:
    table = layers(build("plain"), pictures("plain"))
    assert str(table).splitlines() == [
        "layer   kind        output        width",
        "body.2  ReLU        (N, 4, 8, 8)      4",
        "body.3  MaxPool2d   (N, 4, 4, 4)      4",
        "body    Sequential  (N, 6, 4, 4)      6",
        "neck    Sequential  (N, 5)            5",
    ]
    assert str(layers(nn.Flatten(), (3, 2, 2))) == "layer  kind  output  width"


# Repeatable outputs


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in NAMES),
        *(
            pytest.param(
                name,
                torch.bfloat16,
                marks=pytest.mark.needs(
                    "bfloat16 convolution", *(["bfloat16 attention"] if name == "vit" else [])
                ),
            )
            for name in NAMES
        ),
    ],
)
def test_ordinary_models_are_deterministic(name: str, dtype: torch.dtype) -> None:
    check_deterministic(Tapped(build(name).to(dtype), CASES[name].layers), pictures(name, 5))


class Doubtful(nn.Module):
    """A classifier with one function in it that it should not have."""

    def __init__(self, function) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.out = nn.Linear(16, 3)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.function(self.conv(x).mean((2, 3))))


@pytest.mark.parametrize(
    "function",
    [lambda x: F.dropout(x, 0.3, training=True), lambda x: x + 0.5 * torch.randn_like(x)],
    ids=["dropout", "noise"],
)
@pytest.mark.parametrize("dtype", FLOAT_AND_HALF)
def test_a_random_model_is_noticed(function, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tapped = Tapped(Doubtful(function).eval().to(dtype), ["conv"])
    with pytest.raises(UsageError, match="not deterministic in evaluation mode: its logits"):
        check_deterministic(tapped, pictures("plain", 4))


def test_random_preprocessing_is_noticed() -> None:
    def flip(x: Tensor) -> Tensor:
        return x * torch.rand(len(x), 1, 1, 1)

    with pytest.raises(UsageError, match="random preprocessing"):
        check_deterministic(Tapped(build("plain"), [], preprocess=flip), pictures("plain", 4))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.batch_norm(x, None, None, training=True) if len(x) > 1 else x,
        lambda x: x - x.mean(0),
        lambda x: x + 0.1 * torch.arange(len(x))[:, None],
        lambda x: x / len(x),
        lambda x: x + (torch.arange(len(x)) == 5)[:, None],
    ],
    ids=["batch norm", "centring", "place in the batch", "size of the batch", "the sixth"],
)
def test_a_model_that_looks_at_its_neighbours_is_noticed(function) -> None:
    torch.manual_seed(0)
    tapped = Tapped(Doubtful(function).eval(), [])
    with pytest.raises(UsageError, match="depend on the other images of its batch: its logits"):
        check_deterministic(tapped, pictures("plain", 6))


def test_batch_norm_without_running_statistics_is_noticed() -> None:
    model = build("plain")
    model.body[1] = nn.BatchNorm2d(4, track_running_stats=False)
    with pytest.raises(UsageError, match="batch norm without running statistics"):
        check_deterministic(Tapped(model, ["body"]), pictures("plain", 4))


def test_the_feature_that_changes_is_named() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.noisy = Returns(lambda x: x + torch.rand(len(x), 1))

        def forward(self, x: Tensor) -> Tensor:
            self.noisy(x)
            return x.flatten(1)

    with pytest.raises(UsageError, match="its features 'noisy' changed"):
        check_deterministic(Tapped(Model(), ["noisy"]), pictures("plain", 4))


def test_images_that_show_nothing() -> None:
    tapped = Tapped(build("plain"), [])
    with pytest.raises(UsageError, match=r"Two images or more .* got 1"):
        check_deterministic(tapped, pictures("plain", 1))
    broken = Tapped(Returns(lambda x: x / 0), [])
    with pytest.raises(UsageError, match="logits hold NaN or infinity"):
        check_deterministic(broken, pictures("plain", 3))
    pairs = Tapped(Returns(lambda x: F.batch_norm(x, None, None, training=True)), [])
    with pytest.raises(UsageError, match="not one image alone: Expected more than 1 value"):
        check_deterministic(pairs, pictures("plain", 3))


# Export


@pytest.mark.parametrize("name", ["plain", "resnet", "vit"])
def test_torch_export_takes_a_tapped_model(name: str) -> None:
    case, images = CASES[name], pictures(name)
    size = case.size // 2
    preprocess = Preprocess(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), size=case.size)
    tapped = Tapped(build(name), case.layers, preprocess=preprocess)
    count = torch.export.Dim("count", min=1, max=1024)
    small = images[:, :, :size, :size]
    program = torch.export.export(
        tapped, (small,), dynamic_shapes={"images": {0: count}}, strict=False
    )
    assert not any(hooks_of(tapped))
    exported = program.module()
    for number in (1, 2, 7):
        batch = pictures(name, number, seed=number)[:, :, :size, :size]
        with torch.no_grad():
            expected, found = tapped(batch), exported(batch)
        assert isinstance(found, Outputs)
        assert close(found.logits, expected.logits)
        assert list(found.features) == list(case.layers)
        for layer in case.layers:
            assert close(found.features[layer], expected.features[layer])


def test_an_exported_program_can_be_saved() -> None:
    tapped, images = Tapped(build("plain"), ["body"]), pictures("plain")
    file = io.BytesIO()
    torch.export.save(torch.export.export(tapped, (images,), strict=False), file)
    file.seek(0)
    found = torch.export.load(file).module()(images)
    assert isinstance(found, Outputs)
    assert close(found.features["body"], tapped(images).features["body"])
