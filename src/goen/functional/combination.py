"""Several p-values combined into one number."""

import torch
from torch import Tensor


def simes(p_values: Tensor) -> Tensor:
    r"""Simes' p-value of the last axis: :math:`\min_i D \, p_{(i)} / i`, ``(..., D)`` to ``(...)``.

    Valid for independent p-values and for many that are positively dependent.

    Paper: Simes 1986, "An improved Bonferroni procedure for multiple tests of significance".

    Example:
        >>> simes(torch.tensor([0.5, 0.01, 0.04]))
        tensor(0.0300)
    """
    count = p_values.shape[-1]
    ranks = torch.arange(1, count + 1, dtype=p_values.dtype, device=p_values.device)
    return (p_values.sort(dim=-1).values * count / ranks).amin(dim=-1)


def count_at_least(ordered: Tensor, values: Tensor) -> Tensor:
    """How many of a sorted reference ``(n,)`` are at least each value ``(N,)``, as float64.

    Example:
        >>> count_at_least(torch.tensor([1.0, 2.0, 2.0]), torch.tensor([2.0, 2.5]))
        tensor([2., 0.], dtype=torch.float64)
    """
    if torch.compiler.is_compiling():  # ONNX has no search
        return (ordered >= values[:, None]).to(torch.float64).sum(dim=1)
    found = torch.searchsorted(ordered, values.contiguous())
    return (len(ordered) - found).to(torch.float64)


def two_sided_p_values(values: Tensor, ordered: Tensor) -> Tensor:
    r"""Empirical two-sided p-values ``(N, D)`` float64, column by column.

    Twice the smaller of :math:`(1 + \#\{r \le x\}) / (n + 1)` and
    :math:`(1 + \#\{r \ge x\}) / (n + 1)`, at most 1.

    Args:
        values: ``(N, D)``.
        ordered: the reference, ``(D, n)``: each row sorted, contiguous.

    Example:
        >>> two_sided_p_values(torch.tensor([[9.0], [2.0]]), torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[0.5000],
                [1.0000]], dtype=torch.float64)
    """
    columns = values.T.contiguous()
    count = ordered.shape[1]
    if torch.compiler.is_compiling():  # ONNX has no search
        below = (ordered[:, None] <= columns[:, :, None]).to(torch.float64).sum(dim=2)
        above = (ordered[:, None] >= columns[:, :, None]).to(torch.float64).sum(dim=2)
    else:
        below = torch.searchsorted(ordered, columns, right=True)
        above = count - torch.searchsorted(ordered, columns)
    fewer = torch.minimum(below, above).T.to(torch.float64)
    return (2 * (1 + fewer) / (count + 1)).clamp_max_(1)
