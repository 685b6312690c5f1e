"""Which of several methods is the best on the same images, and which are within chance of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy.typing as npt

from goen.errors import UsageError
from goen.functional.ranking import auroc, tally
from goen.io.manifest import JsonObject, Manifest
from goen.metrics._inputs import as_floats
from goen.metrics._uncertainty import holm, paired_mean_auroc_test

SIGNIFICANCE = 0.05
"""Of paired tests: a larger p-value is within chance."""


@dataclass(frozen=True)
class Ranking:
    """Methods by their mean AUROC over the same OOD sets.

    Attributes:
        sets: the OOD sets that the mean is over.
        means: mean AUROC by method, the highest first.
        p_values: of the difference of each other method from the best.
    """

    sets: tuple[str, ...]
    means: Mapping[str, float]
    p_values: Mapping[str, float]

    @property
    def best(self) -> str:
        """The method with the highest mean."""
        return next(iter(self.means))

    @property
    def within_chance(self) -> list[str]:
        """The others that are not significantly worse at 5 %, the best of them first."""
        return [m for m in self.means if self.p_values.get(m, 0.0) > SIGNIFICANCE]

    def describe(self, titles: Mapping[str, str]) -> str:
        """The result in a sentence.

        Args:
            titles: of the methods, by key.

        Example:
            >>> Ranking(("noise",), {"knn": 0.9, "gen": 0.8}, {"gen": 0.2}).describe({})
            'best: knn (mean AUROC 0.900), within chance of it: gen (0.800)'
        """
        within = ", ".join(f"{titles.get(m, m)} ({self.means[m]:.3f})" for m in self.within_chance)
        best = f"{titles.get(self.best, self.best)} (mean AUROC {self.means[self.best]:.3f})"
        none = "" if self.means[self.best] > 0.5 else ", no better than a random score"
        return f"best: {best}{none}, within chance of it: {within or 'none'}"

    def to_json(self) -> JsonObject:
        """For manifests."""
        return {
            "sets": [*self.sets],
            "means": dict(self.means),
            "p_values": dict(self.p_values),
        }

    @classmethod
    def from_json(cls, content: JsonObject) -> Ranking:
        """What ``to_json`` gave.

        Raises:
            ValueError: something else; the message names the field.
        """
        own = Manifest(content)
        means, p_values = own.part("means"), own.part("p_values")
        found = {method: means.number(method) for method in means.content}
        return cls(
            own.texts("sets"),
            dict(sorted(found.items(), key=lambda item: -item[1])),
            {method: p_values.number(method) for method in p_values.content},
        )


def rank_methods(
    id_scores: Mapping[str, npt.ArrayLike],
    ood_scores: Mapping[str, Mapping[str, npt.ArrayLike]],
) -> Ranking:
    """The methods by their mean AUROC over the OOD sets, and what chance may have ordered.

    Every other method is compared with the best by ``paired_mean_auroc_test``, with Holm's
    correction for the number of methods. That the best was chosen on these images is not part of
    the test, nor is the spread over trainings.

    Args:
        id_scores: by method, scores of the same ID images ``(N,)``; higher means more OOD.
        ood_scores: by method and OOD set, scores of the same OOD images.

    Raises:
        UsageError: no method, or sets that the methods do not share.

    Example:
        >>> ranking = rank_methods(
        ...     {"a": [0.1, 0.2, 0.3, 0.4], "b": [0.1, 0.2, 0.3, 0.4]},
        ...     {"a": {"x": [0.1, 0.9]}, "b": {"x": [0.6, 0.9]}},
        ... )
        >>> ranking.best, ranking.means["a"], ranking.within_chance
        ('b', 0.5625, ['a'])
    """
    if not id_scores or id_scores.keys() != ood_scores.keys():
        raise UsageError(
            "Each method needs scores of ID and of OOD images; got ID scores of "
            f"{', '.join(id_scores) or 'none'} and OOD scores of {', '.join(ood_scores) or 'none'}."
        )
    means = {
        method: sum(_auroc(id_, ood) for ood in ood_scores[method].values())
        / max(len(ood_scores[method]), 1)
        for method, id_ in id_scores.items()
    }
    best = max(means, key=lambda method: means[method])
    others = [method for method in means if method != best]
    tested = [
        paired_mean_auroc_test(
            id_a=id_scores[best],
            ood_a=ood_scores[best],
            id_b=id_scores[method],
            ood_b=ood_scores[method],
        ).p_value
        for method in others
    ]
    return Ranking(
        tuple(ood_scores[best]),
        dict(sorted(means.items(), key=lambda item: -item[1])),
        dict(zip(others, holm(tested) if tested else [], strict=True)),
    )


def _auroc(id_: npt.ArrayLike, ood: npt.ArrayLike) -> float:
    return float(auroc(tally(as_floats(id_, "id_scores"), as_floats(ood, "ood_scores"))))
