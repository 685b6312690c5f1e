"""The one loop that runs a network over images."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import torch
from torch import nn

from goen.batch import Inputs, count_of, map_parts
from goen.data.imageset import ImageSet
from goen.errors import UsageError
from goen.models.placement import evaluating, full_precision, placement
from goen.outputs import Outputs
from goen.progress import bar

BATCH_SIZE = 256

Beside = TypeVar("Beside")


def extract(network: nn.Module, images: ImageSet, *, batch_size: int = BATCH_SIZE) -> Outputs:
    """The outputs of the network for every image of the set, on the CPU.

    Example:
        >>> from goen.data import load_set
        >>> from goen.models import NetworkConfig, ResNet18
        >>> outputs = extract(ResNet18(NetworkConfig(width=1)), load_set("digits").take(range(5)))
        >>> len(outputs), sorted(outputs.features)
        (5, ['layer1', 'layer2', 'layer3', 'layer4', 'z'])

    Raises:
        UsageError: no image set, or a network that does not return ``Outputs``.
    """
    return Outputs.concatenate(stream(network, images, batch_size=batch_size))


def stream(
    network: nn.Module, images: ImageSet, *, batch_size: int = BATCH_SIZE
) -> Iterator[Outputs]:
    """The outputs batch by batch, in order: memory that does not grow with the set.

    The network is put into evaluation mode and left as it was found.
    """
    if not isinstance(images, ImageSet):
        raise UsageError(
            f"extract reads a goen.data.ImageSet, got {type(images).__name__}. Make one of an "
            "array of images: ImageSet(name, pixels, labels, classes), uint8 pixels (N, C, H, W)."
        )
    batches = ((torch.from_numpy(batch), None) for batch in images.batches(batch_size))
    for outputs, _ in run_network(network, batches, name=images.name, total=len(images)):
        yield outputs


def run_network(
    network: nn.Module,
    batches: Iterable[tuple[Inputs, Beside]],
    *,
    name: str,
    total: int | None,
) -> Iterator[tuple[Outputs, Beside]]:
    """The outputs of each batch on the CPU, with whatever accompanied it.

    Args:
        network: put into evaluation mode and left as it was found.
        batches: what the network takes, on any device, and anything.
        name: of the images, for the progress bar.
        total: how many images there are, if known.
    """
    device, _ = placement(network)
    with evaluating(network), bar() as progress:
        task = progress.add_task(f"reading {name}", total=total, status="images")
        for inputs, beside in batches:
            with full_precision(), torch.inference_mode():
                outputs = _outputs(network, map_parts(lambda part: part.to(device), inputs))
            yield outputs.cpu(), beside
            progress.advance(task, count_of(inputs))


def _outputs(network: nn.Module, inputs: Inputs) -> Outputs:
    """What the network returns for this batch, if that is ``Outputs``."""
    name = type(network).__name__
    advice = "Wrap it, and name the layers whose features you want: goen.Tapped(model, layers)."
    try:
        outputs = network(inputs)
    except (RuntimeError, TypeError) as error:
        # A plain model fails where images of whole numbers meet its weights.
        if _is_of_goen(network) or isinstance(error, torch.OutOfMemoryError):
            raise
        raise UsageError(
            f"{name} cannot take the images as goen gives them, whole numbers (N, C, H, W): "
            f"{error}. {advice}"
        ) from error
    if not isinstance(outputs, Outputs):
        got = type(outputs).__name__
        raise UsageError(
            f"The network should return goen.Outputs, and {name} returns {got}. {advice}"
        )
    return outputs


def _is_of_goen(network: nn.Module) -> bool:
    return type(network).__module__.partition(".")[0] == "goen"
