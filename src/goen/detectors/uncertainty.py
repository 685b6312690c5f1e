"""The network's own uncertainty estimate."""

from typing import ClassVar, final

from torch import Tensor

from goen.detectors._base import Detector
from goen.errors import UsageError
from goen.outputs import Outputs


@final
class Uncertainty(Detector):
    """The uncertainty estimate of the network itself, unchanged; high for OOD.

    The mutual information of MC dropout or an EpiNet, the variance of an ensemble, the vacuity of
    an evidential network, one minus the largest gate of a mixture of experts.

    Paper: GOEN §4.2. Departs from the paper: nothing.

    Example:
        >>> import torch
        >>> uncertainty = torch.tensor([0.1, 0.7], dtype=torch.float64)
        >>> Uncertainty().score(Outputs(torch.zeros(2, 3), {}, uncertainty))
        tensor([0.1000, 0.7000], dtype=torch.float64)
    """

    name: ClassVar[str] = "uncertainty"
    needs_fit = False

    def _score(self, outputs: Outputs) -> Tensor:
        if outputs.uncertainty is None:
            raise UsageError(
                "These outputs hold no uncertainty of the network's own. Take a network that gives "
                "one (MC dropout, ensemble, evidential, EpiNet, mixture of experts), or a detector "
                "that does without, such as MaxSoftmax."
            )
        return outputs.uncertainty
