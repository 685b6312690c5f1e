"""Every method on every network: ranks, means, intervals and marks by hand."""

from collections.abc import Mapping
from statistics import mean, stdev

import pytest
from scipy.stats import t

from goen.io.results import Group, Origin, Result
from goen.report.board import Entry, NetworkBoard, board_tables, networks
from goen.report.summary import Study, Summary
from goen.report.table import Cell, Table

GROUPS: Mapping[str, Group] = {
    "cifar100": "near",
    "cifar100-rest": "near",
    "tiny-imagenet": "near",
    "svhn": "far",
    "mnist": "far",
    "noise": "noise",
}
Values = Mapping[str, float]


def study(
    values: Mapping[str, Values],
    seed: int = 42,
    *,
    data: str = "cifar10",
    preset: str = "short",
    kinds: Mapping[str, str] | None = None,
    seen: Mapping[str, set[str]] | None = None,
    wide: float | None = 0.01,
) -> Study:
    """A study of goen bench: the AUROC of each method on each set, with such an interval."""
    results: list[Result] = []
    for method, by_set in values.items():
        origin = Origin(method, "full", seed, "backbone", (), (), 1.5)
        for name, value in by_set.items():
            numbers = {"auroc": value}
            if wide is not None:
                numbers |= {"auroc_low": value - wide, "auroc_high": value + 2 * wide}
            of_method = (seen or {}).get(method, set())
            group: Group = GROUPS.get(name, "near")
            results += origin.rows(name, group, numbers, seen=name in of_method)
    content = {
        "study": "bench",
        "data": data,
        "config": {"preset": preset},
        "titles": {method: [f"title of {method}", "other"] for method in values},
        "uses_ood": list(seen or {}),
        "networks": dict(kinds or {}),
    }
    return Study(results, Summary.from_json(content))


def board(*studies: Study) -> NetworkBoard:
    (found,) = networks({f"study {number}": one for number, one in enumerate(studies)})
    return found


def entry(found: NetworkBoard, key: str) -> Entry:
    return next(one for one in found.entries if one.key == key)


def cells(table: Table, label: str) -> dict[str, Cell]:
    row = next(row for row in table.rows if row.label == label)
    return dict(zip(table.columns, row.cells, strict=True))


def test_the_mean_rank_by_hand() -> None:
    # svhn: knn, energy, vim; mnist: energy and knn tie for the first place, vim the third.
    found = board(
        study(
            {
                "knn": {"svhn": 0.9, "mnist": 0.8},
                "energy": {"svhn": 0.8, "mnist": 0.8},
                "vim": {"svhn": 0.7, "mnist": 0.2},
            }
        )
    )
    assert found.ranks(()) == {"knn": 1.25, "energy": 1.75, "vim": 3.0}
    assert found.ranks({"mnist"}) == {"knn": 1.0, "energy": 2.0, "vim": 3.0}
    assert found.ranks({"mnist", "svhn"}) == {}


def test_ranks_are_over_the_seeds_that_have_every_method() -> None:
    first = study({"knn": {"svhn": 0.9}, "energy": {"svhn": 0.8}, "odin": {"svhn": 0.85}})
    second = study({"knn": {"svhn": 0.1}, "energy": {"svhn": 0.8}}, seed=123)
    assert board(first, second).ranks(()) == {"knn": 1.0, "energy": 3.0, "odin": 2.0}
    both = study({"knn": {"svhn": 0.1}, "energy": {"svhn": 0.8}, "odin": {"svhn": 0.5}}, seed=123)
    assert board(first, both).ranks(()) == {"knn": 2.0, "energy": 2.0, "odin": 2.0}


def test_only_the_sets_that_every_method_has_are_averaged() -> None:
    found = board(study({"knn": {"svhn": 0.9, "mnist": 0.7}, "energy": {"svhn": 0.8}}))
    assert found.common == ["svhn"]
    assert entry(found, "knn").cell(found.parts("far")).value == 0.9


