"""Whether an image's outputs depend on nothing but the image."""

import torch
from torch import Tensor, nn

from goen.batch import Inputs, count_of, map_parts, take
from goen.errors import UsageError
from goen.models.placement import evaluating, placement
from goen.outputs import Outputs


def check_deterministic(network: nn.Module, images: Inputs, *, alone: int = 4) -> None:
    """Passes when an image's outputs depend on nothing but the image.

    In evaluation mode the network is run on the batch twice, then in reverse, then the first few
    images one by one. Outputs may differ by a thousandth of the largest value (more in half
    precision): other batch sizes add up in another order.

    Args:
        network: gives ``Outputs``.
        images: two or more, different from each other.
        alone: how many images are tried one by one.

    Raises:
        UsageError: they do not, and what to do.

    Example:
        >>> from goen.features.extractor import FeatureExtractor
        >>> check_deterministic(FeatureExtractor(nn.Flatten(), []), torch.rand(3, 1, 2, 2))
    """
    count = count_of(images)
    if count < 2:
        raise UsageError(f"Two images or more show whether outputs repeat, got {count}.")
    with evaluating(network), torch.no_grad():
        first = network(images)
        again, backwards = network(images), network(map_parts(lambda part: part.flip(0), images))
        try:
            single = Outputs.concatenate(
                network(take(images, slice(row, row + 1))) for row in range(min(alone, count))
            )
        except (RuntimeError, ValueError) as error:
            raise UsageError(
                f"The network takes a batch of {count} but not one image alone: {error}"
            ) from error
    tolerance = max(1e-3, 16 * torch.finfo(placement(network)[1]).eps)
    for name, values in _parts(first).items():
        if not bool(torch.isfinite(values).all()):
            raise UsageError(f"The network's {name} hold NaN or infinity. Check its weights.")
    if where := _differing(first, again, tolerance):
        raise UsageError(
            f"The network is not deterministic in evaluation mode: its {where} changed when it saw "
            "the same images again. Look for dropout or noise that ignores model.eval(), such as "
            "functional dropout with training=True, and for random preprocessing."
        )
    turned = torch.arange(count - 1, -1, -1, device=first.logits.device)
    where = _differing(first, backwards[turned], tolerance)
    if where := where or _differing(first[: len(single)], single, tolerance):
        raise UsageError(
            f"An image's outputs depend on the other images of its batch: its {where} changed in "
            "other company. Look for batch norm without running statistics (or frozen in training "
            "mode), and for normalisation over the batch."
        )


def _parts(outputs: Outputs) -> dict[str, Tensor]:
    named = {f"features {name!r}": values for name, values in outputs.features.items()}
    return {"logits": outputs.logits, **named}


def _differing(one: Outputs, other: Outputs, tolerance: float) -> str:
    """The first part in which two outputs are not the same."""
    others = _parts(other)
    for name, values in _parts(one).items():
        difference = (values - others[name]).abs().max()
        if not bool(difference <= tolerance * values.abs().max()):
            return name
    return ""
