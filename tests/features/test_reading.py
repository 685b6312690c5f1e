from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import goen
from goen.data.images.pixel_format import COLOUR, GREY
from goen.data.inputs import BatchStream
from goen.data.sets.folders import ImageReading
from goen.errors import UsageError
from goen.features.extractor import FeatureExtractor
from goen.features.loaded_model import LoadedModel
from goen.features.preprocess import Preprocess
from goen.features.reading import ModelReading

OWN = Preprocess((0.5,), (0.2,), (24, 20), (16, 16))


def loaded(own: Preprocess | None = None, *classes: str, channels: int = 3) -> LoadedModel:
    model = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.Flatten(1))
    return LoadedModel(model, "hf:x", classes, lambda: own)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of two classes, cat and dog, with two images of 12×10 each."""
    for number, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png")):
        path = tmp_path / "animals" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (10, 12), (40 * number, 0, 0)).save(path)
    return tmp_path / "animals"


def test_the_models_own_size_and_classes_are_those_of_its_images(folder: Path) -> None:
    name = str(folder)
    assert ModelReading(loaded()).of(name) == ImageReading(None, COLOUR, None)
    assert ModelReading(loaded(OWN, "dog", "cat")).of(name) == ImageReading(
        (24, 20), COLOUR, ("dog", "cat")
    )
    given = ModelReading(loaded(OWN), Preprocess(size=8), ("dog",), None)
    assert given.of(name) == ImageReading((8, 8), COLOUR, ("dog",))
    assert ModelReading(loaded(OWN), size=(9, 7)).of(name, labelled=False) == ImageReading(
        (9, 7), COLOUR, ()
    )
    assert ModelReading(loaded(OWN)).of("digits/train").size is None  # resized by its preprocessing


def test_grey_is_read_for_a_model_of_one_channel(folder: Path) -> None:
    grey = loaded(channels=1)
    assert ModelReading(grey).of(str(folder)).pixel_format == GREY
    extractor = FeatureExtractor(grey.model, ["0"], preprocess=OWN)
    found = ModelReading(LoadedModel(extractor)).of(str(folder / "cat" / "1.png"), labelled=False)
    assert found == ImageReading((24, 20), GREY, ())


def test_classes_of_known_sets_are_put_in_the_order_of_the_logits() -> None:
    known = goen.data.load_set("digits").classes
    reverse = tuple(reversed(known))
    assert ModelReading(loaded(None, *reverse)).class_order("digits") == reverse
    assert ModelReading(loaded()).class_order("digits") is None
    # Numbers are those of the logits.
    assert ModelReading(loaded(None, "ten")).class_order("digits") is None
    with pytest.raises(UsageError, match=r"Only the model has: ten\. Only the images have: "):
        ModelReading(loaded(None, "ten")).class_order("photographs")


def images_of(stream: object) -> tuple[torch.Tensor, list[int] | None]:
    assert isinstance(stream, BatchStream)
    ((images, labels),) = stream
    assert isinstance(images, torch.Tensor)
    return images, None if labels is None else labels.tolist()


def test_all_paths_are_read_as_the_first_set_has_them(folder: Path) -> None:
    reading = ModelReading(loaded(None, "dog", "cat"))
    files = [folder / "dog" / "1.png"]
    sets = {"train": folder, "held_out": str(folder), "ood x": folder, "ood y": files}
    opened = reading.open_paths(sets, 8)
    assert images_of(opened["train"])[1] == [0, 0, 1, 1]  # of the logits, not of the alphabet
    assert images_of(opened["held_out"])[1] == [0, 0, 1, 1]
    assert images_of(opened["ood x"])[1] is None
    assert images_of(opened["ood y"])[0][:, 0].max() == 80
    after = reading.open_paths({"train": np.zeros((2, 3, 5, 6), np.uint8), "ood": files}, 8)
    assert images_of(after["ood"])[0].shape == (1, 3, 5, 6)
    assert reading.open_paths({"train": [1, 2]}, 8) == {"train": [1, 2]}  # type: ignore[dict-item]


def test_training_images_lie_in_folders_of_the_models_classes(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"cat has no class folders: put the images of each class"):
        ModelReading(loaded()).open_paths({"train": folder / "cat"}, 8)
    with pytest.raises(UsageError, match=r"Only the model has: fox\. Only the images have: cat"):
        ModelReading(loaded(None, "dog", "fox")).open_paths({"train": folder}, 8)


@pytest.mark.parametrize(
    ("role", "classes", "labels"),
    [
        ("held_out", ("dog", "fox"), [0, 0]),  # the others are left out
        ("images", ("dog", "fox"), None),  # all are read
        ("images", ("dog", "fox", "cat"), [0, 0, 2, 2]),
        ("images", (), [0, 0, 1, 1]),
        ("ood", ("dog", "cat"), None),
    ],
)
def test_labels_of_sets_without_training_images(
    folder: Path, role: str, classes: tuple[str, ...], labels: list[int] | None
) -> None:
    opened = ModelReading(loaded(None, *classes)).open_paths({role: folder}, 8)
    assert images_of(opened[role])[1] == labels
