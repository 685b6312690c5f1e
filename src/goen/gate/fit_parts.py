"""Fitting a gate over partitions of the training set, in any processes and in any order."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from goen.batch import take
from goen.data.imageset import ImageSet
from goen.data.inputs import Array, Images, as_stream, check_batch_size
from goen.data.kinds import AskedInputs, ImageInputs, find_kind
from goen.errors import UsageError
from goen.gate._network import record_outputs
from goen.gate._passes import count_classes, first_inputs
from goen.gate.fit import gate_network
from goen.gate.fit_outputs import features_network, open_features
from goen.gate.partial import PartialFit, merge, read_training
from goen.models.placement import evaluating, full_precision
from goen.models.tapping.preprocess import InputPreprocessing, Preprocessing
from goen.models.tapping.tapped import Tapped, as_tapped

if TYPE_CHECKING:
    from goen.gate.fit_outputs import Features
    from goen.training.distributed import Ranks

BATCH_SIZE = 128


def partition_rows(count: int, partitions: int, batch_size: int = BATCH_SIZE) -> list[range]:
    """Consecutive rows of each partition, as evenly as whole batches allow; none is empty.

    Every batch then has the images that it has in a fit of the whole set, and the network's sums
    round in the same way: the gate is the same bytes for any number of partitions.

    Example:
        >>> partition_rows(1000, 3)
        [range(0, 384), range(384, 768), range(768, 1000)]
    """
    check_batch_size(batch_size)
    if count < 1 or partitions < 1:
        raise UsageError(f"Rows and partitions are 1 or more, got {count} and {partitions}.")
    batches = -(-count // batch_size)
    used = min(partitions, batches)
    starts = [-(-batches * number // used) * batch_size for number in range(used)]
    return [range(a, b) for a, b in zip(starts, [*starts[1:], count], strict=True)]


def partial_fit(
    model: nn.Module | Tapped,
    train: Images,
    *,
    first_row: int = 0,
    layers: str | Sequence[str] = "auto",
    preprocess: Preprocessing | InputPreprocessing | None = None,
    flip_averaging: bool = False,
    batch_size: int = BATCH_SIZE,
    inputs: AskedInputs = "auto",
) -> PartialFit:
    """What ``Gate.fit`` keeps of some consecutive rows of the training set.

    Call it in any number of processes, each with its own rows, ``merge`` the results, and give them
    to ``Gate.fit`` in place of the training images, with the same model and settings. The gate is
    that of a fit of the whole set: the same bytes where partitions begin at multiples of the batch
    size (``partition_rows``) and processors, threads and versions are the same; otherwise the same
    choice of images, with features that differ by rounding.

    Args:
        model: as for ``Gate.fit``; a ``Tapped`` where more than these settings are needed.
        train: these rows, with labels.
        first_row: the number of the first of them in the whole training set, from 0.
        layers: as for ``Gate.fit``.
        preprocess: as for ``Gate.fit``.
        flip_averaging: as for ``Gate.fit``.
        batch_size: as for ``Gate.fit``.
        inputs: as for ``Gate.fit``.

    Raises:
        UsageError: invalid layers, labels, images or settings, or an unsuitable model.
    """
    first, stream = first_inputs(as_stream(train, "train", batch_size, inputs))
    kind = find_kind(first, inputs, "train")
    with full_precision():
        tapped = as_tapped(
            model,
            layers,
            logits=None,
            preprocess=preprocess,
            tokens="mean",
            layout="auto",
            example=take(first, slice(2)),
            inputs="images" if isinstance(kind, ImageInputs) else "tensors",
        )
        network = gate_network(tapped, flip_averaging)
        with evaluating(network):
            count_classes(network, first)
            part = read_training(
                network, tapped.layers, replace(stream, kind=kind), first_row=first_row
            )
            return replace(part, recorded=record_outputs(network, kind))


def fit_share(
    model: nn.Module | Tapped,
    train: ImageSet,
    ranks: "Ranks",
    *,
    flip_averaging: bool = False,
    batch_size: int = BATCH_SIZE,
) -> PartialFit | None:
    """Read this process's share of the training set.

    All shares, merged, on rank 0; ``None`` on the others, and where there are no others.

    Args:
        model: as for ``partial_fit``, the same in every process.
        train: the whole set, the same in every process.
        ranks: the processes; see ``goen.training.distributed.join_ranks``.
        flip_averaging: as for ``Gate.fit``.
        batch_size: as for ``Gate.fit``.
    """
    if ranks.size == 1:
        return None
    shares = partition_rows(len(train), ranks.size, batch_size)
    own = b""
    if ranks.rank < len(shares):
        rows = shares[ranks.rank]
        part = partial_fit(
            model,
            train.take(rows),
            first_row=rows.start,
            flip_averaging=flip_averaging,
            batch_size=batch_size,
        )
        own = part.to_bytes()
    parts = ranks.gather_bytes(own)
    return None if ranks.rank else merge(PartialFit.from_bytes(part) for part in parts if part)


def partial_fit_outputs(
    train: "Features",
    labels: Array | None,
    *,
    first_row: int = 0,
    classes: Sequence[str] | None = None,
    batch_size: int = 4096,
) -> PartialFit:
    """What ``Gate.fit_outputs`` keeps of some consecutive rows of features.

    Args:
        train: these rows, as for ``Gate.fit_outputs``.
        labels: of these rows.
        first_row: the number of the first of them in the whole training set, from 0.
        classes: their names; needed where there are labels and no logits, because one part need
            not hold every class.
        batch_size: as for ``Gate.fit_outputs``.

    Raises:
        UsageError: features or labels of an invalid form.
    """
    stream, numbers, parts = open_features(train, labels, classes, batch_size)
    network = features_network(parts, numbers, classes)
    if labels is not None and classes is None and not network.has_logits:
        raise UsageError(
            "Give the names of all classes: these rows need not hold every class, and there are no "
            "logits to count them by."
        )
    with full_precision():
        kind = find_kind(next(iter(stream))[0], "tensors", "train")
        names = tuple(network.widths)
        return read_training(network, names, replace(stream, kind=kind), first_row=first_row)
