"""What can be trained on what: each limit from both sides."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from goen.data import ImageSet
from goen.errors import UsageError
from goen.models import NetworkConfig
from goen.training import TrainingConfig, checks
from goen.training.checks import check_outliers, check_possible, check_sets

THREE = NetworkConfig(num_classes=3, width=2)


def images(
    count: int = 4,
    shape: tuple[int, int, int] = (3, 8, 8),
    classes: tuple[str, ...] = ("a", "b", "c"),
    dtype: Any = np.uint8,
) -> ImageSet:
    return ImageSet("these", np.zeros((count, *shape), dtype), np.zeros(count, np.int64), classes)


def test_two_images_can_train_and_one_can_validate() -> None:
    check_sets(images(2), images(1))
    with pytest.raises(UsageError, match="these has 1 images; training needs at least two"):
        check_sets(images(1), images(1))
    with pytest.raises(UsageError, match="these has no images, and every epoch"):
        check_sets(images(2), images(0))
    with pytest.raises(UsageError, match=r"are a, b, c, those of these b, a, c\. Both need"):
        check_sets(images(2), images(1, classes=("b", "a", "c")))


def test_outliers_and_their_loss_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, exposed = TrainingConfig(), TrainingConfig(outlier_loss=0.5)
    check_outliers(plain, images(), None)
    check_outliers(exposed, images(), images(1))
    for config, given in ((plain, images()), (exposed, None)):
        with pytest.raises(UsageError, match="give both or neither"):
            check_outliers(config, images(), given)
    for given in (images(0), images(shape=(3, 8, 9)), images(shape=(1, 8, 8))):
        with pytest.raises(UsageError, match="must be images of the form of these"):
            check_outliers(exposed, images(), given)
    monkeypatch.setattr(checks, "num_processes", lambda: 2)
    check_outliers(plain, images(), None)
    with pytest.raises(UsageError, match="trains in one process"):
        check_outliers(exposed, images(), images())


@pytest.mark.parametrize(
    ("network", "training", "train", "message"),
    [
        ({}, {}, {"classes": ("a", "b")}, "has 3 classes, the images have 2"),
        ({}, {}, {"count": 1}, "1 processes cannot share batches of 1 images: each needs two"),
        ({"classifier": "dropout"}, {"logit_norm": 0.04}, {}, "dropout has a loss of its own"),
        ({"classifier": "dropout"}, {"feature_norm": True}, {}, "dropout and multi_scale"),
        ({"representation": "concat"}, {"feature_norm": True}, {}, "linear and concat"),
        ({}, {"rotation_loss": 1.0}, {}, "trains a second classifier"),
        ({}, {"pixmix": 1.0}, {"shape": (1, 8, 8)}, "these has 1 channels of uint8"),
        ({}, {"pixmix": 1.0}, {"dtype": np.uint16}, "these has 3 channels of uint16"),
        ({}, {}, {"shape": (1, 8, 8)}, "takes images of 3 channels, these has 1"),
        ({"rotations": True}, {"rotation_loss": 1.0}, {"shape": (3, 8, 9)}, "these has 8×9"),
    ],
)
def test_what_does_not_go_together_is_named(
    network: dict[str, Any], training: dict[str, Any], train: dict[str, Any], message: str
) -> None:
    config = TrainingConfig(**training)
    with pytest.raises(UsageError, match=message):
        check_possible(replace(THREE, **network), config, images(**train))


@pytest.mark.parametrize(
    ("network", "training", "train"),
    [
        ({}, {}, {"count": 2}),
        ({}, {}, {"shape": (3, 8, 9), "dtype": np.uint16}),
        ({"classifier": "dropout"}, {}, {}),
        ({"representation": "concat"}, {"logit_norm": 0.04}, {}),
        ({"representation": "plain"}, {"feature_norm": True}, {}),
        ({}, {"pixmix": 1.0}, {}),
        ({"rotations": True}, {"rotation_loss": 1.0}, {"dtype": np.uint16}),
        ({"rotations": True}, {}, {"shape": (3, 8, 9)}),
    ],
)
def test_what_goes_together_is_not_refused(
    network: dict[str, Any], training: dict[str, Any], train: dict[str, Any]
) -> None:
    check_possible(replace(THREE, **network), TrainingConfig(**training), images(**train))


def test_processes_share_the_images_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "num_processes", lambda: 3)
    check_possible(THREE, TrainingConfig(batch_size=6), images(20))
    check_possible(THREE, TrainingConfig(batch_size=60), images(6))
    for batch, count in ((5, 20), (60, 5)):
        with pytest.raises(UsageError, match="3 processes cannot share batches of 5 images"):
            check_possible(THREE, TrainingConfig(batch_size=batch), images(count))
