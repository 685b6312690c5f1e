"""Every detector on the networks of the bundled gates: seeds 42 and 123 of preset fast, and GOEN's.

    python recipes/fast_board.py --data-dir DATA
    python recipes/fast_board.py w16-board-42 --data-dir DATA
    python recipes/fast_board.py fast-board-42 --images 2000 --data-dir DATA

Their weights are in half precision, as the gates have them. Detectors with a gradient pass (ODIN,
AdaSCALE) are left out: they cost four times all the others together.
Keeps results/cifar10/NAME.jsonl, such as fast-board-42. Half an hour of one core for each network
of preset fast. With --images N it takes N images of every set, and 5 N training images, drawn by a
fixed seed, and keeps NAME-of-N.jsonl.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import tyro
from keep import keep
from sets import EXTRA
from torch import nn

import goen
from goen.data import ImageSet, Protocol
from goen.detectors import DETECTORS, make_detector
from goen.models.ensemble import LogitEnsemble
from goen.models.flip_averaging import FlipAveraged

LEFT_OUT = ("uncertainty", "flow")
SEED = 0
TRAINING = 5


def networks() -> dict[str, nn.Module]:
    """By the name of their results."""
    averaged, small = (goen.load(name).network for name in ("cifar10", "cifar10-w16"))
    assert isinstance(averaged, FlipAveraged)
    assert isinstance(averaged.network, LogitEnsemble)
    first, second = averaged.network.members
    assert isinstance(small, FlipAveraged)
    return {"fast-board-42": first, "fast-board-123": second, "w16-board-42": small.network}


def some(images: ImageSet, count: int) -> ImageSet:
    """At most so many of these images, in their order."""
    chosen = np.random.RandomState(SEED).permutation(len(images))[:count]
    return images.take(np.sort(chosen))


def smaller(protocol: Protocol, count: int) -> Protocol:
    """At most so many images of each set; of the training images five times as many."""
    return replace(
        protocol,
        train=some(protocol.train, TRAINING * count),
        validation=some(protocol.validation, count),
        test=some(protocol.test, count),
        evaluation={
            name: replace(found, images=some(found.images, count))
            for name, found in protocol.evaluation.items()
        },
    )


def main(
    names: tyro.conf.Positional[tuple[str, ...]] = (),
    images: int | None = None,
    methods: tuple[str, ...] = (),
    data_dir: Path | None = None,
    runs: Path = Path("runs"),
) -> None:
    """Fit, score and keep.

    Args:
        names: of results; all without it.
        images: of every set; all without it.
        methods: to add to those that the run has; every detector without it.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        runs: where studies and finished work are kept.
    """
    torch.set_num_threads(1)
    protocol = goen.data.protocol("cifar10", data_dir=data_dir, download=True, extra=EXTRA)
    if images is not None:
        protocol = smaller(protocol, images)
    plain = [n for n in DETECTORS if n not in LEFT_OUT and not make_detector(n).needs_gradient]
    chosen = list(methods) or plain
    every = networks()
    for name in names or every:
        kept = name if images is None else f"{name}-of-{images}"
        out = runs / f"cifar10-{kept}"
        print(goen.bench(every[name], protocol, chosen, out=out))
        keep(out, kept)


if __name__ == "__main__":
    tyro.cli(main)
