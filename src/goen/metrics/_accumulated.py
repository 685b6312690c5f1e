"""OOD metrics of a stream of batches, as in a validation loop: ``OODMetrics``."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from goen.checks import check_number
from goen.errors import UsageError
from goen.metrics._inputs import Floats, as_booleans, as_floats
from goen.metrics._ood import OODResult, ood_metrics


class OODMetrics:
    """Collects scores batch by batch: ``update``, ``compute`` and ``reset``, as in torchmetrics.

    The metrics are ranks over all images, so the scores are kept, 8 bytes each, and every value is
    that of ``ood_metrics`` on all of them: no bins, no mean over batches. It can be pickled, so
    processes can exchange it: ``torch.distributed.all_gather_object``, then ``merge_state``.

    Args:
        level: confidence level of the AUROC interval.

    Example:
        >>> metric = OODMetrics()
        >>> metric.update([0.1, 0.2, 0.4], is_ood=[False, False, True])
        >>> metric.update([0.3, 0.6, 0.8], is_ood=[0, 0, 1])
        >>> metric.compute().auroc
        0.875
        >>> metric.reset()
        >>> len(metric)
        0
    """

    def __init__(self, *, level: float = 0.95) -> None:
        check_number("level", level, above=0, below=1)
        self.level = level
        self._scores: list[Floats] = []
        self._is_ood: list[npt.NDArray[np.bool_]] = []

    def __len__(self) -> int:
        """Scores so far."""
        return sum(map(len, self._scores))

    def __repr__(self) -> str:
        num_ood = sum(int(part.sum()) for part in self._is_ood)
        return f"OODMetrics({len(self) - num_ood:,} ID scores, {num_ood:,} OOD scores)"

    def update(self, scores: npt.ArrayLike, is_ood: npt.ArrayLike) -> None:
        """Add the scores of a batch.

        Args:
            scores: ``(N,)``, higher means more OOD; an array or a tensor on any device.
            is_ood: ``(N,)`` booleans, or 1 for OOD and 0 for ID; or one of them for all.

        Raises:
            UsageError: other shapes or values, or NaN. Nothing of the batch is added then.
        """
        values = _on_cpu(scores)
        if np.shape(values) == (0,):
            return  # the last batch of a sampler may be empty
        added = as_floats(values, "scores")
        given = np.asarray(_on_cpu(is_ood))
        if not given.ndim:
            given = np.full(added.shape, given)
        self._is_ood.append(as_booleans(given, "is_ood", added.size).astype(np.bool_))
        self._scores.append(added.copy())

    def compute(self) -> OODResult:
        """The metrics of all scores since the last ``reset``; more may be added after it.

        Raises:
            UsageError: there are no ID scores or no OOD scores.
        """
        scores = np.concatenate([np.zeros(0), *self._scores])
        is_ood = np.concatenate([np.zeros(0, np.bool_), *self._is_ood])
        if is_ood.all() or not is_ood.any():
            raise UsageError(
                f"OOD metrics compare ID scores with OOD scores: {self!r} has none of one kind. "
                "Call update with images of both before compute."
            )
        return ood_metrics(scores[~is_ood], scores[is_ood], level=self.level)

    def reset(self) -> None:
        """Forget all scores."""
        self._scores.clear()
        self._is_ood.clear()

    def merge_state(self, incoming_state: OODMetrics) -> None:
        """Add the scores of another one, such as that of another process."""
        self._scores += incoming_state._scores
        self._is_ood += incoming_state._is_ood


def _on_cpu(values: Any) -> Any:
    """A tensor as an array, without importing torch; anything else as it is."""
    if not hasattr(values, "detach"):
        return values
    held = values.detach().cpu()
    # NumPy has no bfloat16.
    return (held.double() if held.is_floating_point() else held).numpy()
