"""GOEN's calibration head: three cues in, the log-odds of being OOD out."""

import torch
from torch import Tensor, nn

# The targets the head is trained to, instead of 0 and 1.
TARGET_ID, TARGET_OOD = 0.05, 0.95


class CalibrationHead(nn.Module):
    """Cues ``(N, 3)`` to the logit of u, ``(N,)``; high for OOD.

    Paper: GOEN §5.3, u = sigmoid(MLP(m)) with hidden layers of 64 and 32.
    Departs from the paper: the logit is what is returned, so that nothing saturates; the formula
    in the paper has one hidden layer, its text two, and we build two.
    """

    def __init__(self, cues: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(cues, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, cues: Tensor) -> Tensor:
        out: Tensor = self.layers(cues).squeeze(1)
        return out


def probability_of_ood(logit: Tensor) -> Tensor:
    """u with the compression of the targets undone: 0.05 becomes 0, 0.95 becomes 1.

    A head that met its targets exactly would give P(OOD) = (u - 0.05) / 0.9.

    Example:
        >>> probability_of_ood(torch.logit(torch.tensor([0.05, 0.5, 0.95, 0.99])))
        tensor([0.0000, 0.5000, 1.0000, 1.0000])
    """
    u = torch.sigmoid(logit)
    return ((u - TARGET_ID) / (TARGET_OOD - TARGET_ID)).clamp(0, 1)
