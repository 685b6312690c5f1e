"""Settings that suit images of one's own: their channels, size, number and colours."""

from dataclasses import replace

import numpy as np

from goen.data.imageset import ImageSet
from goen.detectors.calibration_head import HeadConfig
from goen.models import NetworkConfig
from goen.training import TrainingConfig

# What the presets were made for: images of 32 pixels.
_SIDE = 32
_MEASURED = 2000  # images, for mean and deviation
_SMALLEST_STD = 0.01
# Images that pass through the network in a training: as many as with 36 epochs of CIFAR-10.
_PASSES = 36 * 45_000
_FEWEST_EPOCHS, _USUAL_EPOCHS, _MOST_EPOCHS = 12, 60, 300
_STEPS = 900
# Smaller sets have smaller batches: (images, batch size).
_BATCHES = ((6000, 128), (1500, 64), (500, 32), (0, 16))


def adapt_network(network: NetworkConfig, train: ImageSet) -> NetworkConfig:
    """The network for images of this size, with as many channels and of these colours.

    The stem of the ResNet-18 has a stride of 2 for sides of 64 pixels and more, and of 4 from 128
    on: its cost is that of maps of 32 to 63 pixels.
    """
    side = min(train.image_shape[1:])
    stride = 4 if side >= 128 else 2 if side >= 64 else 1
    mean, std = _colours(train)
    if network.architecture != "resnet18":
        stride = 1
    return replace(network, mean=mean, std=std, stem_stride=stride)


def _colours(train: ImageSet) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel in [0, 1], of images evenly spread over the set."""
    rows = np.linspace(0, len(train) - 1, min(len(train), _MEASURED)).astype(np.int64)
    sums = np.zeros((2, train.image_shape[0]))
    white = np.iinfo(train.pixels.dtype).max
    for start in range(0, len(rows), 100):
        values = train.read(rows[start : start + 100]) / white
        sums += [values.mean(axis=(2, 3)).sum(axis=0), (values**2).mean(axis=(2, 3)).sum(axis=0)]
    mean, square = sums / len(rows)
    std = np.sqrt(np.maximum(square - mean**2, 0)).clip(_SMALLEST_STD)
    return tuple(mean.round(4).tolist()), tuple(std.round(4).tolist())


def adapt_training(training: TrainingConfig, train: ImageSet, *, flip: bool) -> TrainingConfig:
    """The training with shifts and smaller images in proportion to the size of the images.

    Args:
        training: made for images of 32 pixels.
        train: the images.
        flip: whether a mirrored image is of the same class.
    """
    side = min(train.image_shape[1:])
    square = train.image_shape[1] == train.image_shape[2]
    return replace(
        training,
        padding=round(training.padding * side / _SIDE),
        cutout=round(training.cutout * side / _SIDE),
        # Smaller images are squares: others would be distorted.
        sizes=tuple((n, _even(s * side / _SIDE)) for n, s in training.sizes) if square else (),
        flip=training.flip if flip else "never",
    )


def _even(side: float) -> int:
    return 2 * round(side / 2)


def adapt_length(training: TrainingConfig, count: int) -> TrainingConfig:
    """The training for so many images: batches, epochs and the learning rate.

    As many images pass as with CIFAR-10, in 12 to 60 epochs; in more, up to 300, if there would be
    fewer than 900 steps. The learning rate is in proportion to the batch.
    """
    batch = next(size for least, size in _BATCHES if count >= least)
    steps = max(1, count // batch)
    most = min(max(_USUAL_EPOCHS, -(-_STEPS // steps)), _MOST_EPOCHS)
    epochs = min(max(round(_PASSES / count), _FEWEST_EPOCHS), most)
    return replace(
        training,
        epochs=epochs,
        batch_size=batch,
        learning_rate=training.learning_rate * batch / training.batch_size,
        sizes=tuple((max(1, n * epochs // training.epochs), side) for n, side in training.sizes),
    )


def adapt_head(head: HeadConfig, count: int) -> HeadConfig:
    """The calibration head's training with so many ID images: smaller batches of few images."""
    return replace(head, batch_size=min(head.batch_size, max(16, 2 ** (count // 20).bit_length())))
