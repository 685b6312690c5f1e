import pytest
from torch import nn

import goen
from goen.errors import UsageError
from goen.features.loaded_model import LoadedModel
from goen.features.loading import as_loaded


def test_other_forms_of_a_name_are_refused() -> None:
    for name in ("hf:", "timm:", "my_nets:small_net", "resnet18", ""):
        with pytest.raises(UsageError, match=r"named by hf:FOLDER \(Hugging Face\) or timm:NAME"):
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
