"""The table of scored pictures."""

import re

import pytest
from rich.cells import cell_len

from goen.cli.output.scores import print_scores, print_sentence
from goen.gate.prediction import ScoreRow


def row(path: str, label: str = "cat", p_value: float = 0.2, **more: float | str) -> ScoreRow:
    flagged = p_value <= 0.05
    fixed: ScoreRow = {"path": path, "label": label, "confidence": 0.987, "score": 1.0}
    fixed |= {"p_value": p_value, "is_ood": flagged, "p_early": 0.3, "p_late": p_value}
    return {**fixed, "error": None, **more}


def unreadable(path: str, error: str) -> ScoreRow:
    return {**dict.fromkeys(row(path)), "path": path, "error": error}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A standard output that looks like a terminal of 60 columns."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()


def test_a_line_per_picture_and_below_it_what_cannot_be_read(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        row("a.png", p_value=0.0123),
        unreadable("b.png", "b.png is cut short."),
        row("long/name/of/a/picture.png", "[dog]", confidence=0.5),
        row("c.png", p_value=0.01, error="the network's outputs are NaN or infinite; flagged"),
    ]
    print_scores(rows)
    assert printed(capsys) == [
        "image                       class  confidence  p-value  decision  why",
        "─" * 116,
        "a.png                       cat           99%    0.012  flagged   late: p = 0.012",
        "long/name/of/a/picture.png  [dog]         50%      0.2  passed    late: p = 0.2",
        "c.png                       cat           99%     0.01  flagged   the network's outputs "
        "are NaN or infinite; flagged",
        "unreadable: b.png is cut short.",
    ]
    print_scores([unreadable("b.png", "b.png is cut short.")])
    assert printed(capsys) == ["unreadable: b.png is cut short."]


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("columns", [72, 80, 120])
def test_it_fits_the_terminal_and_loses_nothing(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    name = "photographs/" + "0123456789" * 8 + "/狐狸.png"
    label = "Kentish plover, Charadrius alexandrinus"
    print_scores([row(name, label, 0.04, p_a_long_layer_name=0.001), row("b.png")])
    head, rule, *lines = printed(capsys)
    assert len(rule) == columns
    assert max(map(cell_len, [head, *lines])) <= columns
    assert lines.pop().split() == ["b.png", "cat", "99%", "0.2", "passed", "late:", "p", "=", "0.2"]
    first, second, third = (head.index(name) for name in ("class", "confidence", "p-value"))
    assert "".join(line[:first].strip() for line in lines) == name
    classes = [line[first:second].strip() for line in lines]
    assert "".join(classes).replace(" ", "") == label.replace(" ", "")
    assert classes[0] == "Kentish" or columns > 72  # broken between words
    assert lines[0][second:third].strip() == "99%"
    whole = " ".join(" ".join(lines).split())
    assert "flagged" in whole
    assert "0.001" in whole


@pytest.mark.usefixtures("terminal")
def test_flagged_pictures_stand_out_and_names_print_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_scores([row("[red]:smile:\x1b[2J\n.png", p_value=0.01), row("b.png")])
    out = capsys.readouterr().out
    flagged = next(line for line in out.splitlines() if "flagged" in line)
    assert flagged.startswith("\x1b[33m")
    assert "\x1b" not in next(line for line in out.splitlines() if "passed" in line)
    assert "\x1b[2J" not in out
    assert "[red]:smile:" in out
    assert "\\x1b[2J\\n" in "".join(line.split("  ")[0] for line in out.splitlines())


def test_a_sentence_is_broken_between_words_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "[b] " + "word " * 20 + "end\x07"
    shown = sentence.replace("\x07", "\\x07")
    print_sentence(sentence)
    assert printed(capsys) == [shown]
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    print_sentence(sentence)
    lines = printed(capsys)
    assert len(lines) == 3
    assert " ".join(line.strip() for line in lines) == shown
