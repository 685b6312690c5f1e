"""Held-out images that are near-copies: a fit warns of them, and names them."""

import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from goen.data import ImageSet
from goen.detectors import KNN
from goen.errors import GoenWarning
from goen.functional import near_copies
from goen.gate import Gate
from goen.gate.fitting.near_copies import describe_near_copies
from goen.gate.fitting.summary import fit_summary
from goen.report.pages.fit import write_fit_page
from tests.own_model import LAYERS, digits, preprocess, trained

NEAR_TRAINING = "held-out images lie nearer to a training image than 99 %"
NEAR_EACH_OTHER = "held-out images lie nearer to each other than 99 %"
Floats = NDArray[np.float64]


def features(count: int, seed: int) -> tuple[Floats, NDArray[np.int64]]:
    """Features in five classes, and the classes."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, count)
    means = 3 * np.random.default_rng(99).normal(size=(5, 16))
    return means[labels] + rng.normal(size=(count, 16)), labels


def copies(rows: Floats, by: float = 0.001) -> Floats:
    return rows + by * np.random.default_rng(3).normal(size=rows.shape)


def fitted(held_out: Any, **changes: Any) -> Gate:
    train, labels = features(2000, 0)
    return Gate.fit_outputs(train, labels, held_out, **{"detector": "knn", **changes})


@pytest.mark.parametrize("count", [100, 500])
def test_training_rows_with_noise_are_a_warning(count: int) -> None:
    train, _ = features(2000, 0)
    with pytest.warns(GoenWarning, match=rf"(9\d|49\d|{count}) of {count} {NEAR_TRAINING}") as told:
        gate = fitted(copies(train[:count]), detector=KNN(k=1))
    # The guarantee does not hold: that is what the warning is about.
    assert gate.predict_outputs(features(1000, 7)[0]).is_ood.mean() > 0.1
    assert "rows 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ...." in str(told[0].message)


def test_frames_of_a_few_scenes_are_a_warning() -> None:
    scenes, _ = features(4, 1)
    frames = copies(scenes.repeat(25, axis=0), 0.01)
    with pytest.warns(GoenWarning, match=f"100 of 100 {NEAR_EACH_OTHER}"):
        fitted(frames)


def test_frames_in_groups_are_none() -> None:
    scenes, _ = features(30, 1)
    gate = fitted(copies(scenes.repeat(5, axis=0), 0.01), groups=np.arange(30).repeat(5))
    assert gate.diagnostics is not None
    assert gate.diagnostics.near_copies is not None
    assert len(gate.diagnostics.near_copies.of_each_other.rows) == 150  # found, but not warned of
    assert "Warning" not in fit_summary(gate)


def test_copies_of_rows_outside_of_the_bank_are_found() -> None:
    # goen-m keeps 5,000 training rows; every training row is compared.
    train, labels = features(8000, 0)
    found = []
    for start in (0, 4000, 7800):
        with pytest.warns(GoenWarning, match=NEAR_TRAINING) as told:
            Gate.fit_outputs(train, labels, copies(train[start : start + 200]))
        found.append(str(told[0].message).split()[0])
    assert found == ["200"] * 3


def test_the_order_of_the_training_rows_does_not_matter() -> None:
    train, labels = features(2000, 0)
    order = np.argsort(labels, kind="stable")
    with pytest.warns(GoenWarning, match=rf"(9\d|100) of 100 {NEAR_TRAINING}"):
        Gate.fit_outputs(train[order], labels[order], copies(train[:100]), detector="knn")
    for seed in range(5):
        held_out, _ = features(300, seed + 10)
        Gate.fit_outputs(train[order], labels[order], held_out, detector="knn")


def test_training_images_that_a_sampler_draws_twice_hide_no_copies() -> None:
    train, labels = features(1000, 0)
    twice = np.concatenate([train, train]), np.concatenate([labels, labels])
    with pytest.warns(GoenWarning, match=rf"(9\d|100) of 100 {NEAR_TRAINING}"):
        Gate.fit_outputs(*twice, copies(train[:100]), detector="knn")


@pytest.mark.parametrize("detector", ["energy", "goen_m", "vim"])
def test_images_saved_again_are_found_in_a_stream_that_is_read_once(detector: str) -> None:
    pixels, labels = digits().train.read(), torch.from_numpy(digits().train.labels)

    def batches() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        yield from zip(torch.from_numpy(pixels).split(100), labels.split(100), strict=True)

    with pytest.warns(GoenWarning, match=NEAR_TRAINING):
        Gate.fit(
            trained(),
            batches(),
            np.stack([saved_again(image) for image in pixels[:200]]),
            detector=detector,
            layers=LAYERS,
            preprocess=preprocess,
        )


def saved_again(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    file = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(file, "JPEG", quality=95, subsampling=0)
    return np.asarray(Image.open(file)).transpose(2, 0, 1)


def test_the_report_and_the_page_name_the_files(tmp_path: Path) -> None:
    train = digits().train
    copied = np.stack([saved_again(image) for image in train.read(range(100))])
    files = [tmp_path / f"frame-{number}.png" for number in range(100)]
    with pytest.warns(GoenWarning, match=NEAR_TRAINING):
        gate = Gate.fit(trained(), train, copied, layers=LAYERS, preprocess=preprocess)
    assert gate.diagnostics is not None
    found = gate.diagnostics.near_copies
    assert found is not None
    first = f"frame-{found.of_training.rows[0]}.png"
    text = " ".join(fit_summary(gate, files).split())
    assert f"Warning: {len(found.of_training.rows)} of 100 {NEAR_TRAINING}" in text
    assert first in text
    held_out = ImageSet("again", copied, train.labels[:100], train.classes)
    write_fit_page(gate, held_out, tmp_path / "report.html", files=files)
    page = (tmp_path / "report.html").read_text()
    assert NEAR_TRAINING in page
    assert first in page.split("What the threshold rests on")[0]


def test_separate_images_and_fits_without_training_images_are_silent() -> None:
    p = digits()
    gate = Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)
    assert gate.diagnostics is not None
    assert gate.diagnostics.near_copies is not None
    assert gate.diagnostics.near_copies.compared == 300
    assert describe_near_copies(gate.diagnostics.near_copies) == []
    alone = Gate.fit(
        trained(), None, p.validation, detector="energy", layers=LAYERS, preprocess=preprocess
    )
    assert alone.diagnostics is not None
    assert alone.diagnostics.near_copies is None


def test_an_update_compares_with_its_own_training_images() -> None:
    gate = Gate.fit_outputs(*features(2000, 0), features(300, 1)[0])
    train, labels = features(1000, 2)
    more = ({"features": train}, labels)
    gate.update(train=more, held_out={"features": features(300, 3)[0]})
    with pytest.warns(GoenWarning, match=NEAR_TRAINING):
        gate.update(train=more, held_out={"features": copies(train[:300])})


def test_more_training_rows_than_can_be_kept_are_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(near_copies, "_NUMBERS", 2000 * 8 - 1)
    train, _ = features(2000, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gate = fitted(copies(train[:100]))
    assert gate.diagnostics is not None
    assert gate.diagnostics.near_copies is None
