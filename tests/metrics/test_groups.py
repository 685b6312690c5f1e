"""`group_averages`: seen and unseen never meet, except in the paper's own number."""

import numpy as np
import pytest

from goen.errors import UsageError
from goen.metrics import SeenUnseen, group_averages

GROUPS = {
    "svhn": "far",
    "cifar100": "near",
    "tiny": "near",
    "dtd": "far",
    "mnist": "far",
    "noise": "noise",
}
VALUES = {"svhn": 0.9, "cifar100": 0.8, "tiny": 0.6, "dtd": 0.7, "mnist": 0.5, "noise": 1.0}
PAPER = ("svhn", "cifar100", "noise")


def test_averages_worked_by_hand():
    a = group_averages(VALUES, groups=GROUPS, seen={"svhn", "noise"}, paper_sets=PAPER)
    assert a.seen == pytest.approx(0.95, abs=1e-12)
    assert a.unseen == pytest.approx((0.8 + 0.6 + 0.7 + 0.5) / 4, abs=1e-12)
    assert a.near.seen is None
    assert a.near.unseen == pytest.approx(0.7, abs=1e-12)
    assert a.far == SeenUnseen(seen=0.9, unseen=pytest.approx(0.6, abs=1e-12))
    assert a.noise == SeenUnseen(seen=1.0, unseen=None)
    assert a.paper_average == pytest.approx(0.9, abs=1e-12)
    assert a.seen_sets == ("noise", "svhn")
    assert a.unseen_sets == ("cifar100", "dtd", "mnist", "tiny")


def test_the_papers_table_gives_the_papers_average():
    goen = {"svhn": 0.9372, "cifar100": 0.9079, "noise": 1.0}
    a = group_averages(goen, groups=GROUPS, seen={"svhn", "noise"}, paper_sets=PAPER)
    assert a.paper_average == pytest.approx(0.9483, abs=1e-4)
    assert a.unseen == 0.9079


def test_an_average_of_two_is_not_passed_off_as_the_papers_three():
    some = {name: VALUES[name] for name in ("svhn", "noise", "dtd")}
    assert group_averages(some, groups=GROUPS, seen=(), paper_sets=PAPER).paper_average is None
    assert group_averages(some, groups=GROUPS, seen=()).paper_average is None


def test_nothing_seen_means_everything_unseen():
    a = group_averages(VALUES, groups=GROUPS, seen=())
    assert a.seen is None
    assert a.unseen == pytest.approx(np.mean(list(VALUES.values())), abs=1e-12)


def test_a_set_seen_in_calibration_may_be_absent_from_the_values():
    a = group_averages({"dtd": 0.5}, groups=GROUPS, seen={"noise"})
    assert (a.seen, a.unseen, a.seen_sets) == (None, 0.5, ())


def test_order_of_the_sets_does_not_matter():
    backwards = dict(reversed(VALUES.items()))
    kw = {"groups": GROUPS, "seen": {"svhn"}, "paper_sets": PAPER}
    assert group_averages(VALUES, **kw) == group_averages(backwards, **kw)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"values": {}}, "values is empty"),
        ({"values": {"svnh": 0.5}}, "Unknown OOD set 'svnh'. Did you mean 'svhn'"),
        ({"values": {"svhn": float("nan")}}, "NaN for svhn"),
        ({"seen": {"nose"}}, "Did you mean 'noise'"),
        ({"seen": "noise"}, "pass a set, not one string"),
        ({"groups": GROUPS | {"dtd": "texture"}}, "Unknown group 'texture'"),
        ({"paper_sets": ("svhn", "noise")}, "paper_sets must name three sets"),
        ({"paper_sets": ("svhn", "svhn", "noise")}, "paper_sets must name three sets"),
        ({"paper_sets": ("svhn", "cifar10", "noise")}, "Unknown OOD set 'cifar10'"),
    ],
)
def test_what_cannot_be_meant_is_a_clear_error(change, message):
    arguments = {"values": VALUES, "groups": GROUPS, "seen": {"svhn"}} | change
    with pytest.raises(UsageError, match=message):
        group_averages(arguments.pop("values"), **arguments)
