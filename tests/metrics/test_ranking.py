"""Which method is the best, and what chance may have ordered."""

import numpy as np
import pytest

from goen.errors import UsageError
from goen.metrics import Ranking, holm, paired_mean_auroc_test, rank_methods

RNG = np.random.default_rng(0)
SHARED = RNG.normal(size=300)
ID = {"good": SHARED, "near": SHARED + 0.05 * RNG.normal(size=300), "bad": RNG.normal(size=300)}
OOD = {
    name: {kind: shift + RNG.normal(size=200) for kind in ("x", "y")}
    for name, shift in (("good", 1.5), ("bad", 0.2))
}
OOD["near"] = {kind: values + 0.05 * RNG.normal(size=200) for kind, values in OOD["good"].items()}


def test_the_p_values_are_those_of_the_paired_test_corrected() -> None:
    ranking = rank_methods(ID, OOD)
    assert [*ranking.means][-1] == "bad"
    best = ranking.best
    others = [name for name in ID if name != best]
    tested = [
        paired_mean_auroc_test(id_a=ID[best], ood_a=OOD[best], id_b=ID[name], ood_b=OOD[name])
        for name in others
    ]
    assert [ranking.p_values[name] for name in others] == holm([t.p_value for t in tested])
    for name, test in zip(others, tested, strict=True):
        assert ranking.means[name] == pytest.approx(test.auroc_b)
        assert ranking.means[best] == pytest.approx(test.auroc_a)
    assert ranking.within_chance == [name for name in ("good", "near") if name != best]


def test_by_hand() -> None:
    ranking = rank_methods({"a": [0, 1], "b": [0, 1]}, {"a": {"x": [0, 2]}, "b": {"x": [2, 3]}})
    assert (ranking.best, dict(ranking.means)) == ("b", {"b": 1.0, "a": 0.625})
    alone = rank_methods({"a": [0, 1]}, {"a": {"x": [2, 3]}})
    assert (alone.best, alone.within_chance, dict(alone.p_values)) == ("a", [], {})


def test_it_is_the_same_after_json() -> None:
    ranking = rank_methods(ID, OOD)
    again = Ranking.from_json(ranking.to_json())
    assert again == ranking
    assert [*again.means] == [*ranking.means]
    with pytest.raises(ValueError, match="means"):
        Ranking.from_json({"sets": ["x"], "means": 3, "p_values": {}})


def test_methods_without_scores_are_an_error() -> None:
    with pytest.raises(UsageError, match="Each method needs scores of ID and of OOD"):
        rank_methods({"a": [0, 1]}, {"b": {"x": [1, 2]}})
    with pytest.raises(UsageError, match="same sets"):
        rank_methods({"a": [0, 1], "b": [0, 1]}, {"a": {"x": [1, 2]}, "b": {"y": [1, 2]}})


def test_a_best_method_that_is_no_better_than_random_is_called_so() -> None:
    # A random score has an AUROC of one half.
    at_chance = Ranking(("a",), {"knn": 0.5, "gen": 0.4}, {"gen": 0.01})
    assert at_chance.describe({}) == (
        "best: knn (mean AUROC 0.500), no better than a random score, within chance of it: none"
    )
    assert "random" not in Ranking(("a",), {"knn": 0.51}, {}).describe({})
