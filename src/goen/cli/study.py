"""What every study's command asks: which images, and where to put the run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import arg

from goen.data.protocol import Protocol, protocol
from goen.progress import warn
from goen.results import Stages

Folder = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="")]


@dataclass(frozen=True)
class Place:
    """Which images, and where the run goes.

    Attributes:
        data: the protocol: embedded digits, or CIFAR-10 as in the paper.
        extra: further sets to evaluate on: tiny-imagenet mnist textures places.
        out: the run's folder (default runs/DATA, or runs/DATA-STUDY).
        stages: where finished work is kept for all studies (default: stages/ beside the run).
        data_dir: a folder that holds image sets (else GOEN_DATA).
    """

    data: Literal["digits", "cifar10"] = "digits"
    extra: tuple[str, ...] = ()
    out: Folder = None
    stages: Folder = None
    data_dir: Folder = None

    def protocol(self) -> Protocol:
        """The sets, fetched where they may be; what cannot be had is said."""
        return protocol(
            self.data, data_dir=self.data_dir, download=True, extra=self.extra, warn=warn
        )

    def folder(self, study: str = "") -> Path:
        """The run's folder."""
        return self.out or Path("runs") / (f"{self.data}-{study}" if study else self.data)

    def finished(self, folder: Path) -> Stages:
        """The work that studies share."""
        return Stages(self.stages or folder.parent / "stages")
