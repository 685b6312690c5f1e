import copy
import io
from collections import OrderedDict
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from goen.errors import UsageError
from goen.extraction import extract
from goen.features.deterministic import check_deterministic
from goen.features.extractor import FeatureExtractor, as_extractor
from goen.features.layers import list_layers
from goen.features.preprocess import Preprocess
from goen.models import NetworkConfig, ResNet18
from goen.models.resnet import Block
from goen.outputs import LinearClassifier, Outputs, check_classifier
from tests.features.architectures import (
    CASES,
    EncoderBlock,
    SmallViT,
    Talkative,
    build,
    pictures,
)
from tests.features.comparing import HALF, NAMES, Broken, Returns, close, hooks_of
from tests.features.test_unwrapping import WRAPPERS, compiled


@pytest.mark.parametrize("name", NAMES)
def test_logits_and_features_are_those_of_the_pass_by_hand(name: str) -> None:
    case, model, images = CASES[name], build(name), pictures(name)
    extractor = FeatureExtractor(model, case.layers)
    logits, features = case.by_hand(model, images.float() / 255)
    for given in (images, images.float() / 255, images.double() / 255):
        outputs = extractor(given)
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
    outputs = FeatureExtractor(model, ["0", "1"])(images)
    assert torch.allclose(outputs.features["0"], torch.tensor([[2.8]]))
    assert torch.allclose(outputs.features["1"], torch.tensor([[1.6, 4.0]]))
    assert torch.allclose(outputs.logits, torch.tensor([[1.6, 5.6]]))


def test_features_are_those_before_a_layer_that_works_in_place() -> None:
    case, model, images = CASES["plain"], build("plain"), pictures("plain")
    outputs = FeatureExtractor(model, ["body.1", "neck.0"])(images)
    _, expected = case.by_hand(model, images.float() / 255)
    assert (expected["body.1"] < 0).any()
    assert (expected["neck.0"] < 0).any()
    assert close(outputs.features["body.1"], expected["body.1"])
    assert close(outputs.features["neck.0"], expected["neck.0"])


