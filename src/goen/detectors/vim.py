"""ViM: what lies outside the training features' subspace, as one more logit."""

from collections.abc import Mapping
from typing import final

import numpy as np
import torch
from torch import Tensor

from goen.detectors._base import SimpleDetector
from goen.errors import FitError, UsageError
from goen.functional._rows import blocks, check_finite_for_fit
from goen.functional.logits import check_classified, check_classifier, energy_score
from goen.outputs import Outputs
from goen.runs.tensors import Tensors


@final
class ViM(SimpleDetector):
    r"""The virtual logit of the residual, against the logits of the classes; high for OOD.

    :math:`\alpha \lVert R^\top (x - o) \rVert - \log \sum_c e^{z_c}`, with R the directions in
    which training features are shortest, seen from the point :math:`o = -W^+ b` where all logits
    are 0, and :math:`\alpha` such that on training rows the virtual logit is as large as the
    largest logit, on average.

    Args:
        weight: of the linear classifier behind the feature, ``(C, D)``.
        bias: of the same, ``(C,)``.
        feature: what the classifier reads; the last of the outputs' features if not given.
        dim: how many principal directions are not residual. By default 1000 of more than 1500, 512
            of 768 to 1500, half of fewer.

    Paper: Wang et al. 2022, "ViM: Out-Of-Distribution with Virtual-logit Matching".
    Departs from the paper: the score is the log-odds of the virtual class's probability, a strictly
    increasing map of it; half of the directions below width 768, where the paper has no rule.

    Example:
        >>> z = torch.tensor([[4.0, 1.0], [-4.0, 1.0], [4.0, -1.0], [-4.0, -1.0]])
        >>> weight, bias = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.zeros(2)
        >>> vim = ViM(weight=weight, bias=bias)
        >>> vim = vim.fit(Outputs(z @ weight.T, {"z": z}), torch.tensor([0, 1, 0, 1]))
        >>> far = torch.tensor([[4.0, 0.0], [4.0, 4.0]])
        >>> vim.score(Outputs(far @ weight.T, {"z": far}))
        tensor([-4.0003, 11.9997], dtype=torch.float64)
    """

    def __init__(
        self, *, weight: Tensor, bias: Tensor, feature: str | None = None, dim: int | None = None
    ) -> None:
        self.weight = weight
        self.bias = bias
        self.feature = feature
        self.dim = dim
        check_classifier(weight, bias)
        width = weight.shape[1]
        if dim is not None and not (isinstance(dim, int | np.integer) and 0 <= dim < width):
            raise UsageError(
                f"dim lies in 0 .. {width - 1}, to leave a residual of features of width {width}, "
                f"got {dim!r}."
            )

    def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
        rows = self.rows(outputs)
        check_classified(rows, outputs.logits, self.weight)
        check_finite_for_fit(rows)
        check_finite_for_fit(outputs.logits, "logit")
        weight, bias = (t.detach().to(rows.device, torch.float64) for t in (self.weight, self.bias))
        origin = -(torch.linalg.pinv(weight) @ bias)
        moment = torch.zeros(len(origin), len(origin), dtype=torch.float64, device=rows.device)
        for block in blocks(len(rows)):
            centred = rows[block].to(torch.float64) - origin
            moment.addmm_(centred.mT, centred)
        dim = principal_dim(len(origin)) if self.dim is None else self.dim
        # Eigenvalues rise, so the least come first.
        residual = torch.linalg.eigh(moment).eigenvectors[:, : len(origin) - dim].contiguous()
        length = float(_residual_length(rows, origin, residual).mean())
        if length <= 1e-9 * float(moment.trace() / len(rows)) ** 0.5:
            raise FitError(
                f"The {len(rows)} training rows lie within {dim} of {len(origin)} dimensions, so "
                "there is no residual to measure. Lower dim, or give more rows."
            )
        largest = float(outputs.logits.to(torch.float64).amax(dim=1).mean())
        if largest <= 0:
            raise FitError(
                f"The largest logit of the training rows is {largest:.3g} on average. ViM scales "
                "the residual by it and needs it above 0: add the same number to all biases."
            )
        alpha = torch.tensor([largest / length], dtype=torch.float64, device=rows.device)
        return {"origin": origin, "residual": residual, "alpha": alpha}

    def _check_state(self, tensors: Tensors) -> None:
        width = self.weight.shape[1]
        tensors.check_names(["origin", "residual", "alpha"])
        tensors.floats("origin", (width,))
        tensors.floats("residual", (width, "directions"), low=-1 - 1e-6, high=1 + 1e-6)
        tensors.floats("alpha", (1,), low=0.0)

    def _measure(self, outputs: Outputs) -> Tensor:
        rows = self.rows(outputs)
        check_classified(rows, outputs.logits, self.weight)
        fitted = self.fitted_ or {}
        length = _residual_length(rows, fitted["origin"], fitted["residual"])
        return fitted["alpha"] * length + energy_score(outputs.logits)


def principal_dim(width: int) -> int:
    """How many principal directions ViM leaves out of the residual, by default.

    Example:
        >>> [principal_dim(width) for width in (2048, 768, 512, 33, 1)]
        [1000, 512, 256, 16, 0]
    """
    if width > 1500:
        return 1000
    return 512 if width >= 768 else width // 2


def _residual_length(rows: Tensor, origin: Tensor, residual: Tensor) -> Tensor:
    lengths = [
        torch.linalg.vector_norm((rows[block].to(origin) - origin) @ residual, dim=1)
        for block in blocks(len(rows))
    ]
    return torch.cat([origin.new_empty(0), *lengths])
