from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from goen.data import ImageSet
from goen.data.sets.folders import open_image_set
from goen.errors import UsageError
from goen.gate import Gate
from goen.scoring.training_images import open_training_images
from tests.gate.test_gate import make_gate
from tests.own_model import LAYERS, digits, preprocess, trained


def fitted(train: ImageSet | tuple[np.ndarray, np.ndarray]) -> Gate:
    return Gate.fit(trained(), train, digits().validation, layers=LAYERS, preprocess=preprocess)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    train = digits().train.take(range(200))
    for i, (pixels, label) in enumerate(zip(train.read(), train.labels, strict=True)):
        place = tmp_path / "train" / train.classes[label]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.transpose(1, 2, 0)).save(place / f"{i}.png")
    return tmp_path / "train"


def test_the_folder_of_the_fit_is_found_again_and_another_is_refused(folder: Path) -> None:
    images = open_image_set(str(folder), (32, 32), None)
    gate = fitted(images)
    found = open_training_images(gate, str(folder))
    assert found.fingerprint == images.fingerprint
    # The images of the bank are at their numbers.
    rows = gate.detector.nearest(gate.outputs(found.read(range(40))), 1)
    for near in rows.values():
        assert (near.numbers[:, 0].numpy() == np.arange(40)).all()
    next((folder / "3").iterdir()).unlink()
    with pytest.raises(UsageError, match=r"it has 199 images .*; 200 and .* were expected"):
        open_training_images(gate, str(folder))


def test_a_protocol_names_its_training_images() -> None:
    gate = fitted(digits().train)
    assert open_training_images(gate, "digits").fingerprint == digits().train.fingerprint


def test_a_known_set_that_is_not_the_protocols_is_tried_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = fitted(digits().train)
    other = digits().test
    monkeypatch.setattr("goen.scoring.training_images.training_images", lambda _: other)
    with pytest.raises(UsageError, match="digits is not the set that this gate was fitted on"):
        open_training_images(gate, "digits")


def test_gates_without_identified_training_images_are_refused() -> None:
    with pytest.raises(UsageError, match="keeps no training images"):
        open_training_images(make_gate(), "digits")
    train = digits().train
    with pytest.raises(UsageError, match="does not record which training images"):
        open_training_images(fitted((train.read(), train.labels)), "digits")
    updated = fitted(train.take(range(600))).update(
        train=train.take(range(600, 664)), held_out=digits().validation
    )
    with pytest.raises(UsageError, match="600 training images and updated with others, 664"):
        open_training_images(updated.gate, "digits")
