import os
import re
import signal
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import goen
from goen.cli.main import COMMANDS, entry, main


def test_without_a_command_it_prints_its_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    for command, purpose in COMMANDS.items():
        assert command in text
        assert purpose in text
    assert main(["--help"]) == 0
    assert capsys.readouterr().out == text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"goen {goen.__version__}\n"


def test_an_unknown_command_is_corrected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dota"]) == 2
    assert "Did you mean 'data'?" in capsys.readouterr().err


def test_every_command_has_help() -> None:
    for command in COMMANDS:
        with pytest.raises(SystemExit) as stop:
            main([command, "--help"])
        assert stop.value.code == 0


def test_help_shows_what_to_write_and_not_how_python_has_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    commands = [[c] for c in COMMANDS if c != "data"]
    for command in [*commands, *(["data", c] for c in ("list", "get", "check", "show"))]:
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        text = " ".join(capsys.readouterr().out.replace("│", " ").split())
        assert not re.search(r"\{None\}|\(default: \)|default: None|\[\w+ \[\w+ \.\.\.\]\]", text)


def test_goen_help_is_the_help_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["score"], ["data", "show"]):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        expected = capsys.readouterr().out
        with pytest.raises(SystemExit) as stop:
            main(["help", *words])
        assert (stop.value.code, capsys.readouterr().out) == (0, expected)
    assert main(["help"]) == 0
    assert capsys.readouterr().out.startswith("goen ")
    assert main(["help", "scor"]) == 2
    assert "Did you mean 'score'?" in capsys.readouterr().err


def test_the_help_of_an_option_is_not_broken_as_in_the_docstring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["score"], ["export"], ["data", "get"]):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        lines = [line.rstrip(" │") for line in capsys.readouterr().out.splitlines()]
        # What continues on the next line was too long for this one, by its first word.
        for line, after in pairwise(lines):
            if re.match(r"│ {8,}\S", after) and re.match(r"│ {8,}\S|│ --?\S+.*  \S.* ", line):
                assert len(line) + 1 + len(after.strip("│ ").split()[0]) > 78, (line, after)


def test_an_interrupt_is_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import goen.cli.data
    import goen.cli.export

    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(goen.cli.data.SUBCOMMANDS, "list", interrupted)
    assert main(["data", "list"]) == 130
    assert "goen: stopped. Finished steps are kept" in capsys.readouterr().err
    monkeypatch.setattr(goen.cli.export, "export_command", interrupted)
    assert main(["export"]) == 130
    assert capsys.readouterr().err == "goen: stopped.\n"

    def terminated() -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # another, as Ray does
        return 0

    monkeypatch.setattr(goen.cli.export, "export_command", terminated)
    monkeypatch.setattr(sys, "argv", ["goen", "export"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as stop:
            entry()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert stop.value.code == 143
    assert capsys.readouterr().err == "goen: stopped.\n"
    monkeypatch.setattr(goen.cli.export, "export_command", interrupted)
    assert main(["export"]) == 130


@pytest.mark.parametrize(
    ("words", "both"),
    [
        ("data list", False),
        ("data list", True),
        ("data list --json", False),
        ("data check digits", False),
        ("--help", True),
        ("data get --help", False),
    ],
)
def test_a_reader_that_goes_away_is_no_error(words: str, both: bool) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # nobody reads, from the first byte on
    try:
        done = subprocess.run(
            [sys.executable, "-m", "goen", *words.split()],
            stdout=writer,
            stderr=writer if both else subprocess.PIPE,
            text=True,
        )
    finally:
        os.close(writer)
    assert done.returncode == 0
    assert both or done.stderr == ""


def test_rich_prints_through_consoles_that_raise_on_a_broken_pipe() -> None:
    plain = re.compile(r"(?<!class Pipe)\bConsole\(|rich\.print|from rich import print")
    root = Path(goen.__file__).parent
    assert not [path for path in root.rglob("*.py") if plain.search(path.read_text())]


def test_an_output_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    for words in (["--help"], ["data", "list", "--json"]):
        with (tmp_path / "out").open("rb") as unwritable:  # as a full disk: found at the flush
            done = subprocess.run(
                [sys.executable, "-m", "goen", *words],
                stdout=unwritable,
                stderr=subprocess.PIPE,
                text=True,
            )
        assert done.returncode == 2
        assert done.stderr == "goen: bad file descriptor.\n"


def test_a_closed_standard_error_is_no_error() -> None:
    command = f"{sys.executable} -m goen data list --json 2>&-"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert done.returncode == 0
    assert '"name": "digits"' in done.stdout


@pytest.mark.parametrize("words", ["data list --json", "data list --help"])
def test_results_that_a_closed_standard_output_does_not_take_are_an_error(words: str) -> None:
    command = f"{sys.executable} -m goen {words} >&-"
    done = subprocess.run(command, shell=True, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == "goen: bad file descriptor.\n"


def test_a_thread_that_waits_does_not_keep_a_stopped_command(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and answers none
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a.png"
        command = [sys.executable, "-m", "goen", "score", url, "--gate", "cifar10-w16"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        server.settimeout(120)
        connection, _ = server.accept()
        with connection:
            process.send_signal(signal.SIGTERM)
            try:
                _, err = process.communicate(timeout=40)  # the server is waited for a minute
            finally:
                process.kill()
    assert process.returncode == 143
    assert err.startswith("goen: stopped.")


def test_sigterm_cleans_up_as_an_interrupt_does(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "goen", "run", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "network of the preset, seed 42\n"
    assert process.stderr.readline() == "backbone: working\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 143
    assert err.endswith(
        "goen: stopped. Finished steps are kept; the same command continues from there.\n"
    )
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_the_terminal(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = capsys.readouterr().out.partition("For example:")[0].partition("╭")[0]
    _usage, _summary, *paragraphs = text.strip().split("\n\n")
    assert all(len(line) <= 72 for part in paragraphs for line in part.splitlines())
    assert "\n\n\n" not in text
