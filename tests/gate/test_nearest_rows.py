import numpy as np
import pytest
import torch

from goen.detectors import GoenM
from goen.errors import UsageError
from goen.gate import Gate, concatenate
from goen.gate.nearest_rows import TrainingRow
from tests.gate.test_gate import make_gate

RNG = np.random.default_rng(0)
CENTRES = 3 * np.eye(4, 8)
LABELS = np.arange(400) % 4
X = CENTRES[LABELS] + RNG.normal(size=(400, 8)) / 2
HELD_OUT = CENTRES[np.arange(200) % 4] + RNG.normal(size=(200, 8)) / 2
NEW = CENTRES[np.arange(30) % 4] + RNG.normal(size=(30, 8)) / 2


@pytest.fixture(scope="module")
def gate() -> Gate:
    names = ["cat", "dog", "eel", "fox"]
    return Gate.fit_outputs({"clip": X}, LABELS, {"clip": HELD_OUT}, classes=names)


def test_the_nearest_rows_are_those_of_a_search_through_all(gate: Gate) -> None:
    found = gate.predict_outputs({"clip": NEW}, nearest=5)
    unit, new = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (X, NEW))
    distances = np.linalg.norm(new[:, None] - unit, axis=2)
    for image in range(30):
        near = found.nearest(image)["clip"]
        expected = distances[image].argsort()[:5]
        assert [one.row for one in near] == expected.tolist()
        assert [one.label for one in near] == LABELS[expected].tolist()
        assert [one.name for one in near] == [gate.classes[n] for n in LABELS[expected]]
        assert np.allclose([one.distance for one in near], distances[image][expected], atol=1e-4)


def test_rows_follow_their_images_through_parts_and_batches(gate: Gate) -> None:
    whole = gate.predict_outputs({"clip": NEW}, nearest=2)
    assert whole.take([7, 3]).nearest(0) == whole.nearest(7)
    parts = [
        gate.predict_outputs({"clip": NEW[part]}, nearest=2) for part in (slice(9), slice(9, 30))
    ]
    joined = concatenate(parts)
    assert [row.row for row in joined.nearest(20)["clip"]] == [
        row.row for row in whole.nearest(20)["clip"]
    ]
    mixed = concatenate([parts[0], gate.predict_outputs({"clip": NEW})])
    assert mixed.neighbours is None


def test_without_them_the_error_says_how_to_ask(gate: Gate) -> None:
    with pytest.raises(UsageError, match=r"gate.predict\(images, nearest=3\)"):
        gate.predict_outputs({"clip": NEW}).nearest(0)
    for count in (-1, 1.5, "2"):
        with pytest.raises(
            UsageError, match=f"nearest must be an integer, at least 0; got {count!r}"
        ):
            gate.predict_outputs({"clip": NEW}, nearest=count)  # type: ignore[arg-type]


def test_an_image_that_is_not_finite_has_none(gate: Gate) -> None:
    broken = NEW.copy()
    broken[1] = np.nan
    found = gate.predict_outputs({"clip": broken}, nearest=2)
    assert found.nearest(1) == {"clip": ()}
    assert len(found.nearest(0)["clip"]) == 2
    assert isinstance(found.nearest(0)["clip"][0], TrainingRow)


def test_more_than_there_are_is_all(gate: Gate) -> None:
    assert isinstance(gate.detector, GoenM)
    kept = len(gate.detector.bank_)
    assert (
        len(gate.predict_outputs(torch.tensor(NEW[:1]), nearest=10_000).nearest()["clip"]) == kept
    )


def test_a_gate_that_keeps_no_training_images_says_so() -> None:
    with pytest.raises(UsageError, match="This gate keeps no training images"):
        make_gate().predict(np.zeros((1, 3, 32, 32), np.uint8), nearest=1)
