"""``goen score``: score image files and folders with a gate."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import tyro

from goen.cli.options.score import GIVEN, Format, OutputOptions, ScoringGateOptions, WorkerOptions
from goen.cli.options.standard_input import standard_input
from goen.cli.options.types import several
from goen.cli.output.console import note
from goen.cli.output.scores import print_scores, print_sentence
from goen.data.images.finding import describe_skipped
from goen.errors import UsageError, first_of, unknown
from goen.escaping import visible
from goen.gate import Gate
from goen.gate.prediction import ScoreRow
from goen.progress import shown
from goen.scoring.flagged_copies import FlaggedCopies
from goen.scoring.pipeline import ScoreSettings, ScoreSummary, Sink, score
from goen.scoring.rows import all_columns, sort_rows
from goen.scoring.score_folder import describe_job, open_score_folder
from goen.scoring.sinks import RowSink, Write, open_writer, stream_writer
from goen.scoring.sources import Sources, check_given, takes_tensors

_MOST_CLASSES = 10


def score_command(
    paths: Annotated[tuple[str, ...], tyro.conf.Positional, several("PATH")],
    gate: Annotated[ScoringGateOptions, tyro.conf.arg(name="")] = ScoringGateOptions(),  # noqa: B008  (frozen)
    output: Annotated[OutputOptions, tyro.conf.arg(name="")] = OutputOptions(),  # noqa: B008
    workers: Annotated[WorkerOptions, tyro.conf.arg(name="")] = WorkerOptions(),  # noqa: B008
) -> int:
    """Classify each image, score it, and flag OOD inputs.

    Reads BMP, GIF, JPEG, PNG, PPM, TIFF and WebP files and folders of them, in any size and colour
    mode; Parquet files with a column of images, tars (WebDataset), lists of paths (.txt), stacks of
    images (.npy, .npz), and URLs of all these (s3://, gs://, through fsspec). Images are resized to
    the gate's size. A gate of grey or multi-band images reads them as such, and NPY and NPZ files
    of one image too. On a terminal it prints a table, the most suspicious image first; to a pipe or
    a file it writes a row per image: path, label, confidence, score, p_value, is_ood, each cue with
    its p-value, properties of the image such as image_brightness if the gate has kept those of its
    held-out images, and error, for a file that cannot be read. Exit code 0 if every file was read,
    1 if some were not, 2 on any other error. A gate of features (goen fit --features), sound or
    text scores each row of .npy, .npz, .safetensors and .parquet files.

    For millions of images, --workers N scores with N processes (with Ray, from goen[ray]), and a
    folder as --out holds a file of rows per shard: stopped or killed, the same command continues.

    For example: goen score photo.png      (the bundled gate: the ten classes of CIFAR-10)
                 goen score photos/ --gate runs/digits --out scores.csv
                 goen score photos/ --flagged-only --copy-flagged to-look-at
                 find photos -name '*.jpg' -mtime -1 | goen score - | jq .p_value
                 goen score photos/ --gate my-gate --model my_nets:resnet20
                 goen score photos/ --gate my-gate --model hf:my-vit
                 goen score photos/ --report page.html --groups groups.json
                 goen score tile.tif tiles.npz --gate satellite-gate --model my_nets:bands13
                 goen score s3://bucket/photos.parquet --workers 8 --out scores/

    Args:
        paths: image files, folders of them, and other sources; - reads paths from standard input,
            one per line, or each with a NUL after it, as find -print0 writes them.
        gate: the gate and how it runs.
        output: where rows, copies and the report go.
        workers: who scores, and in which parts.
    """
    check_given(paths)
    output = output if workers.workers is None else output.for_workers()
    row_format, settings, run = output.row_format, workers.settings(gate, output), workers.run()
    loaded = gate.open(gate.gate)
    if takes_tensors(loaded) and output.of_images:
        raise UsageError(
            f"--copy-flagged, --report and --groups are for images, not {loaded.inputs}."
        )
    stdin = standard_input() if "-" in paths else None
    if stdin is not None and stdin.isatty():
        note("reading paths from standard input, one per line, until Ctrl-D")
    shard_size = workers.images_per_shard(gate.batch_size)
    sources = Sources(paths, loaded, shard_size, workers.image_column, stdin, output.target)
    page = output.open_report(loaded, gate.gate)
    copies = FlaggedCopies(output.copy_flagged, paths) if output.copy_flagged else None
    # A progress bar would stand between the rows on the terminal.
    mixed = output.target is None and row_format != "table" and sys.stdout.isatty()
    with _opened(output, row_format, sources, settings) as sink, shown(not mixed):
        summary = score(
            loaded,
            sources,
            sink,
            settings,
            run=run,
            observer=None if page is None else page.images,
            after=None if copies is None else copies.add,
        )
    _print_summary(summary, sources, gate.gate, output, row_format)
    if copies is not None:
        images = "1 flagged image" if copies.copied == 1 else f"{copies.copied:,} flagged images"
        note(f"{images} copied to {copies.folder}")
    if page is not None:
        output.write_report(page)
    return 1 if summary.counts.unreadable else 0


@contextmanager
def _opened(
    output: OutputOptions, row_format: Format, sources: Sources, settings: ScoreSettings
) -> Iterator[Sink]:
    """Where the rows go: a folder of shards, a file, standard output, or a table."""
    columns, only = all_columns(sources.gate), output.flagged_only
    if output.in_folder and output.target is not None and row_format != "table":
        job = describe_job(sources, settings, row_format, flagged_only=only)
        with open_score_folder(
            output.target,
            job,
            row_format,
            columns,
            flagged_only=only,
            overwrite=output.overwrite,
        ) as folder:
            if folder.records and output.of_images:
                raise UsageError(
                    f"{folder.folder} holds {len(folder.records):,} shards that are scored, which "
                    "--report, --groups and --copy-flagged would lack. Leave these out, or choose "
                    "another --out."
                )
            try:
                yield folder
            except KeyboardInterrupt:
                note("Finished shards are kept; the same command continues from there.")
                raise
        return
    order = output.sort or ("p_value" if row_format == "table" else GIVEN)
    if order not in (GIVEN, *columns):
        raise unknown("column", order, [GIVEN, *columns])
    held: list[ScoreRow] = []
    with ExitStack() as stack:
        write: Write = held.append
        if row_format != "table" and output.target is not None:
            file = open_writer(output.target, row_format, columns, overwrite=output.overwrite)
            write = stack.enter_context(file)
        elif row_format != "table":
            write = stack.enter_context(stream_writer(sys.stdout, row_format, columns))
        yield RowSink(write if order == GIVEN else held.append, only)
        rows = held if order == GIVEN else sort_rows(held, order)
        if row_format == "table":
            print_scores(rows)
        else:
            for row in rows:
                write(row)


def _print_summary(
    summary: ScoreSummary, sources: Sources, name: str, output: OutputOptions, row_format: Format
) -> None:
    counts, gate = summary.counts, sources.gate
    others = f"; {describe_skipped(sources.skipped)}" if sources.skipped else ""
    sentence = (
        f"{counts.scored:,} scored, {counts.flagged:,} flagged at a false-alarm rate of "
        f"{gate.false_alarm_rate:g}, {counts.unreadable:,} unreadable{others}; "
        f"engine: {summary.engine}"
    )
    if row_format == "table":
        print()
        print_sentence(sentence)
        print_sentence(_about(name, gate))
        return
    note(sentence)
    if output.target is None:
        return
    if summary.first_error is not None:
        note(f"the first that could not be scored: {visible(summary.first_error)}")
    shards = ""
    if output.in_folder:
        kept = f", {summary.kept:,} of them from before" if summary.kept else ""
        shards = f": {'1 shard' if summary.shards == 1 else f'{summary.shards:,} shards'}{kept}"
    note(f"written to {output.target}{shards}")


def _about(name: str, gate: Gate) -> str:
    each = ", and of each predicted class of them," if gate.per_class else ""
    return (
        f"The gate {name} classifies {first_of(gate.classes, _MOST_CLASSES)}. Of images of "
        f"these{each} it flags at most {gate.false_alarm_rate:.1%} on average."
    )
