from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from goen.detectors import Detector, GoenM
from goen.errors import FitError, NotFittedError, UsageError
from goen.outputs import Outputs
from tests.detectors.centre import CLASSES, LABELS, MEASURING, WIDTH, Centre, outputs


@pytest.mark.parametrize(
    "make", [*(make for name, make in MEASURING.items() if name != "pytorch-ood"), GoenM]
)
def test_a_fit_that_fails_changes_nothing(make: Callable[..., Detector]) -> None:
    detector = make().fit(outputs("a b"), LABELS)
    probe = outputs("a b c", seed=1)
    before = detector.score(probe)
    for rows, labels in (
        (outputs("a b c"), torch.full((60,), CLASSES)),  # no such class
        (outputs("a b c"), LABELS[:9]),
        (outputs(""), LABELS),
        (outputs("a b c")[:0], LABELS[:0]),
    ):
        with pytest.raises(UsageError):
            detector.fit(rows, labels)
        assert torch.equal(detector.score(probe), before)


def test_a_template_that_needs_a_fit_says_so() -> None:
    for use in (Centre().score, Centre().cues, Centre().calibrate):
        with pytest.raises(NotFittedError, match="This Centre is not fitted"):
            use(outputs("a"))


@pytest.mark.parametrize(
    ("change", "got"),
    [
        (lambda scores: scores[:, None], r"a tensor \(60, 1\)"),
        (lambda scores: scores[:5], r"a tensor \(5,\)"),
        (lambda scores: scores.mean(), r"a tensor \(\)"),
        (lambda scores: scores.numpy(), "ndarray"),
        (lambda scores: None, "NoneType"),
    ],
)
def test_a_template_gives_one_score_per_image(change: Callable[[Tensor], Tensor], got: str) -> None:
    class Changed(Detector):
        name = "changed"
        needs_fit = False

        def _fit(self, outputs: Outputs, labels: Tensor) -> None:
            pass

        def _score(self, outputs: Outputs) -> Tensor:
            return change(outputs.logits[:, 0])

    expected = rf"Changed\._score should give .*, a tensor \(60,\), got {got}\."
    with pytest.raises(UsageError, match=expected):
        Changed().score(outputs("a"))


def test_scores_that_are_not_finite_are_counted() -> None:
    broken = outputs("a")
    broken.features["a"][3:5] = torch.nan
    detector = Centre().fit(outputs("a"), LABELS)
    with pytest.raises(UsageError, match="2 of 60 scores of Centre are not finite"):
        detector.score(broken)
    no_logits = outputs("a b")
    no_logits.logits[7] = torch.nan
    with pytest.raises(UsageError, match="1 of 60 scores of GoenM are not finite"):
        GoenM().fit(outputs("a b"), LABELS).score(no_logits)


class Prepared(Centre):
    """Counts how often it was prepared; refuses a mean above 50."""

    prepared = 0

    def _prepare(self) -> None:
        if float(self.mean_.max()) > 50:
            raise UsageError("too far")
        self.prepared += 1


def test_a_detector_is_prepared_after_a_fit_and_after_loading() -> None:
    detector = Prepared(feature="a").fit(outputs("a"), LABELS)
    detector.score(outputs("a"))
    detector.score(outputs("a"))
    assert detector.prepared == 1
    loaded = Prepared().load_state(detector.state(), {"a": WIDTH}, CLASSES)
    assert loaded.prepared == 1
    far = Outputs(torch.zeros(60, CLASSES), {"a": outputs("a").features["a"] + 100})
    before = detector.score(outputs("a"))
    with pytest.raises(UsageError, match="too far"):
        detector.fit(far, LABELS)
    assert torch.equal(detector.score(outputs("a")), before)


class Calibrated(Centre):
    """Subtracts the mean distance of calibration images; fails where they are too far."""

    name = "calibrated"
    offset_: Tensor

    def calibrates(self, *, with_ood: bool) -> bool:
        return True

    def _calibrate(self, held_out: Outputs, ood: object) -> None:
        self.offset_ = super()._score(held_out).mean()
        if float(self.offset_) > 50:
            raise FitError("too far")

    def _score(self, outputs: Outputs) -> Tensor:
        return super()._score(outputs) - self.offset_


def test_a_calibration_that_fails_takes_the_fit_back() -> None:
    held_out, probe = outputs("a", seed=1), outputs("a", seed=2)
    detector = Calibrated().fit(outputs("a"), LABELS, held_out=held_out)
    before = detector.score(probe)
    assert torch.equal(before, Centre().fit(outputs("a"), LABELS).score(probe) - detector.offset_)
    far = Outputs(held_out.logits, {"a": held_out.features["a"] + 100})
    with pytest.raises(FitError, match="too far"):
        detector.fit(probe, LABELS, held_out=far)
    assert torch.equal(detector.score(probe), before)
    # Without held-out images it is calibrated on the training images.
    again = detector.fit(outputs("a"), LABELS)
    same = Calibrated().fit(outputs("a"), LABELS, held_out=outputs("a"))
    assert torch.equal(again.score(probe), same.score(probe))


def test_a_detector_that_is_fitted_at_once_says_so() -> None:
    with pytest.raises(UsageError, match="Centre is fitted on all training images at once: fit it"):
        Centre().fit(outputs("a"), LABELS).update(outputs("a"), LABELS)
