import inspect

import numpy as np
import pytest

from goen.errors import DataCorrupt, GoenWarning, UsageError, first_of, unknown
from goen.gate import Gate


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("a.npz cannot be read: it is broken..", "a.npz cannot be read: it is broken."),
        ("Line 1: expected ).. Give another.", "Line 1: expected ). Give another."),
        ("Known: a, b, ...", "Known: a, b, ..."),
        ("It is in ../here, or in ..", "It is in ../here, or in .."),
    ],
)
def test_a_sentence_has_one_full_stop(message: str, shown: str) -> None:
    assert str(UsageError(message)) == shown
    assert str(DataCorrupt(message)) == shown


def test_the_known_names_are_listed_and_the_nearest_is_offered() -> None:
    assert str(unknown("feature", "lat", ["late", "early"])) == (
        "Unknown feature 'lat'. Did you mean 'late'? Known: early, late."
    )


def test_of_many_names_the_first_are_shown() -> None:
    assert [first_of("abcd"[:count], 3) for count in (0, 1, 3, 4)] == [
        "", "a", "a, b, c", "a, b, c, ...",
    ]  # fmt: skip


def test_where_nothing_is_known_the_error_says_so() -> None:
    assert str(unknown("feature", "z", [])) == "Unknown feature 'z'. There are none."


def test_a_warning_points_at_the_line_outside_of_goen() -> None:
    few = np.concatenate([np.random.default_rng(0).normal(size=(20, 3))] * 10)
    rows = np.random.default_rng(1).normal(size=(60, 3))
    with pytest.warns(GoenWarning) as caught:
        Gate.fit_outputs(rows, None, few)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    assert any("are copies of others" in str(each.message) for each in caught)
    assert {(each.filename, each.lineno) for each in caught} == {(__file__, line)}
