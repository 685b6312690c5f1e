"""torchvision's models by factory, and what it says about its own weights."""

from pathlib import Path

import pytest
import torch

from goen.features.preprocess import Preprocess
from goen.features.torchvision_weights import describe_torchvision
from tests.torchvision_import import import_torchvision

pytestmark = pytest.mark.xdist_group("transformers")


def test_published_weights_bring_their_preprocessing_and_classes() -> None:
    models = import_torchvision().models
    model = torch.nn.Identity()  # nothing is asked of it
    found = describe_torchvision(model, models.resnet18, Path("here/resnet18-f37072fd.pth"))
    assert found is not None
    assert found.model is model
    assert found.name == "torchvision ResNet18_Weights.IMAGENET1K_V1"
    assert found.classes[:2] == ("tench", "goldfish")
    assert found.preprocess(images=True) == Preprocess(
        (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 256, 224
    )
    newer = models.ResNet50_Weights.IMAGENET1K_V2
    file = Path(newer.url).name
    found = describe_torchvision(model, models.resnet50, Path(file))
    assert found is not None
    assert found.preprocess(images=True) == Preprocess(
        (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 232, 224
    )


def test_other_weights_and_other_models_say_nothing() -> None:
    models = import_torchvision().models
    model = torch.nn.Identity()
    assert describe_torchvision(model, models.resnet18, Path("resnet18-mine.pth")) is None
    assert describe_torchvision(model, models.resnet50, Path("resnet18-f37072fd.pth")) is None
    assert describe_torchvision(model, print, Path("resnet18-f37072fd.pth")) is None
    assert describe_torchvision(model, models.get_model, Path("resnet18-f37072fd.pth")) is None
