"""``goen fit``: fit a gate to a user's own classifier."""

from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Annotated

import tyro

from goen.cli.options.error_rate import asked_error_rate
from goen.cli.options.fit_inputs import FitOptions, is_tensor_file
from goen.cli.options.own_model import ModelOptions
from goen.cli.options.study import StudyOptions
from goen.cli.options.types import OptionalDataset, OptionalModel, OptionalPath, Overwrite
from goen.cli.output.console import note
from goen.detectors import make_detector
from goen.errors import UsageError
from goen.escaping import visible
from goen.gate.fitting.summary import fit_summary
from goen.gate.storage.network import needs_model
from goen.io.files import check_free, whole_file
from goen.io.storage_errors import check_writable


def fit_command(
    fit: Annotated[FitOptions, tyro.conf.arg(name="")],
    out: Path,
    model: OptionalModel = None,
    train: OptionalDataset = None,
    data: OptionalDataset = None,
    features: OptionalPath = None,
    options: Annotated[ModelOptions, tyro.conf.arg(name="")] = ModelOptions(),  # noqa: B008
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
                 goen fit --model hf:my-vit --train frames/train --held-out frames/val
                 --groups parent --out gate
                 goen fit --model hf:my-vit --train photos/train --held-out photos/val
                 --detector best --ood photos/other textures --out gate

    Args:
        fit: the gate, and what it is fitted with.
        out: the folder to write the gate to.
        model: MODULE:FUNCTION, a function that returns the model (the current folder is searched
            too); hf:FOLDER, a classifier of Hugging Face that save_pretrained wrote; timm:NAME; or
            the folder of a run or of a gate, whose network it is. hf and timm bring their own
            size, mean and std, and hf the names of the classes.
        train: the images the model was trained on. For a model of sound or text: a .npz or
            .safetensors file of its inputs by name (input_ids, attention_mask, input_values),
            with labels; then --held-out and --ood are such files too.
        data: in place of --train and --held-out: a folder of class folders, a protocol file or a
            name, which goen splits as goen run and goen bench do. The test images take no part.
        features: in place of --model and --train: features you already have, a .npy, .npz,
            .safetensors or .parquet file; held-out and OOD features are such files too.
        options: how the model takes its inputs.
    """
    check_free(out, "gate", overwrite=overwrite)
    check_writable(out)
    # What is none of these is said before any image is read.
    make_detector(fit.detector)
    errors = asked_error_rate(fit.error_rate, fit.error_confidence)
    classes = options.classes
    if len({*classes}) != len(classes):
        raise UsageError(f"--classes must name each class once, got {' '.join(classes)}.")
    if features is not None:
        if model or train or data or options.weights:
            raise UsageError("Give --features, or --model and its images, not both.")
        fitted = fit.fit_features(features, classes)
        following = f"goen score FEATURES --gate {quote(str(out))}"
    elif model is None or (train is None) == (data is None):
        raise UsageError(
            "Give --model with --train and --held-out, or with --data; or --features, if you have "
            "features already."
        )
    else:
        own = options.load(model)
        if train is not None:
            fitted = fit.fit_model(own, train)
        else:
            from goen.cli.options.own_data import split_for  # the studies, which take a second

            size = max(options.size or (0,))
            images = StudyOptions(data=str(data), size=size)
            fitted = fit.fit_split(own, split_for(own, images, evaluates=False))
        given = "FILE" if train is not None and is_tensor_file(train) else "IMAGES"
        following = f"goen score {given} --gate {quote(str(out))}"
        if needs_model(fitted.gate.network):
            following += f" --model {quote(model)}"
    gate = replace(fitted.gate, error_rate=errors)
    if model is not None:
        gate = replace(gate, metadata={**gate.metadata, "factory": model})
    summary = fit_summary(gate, fitted.files)
    if not gate.detector.saved:
        print(visible(summary))
        note(f"{gate.detector} cannot be saved: no gate was written")
        return 0
    gate.save(out, overwrite=overwrite)
    with whole_file(out / "report.txt") as temporary:
        temporary.write_text(summary + "\n", encoding="utf-8")
    print(visible(summary))
    if fitted.page is not None:
        fitted.page(gate, path=out / "report.html")
        note(f"report: {out / 'report.html'}")
    if gate.classes == ("known",):
        note("no labels and no logits: this gate is a novelty detector, with one class")
    note(f"gate: {out}   next: {following}")
    return 0
