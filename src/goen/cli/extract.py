"""``goen extract``: the features of a dataset in a file."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from goen.cli.options.fit_inputs import class_names_in, class_numbers, is_tensor_file
from goen.cli.options.model import find_preprocess, make_model
from goen.cli.options.own_settings import OwnSettings
from goen.cli.options.types import (
    Device,
    OptionalFunction,
    OptionalName,
    OptionalPath,
    Overwrite,
    SomeNames,
    several,
)
from goen.cli.output.console import note
from goen.data.feature_files import check_written, read_tensor_file, write_features
from goen.errors import UsageError
from goen.extraction import extract
from goen.features.pooling import Layout, Tokens
from goen.models.placement import find_device


def extract_command(
    dataset: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="DATASET")],
    model: Annotated[str, tyro.conf.arg(metavar="MODEL")],
    out: Path,
    weights: OptionalPath = None,
    layers: SomeNames = ("auto",),
    size: Annotated[tuple[int, ...], several("INT")] = (),
    mean: Annotated[tuple[float, ...], several("FLOAT")] = (),
    std: Annotated[tuple[float, ...], several("FLOAT")] = (),
    preprocess: OptionalFunction = None,
    classes: SomeNames = (),
    unlabelled: bool = False,
    part: Annotated[str | None, tyro.conf.arg(metavar="I/N", help_behavior_hint="")] = None,
    logits: OptionalName = None,
    tokens: Tokens = "mean",
    layout: Layout = "auto",
    batch_size: int = 128,
    device: Device = "cpu",
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
        weights: the model's weights: a .safetensors file, or a .pt file of weights alone.
        layers: layers whose features are extracted (default: auto, the layer at half of the depth
            and the last before the classifier). LAYER:mean_abs, :std or :max pools a feature map by
            another statistic than its mean.
        size: height and width (or one number) that images are resized to (default: those of the
            first image, or the model's own for hf and timm).
        mean: per channel, subtracted from images in [0, 1] before they enter the model.
        std: normalisation, per channel: divides after --mean.
        preprocess: a function of float images in [0, 1], instead of --mean and --std.
        classes: the class folders, in the order of the model's logits.
        unlabelled: read all images below the folder, without labels: OOD images.
        part: the I-th of N equal parts of the dataset, counted from 1.
        logits: key, attribute or index of the logits in the model's output, if it is ambiguous.
        tokens: pooling of transformer tokens: the mean of all tokens, or the class token.
        layout: the axis of the channels in feature maps, where their shape is ambiguous.
        batch_size: images per forward pass.
        device: where the model runs: cpu, or cuda (cuda:1 is the second GPU).
        overwrite: replace the file if it exists.
    """
    check_written(out, overwrite=overwrite)
    opened = make_model(model, weights)
    opened.model.to(find_device(device))
    own = OwnSettings(opened, find_preprocess(preprocess), mean, std, sized=bool(size))
    are_images = not is_tensor_file(dataset)
    if are_images:
        found, _ = own.open_images(dataset, size, classes, labelled=not unlabelled)
        images: Any = found.take(_rows(part, len(found)))
        names = found.classes
    else:
        images, names = _tensors(dataset, part, own.tensor_classes(classes))
    outputs = extract(
        opened,
        images,
        layers="auto" if layers == ("auto",) else layers,
        logits=int(logits) if logits and logits.isdigit() else logits,
        preprocess=own.preprocess(images=are_images),
        tokens=tokens,
        layout=layout,
        batch_size=batch_size,
    )
    if unlabelled:
        outputs, names = replace(outputs, labels=None), ()
    write_features(out, outputs, names, overwrite=overwrite)
    note(f"{len(outputs):,} rows: {', '.join(outputs.features)}, logits")
    if outputs.classifier is None:
        note(
            "the logits are not linear in one of these features, so the file has no classifier: "
            "vim, react and fdbd cannot be fitted to it (see --layers, --tokens)"
        )
    note(f"features: {out}   next: goen fit --features {out} --held-out HELD_OUT --out GATE")
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


def _tensors(
    dataset: str, part: str | None, classes: tuple[str, ...]
) -> tuple[Any, tuple[str, ...]]:
    """Inputs in a file, with their labels if there are any, and the names of the classes."""
    found = read_tensor_file(Path(dataset))
    rows = _rows(part, len(found))
    kept = slice(rows.start, rows.stop)
    names = class_names_in(found, classes)
    labels = class_numbers(found, names, Path(dataset))
    inputs = found.inputs(kept)
    return inputs if labels is None else (inputs, labels[kept]), names
