"""The options of ``goen score``: its gate, where rows go, and who scores."""

import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from goen.cli.options.model import RateOptions
from goen.cli.options.types import (
    Device,
    OptionalCount,
    OptionalDataset,
    OptionalFolder,
    OptionalName,
    OptionalPath,
    Overwrite,
)
from goen.cli.output.console import note
from goen.errors import UsageError
from goen.gate import DEFAULT_GATE, Gate
from goen.gate.engine import EngineOption
from goen.io.files import check_free, is_folder, whole_file
from goen.io.storage_errors import check_writable
from goen.scoring.pipeline import DEFAULT_BATCH_SIZE, Run, ScoreSettings, run_here
from goen.scoring.sinks import format_of, is_row_file
from goen.scoring.sources import DEFAULT_SHARD_SIZE

if TYPE_CHECKING:
    from goen.report.pages.score import ScoreReport

Format = Literal["table", "jsonl", "csv", "parquet"]
GIVEN = "given"
"""The order of rows in which their inputs are given."""


@dataclass(frozen=True)
class ScoringGateOptions(RateOptions):
    """The gate and how it runs.

    Attributes:
        gate: the folder of a gate (goen fit) or of a run (goen run), or the name of a bundled gate.
        batch_size: images per forward pass.
        device: where the network runs: cpu, or cuda (cuda:1 is the second GPU).
        engine: what runs the network: torch, or onnxruntime (goen[onnx]), which is up to twice as
            fast on a CPU but takes seconds to begin. auto is onnxruntime for 5,000 images or more,
            where it is installed and predicts as torch does; torch for several workers and for a
            folder of shards.
    """

    gate: str = DEFAULT_GATE
    batch_size: int = DEFAULT_BATCH_SIZE
    device: Device = "cpu"
    engine: EngineOption = "auto"


@dataclass(frozen=True)
class OutputOptions:
    """Where rows, copies and the report go.

    Attributes:
        out: a .jsonl, .csv or .parquet file (default: -, standard output); or a folder, for a file
            per shard: a name that ends in /, or with --workers any other name. In a folder the same
            command continues after it was stopped.
        format_: format of the output (default: a table on a terminal, JSON lines to a pipe; for a
            file, that of its suffix; in a folder Parquet). Parquet needs goen[parquet].
        flagged_only: leave out images that are not flagged, and files that cannot be read.
        sort: sort by this column, the most suspicious first, or given: in the order of the
            files, which needs no memory (default: p_value for a table, else given).
        copy_flagged: copy the flagged images into this folder: a new or empty one, or that of an
            earlier call, whose copies are removed.
        report: an HTML page to write: the images with their scores, the most suspicious first,
            with filters and a slider for the false-alarm rate.
        groups: a JSON file to write: the flagged images in groups by their features, each with its
            size, class and cue, and those to label first (of the 2,000 most suspicious images).
        training_images: with --report: the images that the gate was fitted on (the --train of goen
            fit; cifar10 for the bundled gate), to show those nearest to each image.
        overwrite: replace a file of rows or a report that exists.
    """

    out: Annotated[str | None, arg(metavar="PATH", help_behavior_hint="")] = None
    format_: Annotated[Format | None, arg(name="format", help_behavior_hint="")] = None
    flagged_only: bool = False
    sort: Annotated[str | None, arg(metavar="COLUMN", help_behavior_hint="")] = None
    copy_flagged: OptionalFolder = None
    report: OptionalPath = None
    groups: OptionalPath = None
    training_images: OptionalDataset = None
    overwrite: Overwrite = False

    def __post_init__(self) -> None:
        if self.format_ == "table" and self.target is not None:
            raise UsageError(
                f"A table goes to standard output, not to {self.target}. Leave out --out, or "
                "choose another format."
            )
        if self.training_images is not None and self.report is None:
            raise UsageError("--training-images goes with --report PAGE.html.")
        if self.report is not None and self.report == self.groups:
            raise UsageError(f"--report and --groups are two files, got {self.report} for both.")

    @property
    def target(self) -> Path | None:
        """The file or folder to write; ``None`` is standard output."""
        return None if self.out in (None, "-") else Path(str(self.out))

    @property
    def in_folder(self) -> bool:
        """Whether the rows go into a folder of shards."""
        if self.target is None:
            return False
        return str(self.out).endswith(("/", os.sep)) or is_folder(self.target)

    def for_workers(self) -> "OutputOptions":
        """The same with a name that is none of a file of rows as a folder."""
        if self.target is None or self.in_folder or is_row_file(self.target):
            return self
        return replace(self, out=f"{self.out}/")

    @property
    def row_format(self) -> Format:
        """That of the output."""
        asked, target = self.format_, self.target
        if self.in_folder:
            if self.sort not in (None, GIVEN):
                raise UsageError(
                    "--sort is for a table or one file: a folder of shards keeps the order of the "
                    "inputs."
                )
            return asked or "parquet"
        if target is not None:
            return format_of(target, None if asked == "table" else asked)
        if asked == "parquet" and sys.stdout.isatty():
            raise UsageError("Parquet is not for reading on a terminal: give --out scores.parquet.")
        return asked or ("table" if sys.stdout.isatty() else "jsonl")

    @property
    def of_images(self) -> bool:
        """Whether something is asked for that there is of images alone."""
        return any((self.copy_flagged, self.report, self.groups))

    def open_report(self, gate: Gate, name: str) -> "ScoreReport | None":
        """The report to write, or its groups; none if neither is asked for.

        What would make it fail is an error before any scoring.
        """
        if self.report is None and self.groups is None:
            return None
        from goen.report.pages.score import ScoreReport  # it imports Matplotlib: a second

        for file in filter(None, (self.report, self.groups)):
            check_free(file, overwrite=self.overwrite)
            check_writable(file)
        if self.training_images is None:
            return ScoreReport(gate, name)
        from goen.scoring.training_images import open_training_images

        images = open_training_images(gate, self.training_images)
        return ScoreReport(gate, name, images, images.files())

    def write_report(self, page: "ScoreReport") -> None:
        """Write the page and the groups of the flagged images, where they are asked for."""
        if self.report is not None:
            page.write(self.report, overwrite=self.overwrite)
            note(f"report: {self.report}")
        if self.groups is not None:
            found = page.groups()
            with whole_file(self.groups, overwrite=self.overwrite) as temporary:
                temporary.write_text(json.dumps(found.to_json(), indent=1), encoding="utf-8")
            note(f"{str(found).splitlines()[0]}, written to {self.groups}")


