import numpy as np
import pytest
import torch
from goen.gate.prediction_table import most_suspicious
from PIL import Image

from goen.data import ImageSet
from goen.data.images.data_urls import image_url
from goen.errors import UsageError
from goen.gate import Prediction

HOSTILE = "<img src=x onerror=alert(1)>&\"'\x1b[31m" + "x" * 100


def made(count: int = 5, **changes: object) -> Prediction:
    values = np.arange(count) / max(count, 1)
    fields = {
        "label": np.arange(count) % 2,
        "confidence": values,
        "score": values,
        "p_value": 1 - values * 0.99,
        "probability": None,
        "is_ood": values > 0.7,
        "cues": {"layer<b>": values},
        "classes": ("cat", HOSTILE),
        "cue_p_values": {"layer<b>": 1 - values / 2},
        "num_held_out": 99,
    }
    return Prediction(**{**fields, **changes})  # type: ignore[arg-type]


def test_every_text_is_escaped_and_long_ones_are_cut() -> None:
    html = made()._repr_html_()
    assert "<img" not in html
    assert "layer<b>" not in html
    assert "p of layer&lt;b&gt;" in html
    assert "\x1b" not in html
    assert "&lt;img src=x" in html
    assert "x" * 50 not in html
    assert "5 images, 1 flagged" in html
    assert html.count("OOD</span>") == 1


def test_bars_are_longer_for_lower_p_values_and_full_at_the_least() -> None:
    html = made(3, p_value=np.array([1.0, 0.1, 0.01]), cue_p_values={})._repr_html_()
    # By hand: 0, half and all of 64 pixels, for 1 / (99 + 1) = 0.01.
    assert [html.count(f"display:block;width:{n}px") for n in (0, 32, 64)] == [1, 1, 1]


def test_a_long_prediction_is_cut_with_a_sentence_and_an_empty_one_is_none() -> None:
    assert "20 of 1,000 images are shown." in made(1000)._repr_html_()
    assert made(1000)._repr_html_().count("<tr") == 21
    assert "are shown" not in made(20)._repr_html_()
    assert "0 images, 0 flagged" in made(0)._repr_html_()


def test_the_most_suspicious_come_first() -> None:
    p = made(4, p_value=np.array([0.5, 0.1, 0.1, 0.9]), score=np.array([1.0, 2.0, 3.0, 9.0]))
    assert most_suspicious(p) == [2, 1, 0, 3]
    assert p.show(most=2).rows == [2, 1]
    assert list(p.show(rows=[3]).rows) == [3]


@pytest.mark.parametrize("kind", ["set", "array", "tensor", "floats", "pictures"])
def test_thumbnails_are_the_images_of_the_rows(kind: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)
    given = {
        "set": ImageSet("a", pixels, np.zeros(5, np.int64), ("a",)),
        "array": pixels,
        "tensor": torch.from_numpy(pixels),
        "floats": pixels / 255,
        "pictures": [Image.fromarray(image.transpose(1, 2, 0)) for image in pixels],
    }[kind]
    html = made().show(given, rows=[3, 1])._repr_html_()
    assert html.count("<img") == 2
    assert html.index(image_url(pixels[3])) < html.index(image_url(pixels[1]))
    with pytest.raises(UsageError, match="is of 5 images, and 4 are given"):
        made().show(pixels[:4])


def test_what_is_no_image_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"\(N, C, H, W\); got one of \(8, 8\)"):
        made().show(np.zeros((5, 8, 8), np.uint8))
    with pytest.raises(UsageError, match="got int64"):
        made().show(np.zeros((5, 3, 8, 8), np.int64))


def test_probabilities_and_cues_without_p_values_have_their_columns() -> None:
    html = made(2, probability=np.array([0.25, 0.75]), cue_p_values={})._repr_html_()
    assert "P(OOD)" in html
    assert "0.750" in html
    assert "p of" not in html
    assert "layer&lt;b&gt;" in html
