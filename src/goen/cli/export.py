"""``goen export``: a gate as one file that decides without goen."""

from typing import Annotated

import numpy as np
import tyro

from goen.cli.model import open_gate
from goen.cli.options import OptionalFunction, OptionalPath, OptionalRate
from goen.cli.terminal import note
from goen.data.pictures import read_picture
from goen.errors import UsageError
from goen.files import check_free
from goen.gate.export import ONNX, PROGRAM, TOLERANCE, to_onnx, to_program
from goen.gate.score_files import find_files


def export_command(
    gate: Annotated[str, tyro.conf.Positional],
    out: OptionalPath = None,
    program: OptionalPath = None,
    model: OptionalFunction = None,
    preprocess: OptionalFunction = None,
    images: OptionalPath = None,
    false_alarm_rate: OptionalRate = None,
    per_class: bool = False,
    tolerance: float = TOLERANCE,
) -> int:
    """Write a gate as one ONNX file: images in; label, confidence, score, p-value, decision out.

    The file is run and compared with the gate before it appears. The threshold is an input that may
    be left out. docs/deploy.md runs it with onnxruntime alone.

    For example: goen export runs/digits --out gate.onnx
                 goen export cifar10-w16 --out gate.onnx      (the gate in the box)
                 goen export my-gate --model my_nets:resnet20 --out gate.onnx --program gate.pt2

    Args:
        gate: a saved gate, the folder of a run, or the name of a gate that comes with goen.
        out: the ONNX file.
        program: a program of torch.export, for torch without goen.
        model: module:function that returns the model, for a gate of goen fit.
        preprocess: module:function, if the gate was fitted with one.
        images: pictures to compare on, in place of those that goen brings along.
        false_alarm_rate: the threshold's, if other than the gate's.
        per_class: guarantee the rate within every class.
        tolerance: how far the file's scores may lie from the gate's, relative above 1.
    """
    if out is None and program is None:
        raise UsageError("Name a file to write: --out gate.onnx, or --program gate.pt2.")
    if out is not None:
        check_free(out, ONNX)
    if program is not None:
        check_free(program, PROGRAM)
    if out is not None and program is not None and out.resolve() == program.resolve():
        raise UsageError(f"--out and --program are two files, got {out} for both.")
    judge = open_gate(gate, model, preprocess, false_alarm_rate, per_class=per_class)
    pictures = None
    if images is not None:
        files = find_files([images])
        if not files:
            raise UsageError(f"There are no pictures in {images}.")
        pictures = np.stack([read_picture(file, judge.image_size) for file in files])
    if out is not None:
        to_onnx(judge, out, pictures, tolerance=tolerance)
        note(f"written and checked: {out}, {out.stat().st_size / 1e6:.1f} MB")
    if program is not None:
        to_program(judge, program, pictures, tolerance=tolerance)
        note(f"written and checked: {program}, {program.stat().st_size / 1e6:.1f} MB")
    return 0
