"""``goen COMMAND ...``: run a command; errors become one sentence and an exit code."""

import importlib
import inspect
import io
import os
import re
import shutil
import signal
import sys
import textwrap
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, ModuleType

import tyro

from goen import __version__
from goen.cli.options.values import VALUES
from goen.cli.output.console import log_messages_shown, note
from goen.cli.topics import TOPICS, describe_installation
from goen.errors import GoenError, unknown
from goen.progress import shown, spinner

# A command's module is imported when it is run: `goen data list` must not wait for torch.
COMMANDS = {
    "demo": "score a few pictures with the bundled gate, then goen run on embedded digits",
    "run": "train a classifier, fit its gate, evaluate it, write a report (default: digits)",
    "bench": "compare OOD detection methods on the same networks and datasets",
    "ablate": "compare variants of GOEN: the paper's ablation, extended",
    "seeds": "repeat goen run with several seeds: mean, standard deviation, range",
    "robust": "evaluate methods under fifteen corruptions at five severities",
    "geometry": "measure the feature geometry of the variants of GOEN",
    "report": "write the report, tables and figures of a finished run",
    "fit": "fit a gate to your own classifier, at a false-alarm rate you choose",
    "extract": "write the features of a dataset to a file that goen fit --features takes",
    "evaluate": "measure a gate on ID and OOD images that it was not fitted with",
    "score": "classify and score image files: a table, JSON lines, CSV or Parquet",
    "serve": "serve a gate over HTTP: a page, /score, the Open Inference Protocol, metrics",
    "watch": "follow images and raise an alarm when they have changed, with a guarantee",
    "check": "reproduce the published numbers of a gate on this machine",
    "export": "export a gate to one ONNX file that runs without goen",
    "data": "list, download, check and display image datasets",
    "completion": "print a script that completes commands and options in bash, zsh or fish",
}

_RESUMABLE = ("demo", "run", "bench", "ablate", "seeds", "robust", "geometry", "data", "watch")

_USAGE = """\
goen {version}: out-of-distribution detection for image classifiers

usage: goen COMMAND [options]      goen help COMMAND shows options and examples

{commands}

goen help exit-codes, goen help environment; goen --version --verbose shows versions and extras"""


def main(argv: Sequence[str]) -> int:
    """Run one command; its exit code: 0 on success, 2 for an error the user can fix.

    130 after Ctrl-C and 143 after SIGTERM, as shells have it: 128 and the number of the signal.
    """
    try:
        return _guarded(*(argv or ["--help"]))
    except BrokenPipeError:
        # The reader closed the pipe (`goen data list | head`): not an error.
        _drop_output()
        return 0


def _guarded(name: str, *rest: str) -> int:
    """Run one command; errors become a sentence on standard error."""
    try:
        with shown(), log_messages_shown():
            try:
                code = _run(name, rest)
            except SystemExit:  # of tyro, after --help or a wrong option
                sys.stdout.flush()
                raise
            sys.stdout.flush()  # a full disk is reported now
        return code
    except GoenError as error:
        note(f"goen: {error}")
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        # From the system: no permission to read a file, a name that is too long.
        where = f"{error.filename}: " if error.filename else ""
        note(f"goen: {where}{(error.strerror or str(error)).lower()}.")
        return 2
    except KeyboardInterrupt:
        kept = " Finished steps are kept; the same command continues from there."
        note(f"goen: stopped.{kept if name in _RESUMABLE else ''}")
        return _SIGNALLED + (_SIGNALS.pop() if _SIGNALS else signal.SIGINT)


# What shells add to the number of the signal that ended a command.
_SIGNALLED = 128
_SECONDS_TO_END = 5.0
# Not an exception of its own: Ray raises a KeyboardInterrupt in place of whatever a handler raises.
_SIGNALS: set[signal.Signals] = set()


def _terminate(number: int, frame: FrameType | None) -> None:
    """SIGTERM, with which service managers stop, cleans up as Ctrl-C does."""
    _SIGNALS.add(signal.SIGTERM)
    raise KeyboardInterrupt


