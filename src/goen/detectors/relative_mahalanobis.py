"""The Mahalanobis distance to the nearest class, less the distance to all classes as one."""

from collections.abc import Mapping
from typing import final

from torch import Tensor

from goen.detectors._base import Detector
from goen.detectors.mahalanobis import (
    as_tensors,
    check_ridge,
    class_statistics,
    from_tensors,
    mean_variance,
)
from goen.functional.covariance import tied_covariance, total_covariance
from goen.functional.cues import normalise
from goen.functional.whitening import whitener
from goen.outputs import Outputs


@final
class RelativeMahalanobis(Detector):
    r"""Distance to the nearest class, less that to one Gaussian of everything; high for OOD.

    :math:`\min_c d_c(x) - d_0(x)`, squared Mahalanobis distances: :math:`d_c` under the covariance
    all classes share, :math:`d_0` under the mean and covariance of all rows, whatever their class.
    What is strange to every class alike, and so to both, cancels.

    Args:
        feature: which of the outputs' features to measure.
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

    def __init__(self, *, feature: str = "z", normalise: bool = False, ridge: float = 1e-6) -> None:
        self.feature = feature
        self.normalise = normalise
        self.ridge = ridge
        check_ridge(ridge)

    def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
        statistics = class_statistics(outputs, labels, self.feature, self.normalise)
        ridge = self.ridge * mean_variance(statistics)
        whitenings = {
            "classes": whitener(statistics.means_, tied_covariance(statistics, ridge)),
            "all": whitener(statistics.total_mean_[None], total_covariance(statistics, ridge)),
        }
        return {
            f"{whose}.{name}": tensor
            for whose, whitening in whitenings.items()
            for name, tensor in as_tensors(whitening).items()
        }

    def _measure(self, outputs: Outputs) -> Tensor:
        rows = outputs.features[self.feature]
        rows = normalise(rows) if self.normalise else rows
        return self._distance("classes", rows) - self._distance("all", rows)

    def _distance(self, whose: str, rows: Tensor) -> Tensor:
        fitted = (self.fitted_ or {}).items()
        own = {k.removeprefix(f"{whose}."): v for k, v in fitted if k.startswith(f"{whose}.")}
        return from_tensors(own).nearest(rows).distance
