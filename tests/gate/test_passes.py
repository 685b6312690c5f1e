import numpy as np
import pytest
import torch

from goen.data.inputs import as_stream
from goen.detectors import GoenM
from goen.errors import FitError
from goen.extraction import run_network
from goen.functional import conformal
from goen.gate._passes import (
    first_inputs,
    measure_cues,
    require_held_out,
    split_held_out,
)
from goen.models.tapping.tapped import Tapped

from ..own_model import LAYERS, digits, preprocess, trained


def test_held_out_images_are_split_once_and_evenly() -> None:
    standard, threshold = split_held_out(300, 0.05)
    assert (len(standard), len(threshold)) == (180, 120)
    assert sorted([*standard.tolist(), *threshold.tolist()]) == list(range(300))
    assert torch.equal(split_held_out(300, 0.2)[0], standard)
    # A set sorted by class is split evenly,
    for block in np.array_split(np.arange(300), 5):
        assert 0.2 < np.isin(block, threshold.numpy()).mean() < 0.6
    # and so is one whose labels repeat in any period.
    for period in range(2, 8):
        shares = np.bincount(threshold.numpy() % period, minlength=period) / 120
        assert np.abs(shares - 1 / period).max() < 0.12


def test_the_guarantee_holds_over_many_splits() -> None:
    # Scores of ID images alone, drawn again and again: standardising uses other images than the
    # threshold, so new ID images are flagged at most as often as guaranteed.
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(400):
        scores = torch.from_numpy(rng.normal(size=1100))
        standard, threshold = split_held_out(100, 0.1)
        z = (scores - scores[standard].mean()) / scores[standard].std()
        limit = conformal.threshold(z[threshold], 0.1)
        rates.append(float((z[100:] > limit).double().mean()))
    error = np.std(rates) / np.sqrt(len(rates))
    assert 0.1 - 0.03 < np.mean(rates) <= 0.1 + 2 * error


@pytest.mark.parametrize(("rate", "least"), [(0.05, 46), (0.01, 246), (0.5, 10)])
def test_the_least_number_of_held_out_images_is_enough(rate: float, least: int) -> None:
    require_held_out(None, rate)
    _, threshold = split_held_out(least, rate)
    assert conformal.threshold(np.arange(len(threshold)), rate) >= 0
    with pytest.raises(FitError, match=f"at least {least} held-out"):
        require_held_out(least - 1, rate)


def test_the_first_images_stay_in_the_stream() -> None:
    batches = [np.full((n, 3, 8, 8), n, np.uint8) for n in (1, 1, 3)]
    first, stream = first_inputs(as_stream(iter(batches), "some", 2))
    assert len(first) == 2
    assert [len(images) for images, _ in stream] == [1, 1, 3]


def test_a_pass_keeps_cues_labels_and_the_first_images_alone() -> None:
    network = Tapped(trained(), LAYERS, preprocess=preprocess)
    detector = GoenM(LAYERS)
    train = digits().train
    for outputs, labels in run_network(
        network, as_stream(train, "train", 100), name="train", total=None
    ):
        detector.update(outputs, labels)
    some = digits().test.take(range(50))
    found = measure_cues(network, as_stream(some, "test", 20), detector)
    assert len(found) == 50
    (cues,), (alone,) = found.cues, found.alone
    assert cues.shape == (50, 3)
    assert torch.allclose(alone, cues[:8], atol=1e-4)
    assert found.truth is not None
    assert np.array_equal(found.truth, some.labels)
    right = np.mean(found.predicted.numpy() == some.labels)
    assert found.accuracy == pytest.approx(right)
    unlabelled = measure_cues(network, as_stream(some.read(), "test", 20), detector)
    assert unlabelled.truth is None
    assert unlabelled.accuracy is None
