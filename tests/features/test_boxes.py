"""Boxes of detectors: which queries, their corners, features and labels, and gates of them."""

from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import goen
from goen.errors import UsageError
from goen.features.boxes import Boxes, FoundInImage, find_boxes, intersection_over_union
from tests.torchvision_import import import_torchvision

SIZE = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "num_queries": 7, "num_labels": 3}
HEADS = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
FEED = {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16}


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    import_torchvision()
    return pytest.importorskip("transformers")


def detr(transformers: ModuleType, name: str) -> Any:
    backbone = transformers.ResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        layer_type="basic",
        out_features=["stage4"],
    )
    config = getattr(transformers, f"{name}Config")(
        backbone_config=backbone, **SIZE, **HEADS, **FEED
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{name}ForObjectDetection")(config)


def yolos(transformers: ModuleType) -> Any:
    config = transformers.YolosConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=[64, 96],
        num_detection_tokens=5,
        num_labels=3,
    )
    torch.manual_seed(0)
    return transformers.YolosForObjectDetection(config)


@pytest.mark.parametrize("name", ["Detr", "ConditionalDetr", "Yolos"])
def test_the_queries_of_a_model_are_rows(transformers: ModuleType, name: str) -> None:
    model = yolos(transformers) if name == "Yolos" else detr(transformers, name)
    model.train()
    images = torch.rand(3, 3, 64, 96)
    everything = find_boxes(model, [images[:2], {"pixel_values": images[2:]}], threshold=0)
    assert model.training
    queries = 5 if name == "Yolos" else 7
    assert everything.image.tolist() == [number for number in range(3) for _ in range(queries)]
    assert everything.num_images == 3
    with torch.no_grad():
        output = model.eval()(images)
    logits = output.logits.flatten(0, 1)
    assert torch.allclose(everything.outputs.logits, logits[:, :3], atol=1e-5)
    hidden = output.last_hidden_state[:, -queries:].flatten(0, 1)
    assert torch.allclose(everything.outputs.feature("box"), hidden, atol=1e-4)
    x, y, width, height = output.pred_boxes.flatten(0, 1).unbind(1)
    corners = torch.stack([x - width / 2, y - height / 2, x + width / 2, y + height / 2], 1)
    assert torch.allclose(everything.corners, corners, atol=1e-5)
    # Of DETR and YOLOS the last class is "no object"; ConditionalDETR has a sigmoid for each.
    if name == "ConditionalDetr":
        assert logits.shape[1] == 3
        most = torch.sigmoid(logits).max(dim=1).values
    else:
        assert logits.shape[1] == 4
        most = torch.softmax(logits, dim=1)[:, :3].max(dim=1).values
    middle = float(most.median())
    some = find_boxes(model, images, threshold=middle)
    kept = (most >= middle).numpy()
    assert 0 < len(some) < len(everything)
    assert some.image.tolist() == everything.image[kept].tolist()
    assert torch.allclose(some.corners, everything.take(kept).corners, atol=1e-5)


def test_a_model_with_other_outputs_is_refused() -> None:
    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, pixel_values: Tensor) -> Tensor:
            return self.layer(pixel_values)

    with pytest.raises(UsageError, match="Plain does not return logits, pred_boxes"):
        find_boxes(Plain(), torch.zeros(1, 3, 2, 2))
    with pytest.raises(UsageError, match="no images"):
        find_boxes(Plain(), [])
    with pytest.raises(UsageError, match=r"tensor \(N, C, H, W\).*got a tensor \(3, 2, 2\)"):
        find_boxes(Plain(), torch.zeros(3, 2, 2))
    with pytest.raises(UsageError, match="got str"):
        find_boxes(Plain(), ["photo.jpg"])  # type: ignore[list-item]


# -- a function that finds boxes -------------------------------------------------------------------


def found(image: int, count: int, shift: float = 0.0) -> FoundInImage:
    """Boxes of three classes whose features lie around their class."""
    rng = np.random.default_rng(image)
    classes = torch.from_numpy(rng.integers(0, 3, count))
    features = torch.from_numpy(rng.normal(shift, 0.5, (count, 6)).astype(np.float32))
    features[torch.arange(count), classes] += 4
    corners = torch.arange(4.0).repeat(count, 1) + 10 * torch.arange(count)[:, None]
    return corners, 2 * features[:, :3], features


def detect(numbers: list[int]) -> list[FoundInImage]:
    return [found(number, number % 4) for number in numbers]


def test_a_function_gives_the_boxes_of_each_image() -> None:
    boxes = find_boxes(detect, [[0, 1, 2], [3]])
    assert (len(boxes), boxes.num_images) == (6, 4)
    assert boxes.image.tolist() == [1, 2, 2, 3, 3, 3]
    assert torch.equal(boxes.outputs.feature("box")[3:], found(3, 3)[2])
    assert {name: part.shape for name, part in boxes.arrays().items()} == {
        "box": (6, 6),
        "logits": (6, 3),
    }
    few = boxes.take(np.array([5, 0]))
    assert few.image.tolist() == [3, 1]
    assert torch.equal(few.outputs.logits, boxes.outputs.logits[[5, 0]])
    assert few.num_images == 4


