"""``--train``, ``--held-out``, ``--test`` and ``--ood``: a user's own sets for a study."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from goen.cli.options.fit_inputs import class_names_in, class_numbers, kinds
from goen.cli.options.own_model import NetworkOptions, OwnModel, ReadingOptions
from goen.cli.options.study import StudyOptions
from goen.cli.options.types import OptionalDataset, OptionalModel, OptionalPath, several
from goen.data.feature_files import FeatureFile, read_features
from goen.data.feature_set import FeatureSet
from goen.data.imageset import ImageSet
from goen.data.protocol import PROTOCOLS, Protocol
from goen.data.sets.folders import open_image_set, open_part
from goen.errors import UsageError
from goen.features.precomputed import LOGITS
from goen.features.preprocess import Preprocess
from goen.studies.bench import in_order
from goen.studies.given_network import GivenNetwork, open_network

_SPLITS = ("train", "training")
# Of a training; a given model is not trained.
_TRAINING = ("preset", "budget", "seed", "precision")


@dataclass(frozen=True)
class OodOptions:
    """OOD datasets.

    Attributes:
        ood: OOD datasets to evaluate on: any folders of images.
        near_ood: further OOD datasets, near to the ID images: they have a mean of their own.
        far_ood: further OOD datasets, far from the ID images.
    """

    ood: Annotated[tuple[str, ...], several("DATASET")] = ()
    near_ood: Annotated[tuple[str, ...], several("DATASET")] = ()
    far_ood: Annotated[tuple[str, ...], several("DATASET")] = ()

    @property
    def num_ood(self) -> int:
        """How many OOD datasets there are."""
        return len((*self.ood, *self.near_ood, *self.far_ood))

    def by_group(self, load: Callable[[str], ImageSet]) -> dict[str, dict[str, ImageSet]]:
        """Each OOD dataset by its group and a name of its own."""
        names = kinds((*self.ood, *self.near_ood, *self.far_ood))
        groups = {
            "ood": self.ood,
            "near": self.near_ood,
            "far": self.far_ood,
        }
        return {
            group: {names[one]: load(one) for one in members}
            for group, members in groups.items()
            if members
        }


@dataclass(frozen=True)
class OwnDataOptions:
    """A model of your own and its data, in place of --data.

    Attributes:
        model: a model of your own: MODULE:FUNCTION, hf:FOLDER or timm:NAME; see goen help fit.
        train: the images it was trained on: a folder with a folder per class, or another dataset.
        features: in place of --model and --train: features you already have, a .npy, .npz,
            .safetensors or .parquet file; the other sets are such files too.
        held_out: ID images it was not trained on; three fifths calibrate the methods that need it.
        test: ID images for evaluation alone.
        near_ood: OOD datasets beside --ood, near to the ID images: they have a mean of their own.
        far_ood: OOD datasets beside --ood, far from the ID images.
    """

    model: OptionalModel = None
    train: OptionalDataset = None
    features: OptionalPath = None
    held_out: OptionalDataset = None
    test: OptionalDataset = None
    near_ood: Annotated[tuple[str, ...], several("DATASET")] = ()
    far_ood: Annotated[tuple[str, ...], several("DATASET")] = ()

    @property
    def given(self) -> bool:
        """Whether there is a model, or features."""
        return self.model is not None or self.features is not None

    @property
    def sets(self) -> dict[str, str | None]:
        """The ID sets by their options."""
        train = self.train if self.features is None else str(self.features)
        return {"--train": train, "--held-out": self.held_out, "--test": self.test}

    def require_sets(self, num_ood: int) -> tuple[str, str, str]:
        """The names of the three ID sets.

        Raises:
            UsageError: one of them is missing, or there are no OOD images.
        """
        missing = [flag for flag, value in self.sets.items() if value is None]
        missing += [] if num_ood else ["--ood"]
        if missing:
            raise UsageError(
                f"A comparison on your own sets needs {', '.join(missing)} as well: ID images for "
                "training, for calibration and for evaluation, and OOD images. Or give --data, a "
                "folder or a protocol file."
            )
        train, held_out, test = map(str, self.sets.values())
        return train, held_out, test

    @property
    def name(self) -> str:
        """What the data are called: the folder of the training images, or the one above it."""
        path = Path(str(self.sets["--train"])).resolve()
        return path.parent.name if path.stem in _SPLITS else path.stem

    def run_folder(self, options: StudyOptions, study: str) -> Path:
        """The folder of a study on these sets, or on those of --data."""
        own = Path("runs") / f"{self.name}-{study}" if any(self.sets.values()) else None
        return options.out or own or options.run_folder(study)

    def require_no_training(self, config: object, default: object) -> None:
        """Raise a ``UsageError`` if an option of a training goes with a given model."""
        if self.features is not None and (self.model or self.train):
            raise UsageError("Give --features, or --model and --train, not both.")
        changed = [n for n in _TRAINING if getattr(config, n) != getattr(default, n)]
        if changed:
            raise UsageError(
                f"A given model is not trained: leave out --{' and --'.join(changed)}, or --model."
            )

    def open_images(
        self, own: OwnModel, ood: OodOptions, calibration: Sequence[str] = ()
    ) -> Protocol:
        """The sets of images, as the model takes them; calibration: OOD sets that help to fit."""
        train, held_out, test = self.require_sets(ood.num_ood)
        images, pixel_format = own.open_images(train)
        size = images.image_shape[1:]
        load = partial(open_image_set, size=size, pixel_format=pixel_format)
        labelled = partial(open_part, size=size, pixel_format=pixel_format, classes=images.classes)
        groups = ood.by_group(partial(load, classes=()))
        return Protocol.from_sets(
            images,
            labelled(held_out),
            labelled(test),
            groups,
            calibration_ood={
                name: load(one, classes=()) for one, name in kinds(calibration).items()
            },
            name=self.name,
        )

    def open_features(
        self, classes: Sequence[str], ood: OodOptions, calibration: Sequence[str] = ()
    ) -> Protocol:
        """The sets of features in files; calibration: OOD sets that help to fit."""
        train, held_out, test = (Path(name) for name in self.require_sets(ood.num_ood))
        first = read_features(train)
        names = class_names_in(first, classes) or tuple(map(str, range(_num_classes(first))))

        def rows(file: Path, *, labelled: bool = True) -> FeatureSet:
            found = read_features(file)
            labels = class_numbers(found, names, file) if labelled else None
            if labels is None and labelled:
                raise UsageError(f"{file} has no labels: add an array labels, numbers or names.")
            return FeatureSet.of(file.stem, found.arrays, labels, names, found.classifier)

        unlabelled = partial(rows, labelled=False)
        return Protocol.from_sets(
            rows(train),
            rows(held_out),
            rows(test),
            ood.by_group(lambda name: unlabelled(Path(name))),
            calibration_ood={
                name: unlabelled(Path(one)) for one, name in kinds(calibration).items()
            },
            name=self.name,
        )


def open_given(
    options: StudyOptions,
    own: OwnDataOptions,
    reading: NetworkOptions,
    device: str,
) -> tuple[GivenNetwork, Protocol]:
    """The network of a model, or of features, and its images.

    Args:
        options: of the study: --data, --ood and --size.
        own: the model and its sets.
        reading: how the model takes its inputs.
        device: where it runs.
    """
    ood = OodOptions(options.ood, own.near_ood, own.far_ood)
    calibration = () if options.calibration_ood == ("none",) else options.calibration_ood
    if own.features is not None:
        data = own.open_features(reading.classes, ood, calibration)
        return open_network(None, data), data
    settings = {field.name: getattr(reading, field.name) for field in fields(reading)}
    size = (options.size,) if options.size else ()
    given = ReadingOptions(**settings, size=size).load_on(device, str(own.model))
    if any(own.sets.values()):
        data = own.open_images(given, ood, calibration)
    else:
        data = split_for(given, options)
    wanted: Any = given.extraction(images=True)
    del wanted["batch_size"]
    return open_network(given.loaded, data, wanted), data


def split_for(own: OwnModel, options: StudyOptions, *, evaluates: bool = True) -> Protocol:
    """The sets of --data as the model takes them: its size of images, its order of classes."""
    size, preprocess = own.loaded.image_size, own.preprocess(images=True)
    if size is None and isinstance(preprocess, Preprocess):
        size = preprocess.read_image_size
    if not options.size and options.data not in PROTOCOLS:
        options = replace(options, size=max(size or (0,)))
    loaded = options.load_protocol(evaluates=evaluates)
    return in_order(loaded, own.options.classes or own.loaded.classes)


def _num_classes(train: FeatureFile) -> int:
    """Of a file that names none: as many as logits, or as labels count."""
    if LOGITS in train.arrays:
        return int(train.arrays[LOGITS].shape[1])
    return 0 if train.labels is None else int(train.labels.max()) + 1