class OneBuffer(nn.Module):
    """Gives out its logits in the same memory each time."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 2)
        self.logits = torch.zeros(9, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.logits[: len(x)] = self.linear(x.flatten(1))
        return self.logits[: len(x)]


def test_outputs_stay_when_the_model_uses_their_memory_again() -> None:
    extractor = FeatureExtractor(OneBuffer().eval(), ["linear"])
    with torch.no_grad():
        one, other = (extractor(torch.rand(4, 3, 2, 2)) for _ in range(2))
    for outputs in (one, other):
        assert torch.equal(outputs.logits, outputs.features["linear"])
    check_deterministic(extractor, torch.rand(4, 3, 2, 2))


def test_the_callers_images_are_not_changed_by_a_model_that_works_in_place() -> None:
    model = nn.Sequential(nn.Hardtanh(0.4, 0.6, inplace=True), nn.Flatten(), nn.Linear(12, 2))
    images = torch.rand(2, 3, 2, 2)
    before = images.clone()
    FeatureExtractor(model, ["1"])(images)
    assert torch.equal(images, before)


def test_one_name_is_one_layer_and_no_name_is_logits_alone() -> None:
    model, images = build("resnet"), pictures("resnet")
    assert list(FeatureExtractor(model, "drop")(images).features) == ["drop"]
    assert not FeatureExtractor(model, [])(images).features


def test_extract_runs_a_tapped_model(small_set) -> None:
    model = build("plain")
    outputs = extract(FeatureExtractor(model, ["body"]), small_set, batch_size=5)
    logits, features = CASES["plain"].by_hand(model, torch.from_numpy(small_set.pixels) / 255)
    assert close(outputs.logits, logits)
    assert close(outputs.features["body"], features["body"])


@pytest.mark.parametrize("dtype", HALF)
def test_a_model_in_half_precision_gives_float32(dtype: torch.dtype) -> None:
    case, images = CASES["resnet"], pictures("resnet")
    logits, features = case.by_hand(build("resnet"), images.float() / 255)
    outputs = FeatureExtractor(build("resnet").to(dtype), case.layers)(images)
    tolerance = 50 * torch.finfo(dtype).eps
    assert outputs.logits.dtype == torch.float32
    assert torch.allclose(outputs.logits, logits, atol=tolerance)
    for layer in case.layers:
        assert outputs.features[layer].dtype == torch.float32
        assert torch.allclose(outputs.features[layer], features[layer], atol=tolerance)


def test_a_float64_model_keeps_its_precision() -> None:
    outputs = FeatureExtractor(build("resnet").double(), ["drop"])(pictures("resnet"))
    assert outputs.logits.dtype == outputs.features["drop"].dtype == torch.float64


def test_half_images_are_images_too() -> None:
    extractor, images = FeatureExtractor(build("plain"), ["body"]), pictures("plain").float() / 255
    one, other = extractor(images.half()), extractor(images.half().float())
    assert torch.equal(one.logits, other.logits)


def test_the_layers_of_torchs_own_encoder_are_recorded() -> None:
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
        extractor = FeatureExtractor(model, ["encoder.layers.0", "encoder.layers.1.norm2"])(images)
        tokens = first(model.patches(images).flatten(2).transpose(1, 2))
        assert close(extractor.features["encoder.layers.0"], tokens.mean(1))
        assert close(extractor.features["encoder.layers.1.norm2"], second(tokens).mean(1))
        assert close(extractor.logits, model(images))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_within_torchs_own_encoder_are_passed_over() -> None:
    # Where a mask leaves tokens out, its layers give each other rows of several lengths.
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
            self.words, self.encoder = nn.Embedding(9, 8), nn.TransformerEncoder(layer, 2)
            self.judge = nn.Linear(8, 3)

        def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
            tokens = self.encoder(self.words(ids), src_key_padding_mask=attention_mask == 0)
            return self.judge(tokens[:, 0])

    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    batch = {"ids": torch.arange(8).view(2, 4), "attention_mask": mask}
    model = Model().eval()
    assert [info.name for info in list_layers(model, batch)] == ["words", "encoder"]
    with torch.no_grad():
        features = FeatureExtractor(model, "encoder", inputs="tensors")(batch).features["encoder"]
        short = {name: part[1:, :2] for name, part in batch.items()}
        assert close(
            features[1:],
            FeatureExtractor(model, "encoder", inputs="tensors")(short).features["encoder"],
        )
        with pytest.raises(UsageError, match=r"'encoder\.layers\.0' gives a nested tensor for 2"):
            FeatureExtractor(model, "encoder.layers.0", inputs="tensors")(batch)


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    model = build("resnet")
    with pytest.raises(UsageError, match=r"no layer 'trunk\.1'\. Did you mean 'backbone.trunk.1'"):
        FeatureExtractor(model, ["trunk.1"])
    with pytest.raises(UsageError) as error:
        FeatureExtractor(model, ["trunk.1"], example=(3, 32, 32))
    assert "'backbone.trunk.1' (N, 6, 16, 16)" in str(error.value)
    with pytest.raises(UsageError, match=r"It has 'drop' \(N, 10\), 'judge' \(N, 10\)\. Layers"):
        FeatureExtractor(model, ["xyz"], example=(3, 32, 32))
    with pytest.raises(UsageError, match=r"no layer ''"):
        FeatureExtractor(model, [""])


def test_a_layer_that_is_called_twice_is_named() -> None:
    extractor = FeatureExtractor(build("resnet"), ["backbone.trunk.0.act"])
    with pytest.raises(UsageError, match=r"'backbone\.trunk\.0\.act' is called 2 times"):
        extractor(pictures("resnet"))


def test_a_layer_that_is_not_called_is_named() -> None:
    # Attention uses the weights of its last layer without calling it.
    extractor = FeatureExtractor(build("vit"), ["blocks.0.attn.out_proj"])
    with pytest.raises(UsageError, match=r"'blocks\.0\.attn\.out_proj' is not called"):
        extractor(pictures("vit"))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x.long(), r"\(2, 12\) int64"),
        (lambda x: x[0], r"\(12,\) float32"),
        (lambda x: x.view(2, 3, 2, 2, 1, 1), r"\(2, 3, 2, 2, 1, 1\) float32"),
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
        FeatureExtractor(Model(), ["odd"])(torch.rand(2, 3, 2, 2))
    assert not list_layers(Model(), torch.rand(2, 3, 2, 2))


def test_arguments_that_cannot_be_meant() -> None:
    model = build("plain")
    with pytest.raises(UsageError, match=r"Unknown tokens 'clas'\. Did you mean 'class'"):
        FeatureExtractor(model, ["body"], tokens="clas")
    with pytest.raises(UsageError, match="Unknown layout 'nhwc'"):
        FeatureExtractor(model, ["body"], layout="nhwc")
    for numbers in (3, [0, 3]):
        with pytest.raises(UsageError, match="Layer names are strings, such as '2' or 'layer4'"):
            FeatureExtractor(build("plain"), numbers)
    with pytest.raises(UsageError, match="named once, got body, body"):
        FeatureExtractor(model, ["body", "body"])


def test_an_example_tries_everything_at_once() -> None:
    with pytest.raises(UsageError, match="called 2 times"):
        FeatureExtractor(build("resnet"), ["backbone.trunk.0.act"], example=(3, 32, 32))
    model = build("plain").train()
    before = copy.deepcopy(model.state_dict())
    FeatureExtractor(model, ["body"], example=pictures("plain"))
    assert model.training
    assert model.body[1].training
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_no_hook_stays_behind_when_the_forward_pass_raises() -> None:
    model = Broken()
    with pytest.raises(RuntimeError, match="the model's own error"):
        FeatureExtractor(model, ["first", "second"])(torch.rand(1, 3, 2, 2))
    with pytest.raises(UsageError, match=r"of shape \(2, 3, 2, 2\): RuntimeError: the model's own"):
        list_layers(model, (3, 2, 2))
    assert hooks_of(model) == [0, 0, 0]
    assert model.training


def test_images_of_another_size_than_the_models_get_a_sentence() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
    words = r"inputs of shape \(2, 3, 9, 9\): RuntimeError: .* and the channels that the model was"
    for tried in (
        lambda: list_layers(model, (3, 9, 9)),
        lambda: FeatureExtractor(model, "0", example=(3, 9, 9)),
        lambda: FeatureExtractor(model, "0", preprocess=Preprocess(size=9), example=(3, 8, 8)),
    ):
        with pytest.raises(UsageError, match=words):
            tried()
    with pytest.raises(ZeroDivisionError):  # a mistake in the user's own function
        FeatureExtractor(model, "0", preprocess=lambda x: x / (1 // 0), example=(3, 8, 8))


def test_mode_and_gradient_flags_and_weights_are_as_found() -> None:
    model, images = build("plain").train(), pictures("plain")
    model.body[0].eval()
    model.fc.weight.requires_grad_(False)
    modes = [m.training for m in model.modules()]
    flags = [p.requires_grad for p in model.parameters()]
    weights = copy.deepcopy(model.state_dict())
    extractor = FeatureExtractor(model, ["body"])
    assert extractor.training
    assert not FeatureExtractor(build("plain"), ["body"]).training
    list_layers(model, images)
    assert [m.training for m in model.modules()] == modes
    check_deterministic(extractor, images)
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())
    model.eval()
    with torch.inference_mode():
        extractor(images)
    assert not any(m.training for m in model.modules())
    assert [p.requires_grad for p in model.parameters()] == flags
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(v, weights[k]) for k, v in model.state_dict().items())


def test_gradients_reach_the_images() -> None:
    model, images = build("resnet"), (pictures("resnet").float() / 255).requires_grad_()
    FeatureExtractor(model, ["drop"], preprocess=Preprocess(std=(0.5,)))(
        images
    ).logits.sum().backward()
    other = images.detach().clone().requires_grad_()
    CASES["resnet"].by_hand(model, other / 0.5)[0].sum().backward()
    assert close(images.grad, other.grad, atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "resnet", "vit"])
def test_torch_export_takes_a_tapped_model(name: str) -> None:
    case, images = CASES[name], pictures(name)
    size = case.size // 2
    preprocess = Preprocess(mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4), size=case.size)
    extractor = FeatureExtractor(build(name), case.layers, preprocess=preprocess)
    count = torch.export.Dim("count", min=1, max=1024)
    small = images[:, :, :size, :size]
    program = torch.export.export(
        extractor, (small,), dynamic_shapes={"inputs": {0: count}}, strict=False
    )
    assert not any(hooks_of(extractor))
    exported = program.module()
    for number in (1, 2, 7):
        batch = pictures(name, number, seed=number)[:, :, :size, :size]
        with torch.no_grad():
            expected, found = extractor(batch), exported(batch)
        assert isinstance(found, Outputs)
        assert close(found.logits, expected.logits)
        assert list(found.features) == list(case.layers)
        for layer in case.layers:
            assert close(found.features[layer], expected.features[layer])


def test_an_exported_program_can_be_saved() -> None:
    extractor, images = FeatureExtractor(build("plain"), ["body"]), pictures("plain")
    file = io.BytesIO()
    torch.export.save(torch.export.export(extractor, (images,), strict=False), file)
    file.seek(0)
    found = torch.export.load(file).module()(images)
    assert isinstance(found, Outputs)
    assert close(found.features["body"], extractor(images).features["body"])


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_model_inside_a_wrapper_is_tapped(wrapper: str) -> None:
    case, images = CASES["resnet"], pictures("resnet")
    model = WRAPPERS[wrapper](build("resnet"))
    with torch.no_grad():
        model(images.float() / 255)  # compiled already, without hooks
    logits, features = case.by_hand(build("resnet"), images.float() / 255)
    for prefix in ("", "module.", "_orig_mod.", "_orig_mod.module."):
        names = [prefix + layer for layer in case.layers]
        outputs = FeatureExtractor(model, names)(images)
        assert close(outputs.logits, logits)
        for name, layer in zip(names, case.layers, strict=True):
            assert close(outputs.features[name], features[layer])
    assert not any(hooks_of(model))


def test_a_layer_around_a_compiled_part_is_recorded_and_one_in_it_is_named() -> None:
    model, images = build("plain"), pictures("plain")
    model.body = compiled(model.body)
    with torch.no_grad():
        model(images.float() / 255)
        outputs = FeatureExtractor(model, ["body"])(images)
        expected = CASES["plain"].by_hand(build("plain"), images.float() / 255)[1]
        assert close(outputs.features["body"], expected["body"])
        with pytest.raises(UsageError, match=r"'body\.1' is not called.* compiled by torch"):
            FeatureExtractor(model, ["body.1"])(images)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_part_is_named_and_left_out_of_the_list() -> None:
    model = nn.Sequential(nn.Conv2d(3, 2, 1), torch.jit.script(nn.Flatten()), nn.Linear(8, 2))
    with pytest.raises(UsageError, match=r"Layer '1' was made by torch\.jit"):
        FeatureExtractor(model, ["1"])
    assert [info.name for info in list_layers(model, (3, 2, 2))] == ["0"]
    with pytest.raises(UsageError, match=r"Give the model that was scripted"):
        list_layers(torch.jit.script(nn.Sequential(nn.Flatten())), (3, 2, 2))


def test_a_model_without_values_is_refused() -> None:
    with pytest.raises(UsageError, match=r"body\.0\.weight is on torch's meta device"):
        FeatureExtractor(build("plain").to("meta"), ["body"])
    assert len(list_layers(build("plain").to("meta"), (3, 8, 8))) == 4  # shapes need no values


# Layers that goen chooses


def choose(model: nn.Module, example: Tensor, **settings: object) -> tuple[str, ...]:
    given: dict = {"logits": None, "preprocess": None, "tokens": "mean", "layout": "auto"}
    return as_extractor(model, "auto", example=example, **{**given, **settings}).layers


CHOSEN = {
    "plain": ("body", "neck"),
    "resnet": ("backbone.trunk.0", "backbone.trunk.2"),
    "vit": ("blocks.0", "head:input"),  # the class token
    "channels_last": ("patches", "mix"),
    "dict": ("conv",),
    "tuple": ("conv",),
    "object": ("conv",),
}


@pytest.mark.parametrize("name", NAMES)
def test_layers_are_chosen_in_every_architecture(name: str) -> None:
    assert choose(build(name), pictures(name)) == CHOSEN[name]


def stages(*widths: int) -> list[nn.Module]:
    pairs = zip((3, *widths), widths, strict=False)
    return [nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.ReLU()) for a, b in pairs]


MODELS = {
    # Pooling and flattening repeat the features of the last stage.
    "pooled": (
        nn.Sequential(*stages(5, 6, 7), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(7, 3)),
        ("1", "2"),
    ),
    # The flattened map is what the classifier reads.
    "flattened": (nn.Sequential(*stages(5, 6), nn.Flatten(), nn.Linear(6 * 16, 3)), ("0", "2")),
    "perceptron": (
        nn.Sequential(
            nn.Flatten(),
            *(nn.Linear(768, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Dropout()),
            nn.Linear(8, 3),
        ),
        ("2", "5"),
    ),
    "one layer": (nn.Sequential(nn.Flatten(), nn.Linear(768, 3)), ("0",)),
}


def resnet18() -> nn.Module:
    """Stem, four stages of two blocks, average pooling, as in torchvision."""
    parts: dict[str, nn.Module] = {"conv1": nn.Conv2d(3, 4, 7, 2, 3), "relu": nn.ReLU()}
    parts["maxpool"] = nn.MaxPool2d(3, 2, 1)
    widths = (4, 4, 8, 16, 32)
    for stage, (inputs, outputs) in enumerate(pairwise(widths), 1):
        blocks = Block(inputs, outputs, 1 if stage == 1 else 2), Block(outputs, outputs, 1)
        parts[f"layer{stage}"] = nn.Sequential(*blocks)
    parts |= {"avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "fc": nn.Linear(32, 5)}
    return nn.Sequential(OrderedDict(parts)).eval()


def vit12() -> nn.Module:
    model = SmallViT(5, 32, 8)
    model.blocks = nn.ModuleList(EncoderBlock(8) for _ in range(12))
    return model.eval()


def test_layers_are_chosen_as_the_documentation_says() -> None:
    assert choose(resnet18(), torch.rand(2, 3, 96, 96)) == ("layer2", "layer4")
    assert choose(vit12(), torch.rand(2, 3, 32, 32)) == ("blocks.5", "head:input")
    assert choose(vit12(), torch.rand(2, 3, 32, 32), tokens="class") == ("blocks.5", "norm")


@pytest.mark.parametrize("name", MODELS)
def test_layers_are_chosen_in_models_of_plain_layers(name: str) -> None:
    model, chosen = MODELS[name]
    example = torch.rand(2, 3, 16, 16)
    assert choose(model, example) == chosen
    assert choose(nn.DataParallel(model), example) == chosen


def test_layers_are_chosen_in_goens_own_network() -> None:
    for representation, last in (("plain", "layer4"), ("multi_scale", "projection")):
        network = ResNet18(NetworkConfig(width=2, representation=representation)).eval()
        assert choose(network, torch.rand(2, 3, 32, 32)) == ("layer2", last)


def test_maps_whose_means_are_the_logits_are_not_chosen() -> None:
    body = [nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.ReLU()]
    judge = [nn.Conv2d(8, 4, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]  # SqueezeNet's
    settings = {"logits": None, "preprocess": None, "tokens": "mean", "layout": "channels_first"}
    extractor = as_extractor(
        nn.Sequential(*body, *judge), "auto", example=torch.rand(2, 3, 8, 8), **settings
    )
    assert extractor.layers == ("1", "3")


def test_the_choice_knows_the_settings_of_the_model() -> None:
    example = torch.rand(2, 3, 9, 9)
    assert choose(Talkative(7, "tuple", flat=True), example, logits=1) == ("conv",)
    # The width of the map is as its sides: with a layout it can be chosen, and in a block.
    convolution, last = nn.Conv2d(3, 8, 2, 2), nn.Conv2d(8, 4, 2, 2)
    rest = nn.Sequential(nn.Flatten(), nn.Linear(4 * 16, 3))
    example = torch.rand(2, 3, 16, 16)
    flat = nn.Sequential(convolution, nn.ReLU(), last, nn.ReLU(), *rest)
    assert choose(flat, example) == ("4",)
    assert choose(flat, example, layout="channels_first") == ("1", "4")
    blocks = nn.Sequential(convolution, nn.ReLU()), nn.Sequential(last, nn.ReLU())
    assert choose(nn.Sequential(*blocks, *rest), example) == ("0", "2")
    with pytest.raises(UsageError, match="no layer that goen could choose"):
        choose(nn.Sequential(nn.Flatten()), example)


def test_the_choice_is_logged_with_the_alternatives(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "goen")
    choose(build("plain"), pictures("plain"))
    (message,) = caplog.messages
    first, *table = message.splitlines()
    assert first == (
        "Layers chosen by their depth: body and neck. The alternatives (layers=, --layers):"
    )
    assert "\n".join(table) == str(list_layers(build("plain"), (3, 8, 8)))


# The feature that the classifier reads: of the layers of the case, and of those that goen chooses.
READS = {
    "plain": (None, "neck"),  # neck.0 is the layer before its ReLU
    "resnet": ("backbone.trunk.2", "backbone.trunk.2"),
    "vit": (None, "head:input"),  # it classifies the class token, not the mean
    "channels_last": ("mix", "mix"),
    **dict.fromkeys(("dict", "tuple", "object"), ("conv", "conv")),
}


def tapped(name: str, layers: tuple[str, ...] | str, tokens: str = "mean") -> FeatureExtractor:
    settings = {"logits": None, "preprocess": None, "tokens": tokens, "layout": "auto"}
    return as_extractor(build(name), layers, example=pictures(name), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMES)
def test_the_linear_classifier_is_found_where_it_reads_a_feature(name: str) -> None:
    for layers, reads in zip((CASES[name].layers, "auto"), READS[name], strict=True):
        outputs = tapped(name, layers)(pictures(name, seed=5))
        assert (outputs.classifier and outputs.classifier.feature) == reads
        if reads is not None:
            found = check_classifier(outputs)
            assert close(found.logits(outputs.features[reads]), outputs.logits, atol=1e-5)
            wrong = LinearClassifier(-found.weight, found.bias, reads)
            with pytest.raises(UsageError, match="does not reproduce"):
                check_classifier(Outputs(outputs.logits, outputs.features, classifier=wrong))


class Functional(nn.Module):
    """Ends in functions: no layer gives what the classifier reads, which may be called twice."""

    def __init__(self, twice: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 5, 3, 2), nn.Conv2d(5, 6, 3, 2)
        self.norm, self.relu, self.fc = nn.BatchNorm2d(6), nn.ReLU(), nn.Linear(6, 4)
        self.twice = twice

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.second(self.relu(self.first(x))))
        pooled = x.relu().mean((2, 3))
        logits: Tensor = self.fc(pooled)
        return logits + 0 * self.fc(2 * pooled) if self.twice else logits


def test_the_classifiers_input_is_the_last_layer_where_functions_make_it() -> None:
    torch.manual_seed(0)
    model, example = Functional().eval(), torch.rand(9, 3, 16, 16)
    assert choose(model, example) == ("relu", "fc:input")
    extractor = FeatureExtractor(model, ["norm", "fc:input"], example=example)
    assert extractor.classifying_layer == ("fc", "fc:input")
    outputs = extractor(example)
    features: list[Tensor] = []
    model.fc.register_forward_hook(lambda _, given, out: features.append(given[0]))
    assert torch.equal(outputs.logits, model(example))
    assert torch.equal(outputs.features["fc:input"], features[0])
    assert check_classifier(outputs).feature == "fc:input"
    # One that is called twice has no input of its own.
    assert choose(Functional(twice=True).eval(), example) == ("relu", "norm")
    with pytest.raises(UsageError, match="Layer 'fc:input' is called 2 times"):
        FeatureExtractor(Functional(twice=True).eval(), ["fc:input"], example=example)


def test_the_input_of_a_layer_is_pooled_as_an_output() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 1), nn.Flatten(), nn.Linear(20, 2))
    x = torch.rand(3, 3, 2, 2)
    found = FeatureExtractor(model, ["1:input", "3:input"])(x).features
    assert close(found["1:input"], model[0](x).mean((2, 3)))
    assert close(found["3:input"], model[:3](x))
    tokens = nn.Sequential(nn.Linear(6, 7), nn.Linear(7, 7), nn.Flatten(), nn.Linear(7 * 7, 2))
    rows = torch.rand(3, 7, 6)  # as many tokens as the layer has outputs
    of_tokens = FeatureExtractor(tokens, ["1:input"], inputs="tensors")(rows).features
    assert close(of_tokens["1:input"], tokens[0](rows).mean(1))


def test_a_classifier_of_the_class_token_reads_the_class_token() -> None:
    outputs = tapped("vit", "auto", tokens="class")(pictures("vit", seed=5))
    assert check_classifier(outputs).feature == "norm"


@pytest.mark.parametrize("dtype", HALF)
def test_a_model_of_16_bits_has_its_classifier_in_float32(dtype: torch.dtype) -> None:
    extractor = FeatureExtractor(build("resnet").to(dtype), ["backbone.trunk.2"])
    with torch.no_grad():
        found = check_classifier(extractor(pictures("resnet", 20)))
    assert found.weight.dtype == torch.float32


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_the_classifier_inside_a_wrapper_is_found(wrapper: str) -> None:
    extractor = FeatureExtractor(WRAPPERS[wrapper](build("resnet")), ["backbone.trunk.2"])
    assert check_classifier(extractor(pictures("resnet"))).feature == "backbone.trunk.2"


def test_a_convolution_as_the_classifier_is_found_and_one_with_a_relu_is_not() -> None:
    torch.manual_seed(0)
    body, end = [nn.Conv2d(3, 7, 3), nn.ReLU(), nn.Conv2d(7, 4, 1)], [nn.AvgPool2d(6), nn.Flatten()]
    images = torch.randint(256, (3, 3, 8, 8), dtype=torch.uint8)
    linear = FeatureExtractor(nn.Sequential(*body, *end), ["1"], example=images)
    assert check_classifier(linear(images)).feature == "1"
    bent = FeatureExtractor(nn.Sequential(*body, nn.ReLU(), *end), ["1"], example=images)
    assert bent(images).classifier is None
    other_pooling = FeatureExtractor(linear.model, ["1:max"], example=images)
    assert other_pooling(images).classifier is None


def test_a_shape_is_example_enough() -> None:
    extractor = FeatureExtractor(build("plain"), ["body", "neck"], example=(3, 8, 8))
    assert check_classifier(extractor(pictures("plain"))).feature == "neck"


def test_the_classifier_follows_the_weights_and_is_not_looked_for_in_training() -> None:
    model, images = build("resnet"), pictures("resnet")
    extractor = FeatureExtractor(model, ["backbone.trunk.2"])
    extractor.train()
    assert extractor(images).classifier is None
    extractor.eval()
    assert list(extractor.state_dict()) == [f"model.{name}" for name in model.state_dict()]
    for _ in range(2):
        found = check_classifier(extractor(images))
        assert found.weight.data_ptr() == model.judge.weight.data_ptr()
        with torch.no_grad():
            model.judge.weight *= 2


def test_an_exported_extractor_returns_outputs_without_a_classifier() -> None:
    extractor, images = FeatureExtractor(build("resnet"), ["drop"]), pictures("resnet")
    assert extractor(images).classifier is not None
    file = io.BytesIO()
    torch.export.save(torch.export.export(extractor, (images,), strict=False), file)
    file.seek(0)
    assert torch.export.load(file).module()(images).classifier is None
