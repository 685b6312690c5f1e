"""The free energy of the logits."""

from typing import ClassVar, final

from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector
from goen.functional.logits import energy_score
from goen.outputs import Outputs


@final
class Energy(Detector):
    r"""The free energy of the logits; high for OOD.

    :math:`-T \log \sum_c e^{z_c / T}` of the logits z.

    Args:
        temperature: T; the paper takes 1.

    Paper: Liu et al. 2020, "Energy-based Out-of-distribution Detection".
    Departs from the paper: nothing.

    Example:
        >>> import torch
        >>> Energy().score(Outputs(torch.tensor([[0.0, 0.0], [1000.0, 0.0]]), {}))
        tensor([-6.9315e-01, -1.0000e+03], dtype=torch.float64)
    """

    name: ClassVar[str] = "energy"
    needs_fit = False

    def __init__(self, *, temperature: float = 1.0) -> None:
        self.temperature = temperature
        check_number("temperature", temperature, above=0)

    def _score(self, outputs: Outputs) -> Tensor:
        return energy_score(outputs.logits, self.temperature)
