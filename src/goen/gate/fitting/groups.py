"""Groups of held-out images that depend on each other: the scene, patient or video of each."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from goen.errors import UsageError

Groups: TypeAlias = Sequence[str] | Sequence[int] | NDArray[Any] | torch.Tensor
"""The name or number of the group of each held-out image, in their order."""


def number_groups(groups: Groups, count: int | None) -> NDArray[np.int64]:
    """The groups as numbers ``(n,)`` from 0, in the order of their names.

    Args:
        groups: as a user gives them.
        count: of held-out images, if it is known.

    Raises:
        UsageError: an image without a group, or another number of images.

    Example:
        >>> number_groups(["b", "a", "b"], 3).tolist()
        [1, 0, 1]
    """
    values = groups.numpy(force=True) if isinstance(groups, torch.Tensor) else np.asarray(groups)
    if values.dtype.kind == "O" and all(isinstance(one, str) for one in values.flat):
        values = values.astype(str)
    if values.ndim != 1 or values.dtype.kind not in "iuUS":
        raise UsageError(
            "groups are a name or a whole number for each held-out image, (N,); got "
            f"{values.dtype} of shape {values.shape}. An image of its own is a group of one."
        )
    require_one_each(values, count)
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def require_one_each(groups: NDArray[Any], count: int | None) -> None:
    """Raise a UsageError unless there are as many groups as held-out images."""
    if count is not None and len(groups) != count:
        raise UsageError(f"{count:,} held-out images need a group each, got {len(groups):,}.")
