"""GEN, the generalised entropy of the softmax."""

from typing import ClassVar, final

from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector
from goen.functional.logits import check_several_classes, generalised_entropy
from goen.outputs import Outputs


@final
class GEN(Detector):
    r"""How far the largest probabilities are from 0 and 1; high for OOD.

    :math:`\sum_{m \le M} p_m^\gamma (1 - p_m)^\gamma` over the M largest softmax probabilities. A
    small power gives small probabilities more weight.

    Args:
        gamma: the power, above 0 and below 1.
        top: M; all classes if there are fewer.

    Paper: Liu, Lochman and Zach 2023, "GEN: Pushing the Limits of Softmax-Based
    Out-of-Distribution Detection".
    Departs from the paper: the sign, which is ours; and p and 1 - p come from the logits, so that
    sure answers do not tie.

    Example:
        >>> import torch
        >>> GEN(gamma=0.5).score(Outputs(torch.tensor([[0.0, 0.0], [40.0, 0.0]]), {}))
        tensor([1.0000e+00, 4.1223e-09], dtype=torch.float64)
    """

    name: ClassVar[str] = "gen"
    needs_fit = False

    def __init__(self, *, gamma: float = 0.1, top: int = 100) -> None:
        self.gamma = gamma
        self.top = top
        check_number("gamma", gamma, above=0, below=1)
        check_number("top", top, whole=True, at_least=1)

    def _score(self, outputs: Outputs) -> Tensor:
        check_several_classes(outputs.logits)
        return generalised_entropy(outputs.logits, self.gamma, self.top)
