"""The one loop that runs a network over images."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from goen.data.imageset import ImageSet
from goen.outputs import Outputs
from goen.progress import bar

BATCH_SIZE = 256


def extract(network: nn.Module, images: ImageSet, *, batch_size: int = BATCH_SIZE) -> Outputs:
    """What the network says about every image of the set, on the CPU.

    Example:
        >>> from goen.data import load
        >>> from goen.models import NetworkConfig, ResNet18
        >>> outputs = extract(ResNet18(NetworkConfig(width=1)), load("digits").take(range(5)))
        >>> len(outputs), sorted(outputs.features)
        (5, ['layer1', 'layer2', 'layer3', 'layer4', 'z'])
    """
    return Outputs.concatenate(stream(network, images, batch_size=batch_size))


def stream(
    network: nn.Module, images: ImageSet, *, batch_size: int = BATCH_SIZE
) -> Iterator[Outputs]:
    """The outputs batch by batch, in order: memory that does not grow with the set.

    The network is put into evaluation mode and left as it was found.
    """
    device = next(network.parameters()).device
    with evaluating(network), bar() as progress:
        task = progress.add_task(f"reading {images.name}", total=len(images), status="images")
        for batch in images.batches(batch_size):
            with torch.inference_mode():
                outputs = network(torch.from_numpy(batch).to(device))
            yield outputs.cpu()
            progress.advance(task, len(batch))


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode, and afterwards each part in the mode it was in."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
