import logging
import warnings

import pytest

from goen.cli.output.console import log_messages_shown, note, visible_line, warn
from goen.errors import GoenWarning
from goen.progress import PipeConsole


def test_notes_and_warnings_go_to_standard_error_as_they_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    note("[bold] :smile: 7")
    warn("a" * 300)
    PipeConsole().print("result")
    out, err = capsys.readouterr()
    assert out == "result\n"
    assert err == "[bold] :smile: 7\nwarning: " + "a" * 300 + "\n"


def test_log_messages_are_shown_within_the_block_only(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("goen.some.module")
    root = logging.getLogger("goen")
    before = (root.level, root.propagate, list(root.handlers))
    with log_messages_shown():
        logger.debug("no")
        logger.info("some %s", "news")
        logger.warning("careful")
    logger.warning("after")
    assert capsys.readouterr().err.startswith("some news\nwarning: careful\n")
    assert (root.level, root.propagate, list(root.handlers)) == before
    with pytest.raises(ValueError, match="x"), log_messages_shown():
        raise ValueError("x")
    assert list(root.handlers) == before[2]


@pytest.mark.parametrize("bad", ["\x1b[2J", "\x9b31m", "\x07", "\x7f", "\r", "\x00"])
def test_control_characters_are_written_out(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    note(f"cat{bad}.png [red]:smile:")
    printed = capsys.readouterr().err
    assert bad[0] not in printed.rstrip("\n")
    assert f"cat\\x{ord(bad[0]):02x}" in printed
    assert "[red]:smile:" in printed


def test_a_line_stays_one_line() -> None:
    assert visible_line("a\nb\tc\x1b.png") == "a\\nb\\tc\\x1b.png"


def test_warnings_of_goen_are_printed_and_filters_restored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = list(warnings.filters), warnings.showwarning
    with log_messages_shown():
        warnings.warn("no better than chance", GoenWarning, stacklevel=1)
    assert "WARNING: no better than chance" in capsys.readouterr().err
    assert (list(warnings.filters), warnings.showwarning) == before
