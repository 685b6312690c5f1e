"""``--train``, ``--held-out``, ``--test`` and ``--ood``: a user's own sets for a study."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from goen.cli.options.fit_inputs import class_names_in, class_numbers, kinds
from goen.cli.options.own_model import OwnModel
from goen.cli.options.types import OptionalDataset, OptionalModel, OptionalPath, several
from goen.data.feature_files import FeatureFile, read_features
from goen.data.feature_set import FeatureSet
from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.data.sets.folders import open_image_set
from goen.errors import UsageError
from goen.features.precomputed import LOGITS

_SPLITS = ("train", "training")


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
class OwnDataOptions(OodOptions):
    """A model of your own and its data, in place of --data.

    Attributes:
        model: a model of your own: MODULE:FUNCTION, hf:FOLDER or timm:NAME; see goen help fit.
        train: the images it was trained on: a folder with a folder per class, or another dataset.
        features: in place of --model and --train: features you already have, a .npy, .npz,
            .safetensors or .parquet file; the other sets are such files too.
        held_out: ID images it was not trained on; three fifths calibrate the methods that need it.
        test: ID images for evaluation alone.
    """

    model: OptionalModel = None
    train: OptionalDataset = None
    features: OptionalPath = None
    held_out: OptionalDataset = None
    test: OptionalDataset = None

    @property
    def given(self) -> bool:
        """Whether there is a model, or features."""
        return self.model is not None or self.features is not None

    def require_sets(self) -> tuple[str, str, str]:
        """The names of the three ID sets.

        Raises:
            UsageError: one of them is missing, or there are no OOD images.
        """
        train = str(self.features) if self.features is not None else self.train
        if self.features is not None and (self.model or self.train):
            raise UsageError("Give --features, or --model and --train, not both.")
        named = {"--train": train, "--held-out": self.held_out, "--test": self.test}
        missing = [flag for flag, value in named.items() if value is None]
        if not self.num_ood:
            missing.append("--ood")
        if missing:
            raise UsageError(
                f"A comparison on your own data needs {', '.join(missing)} as well: ID images for "
                "training, for calibration and for evaluation, and OOD images."
            )
        return str(train), str(self.held_out), str(self.test)

    @property
    def name(self) -> str:
        """What the data are called: the folder of the training images, or the one above it."""
        path = Path(self.require_sets()[0]).resolve()
        return path.parent.name if path.stem in _SPLITS else path.stem

    def open_images(self, own: OwnModel) -> Protocol:
        """The sets of images, as the model takes them."""
        train, held_out, test = self.require_sets()
        images, pixel_format = own.open_images(train)
        load = partial(open_image_set, size=images.image_shape[1:], pixel_format=pixel_format)
        labelled = partial(load, classes=images.classes)
        ood = self.by_group(partial(load, classes=()))
        return Protocol.from_sets(
            images, labelled(held_out), labelled(test), ood, calibration_ood={}, name=self.name
        )

    def open_features(self, classes: Sequence[str]) -> Protocol:
        """The sets of features in files."""
        train, held_out, test = (Path(name) for name in self.require_sets())
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
            self.by_group(lambda name: unlabelled(Path(name))),
            calibration_ood={},
            name=self.name,
        )


def _num_classes(train: FeatureFile) -> int:
    """Of a file that names none: as many as logits, or as labels count."""
    if LOGITS in train.arrays:
        return int(train.arrays[LOGITS].shape[1])
    return 0 if train.labels is None else int(train.labels.max()) + 1
