"""The detector that separates given OOD images best, chosen among the others."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import ClassVar, Self, final

from torch import Tensor

from goen.detectors._base import Detector
from goen.errors import ExtraMissing, FitError, NotFittedError, UsageError
from goen.metrics import Ranking, rank_methods
from goen.outputs import Outputs


@final
class Best(Detector):
    """The score of the detector that separates the given OOD images best; high for OOD.

    Every candidate is fitted on the training images, and where it needs ID images to calibrate, on
    the held-out images. None is fitted with the OOD images: these, against the held-out images,
    give each candidate's mean AUROC over the kinds of OOD, and the highest is chosen. One that
    cannot be fitted takes no part. ``chosen`` is the detector that a gate then has.

    The held-out images are those that calibrate, never those that set a threshold, so the guarantee
    of a gate is that of any detector. What was chosen with the OOD images says nothing about them
    any more: measure it on others. ``make_detector("best")`` makes one with all of goen's detectors
    that score plain outputs of any classifier; ``Best.among`` takes others.
    """

    name: ClassVar[str] = "best"
    reads_all_features = True
    needs_ood = True
    saved = False
    ranking_: Ranking
    skipped_: Mapping[str, str]
    chosen_: Detector

    def __init__(self) -> None:
        self.feature = None
        self._candidates: Mapping[str, Callable[[], Detector]] = {}

    @classmethod
    def among(cls, candidates: Mapping[str, Callable[[], Detector]]) -> Self:
        """A choice among these makers of detectors, by name."""
        made = cls()
        made._candidates = dict(candidates)
        return made

    def calibrates(self, *, with_ood: bool) -> bool:
        """ID images beside the training images show which candidate is the best."""
        return True

    @property
    def chosen(self) -> Detector:
        """The best candidate, fitted.

        Raises:
            NotFittedError: nothing was chosen yet.
        """
        if not hasattr(self, "chosen_"):
            raise NotFittedError("No detector was chosen yet: fit with held-out and OOD images.")
        return self.chosen_

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        fitted: dict[str, Detector] = {}
        skipped: dict[str, str] = {}
        for name, make in self._candidates.items():
            detector = make()
            try:
                detector.require_library()
                if detector.needs_fit:
                    detector.fit_training(outputs, labels)
                fitted[name] = detector
            except (ExtraMissing, FitError, UsageError) as error:
                skipped[name] = str(error)
        self.fitted_, self.skipped_ = fitted, skipped

    def _calibrate(self, held_out: Outputs, ood: Mapping[str, Outputs]) -> None:
        if not ood:
            raise UsageError("A choice needs OOD images: give ood (--ood).")
        id_scores, ood_scores, skipped = {}, {}, dict(self.skipped_)
        for name, detector in self.fitted_.items():
            try:
                if detector.calibrates(with_ood=False):
                    detector.calibrate(held_out)
                scores = {kind: detector.score(part).numpy() for kind, part in ood.items()}
                id_scores[name], ood_scores[name] = detector.score(held_out).numpy(), scores
            except (FitError, UsageError) as error:
                skipped[name] = str(error)
        if not id_scores:
            raise FitError(f"No detector could be fitted: {'; '.join(skipped.values())}")
        self.skipped_ = skipped
        self.ranking_ = rank_methods(id_scores, ood_scores)
        self.chosen_ = deepcopy(self.fitted_[self.ranking_.best])

    def _score(self, outputs: Outputs) -> Tensor:
        return self.chosen.score(outputs)
