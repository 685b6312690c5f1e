"""``goen COMMAND ...``: find the command, run it, turn its errors into one sentence and a code."""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import tyro

from goen import __version__
from goen.cli.terminal import log_messages_shown, note
from goen.errors import GoenError, unknown
from goen.progress import shown, spinner

# A command's module is imported when it is called: `goen data list` must not wait for torch.
COMMANDS = {
    "demo": "the bundled gate on a few pictures, then goen run on the embedded digits",
    "run": "train, fit, calibrate, evaluate, report: the main job (embedded digits by default)",
    "bench": "every method, one table: the eleven baselines and what came since",
    "ablate": "which part of GOEN does what: the paper's variants, and those it leaves out",
    "seeds": "one configuration over several seeds: mean, spread, range",
    "robust": "fifteen corruptions at five severities: accuracy, calibration, share flagged",
    "geometry": "the shape of the features: what the paper's argument rests on",
    "report": "one page, tables and figures from the folder of a finished run",
    "fit": "a gate for your own model and images, at a false-alarm rate you choose",
    "score": "your images, by the bundled gate or your own: JSON lines, CSV or Parquet",
    "check": "a gate's published numbers, measured again on this machine",
    "export": "a gate as one ONNX file that decides without goen",
    "data": "list, get, check and look at image sets",
}

_GO_ON = ("demo", "run", "bench", "ablate", "seeds", "robust", "geometry", "data")

_USAGE = """\
goen {version}: out-of-distribution detection for image classifiers

usage: goen COMMAND [options]      goen COMMAND --help explains it with examples

{commands}

environment: GOEN_DATA   a folder that holds image sets in any of their usual forms
             GOEN_CACHE  where fetched and prepared sets are kept"""


def main(argv: Sequence[str]) -> int:
    """Run one command; 0 when all went well, 2 for anything the user can mend."""
    try:
        return _guarded(*(argv or ["--help"]))
    except BrokenPipeError:
        # The reader went away (`goen data list | head`): not an error of ours or theirs.
        _drop_output()
        return 0


def _guarded(name: str, *rest: str) -> int:
    """Run one command; errors become a sentence on standard error."""
    try:
        with shown(), log_messages_shown():
            code = _run(name, rest)
        sys.stdout.flush()  # a full disk is to be said now
        return code
    except GoenError as error:
        note(f"goen: {error}")
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        _drop_output()
        # The system's own refusals: a file that may not be read, a name too long.
        where = f"{error.filename}: " if error.filename else ""
        note(f"goen: {where}{(error.strerror or str(error)).lower()}.")
        return 2
    except KeyboardInterrupt:
        kept = " What was finished is kept; the same command goes on from there."
        note(f"goen: stopped.{kept if name in _GO_ON else ''}")
        return 130


def _run(name: str, rest: Sequence[str]) -> int:
    if name in ("-h", "--help", "help"):
        commands = "\n".join(f"  {name:<8} {text}" for name, text in COMMANDS.items())
        print(_USAGE.format(version=__version__, commands=commands))
        return 0
    if name in ("-V", "--version"):
        print(f"goen {__version__}")
        return 0
    if name not in COMMANDS:
        raise unknown("command", name, COMMANDS)
    with spinner("loading"):  # torch alone takes two seconds
        module = importlib.import_module(f"goen.cli.{name}")
    return _parse(name, module, rest)


def _parse(name: str, module: ModuleType, arguments: Sequence[str]) -> int:
    """Run ``NAME_command`` of the command's module, or one of its ``SUBCOMMANDS``."""
    prog, args = f"goen {name}", list(arguments)
    if hasattr(module, "SUBCOMMANDS"):
        description = str(module.__doc__).partition(": ")[2]
        code = tyro.extras.subcommand_cli_from_dict(
            module.SUBCOMMANDS, prog=prog, args=args, description=description
        )
    else:
        code = tyro.cli(getattr(module, f"{name}_command"), prog=prog, args=args)
    return int(code)


def _drop_output() -> None:
    """Let what cannot be written any more go nowhere, or Python would try again at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def entry() -> None:
    """The console script."""
    # A parent may have closed them (`2>&-`); then nobody listens.
    nowhere = Path(os.devnull)
    sys.stdout = sys.stdout or nowhere.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or nowhere.open("w", encoding="utf-8")
    # Service managers stop with SIGTERM: it must leave things as tidy as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    entry()
