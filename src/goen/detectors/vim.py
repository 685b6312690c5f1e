"""ViM: what lies outside the training features' subspace, as one more logit."""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector, Expected
from goen.errors import FitError
from goen.functional._rows import check_finite_for_fit
from goen.functional.logits import energy_score
from goen.functional.subspace import (
    mean_residual_length,
    residual_directions,
    residual_length,
    zero_logits_point,
)
from goen.outputs import Outputs


@final
class ViM(Detector):
    r"""The part of a feature that training features do not span, as one more logit; high for OOD.

    :math:`\alpha \lVert R^\top (x - o) \rVert - \log \sum_c e^{z_c}`, with x the feature and z the
    logits of an image, and R the directions in which training features are shortest, seen from the
    point :math:`o = -W^+ b` whose logits are nearest to 0 (W and b are those of the outputs' linear
    classifier). The first term is the virtual logit; :math:`\alpha` is such that on training rows
    it is as large as the largest logit, on average.

    Args:
        dim: how many principal directions are not residual. By default 1000 if a feature has more
            than 1500 numbers, 512 if it has 768 to 1500, else half of them; and never more than
            half as many as there are training rows, which would leave no residual to measure.

    Paper: Wang et al. 2022, "ViM: Out-Of-Distribution with Virtual-logit Matching".
    Departs from the paper: the score is the log-odds of the virtual class's probability, a strictly
    increasing map of it; half of the directions below width 768, and half as many as there are rows
    where these are few, of which the paper's 512 would leave little or nothing.

    It fails on networks whose features span little more than the classes (neural collapse): what is
    left outside says little, and the logits decide.

    Example:
        >>> from goen.outputs import LinearClassifier
        >>> z = torch.tensor([[4.0, 1.0], [-4.0, 1.0], [4.0, -1.0], [-4.0, -1.0]])
        >>> weight = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        >>> classifier = LinearClassifier(weight, torch.zeros(2), "z")
        >>> outputs = Outputs(z @ weight.T, {"z": z}, classifier=classifier)
        >>> vim = ViM().fit(outputs, torch.tensor([0, 1, 0, 1]))
        >>> far = torch.tensor([[4.0, 0.0], [4.0, 4.0]])
        >>> vim.score(Outputs(far @ weight.T, {"z": far}))
        tensor([-4.0003, 11.9997], dtype=torch.float64)
    """

    name: ClassVar[str] = "vim"
    needs_classifier = True
    origin_: Tensor
    residual_: Tensor
    alpha_: Tensor

    def __init__(self, *, dim: int | None = None) -> None:
        self.dim = dim
        if dim is not None:
            check_number("dim", dim, whole=True, at_least=0)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        rows = self.feature_rows(outputs)
        check_finite_for_fit(outputs.logits, "logit")
        origin = zero_logits_point(*self.classifier(outputs))
        residual = residual_directions(rows, origin, self.dim)
        length = mean_residual_length(rows, origin, residual)
        largest = float(outputs.logits.amax(dim=1).mean(dtype=torch.float64))
        if largest <= 0:
            raise FitError(
                f"The largest logit of the training rows is {largest:.3g} on average. ViM scales "
                "the residual by it and needs it above 0: add the same number to all biases."
            )
        self.origin_, self.residual_ = origin, residual
        self.alpha_ = torch.tensor([largest / length], dtype=torch.float64, device=rows.device)

    def _expected(self) -> Mapping[str, Expected]:
        width = self.features_width
        return {
            "origin": Expected((width,)),
            "residual": Expected((width, "directions"), -1 - 1e-6, 1 + 1e-6),
            "alpha": Expected((1,), low=0.0),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        length = residual_length(self.feature_rows(outputs), self.origin_, self.residual_)
        return self.alpha_ * length + energy_score(outputs.logits)
