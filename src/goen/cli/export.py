"""``goen export``: a gate as one file that runs without goen."""

from typing import Annotated

import numpy as np
import tyro

from goen.cli.model import open_gate
from goen.cli.options import OptionalFunction, OptionalModel, OptionalPath, OptionalRate
from goen.cli.terminal import note
from goen.data.feature_files import read_tensor_file
from goen.data.find_pictures import describe_skipped
from goen.data.inputs import Arrays
from goen.data.pictures import read_picture
from goen.errors import UsageError
from goen.files import check_free, check_writable
from goen.gate.export import ONNX, PROGRAM, to_onnx, to_program
from goen.gate.score_features import takes_rows
from goen.gate.score_files import find_files


def export_command(
    gate: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GATE")],
    out: OptionalPath = None,
    program: OptionalPath = None,
    model: OptionalModel = None,
    preprocess: OptionalFunction = None,
    images: OptionalPath = None,
    false_alarm_rate: OptionalRate = None,
    per_class: bool = False,
    tolerance: OptionalRate = None,
    fixed_size: bool = False,
) -> int:
    """Export a gate to one ONNX file: images in; label, score, p-values, decision out.

    The file takes images of any height and width and resizes them as goen score does; of a gate of
    16-bit images it takes those of its own size. It is compared with the gate before it is written.
    The threshold is an optional input; docs/deploy.md shows how to run the file with onnxruntime
    alone.

    For example: goen export runs/digits --out gate.onnx
                 goen export cifar10 --out gate.onnx          (the bundled gate)
                 goen export my-gate --model my_nets:resnet20 --out gate.onnx --program gate.pt2
                 goen export my-gate --model hf:my-bert --images new.npz --out gate.onnx

    Args:
        gate: the folder of a gate or of a run, or the name of a bundled gate.
        out: the ONNX file to write.
        program: a torch.export program to write (.pt2), which runs with torch and without goen.
        model: the --model of goen fit, for a gate made by it: MODULE:FUNCTION, hf:FOLDER or
            timm:NAME.
        preprocess: the preprocessing function, if the gate was fitted with one.
        images: pictures to compare on (default: images embedded in goen). A gate of sound or text
            needs a file of some of its inputs (.npz, .safetensors).
        false_alarm_rate: of the exported threshold (default: the gate's).
        per_class: guarantee the rate within every predicted class.
        tolerance: the largest difference allowed between the scores of file and gate, relative for
            scores above 1 (default: a thousandth of the held-out scores' interquartile range).
        fixed_size: take images of the gate's size only, for engines that need fixed sizes.
    """
    if out is None and program is None:
        raise UsageError("Name a file to write: --out gate.onnx, or --program gate.pt2.")
    if out is not None:
        check_free(out, ONNX)
        check_writable(out)
    if program is not None:
        check_free(program, PROGRAM)
        check_writable(program)
    if out is not None and program is not None and out.resolve() == program.resolve():
        raise UsageError(f"--out and --program must be different files, got {out} for both.")
    for option, path, other in (("--out", out, ".pt2"), ("--program", program, ".onnx")):
        if path is not None and path.suffix == other:
            raise UsageError(
                "--out writes an ONNX file (.onnx), --program a program of torch.export (.pt2); "
                f"got {option} {path}."
            )
    loaded = open_gate(gate, model, preprocess, false_alarm_rate, per_class=per_class)
    pictures: Arrays | None = None
    if images is not None and takes_rows(loaded):
        pictures = read_tensor_file(images).inputs()
    elif images is not None:
        found = find_files([images], loaded.picture_form)
        if found.skipped:
            note(describe_skipped(found.skipped))
        if not found.files:
            raise UsageError(f"There are no pictures in {images}.")
        size, form = loaded.image_size, loaded.picture_form
        pictures = np.stack([read_picture(file, size, form=form) for file in found.files])
    if out is not None:
        to_onnx(loaded, out, pictures, tolerance=tolerance, any_size=not fixed_size)
        note(f"written and compared with the gate: {out}, {out.stat().st_size / 1e6:.1f} MB")
    if program is not None:
        to_program(loaded, program, pictures, tolerance=tolerance, any_size=not fixed_size)
        note(
            f"written and compared with the gate: {program}, {program.stat().st_size / 1e6:.1f} MB"
        )
    return 0
