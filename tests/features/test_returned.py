import pytest
import torch

from goen.errors import UsageError
from goen.features.extractor import FeatureExtractor
from tests.features.architectures import (
    CASES,
    RETURNS,
    Talkative,
    pictures,
)
from tests.features.comparing import Returns, close


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
