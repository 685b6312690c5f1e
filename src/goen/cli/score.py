"""``goen score``: score image files and folders with a gate."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Annotated, Literal

import tyro

from goen.cli.model import open_gate
from goen.cli.options import (
    Device,
    OptionalCount,
    OptionalFunction,
    OptionalModel,
    OptionalName,
    OptionalPath,
    OptionalRate,
    several,
)
from goen.cli.print_scores import counted, print_scores, print_sentence
from goen.cli.score_report import open_report
from goen.cli.score_workers import (
    WorkerOptions,
    check_not_only_sources,
    check_worker_options,
    default_threads,
    score_in_shards,
)
from goen.cli.terminal import note
from goen.data.feature_files import SUFFIXES
from goen.data.find_pictures import describe_skipped
from goen.data.forms import COLOUR, PixelForm
from goen.data.picture_sources import read_list
from goen.data.urls import is_url
from goen.errors import UsageError, unknown
from goen.escaping import visible
from goen.files import printable
from goen.gate import DEFAULT_GATE, Gate
from goen.gate.engine import AskedEngine
from goen.gate.flagged_copies import check_copy_folder, copy_flagged
from goen.gate.score_features import score_feature_files, takes_rows
from goen.gate.score_files import (
    DEFAULT_BATCH_SIZE,
    FileCounts,
    FoundFiles,
    ScoredBatch,
    ScoredFile,
    ScoreRow,
    check_not_scored,
    find_files,
    score_columns,
    score_files,
    sort_rows,
)
from goen.gate.score_job import DEFAULT_SHARD_SIZE
from goen.gate.score_shards import ShardSettings
from goen.gate.score_stacks import is_stack, score_stack_files
from goen.gate.score_writers import format_of, open_writer, stream_writer
from goen.models.precomputed import Precomputed
from goen.progress import shown

Format = Literal["table", "jsonl", "csv", "parquet"]
_GIVEN = "given"
_MOST_CLASSES = 10
FEWEST_FOR_ONNXRUNTIME = 5000
"""Pictures for which the seconds of converting the network come back, with the gate cifar10-w16."""


def score_command(
    paths: Annotated[tuple[str, ...], tyro.conf.Positional, several("PATH")],
    gate: str = DEFAULT_GATE,
    out: OptionalPath = None,
    format_: Annotated[Format | None, tyro.conf.arg(name="format", help_behavior_hint="")] = None,
    flagged_only: bool = False,
    sort: Annotated[str | None, tyro.conf.arg(metavar="COLUMN", help_behavior_hint="")] = None,
    copy_to: Annotated[
        Path | None, tyro.conf.arg(name="copy-flagged", metavar="FOLDER", help_behavior_hint="")
    ] = None,
    false_alarm_rate: OptionalRate = None,
    per_class: bool = False,
    model: OptionalModel = None,
    preprocess: OptionalFunction = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    device: Device = "cpu",
    engine: AskedEngine = "auto",
    report: OptionalPath = None,
    training_images: Annotated[
        str | None, tyro.conf.arg(metavar="DATASET", help_behavior_hint="")
    ] = None,
    workers: OptionalCount = None,
    threads: OptionalCount = None,
    cluster: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS", help_behavior_hint="")] = None,
    shard_size: int = DEFAULT_SHARD_SIZE,
    image_column: OptionalName = None,
) -> int:
    """Classify each image, score it, and flag OOD inputs.

    Reads BMP, GIF, JPEG, PNG, PPM, TIFF and WebP files and folders of them, in any size and colour
    mode; images are resized to the gate's size. A gate of grey or multi-band images reads them as
    such, and NPY and NPZ files too: one image each, or a stack with a row per image. On a terminal
    it prints a table, the most suspicious picture first; to a pipe or a file it writes a row per
    picture: path, label, confidence, score, p_value, is_ood, each cue with its p-value, and error,
    for a file that cannot be read. Exit code 0 if every file was read, 1 if some were not, 2 on any
    other error. A gate of features (goen fit --features), sound or text scores each row of .npy,
    .npz, .safetensors and .parquet files.

    For millions of pictures, --workers N scores with N processes (with Ray, from goen[ray]) and
    writes a folder of shards. Killed or stopped, the same command continues. It also reads Parquet
    files with a column of pictures, tars (WebDataset), lists (.txt), and URLs of all these
    (s3://, gs://, through fsspec), with --workers 1 as well, which is this process without Ray.

    For example: goen score photo.png      (the bundled gate: the ten classes of CIFAR-10)
                 goen score photos/ --gate runs/digits --out scores.csv
                 goen score photos/ --flagged-only --copy-flagged to-look-at
                 find photos -name '*.jpg' -mtime -1 | goen score - | jq .p_value
                 goen score photos/ --gate my-gate --model my_nets:resnet20
                 goen score photos/ --gate my-gate --model hf:my-vit
                 goen score photos/ --report page.html
                 goen score tile.tif tiles.npz --gate satellite-gate --model my_nets:bands13
                 goen score s3://bucket/photos.parquet --workers 8 --out scores/

    Args:
        paths: image files, and folders of them; - reads paths from standard input, one per line,
            or each with a NUL after it, as find -print0 writes them.
        gate: the folder of a gate (goen fit) or of a run (goen run), or the name of a bundled gate.
        out: a .jsonl, .csv or .parquet file (default: -, standard output); with --workers a folder.
        format_: of what is written (default: a table on a terminal, JSON lines to a pipe; for a
            file, what its suffix stands for; with --workers Parquet). Parquet needs goen[parquet].
        flagged_only: leave out pictures that are not flagged, and files that cannot be read.
        sort: sort by this column, the most suspicious first, or as the files are given: given
            (default: p_value for a table, else given, which needs no memory).
        copy_to: copy the flagged pictures into this folder; copies of an earlier call are replaced,
            other files in it stay.
        false_alarm_rate: upper bound on the probability that an ID image is flagged (default: the
            gate's).
        per_class: one threshold per predicted class; needs enough held-out images of each.
        model: the --model of goen fit, for a gate made by it: MODULE:FUNCTION, hf:FOLDER or
            timm:NAME.
        preprocess: the preprocessing function, if the gate was fitted with one.
        batch_size: images per forward pass.
        device: where the network runs: cpu, or cuda (cuda:1 is the second GPU).
        engine: what runs the network: torch, or onnxruntime, which is up to twice as fast on a CPU
            (goen[onnx]) but takes seconds to begin. auto is onnxruntime for 5,000 pictures or more,
            where it is installed and predicts as torch does.
        report: an HTML page to write: the pictures with their scores, the most suspicious first,
            with filters and a slider for the false-alarm rate.
        training_images: with --report: the images that the gate was fitted on (the --train of goen
            fit; cifar10 for the bundled gate), to show those nearest to each picture.
        workers: processes that score, in shards, into the folder --out; 1 is this process alone.
        threads: of each worker (default: the cores of this machine, shared out; 1 on a cluster).
        cluster: the address of a Ray cluster to work on, such as auto (default: this machine).
        shard_size: pictures in each file of rows, a multiple of the batch size; a tar is one shard.
        image_column: of Parquet files: the column of pictures (default: the only one, or image).
    """
    if not paths:
        raise UsageError("Name the pictures or folders to score.")
    check_worker_options(
        workers,
        paths,
        {"--cluster": cluster, "--threads": threads, "--image-column": image_column},
        {
            "--sort": sort,
            "--copy-flagged": copy_to,
            "--report": report,
            "--format table": format_ == "table",
            "--engine onnxruntime": engine == "onnxruntime",
        },
    )
    _require_some(paths)
    if workers is not None:
        counts = score_in_shards(
            open_gate(gate, model, preprocess, false_alarm_rate, per_class=per_class),
            paths,
            out,
            WorkerOptions(workers, cluster, shard_size, image_column),
            ShardSettings(
                "parquet" if format_ is None or format_ == "table" else format_,
                batch_size,
                flagged_only,
                default_threads(workers, cluster) if threads is None else threads,
                device,
            ),
        )
        return 1 if counts.unreadable else 0
    given = _read_paths([Path(path) for path in paths])
    target = None if out is None or out == Path("-") else out
    form = _format(target, format_)
    loaded = open_gate(
        gate, model, preprocess, false_alarm_rate, per_class=per_class, device=device
    )
    of_rows = takes_rows(loaded)
    if not of_rows:
        check_not_only_sources(paths)
    if of_rows and (copy_to or report):
        taken = "features" if isinstance(loaded.network, Precomputed) else str(loaded.inputs)
        raise UsageError(f"--copy-flagged and --report are for pictures; this gate takes {taken}.")
    columns = ["path", *score_columns(loaded), "error"]
    order = sort or ("p_value" if form == "table" else _GIVEN)
    if order not in (_GIVEN, *columns):
        raise unknown("column", order, [_GIVEN, *columns])
    found = _find(given, COLOUR if of_rows else loaded.picture_form)
    if of_rows and not any(file.suffix in SUFFIXES for file in found.files):
        raise UsageError(
            f"This gate takes rows of {', '.join(SUFFIXES)} files; {found.files[0]} is none."
        )
    if target is not None:
        check_not_scored(target, found.files)
    if copy_to is not None:
        check_copy_folder(copy_to, given, found.files)
        _check_no_stacks(found.files)
    if engine == "auto" and (of_rows or len(found.files) < FEWEST_FOR_ONNXRUNTIME):
        engine = "torch"
    loaded = loaded.with_engine(engine)
    page = open_report(report, loaded, gate, training_images)
    flagged: list[Path] = []
    errors: list[str] = []
    with _rows(target, form, columns) as write_row, _sorted(write_row, order) as write:

        def take(scored: ScoredFile) -> None:
            if page is not None:
                page.watch_row(scored.row)
            if scored.row["is_ood"]:
                flagged.append(scored.file)
            if scored.row["label"] is None and not errors:
                errors.append(str(scored.row["error"]))
            if scored.row["is_ood"] or not flagged_only:
                write(scored.row)

        # A progress bar would stand between the rows on the terminal.
        mixed = target is None and form != "table" and sys.stdout.isatty()
        with shown(not mixed):
            watch = None if page is None else page.watch
            if isinstance(loaded.network, Precomputed):
                counts = score_feature_files(loaded, found.files, take)
            elif of_rows:
                counts = score_feature_files(loaded, found.files, take, batch_size=batch_size)
            else:
                counts = _score_images(loaded, found.files, take, watch, batch_size)
    if form == "table":
        print()
        print_sentence(counted(counts, found.skipped, loaded))
        print_sentence(_about(gate, loaded))
    else:
        note(counted(counts, found.skipped, loaded))
    if target is not None:
        if errors:
            note(f"the first that could not be scored: {visible(errors[0])}")
        note(f"written to {target}")
    if copy_to is not None:
        copied = copy_flagged(flagged, copy_to)
        pictures = "1 flagged picture" if copied == 1 else f"{copied:,} flagged pictures"
        note(f"{pictures} copied to {copy_to}")
    if page is not None and report is not None:
        page.write(report)
        note(f"report: {report}")
    return 1 if counts.unreadable else 0


def _require_some(paths: Sequence[str]) -> None:
    """At least one of the paths is there: a path that is not, among others, is a row."""
    if not any(path == "-" or is_url(path) or os.path.lexists(path) for path in paths):
        raise UsageError(f"{printable(str(paths[0]))} does not exist.")


def _read_paths(paths: Sequence[Path]) -> list[Path]:
    """The paths, with those of standard input in place of ``-``."""
    if paths.count(Path("-")) > 1:
        raise UsageError("Standard input can be read once: give - once.")
    given: list[Path] = []
    for path in paths:
        given += _standard_input() if path == Path("-") else [path]
    return given


def _standard_input() -> list[Path]:
    if sys.stdin.isatty():
        note("reading paths from standard input, one per line, until Ctrl-D")
    return [Path(name) for name in read_list(sys.stdin.buffer)]


def _format(target: Path | None, asked: Format | None) -> Format:
    if asked == "table" and target is not None:
        raise UsageError(
            f"A table goes to standard output, not to {target}. Leave out --out, or choose another "
            "format."
        )
    if target is not None:
        return format_of(target, None if asked == "table" else asked)
    if asked == "parquet" and sys.stdout.isatty():
        raise UsageError("Parquet is not for reading on a terminal: give --out scores.parquet.")
    return asked or ("table" if sys.stdout.isatty() else "jsonl")


def _score_images(
    gate: Gate,
    files: Sequence[Path],
    take: Callable[[ScoredFile], None],
    watch: Callable[[ScoredBatch], None] | None,
    batch_size: int,
) -> FileCounts:
    """Pictures and stacks of images, in the order of the files."""
    parts = []
    for of_stacks, some in groupby(files, is_stack):
        score = score_stack_files if of_stacks else score_files
        parts.append(score(gate, list(some), take, watch, batch_size=batch_size))
    return FileCounts(
        sum(part.scored for part in parts),
        sum(part.flagged for part in parts),
        sum(part.unreadable for part in parts),
    )


def _check_no_stacks(files: Sequence[Path]) -> None:
    stacks = [file for file in files if is_stack(file)]
    if stacks:
        raise UsageError(
            f"--copy-flagged is for pictures; {stacks[0]} holds a stack of images. Its rows say "
            "which are flagged."
        )


def _find(given: Sequence[Path], form: PixelForm) -> FoundFiles:
    found = find_files(given, form)
    if not found.files:
        if not given:
            raise UsageError("Standard input holds no paths.")
        skipped = f": {describe_skipped(found.skipped)}" if found.skipped else ""
        raise UsageError(f"There are no pictures in {', '.join(map(str, given))}{skipped}.")
    return found


@contextmanager
def _rows(
    target: Path | None, form: Format, columns: Sequence[str]
) -> Iterator[Callable[[ScoreRow], None]]:
    """A writer of rows in this format, to the file or to standard output."""
    if form == "table":
        rows: list[ScoreRow] = []
        yield rows.append
        print_scores(rows)
    elif target is not None:
        with open_writer(target, form, columns) as write:
            yield write
    else:
        with stream_writer(sys.stdout, form, columns) as write:
            yield (lambda row: write(_visible_row(row))) if sys.stdout.isatty() else write


def _visible_row(row: ScoreRow) -> ScoreRow:
    """For a terminal, which obeys control characters in names."""
    return {k: visible(v) if isinstance(v, str) else v for k, v in row.items()}


@contextmanager
def _sorted(write: Callable[[ScoreRow], None], order: str) -> Iterator[Callable[[ScoreRow], None]]:
    """A writer that passes rows on at once, or at the end if they are to be sorted."""
    if order == _GIVEN:
        yield write
        return
    rows: list[ScoreRow] = []
    yield rows.append
    for row in sort_rows(rows, order):
        write(row)


def _about(name: str, gate: Gate) -> str:
    more = ", ..." if len(gate.classes) > _MOST_CLASSES else ""
    each = ", and of each predicted class of them," if gate.per_class else ""
    return (
        f"The gate {name} classifies {', '.join(gate.classes[:_MOST_CLASSES])}{more}. Of pictures "
        f"of these{each} it flags at most {gate.false_alarm_rate:.1%} on average."
    )
