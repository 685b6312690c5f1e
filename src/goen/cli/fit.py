"""``goen fit``: a gate for a classifier of one's own."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import tyro

from goen.cli.model import find_preprocess, make_model
from goen.cli.options import OptionalFunction, OptionalName, OptionalPath
from goen.cli.terminal import note
from goen.data.folders import open_image_set
from goen.errors import UsageError
from goen.files import check_free, whole_file
from goen.gate import Gate
from goen.gate.summary import fit_summary
from goen.models.tapping.layers import layers as layers_of
from goen.models.tapping.layers import suggest_layers
from goen.models.tapping.pooling import Layout, Tokens
from goen.models.tapping.preprocess import Preprocess
from goen.runs.artifacts import saved


def fit_command(
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
    flip_averaging: bool = False,
    batch_size: int = 128,
    device: Annotated[str, tyro.conf.arg(help_behavior_hint="(cpu or cuda)")] = "cpu",
) -> int:
    """Fit a gate to a classifier you already have; nothing of the classifier is trained.

    A set of images is a folder with one folder of pictures per class, or the name of a set, such as
    cifar10/train; for OOD images any folder of pictures will do. Classes are numbered in the order
    of their folders' names unless --classes gives another. Without --layers the places to choose
    from are printed.

    For example: goen fit --model my_nets:resnet20 --weights resnet20.safetensors
                 --train photos/train --held-out photos/val --ood photos/other --size 224
                 --mean 0.485 0.456 0.406 --std 0.229 0.224 0.225 --layers layer2 layer4 --out gate

    Args:
        model: module:function that returns the model; looked for in the current folder too.
        train: the images it was trained on.
        held_out: ID images it was not trained on; they standardise the cues and set the threshold.
        out: the folder that becomes the gate.
        weights: .safetensors, or a .pt file of weights alone.
        ood: kinds of images that should be flagged, if you have any.
        layers: where to measure; one in the middle and the last make a good start.
        size: height and width (or one number) that pictures are resized to; else the first's.
        mean: per channel, subtracted from images in [0, 1] before they enter the model.
        std: per channel, then divided by.
        preprocess: module:function of float images in [0, 1], in place of mean and std.
        false_alarm_rate: the share of ID images that may be flagged.
        classes: the folders to read, in the order of the model's logits.
        logits: key, attribute or index of the logits in the model's output, if it is ambiguous.
        tokens: of transformers: the mean of all tokens, or the class token.
        layout: of maps, where their shape does not say it.
        flip_averaging: average over each image and its mirror image: more accurate, at twice the
            time; not for classes that a flip changes, such as digits.
        batch_size: images at once.
        device: cpu, or cuda.
    """
    check_free(out, saved("gate"), folder=True)
    if len({*classes}) != len(classes):
        raise UsageError(f"--classes names each class once, got {' '.join(classes)}.")
    network = make_model(model, weights).to(_device(device))
    sides = _sides(size)
    training = open_image_set(train, sides, classes or None)
    sides = training.image_shape[1:]
    held = open_image_set(held_out, sides, training.classes)
    ood_images = {kind: open_image_set(name, sides, ()) for kind, name in _kinds(ood).items()}
    prepared = find_preprocess(preprocess)
    if prepared is not None and (mean or std):
        raise UsageError("Give --preprocess, or --mean and --std, not both.")
    if mean or std:
        prepared = Preprocess(mean or None, std or None)
    if not layers:
        table = layers_of(network, training.image_shape, preprocess=prepared, layout=layout)
        print(table)
        suggested = " ".join(suggest_layers(table))
        raise UsageError(f"Choose where to measure, for example: --layers {suggested}")
    gate = Gate.fit(
        network,
        training,
        held,
        layers=layers,
        ood=ood_images or None,
        false_alarm_rate=false_alarm_rate,
        logits=int(logits) if logits and logits.isdigit() else logits,
        preprocess=prepared,
        tokens=tokens,
        layout=layout,
        classes=training.classes,
        flip_averaging=flip_averaging,
        batch_size=batch_size,
    )
    gate = replace(gate, facts={**gate.facts, "factory": model})
    gate.save(out)
    page = fit_summary(gate, ood_images)
    with whole_file(out / "report.txt") as temporary:
        temporary.write_text(page + "\n", encoding="utf-8")
    print(page)
    note(f"gate: {out}   next: goen score PICTURES --gate {out} --model {model}")
    return 0


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
