import time
from dataclasses import fields

import pytest

from goen.errors import UsageError
from goen.training import TrainingConfig


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"schedule": "cosin"}, "Unknown schedule 'cosin'. Did you mean 'cosine'"),
        ({"flip": "no"}, "Unknown flip 'no'. .*Known: alternating, never, random"),
        ({"flip": False}, "Unknown flip False"),
        ({"border": "reflct"}, "Unknown border 'reflct'. Did you mean 'reflect'"),
        ({"precision": "bf16"}, "Did you mean 'bfloat16'"),
        ({"epochs": 0}, "epochs must be an integer, at least 1; got 0"),
        ({"epochs": 2.5}, "epochs must be an integer"),
        ({"batch_size": 1}, "batch_size must be an integer, at least 2; got 1"),
        ({"learning_rate": 0.0}, "learning_rate must be a number, above 0; got 0.0"),
        ({"momentum": -0.1}, "momentum must be a number, at least 0 and below 1"),
        ({"momentum": 1.0}, "momentum must be a number, at least 0 and below 1"),
        ({"weight_decay": -1e-4}, "weight_decay must be a number, at least 0"),
        ({"label_smoothing": -3}, "label_smoothing must be a number, at least 0 and at most 1"),
        ({"label_smoothing": 1.1}, "label_smoothing must be a number, at least 0 and at most 1"),
        ({"center_loss": -0.01}, "center_loss must be a number, at least 0"),
        ({"patience": -1}, "patience must be an integer, at least 1; got -1"),
        ({"patience": 0}, "patience must be an integer, at least 1; got 0"),
        ({"padding": -1}, "padding must be an integer, at least 0; got -1"),
        ({"sizes": (10, 24)}, r"sizes must be pairs of epochs and side, .*; got \(10, 24\)"),
        ({"sizes": ((10, 24, 1),)}, "sizes must be pairs of epochs and side"),
        ({"sizes": ((10, 0),)}, "The side of each of sizes must be an integer, at least 1; got 0"),
        ({"sizes": ((-1, 24),)}, "The epochs of each of sizes must be an integer, at least 1"),
        ({"seed": -1}, "seed must be an integer, at least 0"),
        ({"norm_bias_rate": 0.0}, "norm_bias_rate must be a number, above 0"),
        ({"look_ahead": -1}, "look_ahead must be an integer, at least 0"),
        ({"early_epochs": -1}, "early_epochs must be an integer, at least 0"),
        ({"cutout": -1}, "cutout must be an integer, at least 0"),
        ({"logit_norm": -0.1}, "logit_norm must be a number, at least 0"),
        ({"logit_norm": float("nan")}, "logit_norm must be a number, at least 0; got nan"),
        ({"rotation_loss": -1.0}, "rotation_loss must be a number, at least 0"),
        ({"rotation_loss": float("inf")}, "rotation_loss must be a number, at least 0; got inf"),
        ({"pixmix": 1.1}, "pixmix must be a number, at least 0 and at most 1"),
        ({"pixmix": -0.1}, "pixmix must be a number, at least 0 and at most 1"),
        ({"outlier_loss": -0.1}, "outlier_loss must be a number, at least 0"),
        ({"rotated": 3.1}, "rotated must be a number, above 0 and at most 3"),
        ({"feature_norm": True, "logit_norm": 0.1}, "feature_norm and logit_norm both"),
        ({"rotated": 0.0}, "rotated must be a number, above 0 and at most 3; got 0"),
    ],
)
def test_an_invalid_setting_is_an_error(wrong: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainingConfig(**wrong)  # type: ignore[arg-type]


def test_a_seed_that_torch_cannot_take_is_an_error() -> None:
    with pytest.raises(UsageError, match="seed must be an integer, at least 0 and at most 4294"):
        TrainingConfig(seed=time.time_ns())


def test_every_setting_is_in_the_key_of_a_training() -> None:
    assert list(TrainingConfig().to_json()) == [field.name for field in fields(TrainingConfig)]
