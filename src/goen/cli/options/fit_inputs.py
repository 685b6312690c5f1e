"""What ``goen fit`` and ``goen extract`` read: images, or rows in files, of features or tensors."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from tyro.conf import arg

from goen.cli.options.groups import read_groups
from goen.cli.options.own_model import ExtractionSettings, OwnModel
from goen.cli.options.types import OptionalDataset, OptionalRate, several
from goen.data.feature_files import SUFFIXES, FeatureFile, read_features, read_tensor_file
from goen.data.images.array_files import read_array_header
from goen.data.images.pixel_format import PixelFormat
from goen.data.imageset import ImageSet, require_disjoint
from goen.data.protocol import Protocol
from goen.data.sets.folders import open_image_set, open_part
from goen.detectors import make_detector
from goen.errors import DataCorrupt, UsageError
from goen.features.precomputed import LOGITS, Features
from goen.gate import Gate
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
        pass
    try:
        return _IMAGES not in read_tensor_file(file).arrays
    except DataCorrupt:
        return False


def kinds(datasets: Sequence[str]) -> dict[str, str]:
    """What each OOD dataset is called: the last part of its path, if that is unique."""
    paths = {name: Path(name).resolve() for name in datasets}
    short = [p.name if p.is_dir() else p.stem if p.is_file() else n for n, p in paths.items()]
    names = short if len({*short}) == len(datasets) else datasets
    if len({*names}) != len(datasets):
        raise UsageError(f"--ood must name each dataset once, got {' '.join(datasets)}.")
    return dict(zip(datasets, names, strict=True))


@dataclass(frozen=True)
class Fitted:
    """A gate, the files of its held-out images, if they have any, and what writes its page."""

    gate: Gate
    files: Sequence[Path] = ()
    page: Callable[..., None] | None = None


class _FitSettings(ExtractionSettings):
    detector: str
    ood: dict[str, Any] | None
    false_alarm_rate: float
    classes: Sequence[str] | None
    flip_averaging: bool


@dataclass(frozen=True)
class FitOptions:
    """Which gate is fitted, and with what.

    Attributes:
        held_out: ID images the model was not trained on; they set the threshold. Not with --data.
        detector: goen_m, goen, knn, energy, vim, react, mahalanobis_pp, ...: an unknown name lists
            them all. best is the one that separates the --ood images best from held-out images
            that do not set the threshold; measure the gate on other OOD images then.
            pytorch_ood.NAME is a detector of pytorch-ood, for a gate that is not saved.
        calibration: ID images for the detector's own calibration, or the share of the held-out
            images that is used for it (default: 0.6 for a detector that needs them, such as goen_m;
            else none, and every held-out image sets the threshold).
        ood: optional images that should be flagged, for goen_m and goen: they weight the cues, and
            the gate then returns P(OOD); for best: they choose the detector.
        false_alarm_rate: upper bound on the probability that an ID image is flagged.
        groups: the scene, patient or video of each held-out image, if they depend on each other
            within one: parent, the folder that each lies in (held_out/CLASS/VIDEO/FRAME.jpg), or a
            CSV file with the columns path, relative to --held-out, and group; for rows of a file
            with a column group alone. Each group counts once.
        flip_averaging: average outputs over each image and its horizontal flip, at twice the time;
            not for classes that a flip changes, such as digits.
        error_rate: accept images of which at most this share is misclassified, among those that
            are not flagged; needs labels of the held-out images.
        error_confidence: the probability with which the error rate is kept (default: 0.95).
    """

    held_out: OptionalDataset = None
    detector: Annotated[str, arg(metavar="NAME")] = "goen_m"
    calibration: Annotated[str | None, arg(metavar="DATASET|SHARE", help_behavior_hint="")] = None
    ood: Annotated[tuple[str, ...], several("DATASET")] = ()
    false_alarm_rate: float = 0.05
    groups: Annotated[str | None, arg(metavar="parent|FILE", help_behavior_hint="")] = None
    flip_averaging: bool = False
    error_rate: OptionalRate = None
    error_confidence: OptionalRate = None

    def by_kind(self, load: Callable[[str], Loaded]) -> dict[str, Loaded]:
        """Each OOD dataset by a unique name: the last part of a folder's path, if it is unique."""
        return {kind: load(name) for name, kind in kinds(self.ood).items()}

    def calibrating(self, load: Callable[[str], Loaded]) -> Loaded | float | None:
        """The share, or the dataset."""
        if self.calibration is None:
            return None
        try:
            return float(self.calibration)
        except ValueError:
            return load(self.calibration)

    @property
    def _held_out(self) -> str:
        """The name of the held-out set.

        Raises:
            UsageError: it is missing.
        """
        if self.held_out is None:
            raise UsageError(
                "Give --held-out: ID images the model was not trained on. Or --data, a folder that "
                "goen splits."
            )
        return self.held_out

    def fit_features(self, features: Path, classes: Sequence[str]) -> Fitted:
        """A gate for the features of a file."""
        train, held_out = read_features(features), read_features(Path(self._held_out))
        names = class_names_in(train, classes)

        def arrays(name: str) -> dict[str, NDArray[Any]]:
            return dict(read_features(Path(name)).arrays)

        def labelled(name: str) -> Features:
            found = read_features(Path(name))
            numbers = class_numbers(found, names, Path(name))
            if numbers is None or LOGITS not in found.arrays:
                return found.arrays
            return replace(found, labels=numbers).outputs()

        gate = Gate.fit_outputs(
            train.arrays if train.classifier is None else train.outputs(),
            class_numbers(train, names, features),
            held_out.arrays,
            detector=None if self.detector == "goen_m" else self.detector,
            calibration=self.calibrating(labelled),
            held_out_labels=class_numbers(held_out, names, Path(self._held_out)),
            ood=self.by_kind(arrays) or None,
            false_alarm_rate=self.false_alarm_rate,
            groups=read_groups(self.groups, Path(self._held_out), ()),
            classes=names or None,
        )
        return Fitted(gate)

    def fit_model(self, own: OwnModel, train: str) -> Fitted:
        """A gate for a model and datasets of images, or files of its inputs by name."""
        if is_tensor_file(train):
            return self._fit_tensors(own, train)
        training, pixel_format = own.open_images(train)
        size = training.image_shape[1:]
        load = partial(open_image_set, size=size, pixel_format=pixel_format, classes=())
        labelled = partial(
            open_part, size=size, pixel_format=pixel_format, classes=training.classes
        )
        held_out = labelled(self._held_out)
        require_disjoint(held_out, training)
        return self._fit_images(own, training, held_out, self.calibrating(labelled), load)

    def fit_split(self, own: OwnModel, data: Protocol) -> Fitted:
        """A gate for a model and images that goen splits: the test images take no part."""
        if self.held_out is not None or self.calibration is not None:
            raise UsageError("--data has held-out images: leave out --held-out and --calibration.")
        training = data.train
        colour, bits = training.image_shape[0], training.pixels.dtype.itemsize * 8
        load = partial(
            open_image_set,
            size=training.image_shape[1:],
            pixel_format=PixelFormat(colour, 8 if bits == 8 else 16),
            classes=(),
        )
        calibrates = make_detector(self.detector).calibrates(with_ood=bool(self.ood))
        calibration = data.calibration_id if calibrates else None
        return self._fit_images(own, training, data.held_out, calibration, load)

    def _fit_images(
        self,
        own: OwnModel,
        training: ImageSet,
        held_out: ImageSet,
        calibration: ImageSet | float | None,
        load: Callable[[str], ImageSet],
    ) -> Fitted:
        from goen.report.pages.fit import write_fit_page  # it imports Matplotlib: a second

        files = held_out.files()
        page = partial(
            write_fit_page,
            held_out=held_out,
            files=files,
            training=training,
            training_files=training.files(),
        )
        gate = Gate.fit(
            own.loaded.model,
            training,
            held_out,
            calibration=calibration,
            groups=read_groups(self.groups, Path(self.held_out or ""), files),
            **self._settings(own, training.classes, load, images=True),
        )
        return Fitted(gate, files, page)

    def _fit_tensors(self, own: OwnModel, train: str) -> Fitted:
        training, names = read_inputs(own, train)
        if not isinstance(training, tuple):
            raise UsageError(
                f"{train} has no labels: add an array labels, of class numbers or names."
            )
        gate = Gate.fit(
            own.loaded.model,
            training,
            read_inputs(own, self._held_out, names)[0],
            calibration=self.calibrating(lambda name: read_inputs(own, name, names)[0]),
            groups=read_groups(self.groups, Path(self._held_out), ()),
            **self._settings(own, names, _read_unlabelled, images=False),
        )
        return Fitted(gate)

    def _settings(
        self, own: OwnModel, names: Sequence[str], load: Callable[[str], Any], *, images: bool
    ) -> "_FitSettings":
        """What a fit on images and one on other inputs share."""
        return {
            "detector": self.detector,
            "ood": self.by_kind(load) or None,
            "false_alarm_rate": self.false_alarm_rate,
            "classes": names or None,
            "flip_averaging": self.flip_averaging,
            **own.extraction(images=images),
        }


def _read_unlabelled(name: str) -> Any:
    return read_tensor_file(Path(name)).inputs()


def read_inputs(
    own: OwnModel,
    name: str,
    names: tuple[str, ...] | None = None,
    rows: Callable[[int], range] = range,
) -> tuple[Any, tuple[str, ...]]:
    """Inputs in a file, with their labels if there are any, and the names of the classes.

    Args:
        own: the model.
        name: of the file.
        names: of the classes; those of the options, the config or the file if not given.
        rows: which are read, given their number.
    """
    found = read_tensor_file(Path(name))
    if names is None:
        names = class_names_in(found, own.options.classes or own.loaded.classes)
    labels = class_numbers(found, names, Path(name))
    kept = rows(len(found))
    inputs = found.inputs(slice(kept.start, kept.stop))
    return inputs if labels is None else (inputs, labels[kept.start : kept.stop]), names


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
