"""KL matching: how far the predicted probabilities are from every class's usual ones."""

import math
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.detectors._base import Detector, Expected
from goen.functional._rows import check_finite_for_fit
from goen.functional.logits import check_several_classes
from goen.outputs import Outputs

# The exponential of anything below -745.2 is 0 in float64.
_LOG_OF_ZERO = -1000.0


@final
class KLMatching(Detector):
    r"""Divergence of the predicted probabilities from the nearest class's mean; high for OOD.

    :math:`\min_c \mathrm{KL}(p \,\Vert\, d_c)`, with :math:`d_c` the mean softmax of the held-out
    ID images that are predicted as c, whatever their label. A class that no held-out image is
    predicted as has no :math:`d_c`.

    ``held_out`` are the images it is fitted on. Without them it is fitted on the first argument:
    give images that the network was not trained on, since on those it is surer.

    Paper: Hendrycks et al. 2022, "Scaling Out-of-Distribution Detection for Real-World Settings",
    arXiv 1911.11132. Departs from the paper: nothing. All logarithms are those of log-softmax, so
    that no probability is 0.

    It fails with few held-out images per class, and where all classes have about the same usual
    probabilities: with ten classes it is usually worse than max softmax, with a thousand better.

    Example:
        >>> logits = torch.tensor([[0.0, 2.0], [0.0, 2.0], [2.0, 0.0]])
        >>> matching = KLMatching().fit(Outputs(logits, {}), torch.tensor([1, 1, 0]))
        >>> matching.score(Outputs(torch.tensor([[0.0, 3.0], [0.0, 0.0]]), {}))
        tensor([0.0309, 0.4338], dtype=torch.float64)
    """

    name: ClassVar[str] = "kl_matching"
    log_means_: Tensor
    """The logarithm of each class's mean softmax, of the classes that have one."""

    def calibrates(self, *, with_ood: bool) -> bool:
        return True

    @property
    def uses_ood(self) -> bool:
        return False

    def _calibrate(self, held_out: Outputs, ood: Mapping[str, Outputs]) -> None:
        check_several_classes(held_out.logits)
        check_finite_for_fit(held_out.logits, "logit")
        log_p = torch.log_softmax(held_out.logits.detach().to(torch.float64), dim=1)
        predicted = held_out.logits.argmax(dim=1)
        means = [
            torch.logsumexp(log_p[rows], dim=0) - math.log(int(rows.sum()))
            for rows in (predicted == c for c in range(self.num_classes_))
            if bool(rows.any())
        ]
        self.log_means_ = torch.stack(means)

    def _expected(self) -> Mapping[str, Expected]:
        return {"log_means": Expected(("classes", self.num_classes_), high=1e-9)}

    def _score(self, outputs: Outputs) -> Tensor:
        log_p = torch.log_softmax(outputs.logits.to(torch.float64), dim=1)
        probabilities = log_p.exp()
        cross_entropy = -(probabilities @ self.log_means_.mT).amax(dim=1)
        # No lower than where the exponential is 0: 0 log 0 = 0 also at a logit of -infinity.
        return (probabilities * log_p.clamp_min_(_LOG_OF_ZERO)).sum(dim=1) + cross_entropy
