"""The exceptions goen raises, one tree.

    GoenError              everything that a user can cause and fix
    ├── UsageError         an invalid argument: unknown name, wrong shape, wrong range
    │   └── ExtraMissing   an optional package that is not installed, or cannot be imported
    ├── DataError          images or labels that cannot be used
    │   ├── DataMissing    not available; the message says what to do
    │   └── DataCorrupt    truncated, or with another checksum or format than expected
    ├── LeakError          evaluating on what already fitted, calibrated or chose something
    ├── FitError           a fit that cannot be trusted (too few rows, no spread, not finite)
    ├── NotFittedError     a score was asked of something that has seen no data
    ├── ArtifactError      a saved gate or run that cannot be read or does not belong together
    └── StorageError       a file or folder that cannot be written

Warnings are of one class, ``GoenWarning``: something works, but probably not as it was meant.
The command line prints them in yellow.

The command line catches ``GoenError`` once, prints its one sentence and exits with code 2.
A message says what was expected, what came, and what to do.
"""

import re
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches

_INNER = ("goen", "contextlib")
# At the end of a sentence, not in a path such as ../a.
_TWO_FULL_STOPS = re.compile(r"(?<=[^\s./\\])\.\.(?=\s|$)")


class GoenError(Exception):
    """Base of everything that a user can cause and fix.

    Reasons of other libraries may end in a full stop or not; a message has one.
    """

    def __str__(self) -> str:
        return _TWO_FULL_STOPS.sub(".", super().__str__())


class GoenWarning(UserWarning):
    """Something works, but probably not as it was meant."""


class UsageError(GoenError, ValueError):
    """An invalid argument."""


class ExtraMissing(UsageError):  # noqa: N818  (reads as a sentence in `except ExtraMissing`)
    """An optional package that is not here."""


class DataError(GoenError):
    """Images or labels that cannot be used."""


class DataMissing(DataError):  # noqa: N818  (reads as a sentence in `except DataMissing`)
    """A set that is not available."""


class DataCorrupt(DataError):  # noqa: N818
    """A file whose content is not what it should be."""


class LeakError(GoenError):
    """Evaluation on images that already fitted, calibrated or chose something."""


class FitError(GoenError):
    """A fit that cannot be trusted."""


class NotFittedError(GoenError):
    """A score asked of something that has seen no data."""


class ArtifactError(GoenError):
    """A saved gate or run that cannot be used."""


class StorageError(GoenError):
    """A file or folder that cannot be written."""


def quoted(value: object) -> str:
    """A text or value from outside in quotation marks, the first 80 characters of a long one.

    >>> quoted("a" * 81) == repr("a" * 80)
    True
    """
    return repr(str(value)[:80])


def first_of(names: Sequence[str], most: int) -> str:
    """The names, separated by commas; of more than ``most`` the first.

    >>> first_of(["a", "b"], 2), first_of(["a", "b", "c"], 2)
    ('a, b', 'a, b, ...')
    """
    return ", ".join(names[:most]) + (", ..." if len(names) > most else "")


def describe_left_out(reasons: Mapping[str, str]) -> list[str]:
    """What is left out, a sentence for each reason.

    >>> describe_left_out({"vim": "No weights.", "knn": "Few rows.", "react": "No weights."})
    ['Left out: vim, react. No weights.', 'Left out: knn. Few rows.']
    """
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    return [f"Left out: {', '.join(members)}. {reason}" for reason, members in names.items()]


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """A sentence with the nearest known name, after a space; empty if none is near.

    >>> did_you_mean("cifar-10", ["cifar10", "svhn"])
    " Did you mean 'cifar10'?"
    >>> did_you_mean("Mahalanobis++", ["mahalanobis", "mahalanobis_pp"])
    " Did you mean 'mahalanobis_pp'?"
    """
    near = get_close_matches(name.replace("++", "_pp"), known)
    return f" Did you mean {near[0]!r}?" if near else ""


def unknown(kind: str, name: object, known: Iterable[str]) -> UsageError:
    """The error for an unknown name, with the nearest known one.

    >>> str(unknown("set", "cifar11", ["cifar10", "svhn"]))
    "Unknown set 'cifar11'. Did you mean 'cifar10'? Known: cifar10, svhn."
    """
    names = sorted(known)
    hint = did_you_mean(str(name), names)
    listed = f"Known: {', '.join(names)}." if names else "There are none."
    return UsageError(f"Unknown {kind} {name!r}.{hint} {listed}")


def warn(message: str) -> None:
    """Warn with a ``GoenWarning`` at the line outside of goen that called it."""
    frame, level = sys._getframe(1), 2
    # Functions of goen may be called through a context manager that decorates them.
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _INNER:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, GoenWarning, stacklevel=level)