def test_the_halves_of_cifar100_count_once() -> None:
    values = {"cifar100": 0.9, "cifar100-rest": 0.7, "tiny-imagenet": 0.6}
    found = board(study({"knn": values}))
    assert found.parts("near") == [["cifar100", "cifar100-rest"], ["tiny-imagenet"]]
    near = entry(found, "knn").cell(found.parts("near"))
    assert near.value == pytest.approx((0.8 + 0.6) / 2)
    assert near.low == pytest.approx(0.7 - 0.01)
    assert near.high == pytest.approx(0.7 + 0.02)
    without = {"cifar100": 0.9, "tiny-imagenet": 0.6}
    fewer = board(study({"knn": without}))
    assert fewer.parts("near") == [["cifar100"], ["tiny-imagenet"]]


def test_the_interval_over_seeds_is_students() -> None:
    of_seeds = {42: 0.9, 123: 0.8, 2024: 0.82}
    found = board(*(study({"knn": {"svhn": value}}, seed) for seed, value in of_seeds.items()))
    cell = entry(found, "knn").cell([["svhn"]])
    values = list(of_seeds.values())
    reach = t.ppf(0.975, 2) * stdev(values) / 3**0.5
    assert cell.value == pytest.approx(mean(values))
    assert (cell.low, cell.high) == pytest.approx((mean(values) - reach, mean(values) + reach))


def test_without_intervals_over_images_it_is_over_the_sets() -> None:
    values = {"a": 0.9, "b": 0.8, "c": 0.82}
    cell = entry(board(study({"knn": values}, wide=None)), "knn").cell([["a"], ["b"], ["c"]])
    reach = t.ppf(0.975, 2) * stdev(values.values()) / 3**0.5
    assert cell.high == pytest.approx(mean(values.values()) + reach)
    two = entry(board(study({"knn": values}, wide=None)), "knn").cell([["a"], ["b"]])
    assert (two.low, two.high) == (None, None)


def test_what_is_missing_is_empty() -> None:
    found = board(study({"knn": {"svhn": 0.9}}))
    assert entry(found, "knn").cell([["svhn"], ["mnist"]]) == Cell()
    assert entry(found, "knn").cell([]) == Cell()


def test_marks_of_calibration_and_of_the_wrong_way_round() -> None:
    values = {"svhn": 0.9, "mnist": 0.4999}
    kinds = dict.fromkeys(("goen", "knn"), "standard")
    found = board(study({"goen": values, "knn": values}, kinds=kinds, seen={"goen": {"svhn"}}))
    far = entry(found, "goen").cell(found.parts("far"))
    assert (far.seen, far.inverted) == (True, False)
    assert entry(found, "goen").cell([["mnist"]]).inverted
    assert not entry(found, "goen").cell([["mnist"]]).seen
    assert not entry(found, "knn").cell([["svhn"]]).seen


def test_a_method_has_one_name_on_all_networks_and_says_what_it_needs() -> None:
    values = {"svhn": 0.9}
    bench = study(
        {"goen": values, "goen_m_plain": values, "knn_multi_scale": values, "evidential": values},
        seen={"goen": {"svhn"}},
    )
    given = study({"goen": values, "own": values}, kinds={"goen": "given", "own": "given"})
    found = networks({"short": bench, "my network": given})
    needs = {board.title: {e.key: e.needs for e in board.entries} for board in found}
    assert needs == {
        "GOEN's network (preset short)": {
            "goen": ("feature", "OOD images"),
            "knn": ("feature",),
        },
        "ordinary network (preset short)": {"goen_m": ("feature", "held-out")},
        "networks trained for one method (preset short)": {"evidential": ("own training",)},
        "my network": {"goen_distance": ("feature",), "own": ()},
    }
    assert entry(found[-1], "own").title == "title of own"
    assert entry(found[-1], "goen_distance").title == "GOEN, distance only"


