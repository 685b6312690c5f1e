"""Options that may be left out, as --help shows them: what to write, not "{None}|STR"."""

from pathlib import Path
from typing import Annotated

from tyro.conf import arg

OptionalPath = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")]
OptionalName = Annotated[str | None, arg(metavar="NAME", help_behavior_hint="")]
OptionalFunction = Annotated[str | None, arg(metavar="MODULE:FUNCTION", help_behavior_hint="")]
OptionalRate = Annotated[float | None, arg(metavar="RATE", help_behavior_hint="")]