def _run(name: str, rest: Sequence[str]) -> int:
    if name == "help" and rest and rest[0] in TOPICS:
        print(TOPICS[rest[0]])
        return 0
    if name == "help" and rest:
        name, rest = rest[0], [*rest[1:], "--help"]
    if name in ("-h", "--help", "help"):
        commands = "\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())
        print(_USAGE.format(version=__version__, commands=commands))
        return 0
    if name in ("-V", "--version"):
        print(f"goen {__version__}")
        if "--verbose" in rest:
            print(describe_installation())
        return 0
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    with spinner("loading"):  # torch alone takes two seconds
        module = importlib.import_module(f"goen.cli.{name}")
    with VALUES:
        return _parse(name, module, rest)


# Of paragraphs of help: longer lines are hard to read.
_MOST_COLUMNS = 100
_EXAMPLES = "For example:"
# A flag that is off by default needs no --no-flag.
_CONFIG = (tyro.conf.FlagCreatePairsOff,)


def _parse(name: str, module: ModuleType, arguments: Sequence[str]) -> int:
    """Run ``NAME_command`` of the command's module, or one of its ``SUBCOMMANDS``."""
    prog, args = f"goen {name}", list(arguments)
    width = min(shutil.get_terminal_size().columns, _MOST_COLUMNS)
    subcommands = getattr(module, "SUBCOMMANDS", None)
    commands = subcommands or {name: getattr(module, f"{name}_command")}
    for command in commands.values():
        command.__doc__ = help_text(str(command.__doc__), width)
    if subcommands is None:
        return int(tyro.cli(commands[name], prog=prog, args=args, config=_CONFIG))
    description = str(module.__doc__).partition(": ")[2]
    return int(
        tyro.extras.subcommand_cli_from_dict(
            subcommands, prog=prog, args=args, description=description, config=_CONFIG
        )
    )


def help_text(docstring: str, width: int) -> str:
    """The docstring as tyro shows it well: paragraphs wrapped, each argument on one line.

    tyro wraps arguments alone, and joins lines of text but where one begins with another sign than
    a letter. So the lines of a paragraph after its first begin with spaces.

    Example:
        >>> print(help_text("Reads\\n(all)\\n\\nArgs:\\n    out: a file\\n        to write.", 9))
        Reads
          (all)
        <BLANKLINE>
        Args:
            out: a file to write.
    """
    text, heading, arguments = inspect.cleandoc(docstring).partition("\nArgs:\n")
    wrapper = textwrap.TextWrapper(
        width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    paragraphs = (
        part if part.startswith(_EXAMPLES) else wrapper.fill(" ".join(part.split()))
        for part in text.rstrip("\n").split("\n\n")
    )
    joined = re.sub(r"\n {8,}(?=\S)", " ", arguments)
    return "\n\n".join(paragraphs) + ("\n" + heading if heading else "") + joined


def _drop_output() -> None:
    """Discard unwritten output, or Python would try to write it again at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def entry() -> None:
    """The console script."""
    # A parent may have closed them. Messages are discarded then; results that cannot be written
    # are an error, as on a full disk: a file that is open for reading takes none.
    nowhere = Path(os.devnull)
    sys.stdout = sys.stdout or os.fdopen(os.open(nowhere, os.O_RDONLY), "w", encoding="utf-8")
    sys.stderr = sys.stderr or nowhere.open("w", encoding="utf-8")
    # A name of a file, or a sign in a table, that the terminal's encoding lacks is written out.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _terminate)
    code = main(sys.argv[1:])
    if code > _SIGNALLED and _threads_are_left():
        _drop_output()
        os._exit(code)  # Python would wait for them
    sys.exit(code)


def _threads_are_left() -> bool:
    """Whether a thread still works, such as one that waits for a server, after a few seconds."""
    end = time.monotonic() + _SECONDS_TO_END
    others = [t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon]
    for thread in others:
        thread.join(max(0.0, end - time.monotonic()))
    return any(thread.is_alive() for thread in others)
