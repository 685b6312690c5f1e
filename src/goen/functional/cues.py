"""Normalisation and the three cues of the paper's GOEN.

goen-m has cues of its own, in ``goen.detectors.goen_m``; it shares the entropy.
"""

import torch
from torch import Tensor

_LEAST = torch.finfo(torch.float64).tiny
# The exponential of anything below -745.2 is 0 in float64.
_LOG_OF_ZERO = -1000.0


def normalise(features: Tensor) -> Tensor:
    r"""Each row (N, D) divided by its Euclidean length, (N, D) float64.

    A zero row has no direction and stays zero: its distance is then that of the origin, far from
    every class of unit vectors. A row with NaN or infinity has NaN in it, for the fit to refuse.

    Paper: GOEN §5.2, :math:`\tilde z = z / \lVert z \rVert_2`. Departs from the paper: it assumes
    :math:`z \ne 0`.

    Example:
        >>> normalise(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """
    rows = features.detach().to(torch.float64, copy=True)
    if rows.shape[1] == 0:
        return rows
    if features.dtype == torch.float64:
        # Through the largest entry, so that squares neither overflow nor vanish; those of narrower
        # types do neither in float64.
        largest = torch.linalg.vector_norm(rows, ord=torch.inf, dim=1, keepdim=True)
        rows /= largest.clamp_min_(_LEAST)
    length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    rows /= length.clamp_min_(_LEAST)  # a zero row stays zero, whatever it is divided by
    return rows


def max_inner_product(features: Tensor, means: Tensor) -> Tensor:
    r"""Largest inner product of each row (N, D) with a class mean (C, D), (N,): cue m2.

    High for ID, alone among the cues.

    Paper: GOEN §5.3, :math:`m_2 = \max_c \tilde z^\top \mu_c`, on features of unit length. Departs
    from the paper: nothing; it says "cosine", but :math:`\mu_c` is a mean of unit vectors, shorter
    than 1, and is not normalised again.

    Example:
        >>> max_inner_product(torch.tensor([[0.6, 0.8]]), torch.tensor([[1.0, 0.0], [0.0, 0.5]]))
        tensor([0.6000], dtype=torch.float64)
    """
    means = means.detach().to(features.device, torch.float64)
    return (features.detach().to(torch.float64) @ means.mT).amax(dim=1)


def log_distance(distance: Tensor) -> Tensor:
    """log(distance + 1) of squared distances of any shape: cue m1, high for OOD.

    Paper: GOEN §5.3, m1. Departs from the paper: nothing (``log1p``, exact near 0).

    Example:
        >>> log_distance(torch.tensor([0.0, 1.0]))
        tensor([0.0000, 0.6931], dtype=torch.float64)
    """
    return torch.log1p(distance.detach().to(torch.float64))


def entropy(logits: Tensor) -> Tensor:
    r"""Entropy of the softmax of each row of logits (N, C), in nats, (N,): cue m3, high for OOD.

    :math:`-\sum_c p_c \log p_c` with 0 log 0 = 0, in [0, log C]. NaN logits give NaN.

    Paper: GOEN §5.3, m3. Departs from the paper: nothing.

    Example:
        >>> entropy(torch.tensor([[0.0, 0.0], [1000.0, -1000.0]]))
        tensor([0.6931, 0.0000], dtype=torch.float64)
    """
    rows = logits.detach().to(torch.float64)
    below = rows - rows.amax(dim=1, keepdim=True)
    # No further than where the exponential is 0 and remains so: 0 log 0 = 0, also at -infinity.
    weight = below.clamp_min_(_LOG_OF_ZERO).exp()
    total = weight.sum(dim=1)
    # Neither term is negative, so nothing cancels.
    return total.log() - weight.mul_(below).sum(dim=1) / total