@dataclass(frozen=True)
class WorkerOptions:
    """Who scores, and in which parts.

    Attributes:
        workers: processes that score, with Ray (goen[ray]); 1 is this process.
        threads: of torch in each (default: the cores of this machine, shared out; 1 on a cluster).
        cluster: the address of a Ray cluster to work on, such as auto (default: this machine).
        shard_size: images that are scored as one part, and are one file in a folder of shards; a
            multiple of the batch size (default: about 4,096). A tar or a stack is one shard.
        image_column: of Parquet files: the column of images (default: the only one, or image).
    """

    workers: OptionalCount = None
    threads: OptionalCount = None
    cluster: Annotated[str | None, arg(metavar="ADDRESS", help_behavior_hint="")] = None
    shard_size: OptionalCount = None
    image_column: OptionalName = None

    @property
    def are_here(self) -> bool:
        """Whether this process scores."""
        return self.workers in (None, 1) and self.cluster is None

    def run(self) -> Run:
        """What scores the shards."""
        if self.workers is None and self.cluster is not None:
            raise UsageError("--cluster goes with --workers N.")
        if self.are_here:
            return run_here
        from goen.scoring.ray_workers import RayWorkers  # not needed in one process

        return RayWorkers(self.workers or 0, self.cluster)

    def images_per_shard(self, batch_size: int) -> int:
        """As asked for, or whole batches."""
        if self.shard_size is not None:
            return self.shard_size
        return max(1, DEFAULT_SHARD_SIZE // batch_size) * batch_size

    def settings(self, gate: ScoringGateOptions, output: OutputOptions) -> ScoreSettings:
        """How shards are scored."""
        engine = gate.engine
        if engine == "auto" and (output.in_folder or not self.are_here):
            engine = "torch"
        threads = self.threads
        if threads is None and not self.are_here:
            threads = default_threads(self.workers, self.cluster)
        return ScoreSettings(gate.batch_size, threads, gate.device, engine)


def default_threads(workers: int | None, cluster: str | None) -> int:
    """Threads of each worker: the cores of this machine, shared out; 1 on a cluster."""
    if cluster is not None:
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // max(1, workers or 1))
