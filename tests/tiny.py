"""A run small enough for tests: the digits protocol, thinned, and a network of width two."""

from dataclasses import replace

from goen.data import OodSet, Protocol, protocol
from goen.detectors.calibration_head import HeadConfig
from goen.models import NetworkConfig
from goen.studies import PRESETS, Preset
from goen.training import TrainingConfig

TINY = Preset(
    NetworkConfig(width=2, mean=(0.3, 0.3, 0.3), std=(0.35, 0.35, 0.35)),
    TrainingConfig(epochs=3, batch_size=32, flip="never", padding=2),
    HeadConfig(batch_size=16, epochs=8),
)

FAST = replace(TINY, training=TrainingConfig(epochs=1, batch_size=32, flip="never", padding=2))


def tiny_protocol() -> Protocol:
    p = protocol("digits")
    return Protocol(
        "digits",
        p.train.take(range(200)),
        p.validation.take(range(120)),
        p.test.take(range(80)),
        {name: images.take(range(60)) for name, images in p.calibration_ood.items()},
        {n: OodSet(o.images.take(range(50)), o.group) for n, o in p.evaluation.items()},
        {"places": "places/val is not here: it was left out of this test."},
    )


def register() -> None:
    PRESETS["tiny"] = TINY  # type: ignore[index]
