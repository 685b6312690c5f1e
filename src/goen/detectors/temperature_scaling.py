"""Temperature scaling."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, final

import numpy as np
import torch
from torch import Tensor

from goen.detectors._base import Detector, Expected
from goen.errors import UsageError
from goen.functional._rows import check_finite_for_fit, check_labels, floats
from goen.functional.logits import check_several_classes, max_softmax_score
from goen.outputs import Outputs

TEMPERATURES = (0.01, 100.0)
"""The range in which a temperature is looked for."""


@final
class TemperatureScaling(Detector):
    r"""The largest softmax probability at the temperature that fits best; high for OOD.

    One number T is fitted on held-out ID images: it minimises the negative log-likelihood of
    softmax(z / T), by L-BFGS on log T. The score is that of ``MaxSoftmax`` on z / T. No label
    changes, but the ranking of images does.

    Logits that are always right and could only be surer have no best temperature, and neither have
    those that are always wrong: the fit then ends where the likelihood is flat, at the latest at
    the ends of [0.01, 100].

    ``held_out`` with labels are the images it is fitted on. Without them it is fitted on the first
    argument: give images that the network was not trained on.

    Paper: Guo et al. 2017, "On Calibration of Modern Neural Networks"; GOEN §4.2.
    Departs from the paper: the bounds.

    Example:
        >>> logits = 6 * torch.eye(2).repeat(4, 1)  # always sure, right three times in four
        >>> scaling = TemperatureScaling().fit(
        ...     Outputs(logits, {}), torch.tensor([0, 1, 0, 1, 0, 1, 1, 0])
        ... )
        >>> round(scaling.temperature_.item(), 4)  # such that e^(6 / T) = 3
        5.4614
    """

    name: ClassVar[str] = "temperature_scaling"
    temperature_: Tensor
    """T; above 1 where the network was too sure of itself."""

    def calibrates(self, *, with_ood: bool) -> bool:
        return True

    @property
    def uses_ood(self) -> bool:
        return False

    def _set_apart(self, outputs: Outputs, labels: Tensor) -> tuple[Outputs, Tensor, Outputs]:
        return outputs, labels, replace(outputs, labels=labels)

    def _calibrate(self, held_out: Outputs, ood: Mapping[str, Outputs]) -> None:
        if held_out.labels is None:
            raise UsageError("Temperature scaling needs held-out images with labels.")
        check_labels(held_out.labels, len(held_out), self.num_classes_)
        check_several_classes(held_out.logits)
        check_finite_for_fit(held_out.logits, "logit")
        temperature = best_temperature(held_out.logits, held_out.labels)
        self.temperature_ = torch.tensor(temperature, dtype=torch.float64, device="cpu")

    def _expected(self) -> Mapping[str, Expected]:
        low, high = TEMPERATURES
        return {"temperature": Expected((), low * (1 - 1e-9), high * (1 + 1e-9))}

    def _score(self, outputs: Outputs) -> Tensor:
        return max_softmax_score(floats(outputs.logits) / self.temperature_)

    def calibrated(self, outputs: Outputs) -> Outputs:
        """The same outputs with logits / T: what accuracy and calibration are measured on."""
        if not torch.compiler.is_compiling():
            self._check(outputs)
        return replace(outputs, logits=outputs.logits / float(self.temperature_), classifier=None)


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    r"""The T in [0.01, 100] of the least negative log-likelihood of softmax(z / T).

    With :math:`\beta = 1 / T`, the derivative by log T is
    :math:`\beta \, (z_y - \sum_c p_c z_c)`, averaged over the images.
    """
    from scipy.optimize import minimize  # slow to import, and only this needs it

    wide = logits.detach().cpu().to(torch.float64)
    # From each image's largest logit down, as what all its logits share would cost digits.
    wide = wide - wide.amax(dim=1, keepdim=True)
    label = labels.detach().cpu().to(torch.int64)[:, None]
    own = wide.gather(1, label).squeeze(1)

    def loss_and_slope(log_temperature: np.ndarray) -> tuple[float, float]:
        beta = math.exp(-float(log_temperature[0]))
        log_p = torch.log_softmax(beta * wide, dim=1)
        loss = -log_p.gather(1, label).mean()
        expected = (log_p.exp() * wide).sum(dim=1)
        return float(loss), beta * float((own - expected).mean())

    low, high = (math.log(bound) for bound in TEMPERATURES)
    found = minimize(
        loss_and_slope,
        x0=np.zeros(1),
        jac=True,
        method="L-BFGS-B",
        bounds=[(low, high)],
        options={"ftol": 1e-15, "gtol": 1e-10},
    )
    return math.exp(float(found.x[0]))
