"""Recipes that fit a machine and a data set, and who does what among the validation images."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.detectors.calibration_head import HeadConfig
from goen.errors import UsageError, unknown
from goen.models import NetworkConfig
from goen.training import TrainingConfig

Fairness = Literal["full", "paper"]
"""Which protocol trains: the whole schedule for everyone, or the paper's early stopping."""

PATIENCE = 10
# The paper's five, in its order.
SEEDS = (42, 123, 2024, 777, 314)
_VALIDATION_SEED = 7


@dataclass(frozen=True)
class Preset:
    """A recipe that fits a machine and a data set."""

    network: NetworkConfig
    training: TrainingConfig
    head: HeadConfig


# Two cores, at most 45 minutes: narrow, smaller images first, one cycle.
_CPU = Preset(
    network=NetworkConfig(width=16),
    training=TrainingConfig(
        epochs=36,
        learning_rate=0.15,
        schedule="one_cycle",
        padding=3,
        border="reflect",
        flip="alternating",
        sizes=((20, 20), (8, 26)),
    ),
    head=HeadConfig(),
)

PRESETS: Mapping[str, Preset] = {
    # Half a minute on two cores. Digits are not mirrored: a mirrored 2 is no 2.
    "digits": Preset(
        NetworkConfig(num_classes=7, width=8, mean=(0.3, 0.3, 0.3), std=(0.35, 0.35, 0.35)),
        TrainingConfig(epochs=15, batch_size=64, flip="never", padding=3, schedule="one_cycle"),
        HeadConfig(batch_size=16),  # 144 ID images: smaller batches for enough steps
    ),
    "cpu": _CPU,
    # A third of that, for studies that train many networks.
    "short": replace(_CPU, training=replace(_CPU.training, epochs=12, sizes=((8, 20), (2, 26)))),
    # As written; for a GPU.
    "paper": Preset(NetworkConfig(width=64), TrainingConfig(epochs=40), HeadConfig()),
}


def recipe(preset: str, protocol: Protocol, fairness: Fairness, seed: int) -> Preset:
    """The preset for these images: their classes, this seed, the protocol's way to stop.

    Args:
        preset: a name in ``PRESETS``, or auto: digits for digits, cpu for CIFAR-10.
        protocol: the images.
        fairness: whether training stops early.
        seed: of everything that is trained.

    Raises:
        UsageError: an unknown preset, or a seed out of range.
    """
    if not 0 <= seed < 2**32:
        raise UsageError(f"A seed lies in 0..{2**32 - 1}, got {seed}.")
    name = preset
    if name == "auto":
        name = "digits" if protocol.name == "digits" else "cpu"
    if name not in PRESETS:
        raise unknown("preset", name, ["auto", *PRESETS])
    chosen = PRESETS[name]
    patience = PATIENCE if fairness == "paper" else None
    return Preset(
        replace(chosen.network, num_classes=len(protocol.train.classes)),
        replace(chosen.training, seed=seed, patience=patience),
        replace(chosen.head, seed=seed),
    )


@dataclass(frozen=True)
class Roles:
    """Who does what: the protocol's validation images, parted once more.

    calibration stops training early and is the head's ID side; held_out only ever gives the
    threshold.
    """

    calibration: ImageSet
    held_out: ImageSet

    @staticmethod
    def of(protocol: Protocol) -> "Roles":
        kept = len(protocol.validation) * 2 // 5
        sizes = {"calibration": len(protocol.validation) - kept, "held-out": kept}
        parts = protocol.validation.split(sizes, _VALIDATION_SEED)
        return Roles(parts["calibration"], parts["held-out"])
