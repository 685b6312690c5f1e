"""The Mahalanobis distance to the nearest class, less the distance to all classes as one."""

from collections.abc import Mapping
from typing import final

from torch import Tensor

from goen.detectors._base import SimpleDetector
from goen.detectors._gaussians import (
    WHITENING,
    ClassGaussians,
    check_relative_ridge,
    check_whitening,
    whitening_from_tensors,
    whitening_tensors,
)
from goen.functional._rows import blocks
from goen.functional.covariance import total_covariance
from goen.functional.cues import normalise
from goen.functional.whitening import whitener
from goen.outputs import Outputs
from goen.runs.tensors import Tensors


@final
class RelativeMahalanobis(SimpleDetector):
    r"""Distance to the nearest class, less that to one Gaussian of everything; high for OOD.

    :math:`\min_c d_c(x) - d_0(x)`, squared Mahalanobis distances: :math:`d_c` under the covariance
    all classes share, :math:`d_0` under the mean and covariance of all rows, whatever their class.
    What is unusual for every class alike, and so for both, cancels.

    Args:
        feature: which of the outputs' features to measure; the last if not given.
        normalise: divide every feature vector by its length first.
        ridge: added to the diagonal of each covariance, as a share of the mean variance within a
            class.

    Paper: Ren et al. 2021, "A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection".
    Departs from the paper: the ridge.

    Example:
        >>> import torch
        >>> z = torch.tensor([[-1.0], [1.0], [9.0], [11.0]])
        >>> outputs = Outputs(torch.zeros(4, 2), {"z": z})
        >>> detector = RelativeMahalanobis(ridge=0.0).fit(outputs, torch.tensor([0, 0, 1, 1]))
        >>> detector.score(Outputs(torch.zeros(1, 2), {"z": torch.tensor([[5.0]])}))
        tensor([25.], dtype=torch.float64)
    """

    def __init__(
        self, *, feature: str | None = None, normalise: bool = False, ridge: float = 1e-6
    ) -> None:
        self.feature = feature
        self.normalise = normalise
        self.ridge = ridge
        check_relative_ridge(ridge)

    def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
        gaussians = ClassGaussians(
            self.feature_name(outputs),
            unit_length=self.normalise,
            ridge=self.ridge,
            relative_ridge=True,
        )
        for block in blocks(len(outputs)):
            gaussians.update(outputs[block], labels[block])
        statistics = gaussians.statistics
        background = total_covariance(statistics, gaussians.absolute_ridge)
        whitenings = {
            "classes": gaussians.whitening_,
            "all": whitener(statistics.total_mean_[None], background),
        }
        return {
            f"{whose}.{name}": tensor
            for whose, whitening in whitenings.items()
            for name, tensor in whitening_tensors(whitening).items()
        }

    def _check_state(self, tensors: Tensors) -> None:
        both = ("classes", "all")
        tensors.check_names([f"{whose}.{name}" for whose in both for name in WHITENING])
        for whose in both:
            check_whitening(tensors.part(f"{whose}."))

    def _measure(self, outputs: Outputs) -> Tensor:
        rows = self.rows(outputs)
        rows = normalise(rows) if self.normalise else rows
        return self._distance("classes", rows) - self._distance("all", rows)

    def _distance(self, whose: str, rows: Tensor) -> Tensor:
        fitted = (self.fitted_ or {}).items()
        own = {k.removeprefix(f"{whose}."): v for k, v in fitted if k.startswith(f"{whose}.")}
        return whitening_from_tensors(own).nearest(rows).distance