def test_a_later_study_replaces_the_numbers_of_an_earlier_one() -> None:
    found = board(study({"knn": {"svhn": 0.9}}), study({"knn": {"svhn": 0.7}}))
    assert entry(found, "knn").cell([["svhn"]]).value == 0.7


def test_the_published_figures_stand_apart_and_only_beside_cifar10() -> None:
    values = dict.fromkeys(GROUPS, 0.9)
    methods = {"knn": values, "mcm": values}
    first, other = study(methods), study(methods, data="digits")
    overview, table, digits = board_tables(networks({"a": first, "b": other}))
    assert overview.rows == ()  # ranks of two methods say nothing
    assert table.apart == table.columns.index("OpenOOD board: near")
    assert table.apart == len(table.columns) - 2
    knn = cells(table, "KNN")
    assert (knn["OpenOOD board: near"].value, knn["OpenOOD board: far"].value) == (0.9064, 0.9296)
    assert cells(table, "MCM, classifier weights")["OpenOOD board: near"].missing
    alone = cells(table, "NAC-UE")
    assert alone["OpenOOD board: near"].value == pytest.approx(0.9093)
    assert all(cell.missing for name, cell in alone.items() if not name.startswith("OpenOOD"))
    assert any("not ours" in note for note in table.notes)
    assert not any("OpenOOD" in text for text in (*digits.columns, *digits.notes))


def test_the_columns_and_their_order() -> None:
    values = dict(zip(reversed(GROUPS), (0.5, 0.6, 0.7, 0.8, 0.9, 0.95), strict=True))
    _, table = board_tables(networks({"a": study({"energy": values, "vim": values}, data="d")}))
    assert table.columns == (
        "network", "mean rank", "among", "near", "far", "cifar100-rest", "cifar100",
        "tiny-imagenet", "mnist", "svhn", "noise", "seeds", "fit and score s", "needs",
    )  # fmt: skip
    assert table.filters == ("network", "needs")
    energy = cells(table, "Energy")
    assert energy["needs"].text == "logits"
    assert energy["fit and score s"].value == 1.5
    assert energy["seeds"].text == "42"
    assert energy["network"].text == "ordinary network (preset short)"
    assert energy["mean rank"].mark == "tied"
    assert energy["among"].value == 2
    _, small = board_tables(networks({"a": study({"energy": values}, data="d")}), whole=False)
    assert small.columns == (
        "mean rank", "among", "near", "far", "seeds", "fit and score s", "needs",
    )  # fmt: skip
    assert small.rows[0].cells[0].missing  # a rank among one
    assert small.rows[0].cells[1].missing


def test_the_overview_by_hand() -> None:
    names = ("knn", "energy", "vim", "gen", "react", "fdbd")
    first = {name: {"svhn": 0.9 - number / 10} for number, name in enumerate(names)}
    second = {name: {"svhn": 0.4 + number / 10} for number, name in enumerate(names)}
    third = {**second, "entropy": {"svhn": 0.1}}
    kinds = dict.fromkeys(third, "given")
    found = networks(
        {
            "one": study(first, kinds=kinds),
            "two": study(second, kinds=kinds),
            "three": study(third, kinds=kinds),
        }
    )
    table = board_tables(found)[0]
    assert table.columns == (
        "relative rank", "networks", "one, of 6", "two, of 6", "three, of 7", "needs",
    )  # fmt: skip
    knn = cells(table, "KNN")
    assert [knn[name].value for name in table.columns[2:5]] == [1, 6, 6]
    assert knn["relative rank"].value == pytest.approx((0 + 1 + 5 / 6) / 3)
    assert knn["networks"].value == 3
    assert cells(table, "Entropy")["relative rank"].value == 1
    assert [row.label for row in table.rows][-1] == "Entropy"
    assert [name for name, _ in table.sections()] == [
        "measured on at least half of the networks",
        "measured on fewer than half of the networks",
    ]
    assert table.rows[0].label == "fDBD"
