"""Each field is read with its type; what has another type is named, with what was expected."""

import sys
from collections.abc import Callable

import pytest

from goen.io.manifest import JsonValue, Manifest

GETTERS: dict[str, Callable[[Manifest], object]] = {
    "text": lambda m: m.text("x"),
    "flag": lambda m: m.flag("x"),
    "number": lambda m: m.number("x"),
    "texts": lambda m: m.texts("x"),
    "numbers": lambda m: m.numbers("x"),
    "counts": lambda m: m.counts("x"),
    "count": lambda m: m.count("x"),
    "integer": lambda m: m.integer("x"),
    "part": lambda m: m.part("x").content,
    "parts": lambda m: [part.content for part in m.parts("x")],
}


@pytest.mark.parametrize(
    ("getter", "value", "expected"),
    [
        ("text", "a", "a"),
        ("text", "", ""),
        ("flag", True, True),
        ("flag", False, False),
        ("number", 2, 2.0),
        ("number", 0.5, 0.5),
        ("number", -sys.float_info.max, -sys.float_info.max),
        ("texts", ["a", "b"], ("a", "b")),
        ("texts", [], ()),
        ("numbers", [1, 0.5], (1.0, 0.5)),
        ("numbers", [], ()),
        ("counts", [1, 32], (1, 32)),
        ("counts", [], ()),
        ("count", 32, 32),
        ("count", 2**63 - 1, 2**63 - 1),
        ("integer", -(2**63), -(2**63)),
        ("integer", 0, 0),
        ("parts", [{"y": 1}, {}], [{"y": 1}, {}]),
        ("parts", [], []),
        ("part", {"y": 1}, {"y": 1}),
        ("part", {}, {}),
    ],
)
def test_a_field_of_its_type_is_read(getter: str, value: JsonValue, expected: object) -> None:
    found = GETTERS[getter](Manifest({"x": value}))
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("getter", "value", "message"),
    [
        ("text", 5, "its x should be text, got '5'"),
        ("text", None, "its x should be text, got 'None'"),
        ("text", ["a"], "its x should be text, got \"['a']\""),
        ("flag", 1, "its x should be true or false, got '1'"),
        ("flag", "true", "its x should be true or false, got 'true'"),
        ("flag", None, "its x should be true or false, got 'None'"),
        ("number", "high", "its x should be a number, got 'high'"),
        ("number", True, "its x should be a number, got 'True'"),
        ("number", float("nan"), "its x should be a finite number, got 'nan'"),
        ("number", float("-inf"), "its x should be a finite number, got '-inf'"),
        ("number", 10**309, f"its x should be a finite number, got '1{79 * '0'}'"),
        ("texts", "ab", "its x should be a list of texts, got 'ab'"),
        ("texts", ["a", 1], "its x should be a list of texts, got \"['a', 1]\""),
        ("numbers", 0.5, "its x should be a list of numbers, got '0.5'"),
        ("numbers", [1, "b"], "its x should be a number, got 'b'"),
        ("numbers", [1, False], "its x should be a number, got 'False'"),
        ("counts", 3, "its x should be a list of whole numbers above 0, got '3'"),
        ("counts", [3, 0], "its x should be a list of whole numbers above 0, got '[3, 0]'"),
        ("counts", [2.0], "its x should be a list of whole numbers above 0, got '[2.0]'"),
        ("counts", [True], "its x should be a list of whole numbers above 0, got '[True]'"),
        ("count", 2**63, "its x should be a whole number above 0, got '9223372036854775808'"),
        (
            "counts",
            [2**63],
            "its x should be a list of whole numbers above 0, got '[9223372036854775808]'",
        ),
        ("integer", 2**63, "its x should be a whole number, got '9223372036854775808'"),
        ("integer", -(2**63) - 1, "its x should be a whole number, got '-9223372036854775809'"),
        ("integer", 1.0, "its x should be a whole number, got '1.0'"),
        ("integer", True, "its x should be a whole number, got 'True'"),
        ("count", 0, "its x should be a whole number above 0, got '0'"),
        ("count", 2.0, "its x should be a whole number above 0, got '2.0'"),
        ("count", True, "its x should be a whole number above 0, got 'True'"),
        ("parts", {"y": 1}, "its x should be a list of objects, got \"{'y': 1}\""),
        ("parts", [{}, 1], "its x should be an object, got '1'"),
        ("part", [], "its x should be an object, got '[]'"),
        ("part", "y", "its x should be an object, got 'y'"),
    ],
)
def test_a_field_of_another_type_is_named(getter: str, value: JsonValue, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the whole message is compared)
        GETTERS[getter](Manifest({"x": value}))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("getter", "kind"),
    [
        ("text", "text"),
        ("flag", "true or false"),
        ("number", "a number"),
        ("texts", "a list of texts"),
        ("numbers", "a list of numbers"),
        ("counts", "a list of whole numbers above 0"),
        ("count", "a whole number above 0"),
        ("integer", "a whole number"),
        ("part", "an object"),
        ("parts", "a list of objects"),
    ],
)
def test_a_missing_field_is_named(getter: str, kind: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the whole message is compared)
        GETTERS[getter](Manifest({"y": 1}))
    assert str(caught.value) == f"it has no x, which should be {kind}"


def test_a_missing_flag_may_have_a_default() -> None:
    assert Manifest({}).flag("x", True) is True
    assert Manifest({}).flag("x", False) is False
    assert Manifest({"x": False}).flag("x", True) is False


def test_a_field_that_is_null_counts_as_absent() -> None:
    manifest = Manifest({"x": None, "y": False, "z": 0})
    assert "x" not in manifest
    assert "w" not in manifest
    assert "y" in manifest
    assert "z" in manifest


def test_a_long_value_is_cut() -> None:
    with pytest.raises(ValueError, match=r"got 'a{80}'$"):
        Manifest({"x": 100 * "a"}).number("x")


def test_fields_of_a_part_are_named_with_where_they_are() -> None:
    manifest = Manifest({"a": {"b": {"c": 1}, "d": [{"e": 1}], "f": [1, "x"]}})
    with pytest.raises(ValueError, match=r"^its a\.b\.c should be text, got '1'$"):
        manifest.part("a").part("b").text("c")
    with pytest.raises(ValueError, match=r"^it has no a\.b\.g, which should be text$"):
        manifest.part("a").part("b").text("g")
    with pytest.raises(ValueError, match=r"^its a\.d\.e should be text, got '1'$"):
        manifest.part("a").parts("d")[0].text("e")
    with pytest.raises(ValueError, match=r"^its a\.f should be a number, got 'x'$"):
        manifest.part("a").numbers("f")


def test_unknown_fields_are_named() -> None:
    manifest = Manifest({"a": 1, "b": 2, "c": 3, "d": 4, "\x1b": 5}, "network.")
    manifest.check_names(["a", "b", "c", "d", "\x1b", "e"])
    with pytest.raises(
        ValueError, match=r"unknown fields: 'network\.\\x1b', 'network\.b', .*, \.\.\.$"
    ):
        manifest.check_names(["a"])
