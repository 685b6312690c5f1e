"""Averages over OOD sets that keep seen and unseen apart: `group_averages`."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import fsum

import numpy as np

from goen.errors import UsageError, unknown

GROUPS = ("near", "far", "noise")


@dataclass(frozen=True, slots=True)
class SeenUnseen:
    """Two means that are never mixed; None where there is no such set."""

    seen: float | None
    unseen: float | None


@dataclass(frozen=True, slots=True)
class GroupAverages:
    """Means of one metric over OOD sets, every set weighing the same.

    Attributes:
        seen: over the sets of which some images helped to calibrate; None if there are none.
        unseen: over the sets that nothing has seen: the number to believe.
        near: over near-OOD sets, seen and unseen apart.
        far: over far-OOD sets, seen and unseen apart.
        noise: over noise sets, seen and unseen apart.
        paper_average: the GOEN paper's headline, the plain mean of its three sets whether seen
            or not; None unless all three are there.
        seen_sets: names behind ``seen``.
        unseen_sets: names behind ``unseen``.
    """

    seen: float | None
    unseen: float | None
    near: SeenUnseen
    far: SeenUnseen
    noise: SeenUnseen
    paper_average: float | None
    seen_sets: tuple[str, ...]
    unseen_sets: tuple[str, ...]


def group_averages(
    values: Mapping[str, float],
    *,
    groups: Mapping[str, str],
    seen: Collection[str],
    paper_sets: Collection[str] | None = None,
) -> GroupAverages:
    """Averages of one metric over OOD sets: seen, unseen, near, far, noise, and the paper's.

    Args:
        values: the metric by set name. A set that could not be had is simply absent.
        groups: ``near``, ``far`` or ``noise`` for every set; may name absent sets.
        seen: names of the sets used in calibration, be it through other images of the same set.
            Empty means that none was; there is no default, so that it is never forgotten.
        paper_sets: the three sets of the paper's plain average.

    Raises:
        UsageError: no values, a set without a group, an unknown group or name, NaN.

    Example:
        >>> a = group_averages(
        ...     {"svhn": 0.75, "cifar100": 0.5, "noise": 1.0, "dtd": 0.625},
        ...     groups={"svhn": "far", "cifar100": "near", "noise": "noise", "dtd": "far"},
        ...     seen={"svhn", "noise"},
        ...     paper_sets={"svhn", "cifar100", "noise"},
        ... )
        >>> a.seen, a.unseen, a.far, a.paper_average
        (0.875, 0.5625, SeenUnseen(seen=0.75, unseen=0.625), 0.75)
    """
    _check(values, groups, seen, paper_sets)

    def mean(names: Collection[str]) -> float | None:
        return fsum(values[name] for name in names) / len(names) if names else None

    def apart(group: str) -> SeenUnseen:
        members = [name for name in values if groups[name] == group]
        return SeenUnseen(
            seen=mean([name for name in members if name in seen]),
            unseen=mean([name for name in members if name not in seen]),
        )

    seen_sets = tuple(sorted(name for name in values if name in seen))
    unseen_sets = tuple(sorted(name for name in values if name not in seen))
    three = set(paper_sets or ())
    return GroupAverages(
        seen=mean(seen_sets),
        unseen=mean(unseen_sets),
        near=apart("near"),
        far=apart("far"),
        noise=apart("noise"),
        paper_average=mean(three) if three <= values.keys() else None,
        seen_sets=seen_sets,
        unseen_sets=unseen_sets,
    )


def _check(
    values: Mapping[str, float],
    groups: Mapping[str, str],
    seen: Collection[str],
    paper_sets: Collection[str] | None,
) -> None:
    if isinstance(seen, str) or isinstance(paper_sets, str):
        raise UsageError("seen and paper_sets take several names: pass a set, not one string.")
    if not values:
        raise UsageError("values is empty: there is no OOD set to average over.")
    for name in (*values, *seen, *(paper_sets or ())):
        if name not in groups:
            raise unknown("OOD set", name, groups)
    for group in groups.values():
        if group not in GROUPS:
            raise unknown("group", group, GROUPS)
    if bad := sorted(name for name, value in values.items() if np.isnan(value)):
        raise UsageError(f"values must be numbers, got NaN for {', '.join(bad)}.")
    if paper_sets is not None and len(set(paper_sets)) != 3:
        raise UsageError(f"paper_sets must name three sets, got {sorted(set(paper_sets))}.")
