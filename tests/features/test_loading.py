import pytest
from torch import nn

import goen
from goen.errors import UsageError
from goen.libraries.opened import OpenedModel
from goen.libraries.opening import as_opened


def test_other_forms_of_a_name_are_refused() -> None:
    for name in ("hf:", "timm:", "my_nets:small_net", "resnet18", ""):
        with pytest.raises(UsageError, match=r"named by hf:FOLDER \(Hugging Face\) or timm:NAME"):
            goen.open_model(name)
    with pytest.raises(
        UsageError, match=r"The weights of hf:vit are in its folder: leave out w.pt"
    ):
        goen.open_model("hf:vit", "w.pt")


def test_a_model_of_nobody_says_nothing_about_itself() -> None:
    model = nn.Linear(2, 2)
    opened = as_opened(nn.DataParallel(model))
    assert (opened.model, opened.classes, opened.preprocess(images=True)) == (model, (), None)
    given = OpenedModel(model, classes=("a", "b"))
    assert as_opened(given) is given
