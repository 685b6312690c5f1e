"""The p-value of a whole group: an image of several boxes, a video, a patient."""

import numpy as np
from numpy.typing import NDArray

from goen.errors import UsageError
from goen.functional.conformal import p_values_of_sorted
from goen.functional.ranking import Floats
from goen.gate.base import BaseGate


def group_p_values(
    gate: BaseGate, scores: Floats, groups: NDArray[np.int64], num_groups: int | None = None
) -> Floats:
    """The p-value of each group of images, or of boxes, by the highest score in it.

    p = (1 + #{held-out groups whose highest score is >= that of this one}) / (G + 1). A new ID
    group has p <= rate with probability at most the rate if groups are exchangeable, whatever
    their sizes and however much their members depend on each other: flag the group as a whole. It
    needs held-out images in groups, see ``fit``.

    Args:
        scores: ``(N,)``, of a prediction.
        groups: ``(N,)``, the number of each one's group, from 0.
        num_groups: of which those without a member have p = 1; by default the highest number and 1.

    A score that is not finite gives the least p-value.

    Raises:
        UsageError: the held-out images come in no groups, another number of groups than scores, or
            groups that are no numbers below ``num_groups``.
    """
    held_out, numbers = gate.held_out, np.asarray(groups)
    if held_out.groups is None:
        raise UsageError(
            "A p-value of a group compares it with held-out groups, and the held-out images of "
            "this gate come in none: fit it with groups=."
        )
    if not numbers.size:
        numbers = numbers.astype(np.int64)  # an empty list has no type
    if (
        numbers.shape != np.shape(scores)
        or numbers.dtype.kind not in "iu"
        or numbers.min(initial=0) < 0
    ):
        raise UsageError(
            f"groups are whole numbers from 0, one for each of {len(scores):,} scores; got "
            f"{numbers.size:,} of {numbers.dtype}."
        )
    highest = int(numbers.max(initial=-1))
    count = highest + 1 if num_groups is None else num_groups
    if highest >= count:
        raise UsageError(
            f"groups are numbered from 0, so {count:,} groups have numbers up to {count - 1:,}; "
            f"got {highest:,}."
        )
    known = _highest(held_out.scores, held_out.groups, held_out.independent)
    own = np.where(np.isnan(scores), np.inf, scores) - gate.score_tolerance
    found = _highest(own, numbers, count)
    return p_values_of_sorted(found, np.sort(known))


def _highest(scores: Floats, groups: NDArray[np.int64], count: int) -> Floats:
    highest = np.full(count, -np.inf)
    np.maximum.at(highest, groups, scores)
    return highest
