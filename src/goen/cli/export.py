"""``goen export``: a gate as one file that runs without goen."""

from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from goen.cli.options.model import RateOptions
from goen.cli.options.types import OptionalPath, OptionalRate, Overwrite
from goen.cli.output.console import note
from goen.data.feature_files import read_tensor_file
from goen.data.images.finding import describe_skipped
from goen.data.inputs import Arrays
from goen.errors import UsageError
from goen.io.files import check_free
from goen.io.storage_errors import check_writable
from goen.scoring.sources import Sources, takes_tensors


def export_command(
    gate: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="GATE")],
    out: Path,
    images: OptionalPath = None,
    options: Annotated[RateOptions, tyro.conf.arg(name="")] = RateOptions(),  # noqa: B008
    tolerance: OptionalRate = None,
    fixed_size: bool = False,
    overwrite: Overwrite = False,
) -> int:
    """Export a gate to one ONNX file: images in; label, score, p-values, decision out.

    The file takes images of any height and width and resizes them as goen score does; of a gate of
    16-bit images it takes those of its own size. It is compared with the gate before it is written.
    The threshold is an optional input; docs/deploy.md shows how to run the file with onnxruntime
    alone.

    For example: goen export runs/digits --out gate.onnx
                 goen export cifar10 --out gate.onnx          (the bundled gate)
                 goen export my-gate --model my_nets:resnet20 --out gate.onnx
                 goen export my-gate --model hf:my-bert --images new.npz --out gate.onnx

    Args:
        gate: the folder of a gate or of a run, or the name of a bundled gate.
        out: the ONNX file to write.
        images: images to compare on (default: images embedded in goen). A gate of sound or text
            needs a file of some of its inputs (.npz, .safetensors).
        options: the gate's own model, and the rate of the exported threshold.
        tolerance: the largest difference allowed between the scores of file and gate, relative for
            scores above 1 (default: a thousandth of the held-out scores' interquartile range).
        fixed_size: take images of the gate's size only, for engines that need fixed sizes.
    """
    if out.suffix != ".onnx":
        raise UsageError(f"--out is an ONNX file, such as gate.onnx; got {out}.")
    check_free(out, overwrite=overwrite)
    check_writable(out)
    loaded = options.open(gate)
    given: Arrays | None = None
    if images is not None and takes_tensors(loaded):
        given = read_tensor_file(images).inputs()
    elif images is not None:
        sources, size = Sources([str(images)], loaded), loaded.image_size
        items = (item for shard in sources.shards() for item in shard.items())
        given = np.stack([item.read(size, loaded.pixel_format) for item in items])
        if sources.skipped:
            note(describe_skipped(sources.skipped))
    loaded.export(out, given, tolerance=tolerance, any_size=not fixed_size, overwrite=overwrite)
    note(f"written and compared with the gate: {out}, {out.stat().st_size / 1e6:.1f} MB")
    return 0
