"""The Mahalanobis distance to the nearest class, less the distance to all classes as one."""

from typing import ClassVar, final

from torch import Tensor

from goen.detectors._gaussians import (
    GaussianDetector,
    class_statistics,
    load_whitening,
    mean_variance,
    whitening_tensors,
)
from goen.functional.covariance import tied_covariance, total_covariance
from goen.functional.whitening import Whitening, whitener
from goen.io.tensors import Tensors
from goen.outputs import Outputs


@final
class RelativeMahalanobis(GaussianDetector):
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

    name: ClassVar[str] = "relative_mahalanobis"
    whitening_: Whitening
    background_: Whitening

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        statistics = class_statistics(outputs, labels, self._rows)
        ridge = self.ridge * mean_variance(statistics)
        self.whitening_ = whitener(statistics.means_, tied_covariance(statistics, ridge))
        background = total_covariance(statistics, ridge)
        self.background_ = whitener(statistics.total_mean_[None], background)

    def state(self) -> dict[str, Tensor]:
        classes, everything = map(whitening_tensors, (self.whitening_, self.background_))
        state = {f"classes.{name}": tensor for name, tensor in classes.items()}
        return state | {f"all.{name}": tensor for name, tensor in everything.items()}

    def _load(self, tensors: Tensors) -> None:
        classes, everything = tensors.part("classes."), tensors.part("all.")
        tensors.check_names(
            [f"classes.{name}" for name in classes] + [f"all.{n}" for n in everything]
        )
        self.whitening_ = load_whitening(classes, self.features_width, self.num_classes_)
        self.background_ = load_whitening(everything, self.features_width, 1)

    def _score(self, outputs: Outputs) -> Tensor:
        rows = self._rows(outputs)
        return self.whitening_.nearest(rows).distance - self.background_.nearest(rows).distance
