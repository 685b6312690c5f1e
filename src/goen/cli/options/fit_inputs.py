"""``goen fit`` with rows in files: features, or tensors that a model takes."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import numpy as np
from numpy.typing import NDArray

from goen.cli.options.own_settings import OwnSettings
from goen.data.feature_files import SUFFIXES, FeatureFile, read_features, read_tensor_file
from goen.data.images.array_files import read_array_header
from goen.errors import DataCorrupt, UsageError
from goen.features.extractor import OutputSettings
from goen.gate import Gate
from goen.gate.fitting.summary import fit_summary
from goen.io.arrays import is_array_file

Loaded = TypeVar("Loaded")
# What a file with several arrays calls a stack of images.
_IMAGES = "images"


def is_tensor_file(name: str) -> bool:
    """Whether a dataset is a file of a model's inputs, and no stack of images, folder or set."""
    file = Path(name)
    if file.suffix not in SUFFIXES or not file.is_file():
        return False
    if not is_array_file(file):
        return True
    try:
        return not read_array_header(file, name, sys.maxsize).is_stack
    except DataCorrupt:  # several arrays, or one that cannot be images, or a damaged file
        return _holds_other_arrays(file)


def _holds_other_arrays(file: Path) -> bool:
    try:
        return _IMAGES not in read_tensor_file(file).arrays
    except DataCorrupt:
        return False


@dataclass(frozen=True)
class FitOptions:
    """Options of ``goen fit`` that do not depend on what the inputs are.

    Attributes:
        detector: its name.
        calibration: a dataset, or the share of the held-out inputs, as a text.
        ood: datasets by the names of their kinds.
        false_alarm_rate: of the gate.
        held_out: a dataset.
        classes: their names, if they are given.
    """

    detector: str
    calibration: str | None
    ood: Mapping[str, str]
    false_alarm_rate: float
    held_out: str
    classes: Sequence[str]

    def calibrating(self, load: Callable[[str], Loaded]) -> Loaded | float | None:
        """The share, or the dataset."""
        if self.calibration is None:
            return None
        try:
            return float(self.calibration)
        except ValueError:
            return load(self.calibration)


class ExtractorSettings(OutputSettings):
    """Settings of a ``FeatureExtractor``."""

    layers: str | tuple[str, ...]


class PassSettings(TypedDict):
    """How inputs pass through the network."""

    flip_averaging: bool
    batch_size: int


@dataclass(frozen=True)
class Fitted:
    """A gate, its summary, and what writes its page, if it has one."""

    gate: Gate
    summary: str
    page: Callable[..., None] | None = None


def fit_features(options: FitOptions, features: Path) -> Fitted:
    """A gate for the features of a file."""
    train, holding = read_features(features), read_features(Path(options.held_out))
    names = class_names_in(train, options.classes)

    def arrays(name: str) -> Any:
        return dict(read_features(Path(name)).arrays)

    gate = Gate.fit_outputs(
        train.arrays if train.classifier is None else train.outputs(),
        class_numbers(train, names, features),
        holding.arrays,
        detector=None if options.detector == "goen_m" else options.detector,
        calibration=options.calibrating(arrays),
        held_out_labels=class_numbers(holding, names, Path(options.held_out)),
        ood={kind: arrays(file) for kind, file in options.ood.items()} or None,
        false_alarm_rate=options.false_alarm_rate,
        classes=names or None,
    )
    return Fitted(gate, fit_summary(gate, {}))


def fit_tensors(
    options: FitOptions,
    own: OwnSettings,
    train: str,
    settings: ExtractorSettings,
    passes: PassSettings,
) -> Fitted:
    """A gate for a model and files of its inputs by name, with labels."""
    training, holding = read_tensor_file(Path(train)), read_tensor_file(Path(options.held_out))
    names = class_names_in(training, own.tensor_classes(tuple(options.classes)))
    labels = class_numbers(training, names, Path(train))
    if labels is None:
        raise UsageError(f"{train} has no labels: add an array labels, of class numbers or names.")
    held_out_labels = class_numbers(holding, names, Path(options.held_out))
    held = holding.inputs()

    def inputs(name: str) -> Any:
        return read_tensor_file(Path(name)).inputs()

    gate = Gate.fit(
        own.opened.model,
        (training.inputs(), labels),
        held if held_out_labels is None else (held, held_out_labels),
        detector=options.detector,
        calibration=options.calibrating(inputs),
        ood={kind: inputs(file) for kind, file in options.ood.items()} or None,
        classes=names or None,
        preprocess=own.preprocess(images=False),
        false_alarm_rate=options.false_alarm_rate,
        **settings,
        **passes,
    )
    return Fitted(gate, fit_summary(gate, {}))


def class_names_in(train: FeatureFile, given: Sequence[str]) -> tuple[str, ...]:
    """The names given, those of the file, or those that the labels are, in alphabetical order."""
    if given or train.classes or train.labels is None or train.labels.dtype.kind not in "US":
        return tuple(given) or train.classes
    return tuple(map(str, np.unique(train.labels.astype(str))))


def class_numbers(rows: FeatureFile, names: Sequence[str], file: Path) -> NDArray[Any] | None:
    """Labels as class numbers."""
    if rows.labels is None or rows.labels.dtype.kind not in "US":
        return rows.labels
    places = {name: number for number, name in enumerate(names)}
    texts = rows.labels.astype(str)
    unknown = sorted({text for text in texts if text not in places})
    if unknown:
        raise UsageError(
            f"{file} has labels that are no class: {', '.join(unknown[:5])}. The classes are "
            f"{', '.join([*names][:10]) or 'numbers'}."
        )
    return np.array([places[text] for text in texts], np.int64)