def test_a_function_may_give_arrays_and_lists_of_an_image_without_boxes() -> None:
    def arrays(numbers: list[int]) -> Any:
        given = [tuple(part.numpy() for part in found(number, 2)) for number in numbers]
        return [([], [], []), *given]

    boxes = find_boxes(arrays, [[1, 2]])
    assert boxes.image.tolist() == [1, 1, 2, 2]
    assert torch.equal(boxes.outputs.logits[:2], found(1, 2)[1])
    assert repr(boxes) == "Boxes(4 in 3 images, Outputs(logits (4, 3), box (4, 6)))"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"boxes": torch.zeros(2, 4)}, "got dict"),
        ((torch.zeros(2, 4), torch.zeros(2, 3)), "got 2 parts"),
        ((torch.zeros(2, 4), torch.zeros(1, 3), torch.zeros(2, 5)), "got parts of 2, 1, 2 boxes"),
        ((torch.zeros(2, 4), torch.zeros(2), torch.zeros(2, 5)), r"\(n, 1\).*outputs.features"),
        ((torch.zeros(2, 5), torch.zeros(2, 3), torch.zeros(2, 5)), r"got \(2, 5\), \(2, 3\)"),
    ],
)
def test_a_function_that_gives_something_else_is_told_what_is_expected(
    parts: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        find_boxes(lambda _: [parts], [[1]])


def test_a_score_without_logits_leaves_a_gate_of_features() -> None:
    def scores(numbers: list[int]) -> list[FoundInImage]:
        return [(corners, torch.zeros(len(z), 1), z) for corners, _, z in detect(numbers)]

    train, held = (find_boxes(scores, [list(range(a, a + 100))]).outputs for a in (0, 1000))
    gate = goen.Gate.fit_outputs(train.features, None, held.features)
    unknown = find_boxes(lambda numbers: [found(n, 3, shift=5.0) for n in numbers], [[1, 2]])
    assert gate.predict_outputs(unknown.outputs.features).is_ood.all()
    assert gate.predict_outputs(held.features).is_ood.mean() < 0.1


def test_overlap_is_that_of_areas() -> None:
    first = torch.tensor([[0.0, 0, 4, 4], [5, 5, 5, 5]])
    second = torch.tensor([[0.0, 0, 4, 4], [2, 2, 6, 6], [9, 9, 10, 10], [5, 5, 5, 5]])
    assert intersection_over_union(first, second)[0].tolist() == pytest.approx([1, 4 / 28, 0, 0])
    assert intersection_over_union(first, second)[1].tolist() == [0, 0, 0, 0]


def test_labels_are_those_of_the_objects_that_overlap_most() -> None:
    corners = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 4], [20, 0, 24, 4], [0, 0, 4, 4]])
    logits = torch.zeros(4, 2)
    outputs = goen.Outputs(logits, {"box": logits})
    boxes = Boxes(corners, np.array([0, 1, 1, 3]), outputs, 4)
    truth = [
        (torch.tensor([[0.0, 0, 4, 3], [0, 0, 4, 4]]), torch.tensor([1, 0])),
        (torch.tensor([[0.0, 0, 2, 2], [20, 0, 24, 3]]), torch.tensor([0, 1])),
        (torch.zeros(1, 4), torch.tensor([1])),
        (torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)),
    ]
    assert boxes.labels(truth).tolist() == [0, -1, 1, -1]
    assert boxes.labels(truth, overlap=0.2).tolist() == [0, 0, 1, -1]
    with pytest.raises(UsageError, match="boxes of 4 images, and the truth is of 3"):
        boxes.labels(truth[:3])


def test_a_gate_decides_for_each_box_and_for_each_image() -> None:
    def many(start: int, count: int) -> Boxes:
        return find_boxes(detect, [list(range(start, start + count))])

    train, held_out = many(0, 200), many(1000, 200)
    labels = train.outputs.logits.argmax(1).numpy()
    gate = goen.Gate.fit_outputs(
        train.outputs, labels, held_out.outputs, detector="knn", groups=held_out.image
    )
    assert gate.num_held_out == 150  # images with a box
    new = many(5000, 100)
    prediction = gate.predict_outputs(new.outputs)
    assert prediction.is_ood.mean() < 0.15
    p = gate.group_p_values(prediction.score, new.image, new.num_images)
    assert p.shape == (100,)
    assert (p[::4] == 1).all()  # without a box
    unknown = find_boxes(lambda numbers: [found(n, 3, shift=5.0) for n in numbers], [[1, 2]])
    flagged = gate.predict_outputs(unknown.outputs)
    assert flagged.is_ood.all()
    assert (gate.group_p_values(flagged.score, unknown.image) == 1 / 151).all()
