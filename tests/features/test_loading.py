from pathlib import Path

import pytest
import torch
from torch import nn

import goen
from goen.errors import UsageError
from goen.features.loaded_model import LoadedModel
from goen.features.loading import as_loaded, describe_torchvision
from goen.features.preprocess import Preprocess
from tests.torchvision_import import import_torchvision


def test_other_forms_of_a_name_are_refused() -> None:
    for name in ("hf:", "timm:", "pretrained:", "my_nets:small_net", "resnet18", ""):
        with pytest.raises(UsageError, match=r"named by pretrained:NAME .*hf:FOLDER .*timm:NAME"):
            goen.load_model(name)
    with pytest.raises(
        UsageError, match=r"The weights of hf:vit are in its folder: leave out w.pt"
    ):
        goen.load_model("hf:vit", "w.pt")


def test_a_model_of_nobody_says_nothing_about_itself() -> None:
    model = nn.Linear(2, 2)
    opened = as_loaded(nn.DataParallel(model))
    assert (opened.model, opened.classes, opened.preprocess(images=True)) == (model, (), None)
    given = LoadedModel(model, classes=("a", "b"))
    assert as_loaded(given) is given


# -- torchvision -----------------------------------------------------------------------------


@pytest.mark.xdist_group("transformers")
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


@pytest.mark.xdist_group("transformers")
def test_other_weights_and_other_models_say_nothing() -> None:
    models = import_torchvision().models
    model = torch.nn.Identity()
    assert describe_torchvision(model, models.resnet18, Path("resnet18-mine.pth")) is None
    assert describe_torchvision(model, models.resnet50, Path("resnet18-f37072fd.pth")) is None
    assert describe_torchvision(model, print, Path("resnet18-f37072fd.pth")) is None
    assert describe_torchvision(model, models.get_model, Path("resnet18-f37072fd.pth")) is None
