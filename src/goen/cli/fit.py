"""``goen fit``: a gate for a classifier of one's own."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import tyro

from goen.artifacts import saved
from goen.cli.model import find_preprocess, make_model
from goen.cli.options import OptionalFunction, OptionalName, OptionalPath
from goen.data import ImageSet, load, names
from goen.data.readers import class_folders, class_names
from goen.data.store import prepare
from goen.errors import UsageError
from goen.files import check_free, whole_file
from goen.fit_report import report
from goen.models.layers import LayerTable
from goen.models.layers import layers as layers_of
from goen.models.pooling import Layout, Tokens
from goen.models.preprocess import Preprocess
from goen.progress import note, warn
from goen.scoring import Gate


def main(argv: Sequence[str]) -> int:
    """Parse and run."""
    code: int = tyro.cli(fit, prog="goen fit", args=list(argv))
    return code


def fit(
    model: str,
    train: str,
    held_out: str,
    out: Path,
    weights: OptionalPath = None,
    ood: tuple[str, ...] = (),
    layers: tuple[str, ...] = (),
    size: tuple[int, ...] = (),
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    preprocess: OptionalFunction = None,
    false_alarm_rate: float = 0.05,
    classes: tuple[str, ...] = (),
    logits: OptionalName = None,
    tokens: Tokens = "mean",
    layout: Layout = "auto",
    mirror: bool = False,
    batch_size: int = 128,
    device: Annotated[str, tyro.conf.arg(help_behavior_hint="(cpu or cuda)")] = "cpu",
) -> int:
    """Fit a gate to a classifier you already have; nothing of the classifier is trained.

    A set of images is a folder with one folder of pictures per class, or a set goen knows, such as
    cifar10/train; of OOD images any folder of pictures will do. Classes are numbered in the order
    of their folders' names unless --classes gives another. Without --layers the places to choose
    from are printed.

    For example: goen fit --model my_nets:resnet20 --weights resnet20.safetensors
                 --train photos/train --held-out photos/val --ood photos/strange --size 224
                 --mean 0.485 0.456 0.406 --std 0.229 0.224 0.225 --layers layer2 layer4 --out gate

    Args:
        model: module:function that returns the model; looked for in the current folder too.
        train: the images it was trained on.
        held_out: ID images it was not trained on; they scale the cues and give the threshold.
        out: the folder that becomes the gate.
        weights: .safetensors, or a .pt file of weights alone.
        ood: kinds of images that should be flagged, if you have any.
        layers: where to measure; one in the middle and the last make a good start.
        size: height and width (or one number) that pictures are resized to; else the first's.
        mean: per channel, subtracted from images in [0, 1] before the model sees them.
        std: per channel, then divided by.
        preprocess: module:function of float images in [0, 1], in place of mean and std.
        false_alarm_rate: the share of ID images that may be flagged.
        classes: the folders to read, in the order of the model's logits.
        logits: key, attribute or index of the logits in the model's output, if it must be said.
        tokens: of transformers: the mean of all tokens, or the class token.
        layout: of maps, where their shape does not say it.
        mirror: look at each image's mirror image as well: surer, at twice the time; not for
            things that a mirror changes, such as digits.
        batch_size: images at once.
        device: cpu, or cuda.
    """
    check_free(out, saved("gate"), folder=True)
    if len({*classes}) != len(classes):
        raise UsageError(f"--classes names each class once, got {' '.join(classes)}.")
    network = make_model(model, weights).to(_device(device))
    sides = _sides(size)
    training = image_set(train, sides, classes or None)
    sides = training.image_shape[1:]
    held = image_set(held_out, sides, training.classes)
    strange = {kind: image_set(name, sides, ()) for kind, name in _kinds(ood).items()}
    prepared = find_preprocess(preprocess)
    if prepared is not None and (mean or std):
        raise UsageError("Give --preprocess, or --mean and --std, not both.")
    if mean or std:
        prepared = Preprocess(mean or None, std or None)
    if not layers:
        table = layers_of(network, training.image_shape, preprocess=prepared, layout=layout)
        print(table)
        raise UsageError(f"Choose where to measure, for example: --layers {_suggestion(table)}")
    gate = Gate.fit(
        network,
        training,
        held,
        layers=layers,
        ood=strange or None,
        false_alarm_rate=false_alarm_rate,
        logits=int(logits) if logits and logits.isdigit() else logits,
        preprocess=prepared,
        tokens=tokens,
        layout=layout,
        classes=training.classes,
        mirror=mirror,
        batch_size=batch_size,
    )
    gate = replace(gate, facts={**gate.facts, "factory": model})
    gate.save(out)
    page = report(gate, strange)
    with whole_file(out / "report.txt") as temporary:
        temporary.write_text(page + "\n", encoding="utf-8")
    print(page)
    note(f"gate: {out}   next: goen score PICTURES --gate {out} --model {model}")
    return 0


def image_set(name: str, size: tuple[int, int] | None, classes: tuple[str, ...] | None) -> ImageSet:
    """A folder of pictures, or a set goen knows; ``()`` for ``classes`` means there are none."""
    folder = Path(name)
    if not folder.is_dir():
        known, _, split = name.partition("/")
        if known in names():
            images = load(known, split or None)
            if size is not None and images.image_shape[1:] != size:
                height, width = images.image_shape[1:]
                raise UsageError(
                    f"{name} has images of {height}×{width}, and {size[0]}×{size[1]} are needed. "
                    "Only folders of pictures are resized; let --preprocess do it for sets."
                )
            return images.of_classes(classes, images.name) if classes else images
        raise UsageError(f"{name} is neither a folder nor a set goen knows ({', '.join(names())}).")
    folder = folder.resolve()
    if classes == ():
        # All pictures below the folder, as one class of its own name.
        return prepare(class_folders(folder.parent, size, (folder.name,)), folder.name)
    there = class_names(folder)
    if not there:
        raise UsageError(
            f"{folder} has no class folders: put the pictures of each class into a folder of its "
            "name."
        )
    others = [name for name in there if classes and name not in classes]
    if others:
        warn(f"{folder}: left out, for they are none of the classes: {', '.join(others[:10])}")
    return prepare(class_folders(folder, size, classes), folder.name)


def _kinds(ood: tuple[str, ...]) -> dict[str, str]:
    """Each set of OOD images by a name of its own: of a folder its last part, if that will do."""
    short = [Path(name).resolve().name if Path(name).is_dir() else name for name in ood]
    kinds = dict(zip(short if len({*short}) == len(ood) else ood, ood, strict=True))
    if len(kinds) != len(ood):
        raise UsageError(f"--ood names each set once, got {' '.join(ood)}.")
    return kinds


def _sides(size: tuple[int, ...]) -> tuple[int, int] | None:
    if len(size) > 2 or any(side < 1 for side in size):
        raise UsageError(f"--size is one number, or height and width; got {size}.")
    return (size[0], size[-1]) if size else None


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"--device is cpu or cuda, got {name!r}.") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no CUDA device here.")
    return device


def _suggestion(table: LayerTable) -> str:
    """The last layer of the middle scale, and the last of all: where the output's size changes."""
    usable = [info for info in table if info.width is not None]
    ends = [
        info.name
        for info, after in zip(usable, [*usable[1:], None], strict=True)
        if after is None or after.shape[1:] != info.shape[1:]
    ]
    chosen = [ends[(len(ends) - 1) // 2], ends[-1]] if ends else ["NAME"]
    return " ".join(dict.fromkeys(chosen))
