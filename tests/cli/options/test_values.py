"""Values of options, and the errors for those that cannot be read."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
import tyro

from goen.cli.main import main
from goen.cli.options.values import VALUES


def command(
    count: int = 3,
    rate: float | None = None,
    out: Path | None = None,
    name: str | None = None,
    sizes: tuple[int, ...] = (1, 2),
    names: tuple[str, ...] = (),
    form: Literal["a", "b"] = "a",
    order: Annotated[Literal["up", "down"] | None, tyro.conf.arg(help_behavior_hint="")] = None,
    quiet: bool = False,
) -> list[object]:
    return [count, rate, out, name, sizes, names, form, order, quiet]


def parse(*words: str) -> list[object]:
    with VALUES:
        return tyro.cli(command, args=list(words), config=(tyro.conf.FlagCreatePairsOff,))


def test_every_kind_of_value_is_read() -> None:
    assert parse() == [3, None, None, None, (1, 2), (), "a", None, False]
    words = "--count -7 --rate 1e-3 --out None --name None --sizes 4 5 --names x --form b"
    assert parse(*words.split(), "--order", "down", "--quiet") == [
        -7, 0.001, Path("None"), "None", (4, 5), ("x",), "b", "down", True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--count many", "Error parsing --count: expected a whole number, got 'many'."),
        ("--count 1.5", "Error parsing --count: expected a whole number, got '1.5'."),
        ("--rate x", "Error parsing --rate: expected a number, got 'x'."),
        ("--sizes 1 x", "Error parsing --sizes: expected a whole number, got 'x'."),
        ("--form c", "Error parsing --form: expected one of a, b, got 'c'."),
        ("--order None", "Error parsing --order: expected one of up, down, got 'None'."),
    ],
)
def test_an_error_says_what_was_expected_without_python(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse(*words.split())
    assert stop.value.code == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_help_shows_choices_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    text = " ".join(capsys.readouterr().out.replace("│", " ").split())
    for part in ("--count INT (default: 3)", "--form {a,b} (default: a)", "--order {up,down}"):
        assert part in text
    assert "(default: 1 2)" in text


def test_the_commands_use_it(capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["score", "a.png", "--false-alarm-rate", "x"], "expected a number, got 'x'"),
        (["score", "a.png", "--format", "xml"], "one of table, jsonl, csv, parquet, got 'xml'"),
        (["bench", "--budget", "fll"], "expected one of full, paper, got 'fll'"),
        (["robust", "--severities", "one"], "expected a whole number, got 'one'"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        err = capsys.readouterr().err
        assert message in " ".join(err.replace("│", " ").split())
        assert "<class" not in err
