"""``goen extract``: the features of a dataset in a file."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import tyro

from goen.cli.options.fit_inputs import is_tensor_file, read_inputs
from goen.cli.options.own_model import ModelOptions
from goen.cli.options.types import Overwrite
from goen.cli.output.console import note
from goen.data.feature_files import check_written, write_features
from goen.errors import UsageError
from goen.extraction import extract


def extract_command(
    dataset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")],
    model: Annotated[str, tyro.conf.arg(metavar="MODEL")],
    out: Path,
    unlabelled: bool = False,
    part: Annotated[str | None, tyro.conf.arg(metavar="I/N", help_behavior_hint="")] = None,
    options: Annotated[ModelOptions, tyro.conf.arg(name="")] = ModelOptions(),  # noqa: B008
    overwrite: Overwrite = False,
) -> int:
    """Write features, logits, labels and the linear classifier of a model for a dataset to a file.

    goen fit --features takes the file, or a folder of such files: the model runs once, and any
    detector is fitted in seconds. Many machines extract one dataset with --part.

    For example: goen extract photos/train --model hf:my-vit --out train.safetensors
                 goen extract photos/val --model hf:my-vit --out held_out.safetensors
                 goen fit --features train.safetensors --held-out held_out.safetensors --out gate
                 goen extract photos/train --model my_nets:resnet20 --part 3/16
                 --out train/03.safetensors

    Args:
        dataset: a folder with one folder of images per class, a stack of images (.npz, .npy), the
            name of a dataset of goen such as cifar10/train; or, for a model of sound or text, a
            file of its inputs by name.
        model: MODULE:FUNCTION, hf:FOLDER or timm:NAME; see goen help fit.
        out: the file to write, .safetensors or .npz.
        unlabelled: read all images below the folder, without labels: OOD images.
        part: the I-th of N equal parts of the dataset, counted from 1.
        options: how the model takes its inputs.
        overwrite: replace the file if it exists.
    """
    check_written(out, overwrite=overwrite)
    own = options.load(model)
    are_images = not is_tensor_file(dataset)
    rows = partial(_rows, part)
    if are_images:
        found, _ = own.open_images(dataset, labelled=not unlabelled)
        images: Any = found.take(rows(len(found)))
        names = found.classes
    else:
        images, names = read_inputs(own, dataset, rows=rows)
    outputs = extract(own.loaded, images, **own.extraction(images=are_images))
    if unlabelled:
        outputs, names = replace(outputs, labels=None), ()
    write_features(out, outputs, names, overwrite=overwrite)
    note(f"{len(outputs):,} rows: {', '.join(outputs.features)}, logits")
    if outputs.classifier is None:
        note(
            "the logits are not linear in one of these features, so the file has no classifier: "
            "vim, react and fdbd cannot be fitted to it (see --layers, --tokens)"
        )
    file = quote(str(out))
    train, ood = ("TRAIN", f" --ood {file}") if unlabelled else (file, "")
    following = f"goen fit --features {train} --held-out HELD_OUT{ood} --out GATE"
    note(f"features: {out}   next: {following}")
    return 0


def _rows(part: str | None, count: int) -> range:
    """The rows of a part, written ``I/N``; all without one."""
    if part is None:
        return range(count)
    number, _, parts = part.partition("/")
    valid = number.isdigit() and parts.isdigit() and 1 <= int(number) <= int(parts) <= count
    if not valid:
        raise UsageError(
            f"--part is I/N, the I-th of N parts of the {count:,} inputs, such as 3/16; got {part}."
        )
    return range((int(number) - 1) * count // int(parts), int(number) * count // int(parts))
