import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its usual name)

from goen.errors import UsageError
from goen.features.extractor import FeatureExtractor
from goen.features.layers import list_layers
from goen.features.preprocess import Preprocess, PreprocessSound
from tests.features.architectures import (
    CASES,
    build,
    pictures,
    vit_by_hand,
)
from tests.features.comparing import close


def test_images_are_normalised_by_channel() -> None:
    case, model, images = CASES["resnet"], build("resnet"), pictures("resnet")
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.4)
    x = images.float() / 255
    x = torch.stack([(x[:, c] - mean[c]) / std[c] for c in range(3)], 1)
    logits, _ = case.by_hand(model, x)
    for given in (images, images.float() / 255):
        outputs = FeatureExtractor(model, [], preprocess=Preprocess(mean=mean, std=std))(given)
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
    extractor = FeatureExtractor(
        model, ["norm"], preprocess=Preprocess(size=224), example=(3, 32, 32)
    )
    x = F.interpolate(images.float() / 255, (224, 224), mode="bilinear", antialias=True)
    logits, features = vit_by_hand(model, x)
    assert close(extractor(images).logits, logits)
    assert close(extractor(images).features["norm"], features["norm"])
    assert list_layers(model, (3, 32, 32), preprocess=Preprocess(size=224))[-1].shape == (50, 8)


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
        assert close(FeatureExtractor(model, [], preprocess=double_in_place)(given).logits, logits)
    assert torch.equal(floats, before)


@pytest.mark.needs("bfloat16 convolution")
def test_preprocessing_of_a_half_model_is_done_in_float32() -> None:
    seen = []
    model = build("plain").bfloat16()
    model.body[0].register_forward_pre_hook(lambda m, inputs: seen.append(inputs[0]))
    images = torch.full((1, 3, 8, 8), 201, dtype=torch.uint8)
    FeatureExtractor(model, [], preprocess=Preprocess(mean=(0.788,)))(images)
    # 201 / 255 - 0.788 is 0.000235; in bfloat16 201 / 255 is 0.7891 and 0.788 too.
    assert seen[0].dtype == torch.bfloat16
    assert abs(float(seen[0][0, 0, 0, 0]) - 0.000235) < 2e-6


@pytest.mark.parametrize(
    ("function", "words"), [(lambda x: x[0], "returned \\(3, 8, 8\\)"), (lambda x: [x], "list")]
)
def test_preprocessing_that_gives_no_batch(function, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        FeatureExtractor(build("plain"), [], preprocess=function)(pictures("plain", 5))


def test_preprocessing_that_cannot_be_meant() -> None:
    with pytest.raises(UsageError, match="mean has 2 values, but the images have 3 channels"):
        FeatureExtractor(build("plain"), [], preprocess=Preprocess(mean=(0.5, 0.5)))(
            pictures("plain")
        )
    with pytest.raises(UsageError, match="std is one positive number"):
        Preprocess(std=(0.5, 0.0, 0.5))
    for size in (0, (32,), (32, 0), (3, 32, 32), 32.5, "big"):
        with pytest.raises(UsageError, match="size is a number of pixels"):
            Preprocess(size=size)
    for mean in ("0.5", [None], object()):
        with pytest.raises(UsageError, match="mean is one number for each channel, or one for all"):
            Preprocess(mean=mean)
    assert Preprocess(mean=[0, 1]) == Preprocess(mean=(0.0, 1.0))
    assert Preprocess(mean=0.5, size=np.int64(8)) == Preprocess(mean=(0.5,), size=8)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (torch.rand(2, 3, 8, 8) * 255, r"lie in \[0, 1\]; got .* Are they 0-255"),
        (torch.randn(2, 3, 8, 8), r"lie in \[0, 1\]"),
        (torch.full((2, 3, 8, 8), -0.5), r"got -0\.5\.\.-0\.5"),
        (torch.full((2, 3, 8, 8), float("nan")), "NaN"),
        (torch.full((2, 3, 8, 8), float("inf")), r"lie in \[0, 1\]"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.int64), "uint8, uint16, or floats"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"\(N, C, H, W\)"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.bool), "got torch.bool"),
    ],
)
def test_images_that_cannot_be_meant(images: Tensor, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        FeatureExtractor(build("plain"), ["body"])(images)


def test_a_small_step_over_the_edge_is_allowed() -> None:
    outputs = FeatureExtractor(build("plain"), ["body"])(torch.full((2, 3, 8, 8), -0.0014))
    assert torch.isfinite(outputs.logits).all()
    assert len(FeatureExtractor(build("plain"), ["body"])(torch.rand(0, 3, 8, 8))) == 0


def test_the_middle_is_kept() -> None:
    image = torch.arange(30.0).view(1, 1, 5, 6) / 30
    assert torch.equal(Preprocess(crop=(1, 2))(image) * 30, torch.tensor([[[[14.0, 15.0]]]]))
    # Of an odd rest the smaller part is cut off first.
    assert torch.equal(Preprocess(crop=2)(image), image[:, :, 1:3, 2:4])
    assert Preprocess(size=(8, 9), crop=(5, 6))(image).shape == (1, 1, 5, 6)
    with pytest.raises(UsageError, match="Images of 5×6 cannot be cropped to 6×6"):
        Preprocess(crop=6)(image)
    with pytest.raises(UsageError, match=r"crop is a number of pixels or \(height, width\), got 0"):
        Preprocess(crop=0)
    assert (Preprocess(size=3).read_image_size, Preprocess(crop=3).read_image_size) == (
        (3, 3),
        None,
    )


def test_waveforms_have_mean_0_and_variance_1() -> None:
    waves = 3 + 5 * torch.randn(4, 200, generator=torch.Generator().manual_seed(0))
    found = PreprocessSound(16_000)(waves)
    assert torch.allclose(found.mean(1), torch.zeros(4), atol=1e-5)
    assert torch.allclose(found.var(1, correction=0), torch.ones(4), atol=1e-4)
    assert torch.allclose(PreprocessSound(16_000)(found), found, atol=1e-5)
    assert PreprocessSound(16_000, normalise=False)(waves) is waves
    silence = torch.zeros(1, 8)
    assert torch.equal(PreprocessSound(16_000)(silence), silence)


def test_what_fills_a_waveform_up_counts_for_nothing() -> None:
    waves = torch.randn(1, 60, generator=torch.Generator().manual_seed(0))
    alone = PreprocessSound(8000)({"input_values": waves})
    mask = (torch.arange(90) < 60).to(torch.int64)[None]
    longer = torch.cat([waves, torch.full((1, 30), 7.0)], dim=1)
    both = PreprocessSound(8000)({"input_values": longer, "attention_mask": mask})
    assert torch.allclose(both["input_values"][:, :60], alone["input_values"], atol=1e-6)
    assert not both["input_values"][:, 60:].any()
    assert both["attention_mask"] is mask
    with pytest.raises(UsageError, match=r"Waveforms are one tensor \(N, T\).*with other"):
        PreprocessSound(8000)({"other": waves})
