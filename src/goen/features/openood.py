"""The network of OpenOOD's CIFAR checkpoints: goen's own ResNet-18 without the paper's head."""

from pathlib import Path

from goen.data.protocols.openood import find_benchmark
from goen.errors import UsageError
from goen.features.weights import load_weights
from goen.models import NetworkConfig, ResNet18

_WIDTH = 64


def openood_resnet18(benchmark: str) -> ResNet18:
    """The ResNet-18 of a benchmark, into which ``best.ckpt`` of OpenOOD is loaded.

    It normalises images itself, as OpenOOD's preprocessing does.

    Args:
        benchmark: ``cifar10`` or ``cifar100``. Those of ImageNet are torchvision's networks.

    Raises:
        UsageError: another benchmark.

    Example:
        >>> len(openood_resnet18("cifar10").state_dict())
        122
    """
    found = find_benchmark(benchmark)
    if not benchmark.startswith("cifar"):
        raise UsageError(
            f"The checkpoints of {benchmark} are of torchvision's networks: give --model, such as "
            "torchvision.models:resnet18, with --weights."
        )
    config = NetworkConfig(
        num_classes=found.num_classes,
        width=_WIDTH,
        representation="plain",
        mean=found.mean,
        std=found.std,
    )
    return ResNet18(config)


def load_openood_checkpoint(path: Path, benchmark: str) -> ResNet18:
    """The network with the weights of a ``best.ckpt`` of OpenOOD; no code of the file is run."""
    network = openood_resnet18(benchmark)
    load_weights(network, path)
    return network.eval()
