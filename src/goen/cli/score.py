"""``goen score``: a gate over files and folders of images."""

import sys
from pathlib import Path
from typing import Annotated

import tyro

from goen.cli.model import open_gate
from goen.cli.options import OptionalFunction, OptionalPath, OptionalRate
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
    paths: Annotated[tuple[Path, ...], tyro.conf.Positional],
    gate: str = DEFAULT_GATE,
    out: OptionalPath = None,
    false_alarm_rate: OptionalRate = None,
    model: OptionalFunction = None,
    preprocess: OptionalFunction = None,
    per_class: bool = False,
) -> int:
    """Say what each image is, how far it lies from all that is known, and whether to flag it.

    Takes BMP, GIF, JPEG, PNG, PPM, TIFF and WebP files and folders of them, in any size and mode;
    pictures are resized to the gate's size. Exit code 0 if every file was read, 1 if some were not
    (their rows say why), 2 if nothing could be done.

    For example: goen score photo.png      (the gate in the box: CIFAR-10's ten classes)
                 goen score photos/ --gate runs/digits --out scores.csv
                 goen score a.png b.jpg --gate runs/digits --false-alarm-rate 0.01
                 goen score photos/ --gate my-gate --model my_nets:resnet20

    Args:
        paths: picture files, and folders of them.
        gate: a saved gate, such as runs/digits, or the name of one that comes with goen.
        out: where to write; .jsonl, .csv or .parquet. Left out: JSON lines on standard output.
        false_alarm_rate: the share of known images that may be flagged, if other than the gate's.
        model: module:function that returns the model, for a gate of goen fit.
        preprocess: module:function, if the gate was fitted with one.
        per_class: guarantee the rate within every class.
    """
    if not paths:
        raise UsageError("Name the pictures or folders to score.")
    judge = open_gate(gate, model, preprocess, false_alarm_rate, per_class=per_class)
    files = find_files(paths)
    if not files:
        raise UsageError(f"There are no pictures in {', '.join(map(str, paths))}.")
    if out is not None:
        check_not_scored(out, files)
    with open_writer(out, sys.stdout, ["path", *score_columns(judge), "error"]) as write:
        tally = score_files(judge, files, write)
    note(
        f"{tally.scored} scored, {tally.flagged} flagged at a false-alarm rate of "
        f"{judge.false_alarm_rate:g}, {tally.unreadable} unreadable"
    )
    if out is not None:
        note(f"written to {out}")
    return 1 if tally.unreadable else 0
