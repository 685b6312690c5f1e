import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)

from goen.errors import UsageError
from goen.features.deterministic import check_deterministic
from goen.features.extractor import FeatureExtractor
from tests.features.architectures import (
    CASES,
    build,
    pictures,
)
from tests.features.comparing import FLOAT_AND_HALF, NAMES, Returns


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
    check_deterministic(
        FeatureExtractor(build(name).to(dtype), CASES[name].layers), pictures(name, 5)
    )


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
    extractor = FeatureExtractor(Doubtful(function).eval().to(dtype), ["conv"])
    with pytest.raises(UsageError, match="not deterministic in evaluation mode: its logits"):
        check_deterministic(extractor, pictures("plain", 4))


def test_random_preprocessing_is_noticed() -> None:
    def flip(x: Tensor) -> Tensor:
        return x * torch.rand(len(x), 1, 1, 1)

    with pytest.raises(UsageError, match="random preprocessing"):
        check_deterministic(
            FeatureExtractor(build("plain"), [], preprocess=flip), pictures("plain", 4)
        )


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
    extractor = FeatureExtractor(Doubtful(function).eval(), [])
    with pytest.raises(UsageError, match="depend on the other images of its batch: its logits"):
        check_deterministic(extractor, pictures("plain", 6))


def test_batch_norm_without_running_statistics_is_noticed() -> None:
    model = build("plain")
    model.body[1] = nn.BatchNorm2d(4, track_running_stats=False)
    with pytest.raises(UsageError, match="batch norm without running statistics"):
        check_deterministic(FeatureExtractor(model, ["body"]), pictures("plain", 4))


def test_the_feature_that_changes_is_named() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.noisy = Returns(lambda x: x + torch.rand(len(x), 1))

        def forward(self, x: Tensor) -> Tensor:
            self.noisy(x)
            return x.flatten(1)

    with pytest.raises(UsageError, match="its features 'noisy' changed"):
        check_deterministic(FeatureExtractor(Model(), ["noisy"]), pictures("plain", 4))


def test_outputs_that_are_all_zero_are_the_same() -> None:
    zero = FeatureExtractor(Returns(lambda x: 0.0 * x.flatten(1)), [])
    check_deterministic(zero, pictures("plain", 3))


def test_images_that_show_nothing() -> None:
    extractor = FeatureExtractor(build("plain"), [])
    with pytest.raises(UsageError, match=r"Two images or more .* got 1"):
        check_deterministic(extractor, pictures("plain", 1))
    broken = FeatureExtractor(Returns(lambda x: x / 0), [])
    with pytest.raises(UsageError, match="logits hold NaN or infinity"):
        check_deterministic(broken, pictures("plain", 3))
    pairs = FeatureExtractor(Returns(lambda x: F.batch_norm(x, None, None, training=True)), [])
    with pytest.raises(UsageError, match="not one image alone: Expected more than 1 value"):
        check_deterministic(pairs, pictures("plain", 3))
