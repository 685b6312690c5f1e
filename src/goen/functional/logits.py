"""What logits alone say about an input."""

import torch
from torch import Tensor


def max_softmax_score(logits: Tensor) -> Tensor:
    r"""log((1 - p) / p) of the largest softmax probability p, ``(N,)`` float64; high for OOD.

    The paper's :math:`1 - \max_c p_c` under a strictly increasing map, so every ranking is the
    same, but computed from the other classes' log-sum-exp: 1 - p would saturate at exactly 0 and
    tie.

    Example:
        >>> max_softmax_score(torch.tensor([[0.0, 0.0], [40.0, 0.0]]))
        tensor([  0., -40.], dtype=torch.float64)
    """
    wide = logits.to(torch.float64)
    largest, place = wide.max(dim=1, keepdim=True)
    others = wide.scatter(1, place, -torch.inf)
    return torch.logsumexp(others - largest, dim=1)
