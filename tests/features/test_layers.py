import numpy as np
import pytest
import torch
from torch import Tensor, nn

from goen.errors import UsageError
from goen.features.extractor import FeatureExtractor
from goen.features.layers import (
    LayerInfo,
    LayerTable,
    accepts_images,
    choose_layers,
    list_layers,
)
from goen.models import NetworkConfig, ResNet18
from goen.models.ensemble import LogitEnsemble
from goen.models.flip_averaging import FlipAveraged
from tests.features.architectures import (
    CASES,
    Talkative,
    build,
    pictures,
)
from tests.features.comparing import NAMES


def test_the_list_holds_what_is_worth_a_look() -> None:
    def names(case: str) -> list[str]:
        size = CASES[case].size
        return [info.name for info in list_layers(build(case), (3, size, size))]

    # The norm before a ReLU, the last layer of a Sequential and the logits are left out.
    assert names("plain") == ["body.2", "body.3", "body", "neck"]
    units = [f"backbone.trunk.{i}" for i in range(3)]
    assert names("resnet") == ["backbone.entry", *units, "drop"]
    assert names("vit") == ["patches", "blocks.0", "blocks.1", "norm"]
    assert names("dict") == ["conv"]


def test_the_example_may_be_an_array_or_a_dict_of_arrays() -> None:
    model = build("plain")
    images = np.zeros((2, 3, 32, 32), np.uint8)
    assert list_layers(model, images) == list_layers(model, (3, 32, 32))
    assert FeatureExtractor(model, ["neck"], example=images).layers == ("neck",)

    class ByName(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 3), nn.Linear(3, 2)

        def forward(self, row: Tensor) -> Tensor:
            return self.last(self.first(row))

    assert [info.name for info in list_layers(ByName(), {"row": np.zeros((2, 4))})] == ["first"]


def test_a_layer_is_kept_when_the_activation_is_anothers() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.act = nn.Conv2d(3, 2, 1), nn.Conv2d(3, 2, 1), nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return (self.left(x) + self.act(self.right(x))).flatten(1)

    assert [info.name for info in list_layers(Branches(), (3, 4, 4))] == ["left", "act"]


def test_a_width_that_is_not_known_is_explained_below_the_table() -> None:
    model = nn.Sequential(nn.Conv2d(3, 6, 4, 4), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, 3))
    *_, row, _, note = str(list_layers(model, (3, 24, 24))).splitlines()
    assert row.split() == ["1", "ReLU", "(N,", "6,", "6,", "6)", "?", "1"]
    assert note.startswith("?: which axis is the channels cannot be seen")
    assert "?" not in str(list_layers(model, (3, 24, 24), layout="channels_first"))


def test_every_layer_is_listed_when_asked() -> None:
    table = list_layers(build("resnet"), (3, 32, 32), every=True)
    found = {info.name: info for info in table}
    assert found["backbone.trunk.1.first"].shape == (6, 16, 16)
    assert found["judge"].width == 10
    assert "backbone.trunk.1.act" not in found  # it is called twice
    assert "" not in found
    order = [info.name for info in table]
    assert order.index("backbone.trunk.0.second") < order.index("backbone.trunk.0")
    attention = list_layers(build("vit"), (3, 224, 224), every=True)
    shapes = {info.name: info.shape for info in attention}
    assert shapes["blocks.0.attn"] == (50, 8)
    assert "blocks.0.attn.out_proj" not in shapes


@pytest.mark.parametrize("name", NAMES)
def test_everything_listed_can_be_tapped_and_is_as_wide_as_it_says(name: str) -> None:
    model, size = build(name), CASES[name].size
    for every in (False, True):
        table = list_layers(model, (3, size, size), every=every)
        known = [info for info in table if info.width is not None]
        outputs = FeatureExtractor(model, [info.name for info in known])(pictures(name))
        for info in known:
            assert outputs.features[info.name].shape == (3, info.width)


def test_the_table_reads_well() -> None:
    table = list_layers(build("plain"), pictures("plain"))
    assert str(table).splitlines() == [
        "layer   kind        output        width  depth",
        "body.2  ReLU        (N, 4, 8, 8)      4      1",
        "body.3  MaxPool2d   (N, 4, 4, 4)      4      1",
        "body    Sequential  (N, 6, 4, 4)      6      2",
        "neck    Sequential  (N, 5)            5      3",
    ]
    assert str(list_layers(nn.Flatten(), (3, 2, 2))) == "layer  kind  output  width  depth"


def test_the_logits_are_left_out_where_they_are_said_to_be() -> None:
    model = Talkative(7, "tuple", flat=True)  # which of the two is not clear from their shapes
    assert [info.name for info in list_layers(model, (3, 9, 9))] == ["conv", "out"]
    assert [info.name for info in list_layers(model, (3, 9, 9), logits=1)] == ["conv"]


