from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from goen.data import ImageSet
from goen.data.images.data_urls import image_url
from goen.gate import Gate
from goen.outputs import Outputs
from goen.report.cards import (
    explain_neighbours,
    make_cards,
    training_images,
    with_thumbnails,
)
from tests.gate.test_gate import make_gate
from tests.own_model import digits
from tests.report.scored import own_gate


@pytest.fixture(scope="module")
def gate() -> Gate:
    return own_gate()


def test_a_tile_has_what_the_gate_predicts(gate: Gate) -> None:
    images = digits().test.read(range(6))
    outputs = gate.outputs(images)
    prediction = gate.predict_outputs(outputs)
    truth = digits().test.labels[:6].tolist()
    cards = make_cards(gate, images, list("abcdef"), outputs, prediction, truth)
    assert [card.name for card in cards] == list("abcdef")
    assert [card.truth for card in cards] == truth
    nearest = gate.detector.nearest(outputs, 3)
    for i, card in enumerate(cards):
        assert card.seen == image_url(images[i])
        assert (card.label, card.p_value) == (prediction.label[i], prediction.p_value[i])
        assert card.confidence == prediction.confidence[i]
        assert card.cue_p_values == tuple(p[i] for p in prediction.cue_p_values.values())
        assert not card.note
        for near, found in zip(card.nearest, nearest.values(), strict=True):
            assert [n.number for n in near] == found.numbers[i].tolist()
            assert [n.label for n in near] == found.labels[i].tolist()
            assert [n.distance for n in near] == found.distances[i].tolist()


def test_an_image_with_outputs_that_are_not_finite_has_no_neighbours(gate: Gate) -> None:
    images = digits().test.read(range(3))
    outputs = gate.outputs(images)
    features = {name: values.clone() for name, values in outputs.features.items()}
    features["late"][1, 0] = torch.nan
    outputs = Outputs(outputs.logits, features)
    cards = make_cards(gate, images, list("abc"), outputs, gate.predict_outputs(outputs))
    assert [len(card.nearest) for card in cards] == [2, 0, 2]
    assert cards[1].note == "The network's outputs are NaN or infinite."
    assert cards[1].p_value == 1 / 121


def test_a_gate_without_a_bank_or_p_values_of_cues_has_tiles_too() -> None:
    gate = make_gate(with_head=False)
    images = digits().test.read(range(2))
    outputs = gate.outputs(images)
    cards = make_cards(gate, images, ["a", "b"], outputs, gate.predict_outputs(outputs))
    assert [card.nearest for card in cards] == [(), ()]
    assert [card.cue_p_values for card in cards] == [(), ()]
    assert "keeps no training images" in explain_neighbours(gate)


def test_the_choice_of_neighbours_is_stated(gate: Gate) -> None:
    assert "the nearest of all 664," in explain_neighbours(gate)
    gate.detector.bank_.num_seen, before = 70_000, gate.detector.bank_.num_seen  # type: ignore[attr-defined]
    try:
        assert "of the 664 that the gate keeps of 70,000," in explain_neighbours(gate)
    finally:
        gate.detector.bank_.num_seen = before  # type: ignore[attr-defined]


def test_training_images_are_those_of_the_numbers(gate: Gate) -> None:
    images = digits().test.read(range(4))
    outputs = gate.outputs(images)
    cards = make_cards(gate, images, list("abcd"), outputs, gate.predict_outputs(outputs))
    train = digits().train
    files = [Path(f"{i}.png") for i in range(len(train))]
    found = training_images(cards, train, files)
    assert found.keys() == {n.number for card in cards for near in card.nearest for n in near}
    for number, image in found.items():
        assert image.name == f"{number}.png"
        assert image.image == image_url(train.read([number])[0])
    large = ImageSet("large", np.zeros((664, 3, 100, 80), np.uint8), train.labels, train.classes)
    some = next(iter(training_images(cards, large, ()).values()))
    assert some.name == ""
    assert some.image == image_url(np.zeros((3, 64, 51), np.uint8))


def test_a_file_that_is_gone_leaves_what_the_network_saw(gate: Gate, tmp_path: Path) -> None:
    images = digits().test.read(range(2))
    outputs = gate.outputs(images)
    cards = make_cards(gate, images, ["a", "b"], outputs, gate.predict_outputs(outputs))
    Image.new("RGB", (400, 200), "red").save(tmp_path / "a.png")
    first, second = with_thumbnails(cards, [tmp_path / "a.png", tmp_path / "gone.png"])
    red = np.zeros((3, 80, 160), np.uint8)
    red[0] = 255
    assert first.thumbnail == image_url(red)
    assert second == cards[1]
