"""Losses that improve OOD detection without any OOD image."""

from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

TURNS = 4


def logit_norm_loss(
    logits: Tensor, labels: Tensor, *, temperature: float, label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of the logits divided by their length and by a temperature.

    A network cannot make it small by long logits, which OOD images would get as well.

    Source: Wei et al., Mitigating Neural Network Overconfidence with Logit Normalization (2022).

    Args:
        logits: ``(N, C)``.
        labels: ``(N,)``.
        temperature: a small one lets probabilities come near 1; theirs is 0.04 for CIFAR-10.
        label_smoothing: share of the target spread over all classes.

    Example:
        >>> import torch
        >>> short, long = torch.tensor([[3.0, 4.0]]), torch.tensor([[30.0, 40.0]])
        >>> labels = torch.tensor([1])
        >>> round(float(logit_norm_loss(short, labels, temperature=1.0)), 4)
        0.5981
        >>> round(float(logit_norm_loss(long, labels, temperature=1.0)), 4)
        0.5981
    """
    scaled = normalize(logits) / temperature
    return cross_entropy(scaled, labels, label_smoothing=label_smoothing)


def rotation_loss(logits: Tensor, turns: Tensor, upright: int) -> Tensor:
    """Cross-entropy of the right angles by which images were rotated.

    Source: Hendrycks et al., Using Self-Supervised Learning Can Improve Model Robustness and
    Uncertainty (2019). Departs from it: there every image comes in all four rotations, which is
    four times the work; here few are rotated, and they and the others count the same.

    Args:
        logits: ``(N, 4)``.
        turns: ``(N,)`` right angles, from 0 to 3.
        upright: so many of them, the first, are not rotated.

    Example:
        >>> import torch
        >>> round(float(rotation_loss(torch.zeros(3, 4), torch.tensor([0, 0, 2]), 2)), 4)
        1.3863
    """
    losses = cross_entropy(logits, turns, reduction="none")
    return (losses[:upright].mean() + losses[upright:].mean()) / 2
