"""GOEN's calibration head: three cues in, the log-odds of being OOD out; and its training."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from goen.checks import check_number, check_seed
from goen.errors import FitError, UsageError
from goen.io.limits import HEAD_WEIGHT
from goen.io.tensors import Tensors
from goen.models.seeding import seeded

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
        linear = partial(nn.Linear, dtype=torch.float32)  # whatever torch's default is
        self.layers = nn.Sequential(
            linear(cues, 64), nn.ReLU(), linear(64, 32), nn.ReLU(), linear(32, 1)
        )

    def forward(self, cues: Tensor) -> Tensor:
        out: Tensor = self.layers(cues).squeeze(1)
        return out

    def score(self, cues: Tensor) -> Tensor:
        """The logit in float64, without gradients, of cues in any precision."""
        with torch.no_grad():
            logit: Tensor = self(cues.float()).double()
        return logit


def load_head(state: Mapping[str, Tensor]) -> CalibrationHead:
    """The head with the weights of this state dictionary, in evaluation mode.

    Raises:
        ValueError: tensors that are not the weights of a head; the message names one.
    """
    tensors = Tensors.of(state)
    # The weights that it begins with are drawn.
    with seeded(0), torch.device("cpu"):
        head = CalibrationHead()
    tensors.check_like(head.state_dict(), largest=HEAD_WEIGHT)
    head.load_state_dict(tensors)
    return head.eval()


def probability_of_ood(logit: Tensor) -> Tensor:
    """u with the compression of the targets undone: 0.05 becomes 0, 0.95 becomes 1.

    A head that met its targets exactly would give P(OOD) = (u - 0.05) / 0.9.

    Example:
        >>> probability_of_ood(torch.logit(torch.tensor([0.05, 0.5, 0.95, 0.99])))
        tensor([0.0000, 0.5000, 1.0000, 1.0000])
    """
    u = torch.sigmoid(logit)
    return ((u - TARGET_ID) / (TARGET_OOD - TARGET_ID)).clamp(0, 1)


@dataclass(frozen=True)
class HeadConfig:
    """How the head is trained.

    Attributes:
        epochs: at most this many passes over the ID images.
        batch_size: ID images per step; as many OOD images join them, in equal shares of each set.
        learning_rate: Adam's.
        patience: epochs without a wider gap after which the best is kept; the paper gives none.
        held_out: share of the images that only measures the gap.
        seed: fixes weights and order.
    """

    epochs: int = 20
    batch_size: int = 128
    learning_rate: float = 1e-3
    patience: int = 5
    held_out: float = 0.2
    seed: int = 42

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            check_number(name, getattr(self, name), whole=True, at_least=1)
        check_number("learning_rate", self.learning_rate, above=0)
        check_number("held_out", self.held_out, above=0, below=1)
        check_seed(self.seed)


@dataclass(frozen=True, eq=False)
class HeadEpoch:
    """The head after one epoch of its training.

    Attributes:
        head: as it was then, in evaluation mode.
        id_score: its mean u of the held-out ID images.
        ood_score: its mean u of the held-out OOD images, where every set has the same weight.
    """

    head: CalibrationHead
    id_score: float
    ood_score: float

    @property
    def gap(self) -> float:
        """How far apart the two are."""
        return self.ood_score - self.id_score


# The caller may have turned gradients off; weights made in inference mode could not be trained.
@torch.inference_mode(False)
@torch.enable_grad()
def train_head(
    id_cues: Tensor,
    ood_cues: Mapping[str, Tensor],
    config: HeadConfig,
    *,
    start: CalibrationHead | None = None,
) -> tuple[CalibrationHead, list[HeadEpoch]]:
    """A head trained to separate ID cues from OOD cues, and the head after each epoch.

    The head with the widest gap, mean u(OOD) - mean u(ID) on the held-out share, is the first.

    Args:
        id_cues: ``(N, 3)``.
        ood_cues: ``(M, 3)`` of each OOD set; every set has the same weight, whatever its size.
        config: how to train.
        start: a head whose training goes on, and which stays as it is; a new one if not given.

    Raises:
        FitError: too few images to train on one part and measure on another, cues that are not
            finite, or a training after which the scores are not.
        UsageError: no OOD set.

    Paper: GOEN §5.3-5.4. Departs from the paper: nothing; where it is silent, see ``HeadConfig``.
    """
    if not ood_cues:
        raise UsageError("The calibration head learns from OOD images; none were given.")
    for name, cues in {"ID images": id_cues, **ood_cues}.items():
        if not bool(torch.isfinite(cues).all()):
            raise FitError(f"Cues of {name} are NaN or infinite. Check the images and the network.")
    rng = np.random.default_rng(config.seed)
    fit_id, measure_id = _divide(id_cues.float(), config.held_out, rng, "ID images")
    divided = [_divide(c.float(), config.held_out, rng, name) for name, c in ood_cues.items()]
    fit_ood, measure_ood = zip(*divided, strict=True)
    head = _head_like(start, id_cues, config.seed)
    optimiser = torch.optim.Adam(head.parameters(), config.learning_rate)
    epochs: list[HeadEpoch] = []
    for _ in range(config.epochs):
        order = rng.permutation(len(fit_id))
        for first in range(0, len(order), config.batch_size):
            rows = order[first : first + config.batch_size]
            share = -(-len(rows) // len(fit_ood))
            ood = torch.cat([cues[rng.integers(0, len(cues), share)] for cues in fit_ood])
            ood = ood[: len(rows)]
            optimiser.zero_grad()
            loss = _towards(head(fit_id[rows]), TARGET_ID) + _towards(head(ood), TARGET_OOD)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        epochs.append(_measured(head, measure_id, measure_ood))
        gaps = [epoch.gap if math.isfinite(epoch.gap) else -math.inf for epoch in epochs]
        if len(gaps) - 1 - gaps.index(max(gaps)) >= config.patience:
            break
    if max(gaps) == -math.inf:
        raise FitError(
            "The scores of the calibration head are not finite after any epoch of its training. "
            "Check the cues for enormous values, or lower the learning rate."
        )
    return epochs[gaps.index(max(gaps))].head, epochs


def _measured(head: CalibrationHead, id_cues: Tensor, ood_cues: Sequence[Tensor]) -> HeadEpoch:
    """A copy of the head with its mean scores."""
    with torch.no_grad():
        means = [torch.sigmoid(head(cues)).mean().item() for cues in ood_cues]
        id_score = torch.sigmoid(head(id_cues)).mean().item()
    return HeadEpoch(copy.deepcopy(head).eval(), id_score, sum(means) / len(means))


def _head_like(start: CalibrationHead | None, cues: Tensor, seed: int) -> CalibrationHead:
    """A head for these cues on their device, with the weights of the other or drawn by the seed."""
    with seeded(seed, cues.device), cues.device:
        head = CalibrationHead(cues.shape[1])
    if start is not None:
        head.load_state_dict(start.state_dict())
    return head


def _towards(logits: Tensor, target: float) -> Tensor:
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, target))


def _divide(
    cues: Tensor, held_out: float, rng: np.random.Generator, name: str
) -> tuple[Tensor, Tensor]:
    measured = round(len(cues) * held_out)
    if measured < 1 or len(cues) - measured < 1:
        raise FitError(
            f"The calibration head needs more than {len(cues)} {name}: some to train on, and "
            f"{held_out:.0%} to measure on."
        )
    order = rng.permutation(len(cues))
    return cues[order[measured:]], cues[order[:measured]]
