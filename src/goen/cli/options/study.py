"""What the commands of all studies share: datasets, folders, tables and the report."""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from goen.checks import check_number
from goen.cli.options.types import AsJson, OptionalPath, SomeNames, several
from goen.cli.output.table import print_table
from goen.data.protocol import PROTOCOLS, Protocol, protocol
from goen.data.protocols.opening import LARGEST_SIDE, open_plan
from goen.data.protocols.plan import Plan
from goen.data.protocols.plan_file import ENDING, read_plan
from goen.errors import UsageError
from goen.escaping import visible
from goen.io.files import check_free
from goen.io.stages import RUN, Stages
from goen.training import help_training
from goen.training.distributed import broadcast, join_processes

if TYPE_CHECKING:
    from goen.report.page import Report


@dataclass(frozen=True)
class StudyOptions:
    """Datasets and folders of a study.

    Attributes:
        data: digits that ship with scikit-learn; cifar10 or cifar100 with their OOD sets as in the
            paper; or your own: a folder with a folder of images per class, or with train/, val/ and
            test/ that have such folders; or a protocol file (goen data new).
        ood: with a folder, folders of OOD images to evaluate on.
        size: with a folder or a protocol file, side of the images in pixels; 0 chooses it from the
            images, 32 to 96, or to 224 for a pretrained network.
        flip: with a folder, whether a mirrored image is of the same class: --no-flip for text.
        extra: with cifar10 and cifar100, further OOD sets: tiny-imagenet mnist textures places, and
            with cifar10 cifar100-rest, the other fifty classes of CIFAR-100.
        calibration_ood: OOD sets that calibrate (default: svhn noise with cifar10, photographs
            noise with digits); or none: GOEN then scores by its distance alone. With cifar10 also
            tiny-imagenet mnist textures places, one half of which calibrates and the other is
            evaluated on; with both augmented, ID images under strong augmentations. With a folder:
            folders, noise or augmented (default: noise augmented).
        out: the folder of the run (default: runs/DATA for goen run, else runs/DATA-COMMAND).
        stages: the cache of finished stages, shared by all studies (default: stages/ beside the
            folder of the run).
        data_dir: a folder of datasets (default: the environment variable GOEN_DATA).
    """

    data: Annotated[str, tyro.conf.arg(metavar="NAME|FOLDER|TOML")] = "digits"
    ood: Annotated[tuple[str, ...], several("FOLDER")] = ()
    size: int = 0
    flip: bool = True
    extra: SomeNames = ()
    calibration_ood: SomeNames = ()
    out: OptionalPath = None
    stages: OptionalPath = None
    data_dir: OptionalPath = None

    def load_protocol(
        self, largest_side: int = LARGEST_SIDE, *, evaluates: bool = True
    ) -> Protocol:
        """The datasets; missing ones are downloaded where possible, else skipped with a warning.

        Args:
            largest_side: in pixels, of images whose size is chosen.
            evaluates: whether anything is evaluated on them.
        """
        named = () if self.calibration_ood == ("none",) else self.calibration_ood or None
        plan = self._plan
        if plan is not None:
            plan = plan if named is None else plan.calibrated_with(named)
            return Protocol.from_plan(plan, open_plan(plan, largest_side), evaluates=evaluates)
        return protocol(
            self.data,
            data_dir=self.data_dir,
            download=True,
            extra=self.extra,
            calibration=named,
        )

    @cached_property
    def _plan(self) -> Plan | None:
        """Of data that is the user's own."""
        own: dict[str, object] = {
            "--ood": self.ood,
            "--size": self.size,
            "--no-flip": not self.flip,
        }
        if self.data in PROTOCOLS:
            self._refuse(own, "go with your own folder, --data FOLDER, not with a known set")
            return None
        self._refuse({"--extra": self.extra}, "go with cifar10 and cifar100; for folders: --ood")
        check_number("size", self.size, whole=True, at_least=0)
        path = Path(self.data)
        if path.suffix == ENDING and path.is_file():
            del own["--size"]
            self._refuse(own, "go with a folder: write them into the protocol file")
            plan = read_plan(path)
            return replace(plan, size=(self.size, self.size)) if self.size else plan
        if not path.is_dir():
            raise UsageError(
                f"{self.data} is neither a folder, nor a protocol file ({ENDING}), nor one of "
                f"{', '.join(PROTOCOLS)}."
            )
        size = (self.size, self.size) if self.size else None
        return replace(Plan.of_folder(path, self.ood), size=size, flip=self.flip)

    def _refuse(self, options: Mapping[str, object], why: str) -> None:
        given = [name for name, value in options.items() if value]
        if given:
            raise UsageError(f"{' '.join(given)}: these {why}; got --data {self.data}.")

    def run_folder(self, study: str = "") -> Path:
        """The folder of the run."""
        name = self.data if self._plan is None else self._plan.name
        return self.out or Path("runs") / (f"{name}-{study}" if study else name)

    def shared_stages(self, folder: Path) -> Stages:
        """The cache of finished stages."""
        return Stages(self.stages) if self.stages else Stages.beside(folder)


def run_study(
    options: StudyOptions,
    name: str,
    study: Callable[[Protocol, Path, Stages], object],
    largest_side: int = LARGEST_SIDE,
) -> "Report | None":
    """Run the study in its folder and write its report.

    Images of the user's own are read at this size at most, unless the user gives one. Of several
    processes that torchrun started the first does it; the others take their share of its trainings,
    and ``None`` is their result.
    """
    folder = options.run_folder(name)
    with join_processes() as rank:
        if rank:
            broadcast()  # datasets that had to be downloaded are here now
            help_training(options.load_protocol(largest_side).train)
            return None
        check_free(folder, RUN, overwrite=True)  # before datasets are downloaded
        datasets = options.load_protocol(largest_side)
        broadcast(True)
        study(datasets, folder, options.shared_stages(folder))
        broadcast(None)
    from goen.report.page import write_page  # Matplotlib, not before there is a result

    return write_page(folder)


@dataclass(frozen=True)
class TableOptions(StudyOptions):
    """Datasets and folders of a study whose tables are printed.

    Attributes:
        json_: print the results as JSON lines instead of tables.
    """

    json_: AsJson = False


def print_study(
    options: TableOptions,
    name: str,
    study: Callable[[Protocol, Path, Stages], object],
    largest_side: int = LARGEST_SIDE,
) -> int:
    """Run the study, and print its tables, or its results as JSON."""
    report = run_study(options, name, study, largest_side)
    return 0 if report is None else print_report(report, as_json=options.json_)


def print_report(report: "Report", *, as_json: bool) -> int:
    """Print the tables of a study and what follows from them, or its results as JSON."""
    if as_json:
        for result in report.results:
            sys.stdout.write(json.dumps(asdict(result), ensure_ascii=False) + "\n")
        return 0
    shown: set[str] = set()
    for table in report.tables:  # what is said below one table is not said again
        print_table(replace(table, notes=tuple(n for n in table.notes if n not in shown)))
        shown |= {*table.notes}
    folder = report.path.parent
    print(f"tables:  {folder / 'tables'} (Markdown, LaTeX, CSV)")
    print(f"results: {folder / 'results.jsonl'}")
    print(f"report:  {report.path.resolve()}")
    if report.conclusion:
        print(visible(report.conclusion))
    return 0
