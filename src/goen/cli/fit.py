"""``goen fit``: fit a gate to a user's own classifier."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import tyro

from goen.cli.options.fit_inputs import (
    ExtractorSettings,
    FitOptions,
    Fitted,
    PassSettings,
    fit_features,
    fit_tensors,
    is_tensor_file,
)
from goen.cli.options.model import find_preprocess, make_model
from goen.cli.options.own_settings import OwnSettings
from goen.cli.options.types import (
    Device,
    OptionalFunction,
    OptionalModel,
    OptionalName,
    OptionalPath,
    Overwrite,
    SomeNames,
    several,
)
from goen.cli.output.console import note
from goen.data.imageset import ImageSet
from goen.data.sets.folders import image_files, open_image_set
from goen.errors import UsageError
from goen.escaping import visible
from goen.features.extractor import as_extractor
from goen.features.pooling import Layout, Tokens
from goen.gate import Gate
from goen.gate.fitting.summary import fit_summary
from goen.io.files import check_free, whole_file
from goen.io.storage_errors import check_writable
from goen.models.placement import find_device
from goen.report.pages.fit import write_fit_page


def fit_command(
    held_out: Annotated[str, tyro.conf.arg(metavar="DATASET")],
    out: Path,
    model: OptionalModel = None,
    train: Annotated[str | None, tyro.conf.arg(metavar="DATASET", help_behavior_hint="")] = None,
    features: OptionalPath = None,
    weights: OptionalPath = None,
    detector: Annotated[str, tyro.conf.arg(metavar="NAME")] = "goen_m",
    calibration: Annotated[
        str | None, tyro.conf.arg(metavar="DATASET|SHARE", help_behavior_hint="")
    ] = None,
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
    overwrite: Overwrite = False,
) -> int:
    """Fit a gate to a classifier you already have, which is not changed.

    A dataset is a folder with one folder of pictures per class, or the name of a dataset of goen,
    such as cifar10/train; OOD images may be any folder of pictures. In place of pictures there may
    be NPY files, one image each, or one .npz file with images (N, C, H, W) and labels. Pictures are
    read as colour; as grey, or with all bands of a TIFF file, if the model takes that. Classes are
    numbered in the alphabetical order of their folders unless --classes gives another. Without
    --layers, goen chooses two layers and prints them with the others.

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
                 goen fit --model hf:my-vit --train photos/train --held-out photos/val
                 --detector knn --out gate

    Args:
        model: MODULE:FUNCTION, a function that returns the model (the current folder is searched
            too); hf:FOLDER, a classifier of Hugging Face that save_pretrained wrote; or timm:NAME.
            hf and timm bring their own size, mean and std, and hf the names of the classes.
        train: the images the model was trained on. For a model of sound or text: a .npz or
            .safetensors file of its inputs by name (input_ids, attention_mask, input_values),
            with labels; then --held-out and --ood are such files too.
        features: in place of --model and --train: features you already have, a .npy, .npz,
            .safetensors or .parquet file; held-out and OOD features are such files too.
        held_out: ID images the model was not trained on; they set the threshold.
        detector: goen_m, goen, knn, energy, vim, react, mahalanobis_pp, ...: an unknown name lists
            them all. pytorch_ood.NAME is a detector of pytorch-ood, for a gate that is not saved.
        calibration: ID images for the detector's own calibration, or the share of the held-out
            images that is used for it (default: 0.6 for a detector that needs them, such as goen_m;
            else none, and every held-out image sets the threshold).
        out: the folder to write the gate to.
        weights: the model's weights: a .safetensors file, or a .pt file of weights alone.
        ood: optional images that should be flagged, for goen_m and goen: they weight the cues, and
            the gate then returns P(OOD).
        layers: layers whose features the detector can read (default: auto, the layer at half of the
            depth and the last before the classifier). LAYER:mean_abs, :std or :max pools a feature
            map by another statistic than its mean.
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
    check_free(out, "gate", overwrite=overwrite)
    check_writable(out)
    if len({*classes}) != len(classes):
        raise UsageError(f"--classes must name each class once, got {' '.join(classes)}.")
    common = FitOptions(detector, calibration, _kinds(ood), false_alarm_rate, held_out, classes)
    if features is not None:
        if model or train or weights:
            raise UsageError("Give --features, or --model and --train, not both.")
        fitted = fit_features(common, features)
        _finish(fitted, out, f"goen score FEATURES --gate {out}", overwrite=overwrite)
        return 0
    if model is None or train is None:
        raise UsageError("Give --model and --train; or --features, if you have features already.")
    opened = make_model(model, weights)
    opened.model.to(place)
    own = OwnSettings(opened, find_preprocess(preprocess), mean, std, sized=bool(size))
    settings: ExtractorSettings = {
        "layers": "auto" if layers == ("auto",) else layers,
        "logits": int(logits) if logits and logits.isdigit() else logits,
        "tokens": tokens,
        "layout": layout,
    }
    passes: PassSettings = {"flip_averaging": flip_averaging, "batch_size": batch_size}
    if is_tensor_file(train):
        fitted = fit_tensors(common, own, train, settings, passes)
    else:
        fitted = _fit_images(common, own, train, size, settings, passes)
    gate = replace(fitted.gate, metadata={**fitted.gate.metadata, "factory": model})
    given = "FILE" if is_tensor_file(train) else "IMAGES"
    following = f"goen score {given} --gate {out} --model {model}"
    _finish(replace(fitted, gate=gate), out, following, overwrite=overwrite)
    return 0


