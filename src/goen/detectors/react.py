"""ReAct: the energy of clipped features."""

from collections.abc import Mapping
from typing import final

import numpy as np
import torch
from torch import Tensor

from goen.detectors._base import SimpleDetector
from goen.errors import NotFittedError, UsageError
from goen.functional._rows import check_finite_for_fit
from goen.functional.logits import check_classified, check_classifier, energy_score
from goen.outputs import Outputs
from goen.runs.tensors import Tensors


@final
class ReAct(SimpleDetector):
    r"""The energy of the logits after large features were clipped; high for OOD.

    :math:`-\log \sum_c e^{w_c \cdot \min(x, t) + b_c}`, with the threshold t a percentile of all
    activations of all training rows. OOD images owe their large logits to a few very large
    activations.

    Args:
        weight: of the linear classifier behind the feature, ``(C, D)``.
        bias: of the same, ``(C,)``.
        feature: what the classifier reads; the last of the outputs' features if not given.
        percentile: above 0, at most 100.

    Paper: Sun, Guo and Li 2021, "ReAct: Out-of-distribution Detection With Rectified Activations".
    Departs from the paper: nothing.

    Example:
        >>> weight, bias = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.zeros(2)
        >>> z = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0]])
        >>> react = ReAct(weight=weight, bias=bias, percentile=50)
        >>> _ = react.fit(Outputs(z @ weight.T, {"z": z}), torch.tensor([0, 1, 0, 1]))
        >>> react.threshold_
        3.5
    """

    def __init__(
        self, *, weight: Tensor, bias: Tensor, feature: str | None = None, percentile: float = 90.0
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.feature = feature
        self.percentile = percentile
        check_classifier(weight, bias)
        if not 0 < percentile <= 100:
            raise UsageError(f"percentile lies above 0 and at most at 100, got {percentile}.")

    @property
    def threshold_(self) -> float:
        """What larger activations are clipped to."""
        if self.fitted_ is None:
            raise NotFittedError("ReAct has no threshold yet. Call fit(outputs, labels) first.")
        return float(self.fitted_["threshold"])

    def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
        rows = self.rows(outputs)
        check_classified(rows, outputs.logits, self.weight)
        check_finite_for_fit(rows)
        # NumPy's, since torch's refuses more than 2^24 numbers. Not in float16, which would round.
        wide = torch.promote_types(rows.dtype, torch.float32)
        activations = rows.detach().cpu().to(wide).flatten().numpy()
        threshold = float(np.percentile(activations, self.percentile))
        return {"threshold": torch.tensor([threshold], dtype=torch.float64, device="cpu")}

    def _check_state(self, tensors: Tensors) -> None:
        tensors.check_names(["threshold"])
        tensors.floats("threshold", (1,))

    def _measure(self, outputs: Outputs) -> Tensor:
        rows = self.rows(outputs)
        check_classified(rows, outputs.logits, self.weight)
        weight, bias = (t.detach().to(rows.device, torch.float64) for t in (self.weight, self.bias))
        clipped = rows.to(torch.float64).clamp(max=self.threshold_)
        return energy_score(clipped @ weight.mT + bias)
