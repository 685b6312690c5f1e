import pytest
import torch
from torch import Tensor, nn

from goen.errors import UsageError
from goen.features._calling import input_keyword
from goen.features.extractor import FeatureExtractor
from goen.features.layers import list_layers


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