def _fit_images(
    common: FitOptions,
    own: OwnSettings,
    train: str,
    size: tuple[int, ...],
    settings: ExtractorSettings,
    passes: PassSettings,
) -> Fitted:
    """A gate for images in folders and datasets."""
    training, pixel_format = own.open_images(train, size, tuple(common.classes))
    sides = training.image_shape[1:]

    def load(name: str, classes: Sequence[str]) -> ImageSet:
        return open_image_set(name, sides, tuple(classes), pixel_format)

    held_out = load(common.held_out, training.classes)
    ood = {kind: load(name, ()) for kind, name in common.ood.items()}
    extractor = as_extractor(
        own.opened.model,
        preprocess=own.preprocess(images=True),
        example=torch.from_numpy(training.read(slice(2))),
        **settings,
    )
    gate = Gate.fit(
        extractor,
        training,
        held_out,
        detector=common.detector,
        calibration=common.calibrating(lambda name: load(name, training.classes)),
        ood=ood or None,
        false_alarm_rate=common.false_alarm_rate,
        classes=training.classes,
        **passes,
    )
    page = partial(
        write_fit_page,
        held_out=held_out,
        files=image_files(common.held_out, held_out),
        training=training,
        training_files=image_files(train, training),
    )
    return Fitted(gate, fit_summary(gate, ood), page)


def _finish(fitted: Fitted, out: Path, following: str, *, overwrite: bool) -> None:
    """Save the gate, write and print what was found."""
    if not fitted.gate.detector.saved:
        print(visible(fitted.summary))
        note(f"{fitted.gate.detector} cannot be saved: no gate was written")
        return
    fitted.gate.save(out, overwrite=overwrite)
    with whole_file(out / "report.txt") as temporary:
        temporary.write_text(fitted.summary + "\n", encoding="utf-8")
    print(visible(fitted.summary))
    if fitted.page is not None:
        fitted.page(fitted.gate, path=out / "report.html")
        note(f"report: {out / 'report.html'}")
    if fitted.gate.classes == ("known",):
        note("no labels and no logits: this gate is a novelty detector, with one class")
    note(f"gate: {out}   next: {following}")


def _kinds(ood: tuple[str, ...]) -> dict[str, str]:
    """Each OOD dataset by a unique name: the last part of a folder's path, if that is unique."""
    short = [Path(name).resolve().name if Path(name).is_dir() else name for name in ood]
    kinds = dict(zip(short if len({*short}) == len(ood) else ood, ood, strict=True))
    if len(kinds) != len(ood):
        raise UsageError(f"--ood must name each dataset once, got {' '.join(ood)}.")
    return kinds
