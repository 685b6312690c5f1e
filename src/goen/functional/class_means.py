"""The mean of the rows of each class."""

import torch
from torch import Tensor

from goen.functional._rows import blocks, cached_blocks


def class_means(rows: Tensor, classes: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """The mean ``(C, D)`` float64 of each class's rows, and how many there are, ``(C,)`` int64.

    A class without rows has a mean of zeros.

    Args:
        rows: ``(N, D)``.
        classes: ``(N,)``, each in 0 .. C - 1, or -1 for a row that does not count.
        num_classes: C.

    Example:
        >>> rows = torch.tensor([[1.0], [3.0], [7.0]])
        >>> means, counts = class_means(rows, torch.tensor([1, 1, -1]), 2)
        >>> means.tolist(), counts.tolist()
        ([[0.0], [2.0]], [0, 2])
    """
    place = classes.to(rows.device, torch.int64) + 1  # rows that do not count come first
    sums = torch.zeros(num_classes + 1, rows.shape[1], dtype=torch.float64, device=rows.device)
    for block in blocks(len(rows)):
        sums.index_add_(0, place[block], rows[block].to(torch.float64))
    counts = torch.bincount(place, minlength=num_classes + 1)[1:]
    return sums[1:] / counts.clamp_min(1)[:, None], counts


def mean_row(rows: Tensor) -> Tensor:
    """The mean ``(D,)`` float64 of rows ``(N, D)``.

    From the first row, as an average of large equal numbers would round.

    Example:
        >>> mean_row(torch.tensor([[1.0, 2.0], [3.0, 2.0]]))
        tensor([2., 2.], dtype=torch.float64)
    """
    first = rows[0].to(torch.float64)
    total = torch.zeros_like(first)
    for block in cached_blocks(len(rows), len(first), rows.device):
        total += (rows[block].to(torch.float64) - first).sum(dim=0)
    return first + total / len(rows)


def correct_classes(logits: Tensor, labels: Tensor) -> Tensor:
    """The label ``(N,)`` of each row that is classified as labelled, and -1 for the others.

    Example:
        >>> correct_classes(torch.eye(2), torch.tensor([0, 0])).tolist()
        [0, -1]
    """
    labels = labels.to(logits.device, torch.int64)
    return torch.where(logits.argmax(dim=1) == labels, labels, -1)
