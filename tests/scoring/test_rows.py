"""Columns, order and explanation of rows; ``Prediction.rows`` is tested beside the prediction."""

import numpy as np
import pytest

from goen.gate import Gate, Prediction
from goen.gate.prediction import ScoreRow
from goen.scoring.rows import (
    RowCounts,
    all_columns,
    most_unusual_cue,
    rows_of_read,
    score_columns,
    sort_rows,
    unreadable_row,
)
from tests.gate.test_gate import make_gate
from tests.own_model import LAYERS, digits, ood, preprocess, trained


@pytest.fixture(scope="module")
def gate() -> Gate:
    p = digits()
    return Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)


def test_columns_depend_on_what_the_detector_provides(gate: Gate) -> None:
    fixed = ["label", "confidence", "score", "p_value", "is_ood"]
    cues = ["cue_early", "cue_late", "cue_entropy"]
    p_values = ["p_early", "p_late", "p_entropy"]
    of_images = ["brightness", "contrast", "sharpness", "entropy", "colour"]
    p_values += [f"image_{name}" for name in of_images]
    assert score_columns(gate) == [*fixed, *cues, *p_values]
    with_ood = gate.update(ood=ood()).gate
    assert score_columns(with_ood) == [
        *fixed[:4], "probability", "is_ood", *cues, *p_values,
    ]  # fmt: skip
    assert score_columns(make_gate(with_head=False)) == [
        *fixed, "cue_log_distance", "cue_similarity", "cue_entropy",
    ]  # fmt: skip


def test_a_layer_called_value_leaves_the_p_value_of_the_score_alone() -> None:
    cues = {"value": 0.3, "value_": 0.001, "stem": 0.2}
    arrays = {name: np.array([p]) for name, p in cues.items()}
    zero, p_value = np.zeros(1), np.array([0.04])
    found = Prediction(
        zero.astype(int), zero, zero, p_value, None, zero < 1, arrays, ("a",), arrays
    )
    [row] = found.rows()
    assert row["p_value"] == 0.04
    assert (row["p_value_"], row["p_value__"], row["p_stem"]) == (0.3, 0.001, 0.2)
    assert most_unusual_cue(row) == "value_: p = 0.001"
    row["p_value__"] = 0.9
    assert most_unusual_cue(row) == "stem: p = 0.2"
    row["p_stem"] = 0.9
    assert most_unusual_cue(row) == "value: p = 0.3"


def rows_of(**columns: list[float | str | bool | None]) -> list[ScoreRow]:
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def order(rows: list[ScoreRow], column: str) -> str:
    return "".join(str(row["path"]) for row in sort_rows(rows, column))


def test_the_most_suspicious_come_first_and_what_cannot_be_read_last() -> None:
    rows = rows_of(
        path=["c", "a", "u", "b", "d"],
        label=["x", "z", None, "y", "x"],
        confidence=[0.5, 0.9, None, 0.2, 0.4],
        score=[1.0, 3.0, None, None, 3.5],  # None without an error: infinite
        p_value=[0.2, 0.01, None, 0.01, 0.01],
        is_ood=[False, True, None, True, True],
        cue_a=[5.0, 4.0, None, None, 6.0],
        p_a=[0.3, 0.1, None, 0.01, 0.2],
        error=[None, None, "cut short", "not finite", None],
    )
    assert order(rows, "p_value") == "bdacu"  # equal p-values by their scores
    assert order(rows, "score") == "bdacu"
    assert order(rows, "confidence") == "bdcau"
    assert order(rows, "cue_a") == "bdcau"
    assert order(rows, "p_a") == "badcu"
    assert order(rows, "path") == "abcdu"
    assert order(rows, "label") == "dcbau"
    assert order(rows, "is_ood") == "bdacu"
    assert order(rows[::-1], "p_value") == "bdacu"
    assert order([], "p_value") == ""


def test_the_cue_with_the_smallest_p_value_is_named() -> None:
    cues = {"layer2": [0.5, 0.002, 0.5], "layer4": [0.04, 0.002, 0.6], "entropy": [0.3, 0.9, 0.7]}
    arrays = {name: np.array(values) for name, values in cues.items()}
    none = np.zeros(3)
    found = Prediction(none.astype(int), none, none, none, None, none > 0, arrays, ("a",), arrays)
    assert [most_unusual_cue(row) for row in found.rows()] == [
        "layer4: p = 0.04",
        "layer2, layer4: p = 0.002",
        "layer2: p = 0.5",
    ]
    unexplained = Prediction(none.astype(int), none, none, none, None, none > 0, arrays, ("a",))
    row = next(unexplained.rows())
    assert most_unusual_cue(row) == "layer2: 0.5, layer4: 0.04, entropy: 0.3"


def test_rows_of_what_was_read_and_of_what_was_not_keep_their_places(gate: Gate) -> None:
    images = digits().test.read(range(2))
    prediction = gate.predict(images)
    found = list(rows_of_read(gate, ["broken", images[0], "gone", images[1]], prediction))
    first, second = prediction.rows()
    assert found == [unreadable_row(gate, "broken"), first, unreadable_row(gate, "gone"), second]
    assert all(["path", *row] == all_columns(gate) for row in found)
    flagged = int(prediction.is_ood.sum())
    assert RowCounts.of(found) == RowCounts(2, flagged, 2)
    assert RowCounts.of(found[:1]) + RowCounts.of(found[1:]) == RowCounts.of(found)
    assert list(rows_of_read(gate, ["gone"], None)) == [unreadable_row(gate, "gone")]
