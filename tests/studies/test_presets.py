"""Presets and budgets."""

import dataclasses

import pytest

from goen.data import Protocol
from goen.errors import UsageError
from goen.studies import PRESETS, RunConfig
from goen.studies.ablate import CENTER_LOSS
from goen.studies.presets import SEEDS, choose_preset
from goen.training import PATIENCE
from tests.tiny import TINY, tiny_protocol


@pytest.fixture(scope="module")
def protocol() -> Protocol:
    return tiny_protocol()


@pytest.fixture(autouse=True)
def _tiny_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)  # type: ignore[arg-type]


def test_the_paper_budget_stops_early_and_the_full_one_does_not(protocol: Protocol) -> None:
    assert RunConfig(preset="tiny").preset_for(protocol).training.patience is None
    assert RunConfig(preset="tiny", budget="paper").preset_for(protocol).training.patience == 10
    paper = RunConfig(preset="paper").preset_for(protocol)
    assert paper.network.width == 64
    assert paper.training.epochs == 40
    assert paper.training.label_smoothing == 0.1
    with pytest.raises(UsageError, match="Did you mean 'paper'"):
        RunConfig(preset="papr").preset_for(protocol)


def test_an_unknown_budget_or_a_seed_out_of_range_is_an_error(protocol: Protocol) -> None:
    with pytest.raises(UsageError, match=r"Unknown budget 'papr'\. Did you mean 'paper'"):
        choose_preset("tiny", protocol, "papr", 42)  # type: ignore[arg-type]
    for seed in (-1, 2**32):
        with pytest.raises(UsageError, match="seed must be an integer, at least 0 and at most"):
            choose_preset("tiny", protocol, "full", seed)


def test_the_recipes_of_published_numbers_stay() -> None:
    training = PRESETS["fast"].training
    assert (training.epochs, training.batch_size, training.learning_rate) == (16, 512, 0.75)
    assert (training.momentum, training.weight_decay, training.label_smoothing) == (
        0.85,
        1.33e-3,
        0.2,
    )
    assert (training.norm_bias_rate, training.look_ahead, training.padding) == (64.0, 5, 2)
    assert (training.sizes, training.precision) == (((10, 24),), "float32")
    longer = dataclasses.replace(
        training, epochs=20, label_smoothing=0.1, sizes=((5, 24),), precision="bfloat16"
    )
    assert PRESETS["fast-bf16"] == dataclasses.replace(PRESETS["fast"], training=longer)
    short, wide = PRESETS["short"], PRESETS["wide-bf16"]
    assert (short.training.epochs, short.training.sizes) == (12, ((8, 20), (2, 26)))
    assert (short.network.width, wide.network.width) == (16, 64)
    assert wide.training == dataclasses.replace(short.training, precision="bfloat16")


def test_presets_are_what_they_say() -> None:
    assert PRESETS["digits"].training.flip == "never"
    assert PRESETS["cpu"].network.width == 16
    for preset in PRESETS.values():
        assert sum(epochs for epochs, _ in preset.training.sizes) < preset.training.epochs
        assert dataclasses.is_dataclass(preset)


def test_the_papers_numbers() -> None:
    assert SEEDS == (42, 123, 2024, 777, 314)
    assert (PATIENCE, CENTER_LOSS) == (10, 0.01)
    paper = PRESETS["paper"]
    assert (paper.network.width, paper.training.epochs, paper.training.batch_size) == (64, 40, 128)
    rates = (paper.training.learning_rate, paper.training.momentum, paper.training.weight_decay)
    assert rates == (0.1, 0.9, 5e-4)
    assert (paper.training.label_smoothing, paper.training.padding) == (0.1, 4)
    assert (paper.training.schedule, paper.training.flip) == ("cosine", "random")


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("cpu", "width=16, epochs=36, learning_rate=0.15, sizes=((20, 20), (8, 26))"),
        ("short", "width=16, epochs=12, learning_rate=0.15, sizes=((8, 20), (2, 26))"),
        ("fast", "width=64, epochs=16, learning_rate=0.75, sizes=((10, 24),)"),
        ("fast-bf16", "width=64, epochs=20, learning_rate=0.75, sizes=((5, 24),)"),
        ("wide-bf16", "width=64, epochs=12, learning_rate=0.15, sizes=((8, 20), (2, 26))"),
        ("digits", "width=8, epochs=15, learning_rate=0.1, sizes=()"),
    ],
)
def test_presets_are_those_of_the_published_numbers(name: str, changed: str) -> None:
    preset = PRESETS[name]
    training = preset.training
    found = {
        "width": preset.network.width,
        "epochs": training.epochs,
        "learning_rate": training.learning_rate,
        "sizes": training.sizes,
    }
    assert ", ".join(f"{key}={value}" for key, value in found.items()) == changed
