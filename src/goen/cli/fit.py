"""``goen fit``: fit a gate to a user's own classifier."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import tyro

from goen.cli.fit_features import fit_features
from goen.cli.fit_tensors import fit_tensors, is_tensor_file
from goen.cli.model import find_form, find_preprocess, make_model
from goen.cli.options import (
    Device,
    OptionalFunction,
    OptionalModel,
    OptionalName,
    OptionalPath,
    SomeNames,
    several,
)
from goen.cli.own_settings import OwnSettings
from goen.cli.terminal import note
from goen.data.folders import open_image_set, picture_files
from goen.errors import UsageError
from goen.escaping import visible
from goen.files import check_free, check_writable, whole_file
from goen.gate import Gate
from goen.gate.fit_parts import fit_share
from goen.gate.summary import fit_summary
from goen.models.placement import find_device
from goen.models.tapping.pooling import Layout, Tokens
from goen.models.tapping.tapped import as_tapped
from goen.report.fit import write_fit_page
from goen.runs.artifacts import saved
from goen.runs.limits import check_image_size
from goen.training.distributed import join_ranks, launched_rank


def fit_command(
    held_out: Annotated[str, tyro.conf.arg(metavar="DATASET")],
    out: Path,
    model: OptionalModel = None,
    train: Annotated[str | None, tyro.conf.arg(metavar="DATASET", help_behavior_hint="")] = None,
    features: OptionalPath = None,
    weights: OptionalPath = None,
    ood: Annotated[tuple[str, ...], several("DATASET")] = (),
    layers: SomeNames = ("auto",),
    size: Annotated[tuple[int, ...], several("INT")] = (),
    mean: Annotated[tuple[float, ...], several("FLOAT")] = (),
    std: Annotated[tuple[float, ...], several("FLOAT")] = (),
    preprocess: OptionalFunction = None,
    false_alarm_rate: float = 0.05,
    classes: SomeNames = (),
    logits: OptionalName = None,
    tokens: Tokens = "mean",
    layout: Layout = "auto",
    flip_averaging: bool = False,
    batch_size: int = 128,
    device: Device = "cpu",
) -> int:
    """Fit a gate (detector goen-m) to a classifier you already have, which is not changed.

    A dataset is a folder with one folder of pictures per class, or the name of a dataset of goen,
    such as cifar10/train; OOD images may be any folder of pictures. In place of pictures there may
    be NPY files, one image each, or one .npz file with images (N, C, H, W) and labels. Pictures are
    read as colour; as grey, or with all bands of a TIFF file, if the model takes that. Classes are
    numbered in the alphabetical order of their folders unless --classes gives another. Without
    --layers, goen chooses two layers and prints them with the others. Under torchrun each process
    reads its share of the training images; the gate is the same.

    For example: goen fit --model my_nets:resnet20 --weights resnet20.safetensors
                 --train photos/train --held-out photos/val --ood photos/other --size 224
                 --mean 0.485 0.456 0.406 --std 0.229 0.224 0.225 --out gate
                 goen fit --model my_nets:bands13 --train tiles/train --held-out tiles/val
                 --out gate
                 goen fit --model hf:my-vit --train photos/train --held-out photos/val --out gate
                 goen fit --model timm:resnet18 --weights resnet18.safetensors
                 --train photos/train --held-out photos/val --out gate
                 goen fit --model hf:my-bert --train train.npz --held-out val.npz --out gate
                 goen fit --features train.npz --held-out held_out.npz --out gate
                 torchrun --nproc-per-node 8 -m goen fit ...       (eight processes read the images)

    Args:
        model: MODULE:FUNCTION, a function that returns the model (the current folder is searched
            too); hf:FOLDER, a classifier of Hugging Face that save_pretrained wrote; or timm:NAME.
            hf and timm bring their own size, mean and std, and hf the names of the classes.
        train: the images the model was trained on. For a model of sound or text: a .npz or
            .safetensors file of its inputs by name (input_ids, attention_mask, input_values),
            with labels; then --held-out and --ood are such files too.
        features: in place of --model and --train: features you already have, a .npy, .npz,
            .safetensors or .parquet file; held-out and OOD features are such files too.
        held_out: ID images the model was not trained on: three fifths standardise the cues, two
            fifths set the threshold.
        out: the folder to write the gate to.
        weights: the model's weights: a .safetensors file, or a .pt file of weights alone.
        ood: optional images that should be flagged: they set the weight of each layer, and the gate
            then returns P(OOD).
        layers: layers whose features are measured (default: auto, the layer at half of the depth
            and the last before the classifier). LAYER:mean_abs, :std or :max pools a feature map by
            another statistic than its mean.
        size: height and width (or one number) that images are resized to (default: those of the
            first training image, or the model's own for hf and timm).
        mean: per channel, subtracted from images in [0, 1] before they enter the model.
        std: normalisation, per channel: divides after --mean.
        preprocess: a function of float images in [0, 1], instead of --mean and --std.
        false_alarm_rate: upper bound on the probability that an ID image is flagged.
        classes: the class folders, in the order of the model's logits.
        logits: key, attribute or index of the logits in the model's output, if it is ambiguous.
        tokens: pooling of transformer tokens: the mean of all tokens, or the class token.
        layout: the axis of the channels in feature maps, where their shape is ambiguous.
        flip_averaging: average outputs over each image and its horizontal flip, at twice the time;
            not for classes that a flip changes, such as digits.
        batch_size: images per forward pass.
        device: where the model runs: cpu, or cuda (cuda:1 is the second GPU).
    """
    place = find_device(device)
    check_free(out, saved("gate"), folder=True)
    check_writable(out)
    if len({*classes}) != len(classes):
        raise UsageError(f"--classes must name each class once, got {' '.join(classes)}.")
    if features is not None:
        if model or train or weights:
            raise UsageError("Give --features, or --model and --train, not both.")
        kinds = _kinds(ood)
        rate = false_alarm_rate
        if launched_rank():  # rows in files are read by the first process alone
            return 0
        fit_features(features, held_out, kinds, out, false_alarm_rate=rate, classes=classes)
        return 0
    if model is None or train is None:
        raise UsageError("Give --model and --train; or --features, if you have features already.")
    opened = make_model(model, weights)
    opened.model.to(place)
    own = OwnSettings(opened, find_preprocess(preprocess), mean, std, sized=bool(size))
    wanted = "auto" if layers == ("auto",) else layers
    where = int(logits) if logits and logits.isdigit() else logits
    if is_tensor_file(train):
        if launched_rank():
            return 0
        fit = partial(
            Gate.fit,
            opened.model,
            layers=wanted,
            false_alarm_rate=false_alarm_rate,
            logits=where,
            preprocess=own.preprocess(images=False),
            tokens=tokens,
            layout=layout,
            flip_averaging=flip_averaging,
            batch_size=batch_size,
        )
        fit_tensors(fit, train, held_out, _kinds(ood), out, own.tensor_classes(classes), model)
        return 0
    prepared = own.preprocess(images=True)
    sides = _sides(size) or own.picture_size(train)
    if sides is not None:
        check_image_size(*sides)  # now, and not when the gate is saved
    form = find_form(train, opened.model, sides, prepared, classes)
    training = open_image_set(train, sides, classes or own.class_order(train, form), form)
    sides = training.image_shape[1:]
    check_image_size(*sides)
    held = open_image_set(held_out, sides, training.classes, form)
    ood_images = {kind: open_image_set(name, sides, (), form) for kind, name in _kinds(ood).items()}
    tapped = as_tapped(
        opened.model,
        wanted,
        logits=where,
        preprocess=prepared,
        tokens=tokens,
        layout=layout,
        example=torch.from_numpy(training.read(slice(2))),
    )
    with join_ranks() as ranks:
        read = fit_share(
            tapped, training, ranks, flip_averaging=flip_averaging, batch_size=batch_size
        )
        if ranks.rank:  # the first process goes on
            return 0
    gate = Gate.fit(
        tapped,
        read or training,
        held,
        ood=ood_images or None,
        false_alarm_rate=false_alarm_rate,
        classes=training.classes,
        flip_averaging=flip_averaging,
        batch_size=batch_size,
    )
    gate = replace(gate, facts={**gate.facts, "factory": model})
    gate.save(out)
    page = fit_summary(gate, ood_images)
    with whole_file(out / "report.txt") as temporary:
        temporary.write_text(page + "\n", encoding="utf-8")
    write_fit_page(
        gate,
        held,
        out / "report.html",
        files=picture_files(held_out, held),
        training=training,
        training_files=picture_files(train, training),
    )
    print(visible(page))
    note(f"report: {out / 'report.html'}")
    note(f"gate: {out}   next: goen score PICTURES --gate {out} --model {model}")
    return 0


def _kinds(ood: tuple[str, ...]) -> dict[str, str]:
    """Each OOD dataset by a unique name: the last part of a folder's path, if that is unique."""
    short = [Path(name).resolve().name if Path(name).is_dir() else name for name in ood]
    kinds = dict(zip(short if len({*short}) == len(ood) else ood, ood, strict=True))
    if len(kinds) != len(ood):
        raise UsageError(f"--ood must name each dataset once, got {' '.join(ood)}.")
    return kinds


def _sides(size: tuple[int, ...]) -> tuple[int, int] | None:
    if len(size) > 2 or any(side < 1 for side in size):
        raise UsageError(
            f"--size is one number, or height and width, got {' '.join(map(str, size))}."
        )
    return (size[0], size[-1]) if size else None
