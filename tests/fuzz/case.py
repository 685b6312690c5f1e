"""One case of a fuzzer, and what its outcome may be."""

import random
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


class Broken(Exception):  # noqa: N818  (it is goen that is broken, not the fuzzer)
    """goen answered with something that it must never answer with."""


class Fuzzer(ABC):
    """Makes cases of one kind and runs them.

    Attributes:
        name: on the command line.
        seconds: of processor time that a case may take.
        megabytes: by which a case may make the process grow.
        folder: where cases may write; it is there, and its own.
        what: what the present case changed, for the report of a failure.
    """

    name: ClassVar[str]
    seconds: ClassVar[float]
    megabytes: ClassVar[float]

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.what = ""

    @abstractmethod
    def run(self, draw: random.Random) -> str:
        """Make a case, hand it to goen, and return one word for the outcome.

        Raises:
            Exception: goen is broken; any exception counts.
        """


@dataclass(frozen=True)
class Result:
    """What came of one case.

    Attributes:
        number: of the case.
        outcome: a word of the fuzzer; empty if goen is broken.
        failure: what was wrong, or empty.
        what: what the case changed.
        seconds: of processor time.
        megabytes: by which the memory of the process grew at its highest.
    """

    number: int
    outcome: str
    failure: str
    what: str
    seconds: float
    megabytes: float


def generator(name: str, seed: int, number: int) -> random.Random:
    """The random numbers of one case, the same on every machine."""
    return random.Random(f"{name} {seed} {number}")
