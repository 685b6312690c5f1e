from dataclasses import replace

import numpy as np
import pytest
import torch

from goen.detectors import GoenM
from goen.errors import UsageError
from goen.gate import Gate
from goen.gate.one_image import TrainingRow
from tests.gate.test_gate import make_gate
from tests.monitor.predictions import digit_gate

RNG = np.random.default_rng(0)
CENTRES = 3 * np.eye(4, 8)
LABELS = np.arange(400) % 4
X = CENTRES[LABELS] + RNG.normal(size=(400, 8)) / 2
HELD_OUT = CENTRES[np.arange(200) % 4] + RNG.normal(size=(200, 8)) / 2
NEW = CENTRES[np.arange(30) % 4] + RNG.normal(size=(30, 8)) / 2


def test_a_gate_says_what_it_takes_and_guarantees() -> None:
    html = digit_gate()._repr_html_()
    for text in ("images of 32×32", "7 classes", "GoenM()", "at most 0.05", "120 set the threshold",
                 "664 of 664 are kept", "on held-out images", "early, late, entropy"):  # fmt: skip
        assert text in html, text


def test_scores_of_torch_are_compared_exactly() -> None:
    assert (digit_gate().engine, digit_gate().score_tolerance) == ("torch", 0.0)


def test_names_are_escaped_and_metadata_may_be_anything() -> None:
    gate = digit_gate()
    hostile = replace(
        gate,
        classes=("<script>alert(1)</script>",) * 7,
        metadata={"held_out_accuracy": "<script>", "splits": 7},
    )
    html = hostile._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "accuracy" not in html
    assert (
        "within every predicted class"
        in replace(gate.with_false_alarm_rate(0.2), per_class=True)._repr_html_()
    )


# -- the nearest training images -----------------------------------------------------------------


@pytest.fixture(scope="module")
def gate() -> Gate:
    names = ["cat", "dog", "eel", "fox"]
    return Gate.fit_outputs({"clip": X}, LABELS, {"clip": HELD_OUT}, classes=names)


def test_the_nearest_rows_are_those_of_a_search_through_all(gate: Gate) -> None:
    found = gate.nearest({"clip": NEW}, 5)
    unit, new = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (X, NEW))
    distances = np.linalg.norm(new[:, None] - unit, axis=2)
    for image in range(30):
        near = found[image]["clip"]
        expected = distances[image].argsort()[:5]
        assert [one.row for one in near] == expected.tolist()
        assert [one.label for one in near] == LABELS[expected].tolist()
        assert [one.name for one in near] == [gate.classes[n] for n in LABELS[expected]]
        assert np.allclose([one.distance for one in near], distances[image][expected], atol=1e-4)


def test_rows_follow_their_images_through_batches(gate: Gate) -> None:
    whole = gate.nearest({"clip": NEW}, 2)
    batches = gate.nearest({"clip": NEW}, 2, batch_size=9)
    parts = gate.nearest({"clip": NEW[:9]}, 2) + gate.nearest({"clip": NEW[9:]}, 2)
    assert len(whole) == len(batches) == len(parts) == 30
    for one, *others in zip(whole, batches, parts, strict=True):
        for other in others:
            assert [row.row for row in other["clip"]] == [row.row for row in one["clip"]]


def test_a_count_that_is_no_whole_number_above_zero_is_refused(gate: Gate) -> None:
    for count in (0, -1, 1.5, "2"):
        with pytest.raises(
            UsageError, match=f"count must be an integer, at least 1; got {count!r}"
        ):
            gate.nearest({"clip": NEW}, count)  # type: ignore[arg-type]


def test_an_image_that_is_not_finite_has_none(gate: Gate) -> None:
    broken = NEW.copy()
    broken[1] = np.nan
    found = gate.nearest({"clip": broken}, 2)
    assert found[1] == {"clip": ()}
    assert len(found[0]["clip"]) == 2
    assert isinstance(found[0]["clip"][0], TrainingRow)


def test_more_than_there_are_is_all(gate: Gate) -> None:
    assert isinstance(gate.detector, GoenM)
    (found,) = gate.nearest({"clip": torch.tensor(NEW[:1])}, 10_000)
    assert len(found["clip"]) == len(gate.detector.bank_)


def test_a_gate_that_keeps_no_training_images_says_so() -> None:
    with pytest.raises(UsageError, match=r"such as goen_m; .* keeps none"):
        make_gate().nearest(np.zeros((1, 3, 32, 32), np.uint8), 1)
