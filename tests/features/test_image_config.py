"""Configs of preprocessing, against the processors of transformers themselves."""

import json
from logging import INFO
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import goen
from goen.errors import UsageError
from goen.features.image_config import from_hugging_face
from goen.features.preprocess import Preprocess
from goen.io.manifest import Manifest
from tests.features.tiny_models import transformers

pytestmark = pytest.mark.xdist_group("transformers")
BILINEAR = {"resample": 2}


def picture(height: int, width: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize(
    ("processor", "settings"),
    [
        ("ViTImageProcessorPil", {"size": {"height": 24, "width": 24}}),
        ("ViTImageProcessorPil", {"size": {"height": 24, "width": 24}, "do_normalize": False}),
        ("ViTImageProcessorPil", {"size": {"height": 24, "width": 24}, "do_rescale": False}),
        ("ViTImageProcessorPil", {"size": {"height": 8, "width": 8}, "rescale_factor": 1 / 127.5}),
        ("DeiTImageProcessorPil", {"size": {"height": 28, "width": 28}, "crop_size": 24}),
        ("CLIPImageProcessorPil", {"size": {"shortest_edge": 28}, "crop_size": 25}),
        ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 28}, "crop_pct": 0.875}),
        ("ConvNextImageProcessorPil", {"size": {"shortest_edge": 384}}),
        ("PoolFormerImageProcessorPil", {"size": {"shortest_edge": 36}, "crop_size": 36}),
        ("LevitImageProcessorPil", {"size": {"shortest_edge": 28}, "crop_size": 28}),
        ("EfficientNetImageProcessorPil", {"size": {"height": 24, "width": 24}}),
        (
            "EfficientNetImageProcessorPil",
            {"rescale_factor": 1 / 127.5, "rescale_offset": True, "include_top": False},
        ),
    ],
)
def test_square_pictures_are_as_the_processor_makes_them(
    processor: str, settings: dict[str, Any]
) -> None:
    theirs = getattr(transformers(), processor)(**BILINEAR | settings)
    ours = from_hugging_face(Manifest(json.loads(theirs.to_json_string())), processor)
    square = picture(50, 50)
    expected = theirs(square, return_tensors="pt")["pixel_values"]
    pixels = torch.from_numpy(goen.read_image(square, ours.read_image_size))
    found = ours(pixels[None] / 255)
    assert found.shape == expected.shape
    # Pillow may take the height first, and rounds between the two.
    step = 1.01 / 255 / min(ours.std or (1.0,))
    assert (found - expected).abs().max() <= step
    assert (found - expected).abs().mean() <= step / 20


def test_what_is_approximated_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    config = {"size": {"shortest_edge": 256}, "do_center_crop": True, "crop_size": 224}
    with caplog.at_level(INFO, "goen"):
        found = from_hugging_face(Manifest({**config, "resample": 3}), "hf:clip")
    assert found == Preprocess(size=(256, 256), crop=(224, 224))
    assert "hf:clip resizes pictures with a bicubic filter; goen with a bilinear" in caplog.text
    assert "hf:clip keeps the proportions of a picture" in caplog.text


@pytest.mark.parametrize(
    ("config", "expected", "proportional"),
    [
        ({"size": {"height": 8, "width": 9}}, Preprocess(size=(8, 9)), False),
        ({"size": 8}, Preprocess(size=(8, 8)), False),
        (
            {"do_resize": False, "do_center_crop": True, "crop_size": 8},
            Preprocess(crop=(8, 8)),
            False,
        ),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.9}, Preprocess(size=(384, 384)), False),
        ({"size": {"shortest_edge": 8}, "crop_pct": 1}, Preprocess(size=(8, 8), crop=(8, 8)), True),
        ({"size": {"shortest_edge": 8}}, Preprocess(size=(8, 8)), True),
    ],
)
def test_proportions_are_lost_only_where_the_shorter_side_is_given(
    config: dict[str, Any],
    expected: Preprocess,
    proportional: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(INFO, "goen"):
        assert from_hugging_face(Manifest({**config, "resample": 2}), "hf:vit") == expected
    assert ("keeps the proportions" in caplog.text) == proportional
    assert "filter" not in caplog.text


def test_configs_of_before_2022_have_one_number() -> None:
    config = {"do_resize": True, "size": 224, "do_normalize": True, "image_mean": [0.5] * 3,
              "image_std": [0.25] * 3}  # fmt: skip
    assert from_hugging_face(Manifest(config), "a model") == Preprocess(
        (0.5,) * 3, (0.25,) * 3, (224, 224)
    )


def test_other_scales_without_a_normalisation() -> None:
    plain = {"size": 8, "do_normalize": False}
    as_bytes = from_hugging_face(Manifest({**plain, "do_rescale": False}), "a model")
    assert as_bytes == Preprocess((0.0,), (1 / 255,), (8, 8))
    around_zero = {**plain, "rescale_factor": 1 / 127.5, "rescale_offset": True}
    assert from_hugging_face(Manifest(around_zero), "a model") == Preprocess((0.5,), (0.5,), (8, 8))


def test_steps_that_goen_does_not_have_are_refused() -> None:
    config = {"size": 8, "do_flip_channel_order": True, "do_pad": True, "do_convert_rgb": True}
    with pytest.raises(
        UsageError, match=r"does not: do_flip_channel_order, do_pad. Give a function"
    ):
        from_hugging_face(Manifest(config), "hf:mobilevit")
    with pytest.raises(UsageError, match="at most 4,194,304 pixels, got 100000×100000"):
        from_hugging_face(Manifest({"size": 100_000}), "hf:large")

    config = {"size": {"height": 8, "width": 8}, "do_center_crop": True, "crop_size": 9}
    with pytest.raises(UsageError, match=r"crops pictures of 8×8 to 9×9: it pads them, or crops"):
        from_hugging_face(Manifest(config), "a Perceiver")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"size": {"longest_edge": 8}}, "it has no size.shortest_edge"),
        ({"size": [8, 8]}, "its size should be an object"),
        ({"size": {"shortest_edge": 8}, "crop_pct": 0}, "crop_pct should be above 0"),
        ({"size": 8, "rescale_factor": -1}, "rescale_factor should be above 0"),
        ({"size": 8, "do_rescale": "yes"}, "do_rescale should be true or false"),
    ],
)
def test_other_configs_are_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_hugging_face(Manifest(config), "a model")
