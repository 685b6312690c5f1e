import numpy as np
import pytest
import torch

from goen.data import ImageSet
from goen.data.inputs import as_stream
from goen.detectors import Energy, Goen, GoenM, TemperatureScaling
from goen.errors import FitError, GoenWarning, LeakError, UsageError
from goen.functional import conformal
from goen.gate.fitting.sets import FitSets, require_held_out, split_held_out, warn_of_copies
from tests.own_model import digits, ood


def test_held_out_images_are_split_once_and_evenly() -> None:
    standard, threshold = split_held_out(300, 0.6, 0.05)
    assert (len(standard), len(threshold)) == (180, 120)
    assert sorted([*standard.tolist(), *threshold.tolist()]) == list(range(300))
    assert torch.equal(split_held_out(300, 0.6, 0.2)[0], standard)
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
        standard, threshold = split_held_out(100, 0.6, 0.1)
        z = (scores - scores[standard].mean()) / scores[standard].std()
        limit = conformal.threshold(z[threshold], 0.1)
        rates.append(float((z[100:] > limit).double().mean()))
    error = np.std(rates) / np.sqrt(len(rates))
    assert 0.1 - 0.03 < np.mean(rates) <= 0.1 + 2 * error


def test_without_a_share_every_image_sets_the_threshold() -> None:
    calibrating, threshold = split_held_out(30, 0.0, 0.05)
    assert len(calibrating) == 0
    assert threshold.tolist() == list(range(30))


@pytest.mark.parametrize(
    ("rate", "share", "least"),
    [(0.05, 0.6, 46), (0.01, 0.6, 246), (0.5, 0.6, 10), (0.05, 0.0, 19), (0.05, 0.25, 25)],
)
def test_the_least_number_of_held_out_images_is_enough(
    rate: float, share: float, least: int
) -> None:
    require_held_out(None, share, rate)
    _, threshold = split_held_out(least, share, rate)
    assert conformal.threshold(np.arange(len(threshold)), rate) >= 0
    with pytest.raises(FitError, match=f"at least {least} held-out"):
        require_held_out(least - 1, share, rate)


def opened(detector: object, **changes: object) -> FitSets:
    p = digits()
    given: dict = {"train": p.train, "held_out": p.validation, "calibration": None, "ood": None}
    given |= changes
    return FitSets.open(detector, *given.values(), false_alarm_rate=0.05, batch_size=64)  # type: ignore[arg-type]


def test_only_what_needs_calibration_images_gets_them() -> None:
    assert opened(GoenM()).share == 0.6
    assert opened(TemperatureScaling()).share == 0.6
    assert opened(Goen()).share == 0.0
    assert opened(Goen(), ood=ood()).share == 0.6
    assert opened(Energy()).share == 0.0
    assert opened(GoenM(), calibration=0.3).share == 0.3
    apart = opened(GoenM(), calibration=digits().test)
    assert [*apart.streams] == ["train", "held_out", "calibration"]
    assert apart.share == 0.0
    for fixed in (Energy(), TemperatureScaling()):
        with pytest.raises(UsageError, match=r"uses no OOD images: leave out ood= \(--ood\)"):
            opened(fixed, ood=ood())
    for detector, calibration in ((Energy(), 0.5), (Goen(), digits().test)):
        with pytest.raises(
            UsageError, match=r"no calibration images: leave out .* \(--calibration\)"
        ):
            opened(detector, calibration=calibration)
    for share in (0, 1, 1.5, True, float("nan")):
        with pytest.raises(UsageError, match=r"calibration \(--calibration\) must be"):
            opened(GoenM(), calibration=share)


def test_calibration_images_are_no_other_images() -> None:
    for name in ("train", "validation"):
        with pytest.raises(LeakError, match="calibration shares"):
            opened(GoenM(), calibration=getattr(digits(), name))
    with pytest.raises(LeakError, match="shares"):
        opened(GoenM(), calibration=digits().test, ood=digits().test)


def test_training_images_may_be_missing_where_nothing_is_learnt() -> None:
    assert [*opened(Energy(), train=None).streams] == ["held_out"]
    with pytest.raises(UsageError, match="learns from training images: give train"):
        opened(GoenM(), train=None)


def test_groups_are_split_as_so_many_images_are() -> None:
    groups = np.repeat(np.arange(100), 2)
    chosen, left = split_held_out(200, 0.6, 0.05, groups)
    alone, others = split_held_out(100, 0.6, 0.05)
    assert {*groups[chosen].tolist()} == {*alone.tolist()}
    assert {*groups[left].tolist()} == {*others.tolist()}


def test_a_twentieth_of_copies_is_not_yet_many() -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (40, 3, 8, 8), dtype=np.uint8)
    for copies in (2, 3):
        pixels[:copies] = pixels[20 : 20 + copies]
        held_out = as_stream(ImageSet("some", pixels.copy(), np.zeros(40, np.int64), ("a",)), "", 9)
        for _ in held_out:
            pass
        if copies == 2:
            warn_of_copies(held_out)
        else:
            with pytest.warns(GoenWarning, match="3 of the 40 held-out images are copies"):
                warn_of_copies(held_out)


def test_shares_are_exact_although_their_products_are_rounded() -> None:
    # 0.3 * 10 and 0.7 * 10 are 3 and 7, and 0.29 * 100 is 29, which floats miss.
    for count, share, calibrating in ((40, 0.3, 12), (100, 0.29, 29), (200, 0.07, 14)):
        assert len(split_held_out(count, share, 0.5)[0]) == calibrating
