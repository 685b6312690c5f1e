"""``goen score``: score image files and folders with a gate."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from goen.cli.model import open_gate
from goen.cli.options import OptionalFunction, OptionalPath, OptionalRate, several
from goen.cli.terminal import note
from goen.errors import UsageError
from goen.gate import DEFAULT_GATE
from goen.gate.score_files import (
    check_not_scored,
    find_files,
    open_writer,
    score_columns,
    score_files,
)


def score_command(
    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, several("PATH")],
    gate: str = DEFAULT_GATE,
    out: OptionalPath = None,
    false_alarm_rate: OptionalRate = None,
    model: OptionalFunction = None,
    preprocess: OptionalFunction = None,
    per_class: bool = False,
) -> int:
    """Classify each image, score it, and flag OOD inputs.

    Reads BMP, GIF, JPEG, PNG, PPM, TIFF and WebP files and folders of them, in any size and colour
    mode; images are resized to the gate's size. A row has path, label, confidence, score, p_value,
    is_ood, each cue with its p-value, and error, for a file that cannot be read.
    Exit code 0 if every file was read, 1 if some were not, 2 on any other error.

    For example: goen score photo.png      (the bundled gate: the ten classes of CIFAR-10)
                 goen score photos/ --gate runs/digits --out scores.csv
                 goen score a.png b.jpg --gate runs/digits --false-alarm-rate 0.01
                 goen score photos/ --gate my-gate --model my_nets:resnet20

    Args:
        paths: image files, and folders of them.
        gate: the folder of a gate (goen fit) or of a run (goen run), or the name of a bundled gate.
        out: a .jsonl, .csv or .parquet file (default: JSON lines on standard output).
        false_alarm_rate: upper bound on the probability that an ID image is flagged (default: the
            gate's).
        model: a function that returns the model; needed for a gate made by goen fit.
        preprocess: the preprocessing function, if the gate was fitted with one.
        per_class: one threshold per predicted class; needs enough held-out images of each.
    """
    if not paths:
        raise UsageError("Name the pictures or folders to score.")
    loaded = open_gate(gate, model, preprocess, false_alarm_rate, per_class=per_class)
    files = find_files(paths)
    if not files:
        raise UsageError(f"There are no pictures in {', '.join(map(str, paths))}.")
    if out is not None:
        check_not_scored(out, files)
    with open_writer(out, sys.stdout, ["path", *score_columns(loaded), "error"]) as write:
        counts = score_files(loaded, files, write)
    note(
        f"{counts.scored} scored, {counts.flagged} flagged at a false-alarm rate of "
        f"{loaded.false_alarm_rate:g}, {counts.unreadable} unreadable"
    )
    if out is not None:
        note(f"written to {out}")
    return 1 if counts.unreadable else 0