class Heads(nn.Module):
    """Classifies by a convolution, by the mean of two heads, or by logarithms of probabilities."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.first = nn.Conv2d(6, 4, 1) if kind == "convolution" else nn.Linear(6, 4)
        self.second = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        if self.kind == "convolution":
            return self.first(x).flatten(1)
        if self.kind == "mean":
            return (self.first(x.flatten(1)) + self.second(x.flatten(1))) / 2
        return self.first(x.flatten(1)).log_softmax(1)


@pytest.mark.parametrize("kind", ["convolution", "mean", "logarithms"])
def test_heads_that_classify_are_left_out(kind: str) -> None:
    assert [info.name for info in list_layers(Heads(kind), (3, 8, 8))] == ["body.1", "body"]


def test_a_last_layer_as_wide_as_the_logits_stays() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 4))
    assert [info.name for info in list_layers(model, (3, 2, 2))] == ["0", "1"]


def test_a_class_of_blocks_may_be_a_kind_of_sequential() -> None:
    class Dense(nn.ModuleDict):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, *(part(x) for part in self.values())], 1)

    def dense(width: int) -> Dense:
        return Dense({"a": nn.Conv2d(width, 2, 1), "b": nn.Conv2d(width, 2, 1)})

    model = nn.Sequential(dense(3), dense(7), nn.Flatten(), nn.Linear(11 * 16, 5))
    assert [info.name for info in list_layers(model, (3, 4, 4))] == ["0", "1", "2"]


# Choosing


def test_depth_counts_the_weight_matrices_that_were_used() -> None:
    depths = {
        info.name: info.depth for info in list_layers(build("vit"), (3, 224, 224), every=True)
    }
    # A block has four: attention's input and output, and the two of its perceptron.
    assert (depths["patches"], depths["blocks.0.attn"], depths["blocks.0"]) == (1, 3, 5)
    assert (depths["blocks.1"], depths["norm"], depths["head"]) == (9, 9, 10)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2))
    assert [(i.name, i.depth) for i in list_layers(flat, (3, 2, 2))] == [("0", 0), ("2", 1)]


def table(*depths: int) -> tuple[LayerTable, dict[str, Tensor]]:
    """Layers called a, b, c ... of these depths, each with features of its own."""
    names = "abcdefgh"[: len(depths)]
    infos = [LayerInfo(n, "Any", (3,), 3, d) for n, d in zip(names, depths, strict=True)]
    return LayerTable(infos), {name: torch.eye(3) * i for i, name in enumerate(names, 1)}


@pytest.mark.parametrize(
    ("depths", "chosen"),
    [
        ((1, 5, 10, 15, 20), ("c", "e")),
        ((1, 3, 6), ("b", "c")),
        ((1, 2, 3), ("b", "c")),  # as near to 1.5: the deeper
        ((1, 1, 2), ("a", "c")),  # as deep: the first, before its pooling
        ((4, 4), ("a", "b")),
        ((0, 1, 2), ("b", "c")),  # before the first matrix are the images themselves
        ((0, 1), ("b",)),
        ((0,), ("a",)),
        ((7,), ("a",)),
    ],
)
def test_half_of_the_depth_and_the_last_are_chosen(
    depths: tuple[int, ...], chosen: tuple[str, ...]
) -> None:
    assert choose_layers(*table(*depths)) == chosen


def test_of_layers_with_the_same_features_the_first_counts() -> None:
    infos, features = table(2, 4, 4, 4)
    features["c"], features["d"] = features["b"] * (1 + 1e-6), features["b"].clone()
    assert choose_layers(infos, features) == ("a", "b")
    features["d"] = features["b"] * 1.01
    assert choose_layers(infos, features) == ("a", "d")


def test_layers_without_features_are_not_chosen() -> None:
    infos, features = table(1, 2, 3, 4)
    del features["b"], features["d"]
    assert choose_layers(infos, features) == ("a", "c")
    with pytest.raises(UsageError, match="no layer that goen could choose"):
        choose_layers(infos, {})


def test_whether_a_model_takes_images_of_a_shape() -> None:
    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 4, 3)
            self.norm = nn.BatchNorm2d(4)

        def forward(self, *, pixel_values: Tensor) -> Tensor:
            return self.norm(self.conv(pixel_values)).mean((2, 3))

    model = Picky().train()
    assert accepts_images(model, (2, 8, 8), None)
    assert not accepts_images(model, (3, 8, 8), None)
    assert accepts_images(model, (3, 8, 8), lambda x: x[:, :2])
    assert model.training  # as it was, and its statistics too
    assert torch.equal(model.norm.running_mean, torch.zeros(4))


class LastToken(nn.Module):
    """Classifies each token and takes the last, as GPT-2 does for sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.block = nn.Linear(8, 6)
        self.score = nn.Linear(6, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.score(self.block(self.embedding(input_ids)).relu())[:, -1]


def test_logits_of_each_token_are_no_features() -> None:
    tokens = torch.zeros(2, 5, dtype=torch.int64)
    names = [info.name for info in list_layers(LastToken(), tokens)]
    assert names == ["embedding", "block"]
    every = [info.name for info in list_layers(LastToken(), tokens, every=True)]
    assert every == ["embedding", "block", "score"]


def test_layers_of_networks_that_pass_an_image_twice_are_those_of_one_network() -> None:
    members = [ResNet18(NetworkConfig(width=2)).eval() for _ in range(2)]
    expected = list_layers(members[0], (3, 32, 32))
    assert "layer4" in [info.name for info in expected]
    both = LogitEnsemble(members)
    for network in (FlipAveraged(members[0]), both, FlipAveraged(both)):
        assert list_layers(network, (3, 32, 32)) == expected
        assert list_layers(network, (3, 32, 32), every=True)
