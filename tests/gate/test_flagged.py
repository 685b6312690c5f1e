"""What was flagged: groups, their classes and cues, and what to label first."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from goen.errors import UsageError
from goen.gate import Gate
from goen.gate.flagged import deciding_cues, group_features, group_images
from goen.outputs import Outputs
from tests.own_model import LAYERS, digits, preprocess, trained


def two_clouds() -> np.ndarray:
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1], [40, 25])
    return np.eye(8)[truth] + 0.1 * rng.normal(size=(65, 8))


def test_groups_by_hand() -> None:
    features = two_clouds()
    features[64, 3] = np.nan
    labels = ["cat"] * 30 + ["dog"] * 10 + ["ship"] * 25
    cues = ["early"] * 40 + ["late"] * 20 + [None] * 5
    names = [f"{row}.png" for row in range(65)]
    found = group_images(features, names, labels, cues)
    assert len(found) == 65
    assert [len(group) for group in found.groups] == [40, 24]
    large, small = found.groups
    assert (large.nearest_class, large.class_share) == ("cat", 0.75)
    assert (large.cue, large.cue_share) == ("early", 1.0)
    assert (small.nearest_class, small.cue) == ("ship", "late")
    assert small.cue_share == pytest.approx(20 / 24)
    assert found.ungrouped == (64,)
    assert 64 not in found.label_first
    assert len(found.label_first) == 20
    assert sorted([*large.rows, *small.rows, 64]) == list(range(65))
    unit = features[:40] / np.linalg.norm(features[:40], axis=1, keepdims=True)
    centre = np.linalg.norm(unit - unit.mean(axis=0), axis=1)
    assert list(large.rows) == np.argsort(centre).tolist()  # the most typical first
    assert str(found).splitlines() == [
        "65 flagged images, in 2 groups; 1 in none",
        "  1: 40 images, 75% of them classified as cat; found by early (100%)",
        "  2: 24 images, 100% of them classified as ship; found by late (83%)",
    ]
    content = json.loads(json.dumps(found.to_json()))
    assert content["flagged"] == 65
    assert content["groups"][1]["images"][0] == names[small.rows[0]]
    assert content["ungrouped"] == ["64.png"]
    assert content["label_first"][:2] == [names[row] for row in found.label_first[:2]]


def test_few_images_are_in_no_groups() -> None:
    found = group_images(two_clouds()[:3], ["a", "b", "c"], ["x"] * 3, [None] * 3)
    assert str(found) == "3 flagged images, in no groups"
    assert found.ungrouped == (0, 1, 2)
    assert sorted(found.label_first) == [0, 1, 2]
    none = group_images(np.zeros((0, 1)), [], [], [])
    assert none.to_json() == {"flagged": 0, "groups": [], "ungrouped": [], "label_first": []}
    with pytest.raises(UsageError, match="of the same images"):
        group_images(two_clouds(), ["a"], ["x"], [None])


def test_images_are_grouped_by_the_last_feature_or_by_the_logits() -> None:
    z, early = torch.ones(2, 3), torch.zeros(2, 5)
    outputs = Outputs(torch.eye(2), {"early": early, "late": z})
    assert np.array_equal(group_features(outputs), z.numpy())
    assert np.array_equal(group_features(outputs.keep([])), np.eye(2))


@pytest.fixture(scope="module")
def gate() -> Gate:
    p = digits()
    return Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)


def test_a_gate_groups_what_it_flags(gate: Gate, tmp_path: Path) -> None:
    strange = digits().evaluation["noise"].images.read(range(40))
    images = np.concatenate([digits().test.read(range(60)), strange])
    prediction, found = gate.predict(images), gate.group_flagged(images)
    flagged = np.flatnonzero(prediction.is_ood)
    assert found.names == tuple(map(str, flagged))
    cues = deciding_cues(prediction)
    for group in found.groups:
        numbers = [int(found.names[row]) for row in group.rows]
        shares = np.mean(prediction.class_names[numbers] == group.nearest_class)
        assert shares == group.class_share
        assert np.mean([cues[n] == group.cue for n in numbers]) == group.cue_share
    assert gate.group_flagged(images[:0]).names == ()
    files = []
    for number, image in enumerate(strange[:3]):
        from PIL import Image

        files.append(tmp_path / f"{number}.png")
        Image.fromarray(image.transpose(1, 2, 0)).save(files[-1])
    assert gate.group_flagged(files).names == tuple(map(str, files))


def test_the_deciding_cue_has_the_least_p_value(gate: Gate) -> None:
    prediction = gate.predict(digits().test.read(range(20)))
    for row, cue in enumerate(deciding_cues(prediction)):
        assert cue == prediction.explain(row).most_unusual.name
