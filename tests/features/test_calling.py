from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from goen.errors import UsageError
from goen.features._calling import input_keyword
from goen.features.extractor import FeatureExtractor
from goen.features.layers import list_layers
from goen.outputs import Outputs
from tests.features.architectures import CASES, RETURNS, Talkative, build, pictures
from tests.features.comparing import Returns, close, hooks_of


class Model(nn.Module):
    """One layer; the subclasses differ in how they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 1)

    def logits(self, x: Tensor) -> Tensor:
        return self.layer(x).mean((2, 3))


class Plain(Model):
    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.logits(x) * scale


class Anything(Model):
    def forward(self, *args: Tensor, **kwargs: Tensor) -> Tensor:
        return self.logits(args[0])


class KeywordOnly(Model):
    def forward(self, *, pixel_values: Tensor, labels: Tensor | None = None) -> Tensor:
        assert labels is None
        return self.logits(pixel_values)


class LaterPixels(Model):
    """As models of text and images have it."""

    def forward(self, ids: Tensor | None = None, pixel_values: Tensor | None = None) -> Tensor:
        assert ids is None
        assert pixel_values is not None
        return self.logits(pixel_values)


class OneKeyword(Model):
    def forward(self, *, image: Tensor, **_: object) -> Tensor:
        return self.logits(image)


class OneOptionalKeyword(Model):
    def forward(self, *, image: Tensor | None = None) -> Tensor:
        assert image is not None
        return self.logits(image)


class TwoKeywords(Model):
    def forward(self, *, left: Tensor, right: Tensor) -> Tensor:
        return self.logits(left - right)


class OnlyMore(Model):
    def forward(self, **kwargs: Tensor) -> Tensor:
        return self.logits(kwargs["image"])


class TwoImages(Model):
    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.logits(left - right)


CALLED_BY = {
    Plain: None,
    Anything: None,
    KeywordOnly: "pixel_values",
    LaterPixels: "pixel_values",
    OneKeyword: "image",
    OneOptionalKeyword: "image",
}


@pytest.mark.parametrize("kind", CALLED_BY)
def test_images_are_given_as_the_model_takes_them(kind: type[Model]) -> None:
    model, images = kind(), torch.rand(2, 3, 4, 4)
    assert input_keyword(model) == CALLED_BY[kind]
    outputs = FeatureExtractor(model, ["layer"], example=(3, 4, 4))(images)
    assert torch.equal(outputs.logits, model.logits(images))
    assert [info.name for info in list_layers(model, (3, 4, 4))] == ["layer"]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (TwoKeywords, "TwoKeywords cannot be called with one batch of images: .*argument"),
        (OnlyMore, "OnlyMore cannot be called with one batch of images: too many"),
        (TwoImages, "TwoImages cannot be called .* missing a required argument: 'right'.* Wrap"),
    ],
)
def test_a_model_that_needs_more_than_images_is_refused(kind: type[Model], words: str) -> None:
    for use in (
        input_keyword,
        lambda m: FeatureExtractor(m, ["layer"]),
        lambda m: list_layers(m, (3, 4, 4)),
    ):
        with pytest.raises(UsageError, match=words):
            use(kind())


def test_a_forward_without_a_signature_is_called_plainly() -> None:
    model = nn.Module()
    model.forward = torch.relu  # type: ignore[method-assign]  # a function written in C
    assert input_keyword(model) is None


# -- hooks -----------------------------------------------------------------------------------


def test_no_hook_stays_behind() -> None:
    model, images = build("resnet"), pictures("resnet")
    seen = []
    model.judge.register_forward_hook(lambda m, i, o: seen.append(len(o)))
    before = hooks_of(model)
    extractor = FeatureExtractor(model, CASES["resnet"].layers)
    extractor(images)
    list_layers(model, images)
    assert hooks_of(model) == before
    assert seen == [3, 3]
    with pytest.raises(UsageError):
        FeatureExtractor(model, ["drop", "backbone.trunk.0.act"])(images)
    assert hooks_of(model) == before


def test_threads_do_not_hear_each_other() -> None:
    extractor = FeatureExtractor(build("resnet"), CASES["resnet"].layers)
    batches = [pictures("resnet", 2, seed=seed) for seed in range(40)]
    with torch.no_grad():
        expected = [extractor(batch) for batch in batches]

    def run(batch: Tensor) -> Outputs:
        with torch.no_grad():
            return extractor(batch)

    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(pool.map(run, batches), expected, strict=True):
            assert close(one.logits, other.logits)
            for layer in one.features:
                assert close(one.features[layer], other.features[layer])
    assert not any(hooks_of(extractor))


# -- what models return ----------------------------------------------------------------------


@pytest.mark.parametrize("returns", sorted(RETURNS))
def test_the_only_matrix_of_an_output_is_the_logits(returns: str) -> None:
    model, images = Talkative(5, returns).eval(), pictures("tuple")
    logits, _ = CASES["tuple"].by_hand(model, images.float() / 255)
    assert close(FeatureExtractor(model, [])(images).logits, logits)


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
        FeatureExtractor(model, [])(images)
    assert "(3, 5) float32" in str(error.value)
    logits, _ = CASES["tuple"].by_hand(model, images.float() / 255)
    assert close(FeatureExtractor(model, [], logits=where)(images).logits, logits)


@pytest.mark.parametrize(
    ("returns", "where"),
    [("dict", "logit"), ("tuple", 2), ("tuple", "logits"), ("object", 0), ("dict", "keys")],
)
def test_logits_that_are_not_there(returns: str, where: str | int) -> None:
    model = Talkative(5, returns, flat=True).eval()
    with pytest.raises(UsageError, match=f"No logits .* at {where!r}.*(3, 7).*Name the key"):
        FeatureExtractor(model, [], logits=where)(pictures("tuple"))


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
        FeatureExtractor(Returns(function), [])(torch.rand(2, 3, 2, 2))
