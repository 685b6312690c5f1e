"""Types of optional command-line options, shown by --help as PATH or NAME, not "{None}|STR"."""

from pathlib import Path
from typing import Annotated

from tyro.conf import arg


def several(metavar: str) -> object:
    """The marker of an option with any number of values."""
    return arg(metavar=f"[{metavar} ...]", help_behavior_hint="")


OptionalPath = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")]
OptionalFolder = Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")]
OptionalDataset = Annotated[str | None, arg(metavar="DATASET", help_behavior_hint="")]
AsJson = Annotated[bool, arg(name="json")]
SomeNames = Annotated[tuple[str, ...], several("NAME")]
OptionalName = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
OptionalFunction = Annotated[str | None, arg(metavar="MODULE:FUNCTION", help_behavior_hint="")]
OptionalModel = Annotated[str | None, arg(metavar="MODEL", help_behavior_hint="")]
OptionalCount = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
OptionalRate = Annotated[float | None, arg(metavar="RATE", help_behavior_hint="")]
Overwrite = Annotated[bool, arg(help="Replace the output if it exists.")]
Device = Annotated[str, arg(metavar="NAME")]
