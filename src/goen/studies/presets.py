"""Presets: network and training settings that suit a machine and a data set."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal, get_args

from goen.checks import check_choice, check_seed
from goen.data.protocol import PROTOCOLS, Protocol
from goen.detectors.calibration_head import HeadConfig
from goen.errors import unknown
from goen.io.manifest import JsonValue
from goen.models import NetworkConfig
from goen.studies.adapting import adapt_head, adapt_length, adapt_network, adapt_training
from goen.training import PATIENCE, TrainingConfig

Budget = Literal["full", "paper"]
"""The training budget: the whole schedule for every network, or the paper's early stopping."""

# The paper's five, in its order.
SEEDS = (42, 123, 2024, 777, 314)


@dataclass(frozen=True)
class Preset:
    """Settings of the network, of its training and of the calibration head's training."""

    network: NetworkConfig
    training: TrainingConfig
    head: HeadConfig

    def to_json(self) -> dict[str, JsonValue]:
        """All settings, for manifests."""
        return {
            "network": self.network.to_json(),
            "training": self.training.to_json(),
            "head": asdict(self.head),
        }


# At most 45 minutes on two cores: a narrow network, smaller images first, one cycle.
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

_FAST = Preset(
    NetworkConfig(width=64, representation="plain", architecture="fast_cnn"),
    TrainingConfig(
        epochs=16,
        batch_size=512,
        learning_rate=0.75,
        schedule="triangle",
        momentum=0.85,
        weight_decay=1.33e-3,
        label_smoothing=0.2,
        padding=2,
        border="reflect",
        flip="alternating",
        norm_bias_rate=64.0,
        look_ahead=5,
        sizes=((10, 24),),
    ),
    HeadConfig(),
)

# A third of cpu's epochs, for studies that train many networks.
_SHORT = replace(_CPU, training=replace(_CPU.training, epochs=12, sizes=((8, 20), (2, 26))))

_PAPER = Preset(NetworkConfig(width=64), TrainingConfig(epochs=40), HeadConfig())

PRESETS: Mapping[str, Preset] = {
    # Half a minute on two cores. Digits are not flipped: a flipped 2 is not a 2.
    "digits": Preset(
        NetworkConfig(num_classes=7, width=8, mean=(0.3, 0.3, 0.3), std=(0.35, 0.35, 0.35)),
        TrainingConfig(epochs=15, batch_size=64, flip="never", padding=3, schedule="one_cycle"),
        HeadConfig(batch_size=16),  # 144 ID images: smaller batches for enough steps
    ),
    "cpu": _CPU,
    "short": _SHORT,
    # A network made for short trainings.
    "fast": _FAST,
    # More epochs in the same time, on processors with instructions for bfloat16; hours on others.
    # Of label smoothing 0.1 and 0.2 the first was the better here; with fast it was not tried.
    "fast-bf16": replace(
        _FAST,
        training=replace(
            _FAST.training,
            epochs=20,
            label_smoothing=0.1,
            sizes=((5, 24),),
            precision="bfloat16",
        ),
    ),
    # The paper's width within two hours of one core, on the same processors.
    "wide-bf16": replace(
        _SHORT,
        network=replace(_SHORT.network, width=64),
        training=replace(_SHORT.training, precision="bfloat16"),
    ),
    # The paper's settings, for a GPU.
    "paper": _PAPER,
    # The same in bfloat16: nine hours of one core, on processors with instructions for it.
    "paper-bf16": replace(_PAPER, training=replace(_PAPER.training, precision="bfloat16")),
}


def choose_preset(name: str, protocol: Protocol, budget: Budget, seed: int) -> Preset:
    """The preset for these images, with their number of classes, this seed and this budget.

    For images of one's own it is adapted to them, see ``goen.studies.adapting``.

    Args:
        name: in ``PRESETS``, or auto: digits for digits, else cpu.
        protocol: the images.
        budget: whether training stops early.
        seed: of all trainings.

    Raises:
        UsageError: an unknown preset or budget, or a seed out of range.
    """
    check_choice("budget", budget, get_args(Budget))
    check_seed(seed)
    asked = name
    if name == "auto":
        name = "digits" if protocol.name == "digits" else "cpu"
    if name not in PRESETS:
        raise unknown("preset", name, ["auto", *PRESETS])
    chosen = PRESETS[name]
    if protocol.name not in PROTOCOLS:
        network = adapt_network(chosen.network, protocol.train)
        training = adapt_training(chosen.training, protocol.train, flip=protocol.flip)
        if asked == "auto":
            training = adapt_length(training, len(protocol.train))
        head = adapt_head(chosen.head, len(protocol.calibration_id))
        chosen = Preset(network, training, head)
    patience = PATIENCE if budget == "paper" else None
    return Preset(
        replace(chosen.network, num_classes=len(protocol.train.classes)),
        replace(chosen.training, seed=seed, patience=patience),
        replace(chosen.head, seed=seed),
    )
