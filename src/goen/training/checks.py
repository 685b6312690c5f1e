"""Which networks can be trained how, on which images."""

import numpy as np

from goen.data.imageset import ImageSet
from goen.errors import UsageError
from goen.models import NetworkConfig
from goen.training.config import TrainingConfig
from goen.training.distributed import num_processes


def check_sets(train: ImageSet, validation: ImageSet) -> None:
    """Raise a ``UsageError`` if these sets cannot train and validate one network."""
    if len(train) < 2:
        raise UsageError(f"{train.name} has {len(train)} images; training needs at least two.")
    if not len(validation):
        raise UsageError(
            f"{validation.name} has no images, and every epoch is measured on the validation "
            "images. Give at least one."
        )
    if train.classes != validation.classes:
        raise UsageError(
            f"The classes of {train.name} are {', '.join(train.classes):.80}, those of "
            f"{validation.name} {', '.join(validation.classes):.80}. Both need the same classes in "
            "the same order: a label is a position in them."
        )


def check_outliers(config: TrainingConfig, train: ImageSet, outliers: ImageSet | None) -> None:
    """Raise a ``UsageError`` if outliers and their loss do not go together."""
    if (outliers is not None) != (config.outlier_loss > 0):
        raise UsageError(
            "Outliers go with an outlier_loss above 0, and it with outliers: give both or neither."
        )
    if outliers is None:
        return
    if not len(outliers) or outliers.image_shape != train.image_shape:
        raise UsageError(
            f"Outliers must be images of the form of {train.name}, {train.image_shape}; "
            f"{outliers.name} has {len(outliers)} of {outliers.image_shape}."
        )
    if num_processes() > 1:
        raise UsageError("Outlier exposure trains in one process: start it without torchrun.")


def check_possible(network_config: NetworkConfig, config: TrainingConfig, train: ImageSet) -> None:
    """Raise a ``UsageError`` if the network cannot be trained so on these images."""
    num_classes = len(train.classes)
    if num_classes != network_config.num_classes:
        raise UsageError(
            f"The network has {network_config.num_classes} classes, the images have {num_classes}."
        )
    smallest, processes = min(config.batch_size, len(train)), num_processes()
    if smallest < 2 * processes:
        raise UsageError(
            f"{processes} processes cannot share batches of {smallest} images: each needs two."
        )
    if config.logit_norm and network_config.classifier != "linear":
        raise UsageError(
            "Logit normalisation is a loss of the linear classifier; "
            f"{network_config.classifier} has a loss of its own. Set logit_norm to 0."
        )
    if config.feature_norm and (
        network_config.classifier != "linear" or network_config.representation == "concat"
    ):
        raise UsageError(
            "feature_norm is for a linear classifier that reads z; this network has "
            f"{network_config.classifier} and {network_config.representation}."
        )
    if config.rotation_loss and not network_config.rotations:
        raise UsageError(
            "rotation_loss trains a second classifier of the network: build it with "
            "NetworkConfig(rotations=True), or set rotation_loss to 0."
        )
    channels, height, width = train.image_shape
    if config.pixmix and (channels != 3 or train.pixels.dtype != np.uint8):
        raise UsageError(
            f"PixMix is for colour images of 8 bits; {train.name} has {channels} channels of "
            f"{train.pixels.dtype}. Set pixmix to 0."
        )
    if channels != network_config.channels:
        raise UsageError(
            f"The network takes images of {network_config.channels} channels, {train.name} has "
            f"{channels}: give its mean and std a number for each."
        )
    if config.rotation_loss and height != width:
        raise UsageError(
            f"Images can be rotated where they are square; {train.name} has {height}×{width}. Set "
            "rotation_loss to 0."
        )
