import pytest
from torch import Tensor, nn

from goen.models.tapping.layers import layers
from goen.models.tapping.tapped import Tapped
from tests.models.tapping.architectures import (
    CASES,
    build,
    pictures,
)

from .comparing import NAMES


def test_the_list_holds_what_is_worth_a_look() -> None:
    def names(case: str) -> list[str]:
        size = CASES[case].size
        return [info.name for info in layers(build(case), (3, size, size))]

    # The norm before a ReLU, the last layer of a Sequential and the logits are left out.
    assert names("plain") == ["body.2", "body.3", "body", "neck"]
    units = [f"backbone.trunk.{i}" for i in range(3)]
    assert names("resnet") == ["backbone.entry", *units, "drop"]
    assert names("vit") == ["patches", "blocks.0", "blocks.1", "norm"]
    assert names("dict") == ["conv"]


def test_a_layer_is_kept_when_the_activation_is_anothers() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.act = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 1), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return (self.left(x) + self.act(self.right(x))).flatten(1)

    assert [info.name for info in layers(Branches(), (3, 4, 4))] == ["left", "act"]


def test_every_layer_is_listed_when_asked() -> None:
    table = layers(build("resnet"), (3, 32, 32), every=True)
    found = {info.name: info for info in table}
    assert found["backbone.trunk.1.first"].shape == (6, 16, 16)
    assert found["judge"].width == 10
    assert "backbone.trunk.1.act" not in found  # it is called twice
    assert "" not in found
    order = [info.name for info in table]
    assert order.index("backbone.trunk.0.second") < order.index("backbone.trunk.0")
    attention = layers(build("vit"), (3, 224, 224), every=True)
    shapes = {info.name: info.shape for info in attention}
    assert shapes["blocks.0.attn"] == (50, 8)
    assert "blocks.0.attn.out_proj" not in shapes


@pytest.mark.parametrize("name", NAMES)
def test_everything_listed_can_be_tapped_and_is_as_wide_as_it_says(name: str) -> None:
    model, size = build(name), CASES[name].size
    for every in (False, True):
        table = layers(model, (3, size, size), every=every)
        known = [info for info in table if info.width is not None]
        outputs = Tapped(model, [info.name for info in known])(pictures(name))
        for info in known:
            assert outputs.features[info.name].shape == (3, info.width)


def test_the_table_reads_well() -> None:
    table = layers(build("plain"), pictures("plain"))
    assert str(table).splitlines() == [
        "layer   kind        output        width",
        "body.2  ReLU        (N, 4, 8, 8)      4",
        "body.3  MaxPool2d   (N, 4, 4, 4)      4",
        "body    Sequential  (N, 6, 4, 4)      6",
        "neck    Sequential  (N, 5)            5",
    ]
    assert str(layers(nn.Flatten(), (3, 2, 2))) == "layer  kind  output  width"
