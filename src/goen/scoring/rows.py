"""Rows of ``goen score``: which columns they have, how they are counted, sorted and explained.

``Prediction.rows`` makes them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from goen.gate.gate import Gate
from goen.gate.prediction import Prediction, ScoreRow, cue_of, row_columns

_TEXT = ("path", "label", "error")


@dataclass(frozen=True)
class RowCounts:
    """How many inputs were scored, flagged, and could not be read."""

    scored: int = 0
    flagged: int = 0
    unreadable: int = 0

    @classmethod
    def of(cls, rows: Iterable[ScoreRow]) -> "RowCounts":
        """Those of these rows."""
        decisions = [row["is_ood"] for row in rows]
        unreadable = decisions.count(None)
        return cls(len(decisions) - unreadable, decisions.count(True), unreadable)

    def __add__(self, other: "RowCounts") -> "RowCounts":
        return RowCounts(
            self.scored + other.scored,
            self.flagged + other.flagged,
            self.unreadable + other.unreadable,
        )


def score_columns(gate: Gate) -> list[str]:
    """The columns of a row between ``path`` and ``error``."""
    detector = gate.detector
    explained = detector.cue_names if gate.has_cue_p_values else ()
    return row_columns(
        detector.cue_names,
        explained,
        gate.property_names,
        probability=detector.has_probability,
        accepted=gate.error_rate is not None,
        new_class=gate.num_known_classes is not None,
    )


def all_columns(gate: Gate) -> list[str]:
    """The columns of a row, in order."""
    return ["path", *score_columns(gate), "error"]


def unreadable_row(gate: Gate, error: str) -> ScoreRow:
    """The row, without its path, of an input that could not be read."""
    return {**dict.fromkeys(score_columns(gate)), "error": error}


def rows_of_read(
    gate: Gate, read: Sequence[object], prediction: Prediction | None
) -> Iterator[ScoreRow]:
    """The row, without its path, of each input: of the prediction, or with an error.

    Args:
        gate: that scored them.
        read: a text for each input that could not be read, its error; anything else for the others.
        prediction: of those others; ``None`` if there are none.
    """
    predicted = iter(()) if prediction is None else prediction.rows()
    for one in read:
        yield unreadable_row(gate, one) if isinstance(one, str) else next(predicted)


def most_unusual_cue(row: ScoreRow) -> str:
    """The cue or cues with the smallest p-value; all cues if they have no p-values.

    Example:
        >>> most_unusual_cue({"p_value": 0.1, "p_layer2": 0.3, "p_layer4": 0.002})
        'layer4: p = 0.002'
    """
    p_values = {cue_of(column): p for column, p in _numbers(row, "p_").items()}
    if not p_values:
        cues = _numbers(row, "cue_").items()
        return ", ".join(f"{name.removeprefix('cue_')}: {value:.2g}" for name, value in cues)
    least = min(p_values.values())
    names = ", ".join(name for name, p in p_values.items() if p == least)
    return f"{names}: p = {least:.2g}"


def _numbers(row: ScoreRow, prefix: str) -> dict[str, float]:
    """The columns of the cues that begin so."""
    return {
        name: float(value)
        for name, value in row.items()
        if name.startswith(prefix) and name != "p_value" and isinstance(value, float)
    }


def sort_rows(rows: Iterable[ScoreRow], column: str) -> list[ScoreRow]:
    """The rows by this column: the most suspicious first, text in alphabetical order.

    High scores, probabilities and cues are suspicious, and low p-values and confidences. Equal rows
    are sorted by their scores. Inputs that could not be read come last.
    """
    low_first = column in ("confidence", "accepted") or column.startswith("p_")

    def key(row: ScoreRow) -> tuple[str | float, float]:
        score = -_suspicion(row["score"])
        if column in _TEXT:
            return str(row[column]), score
        number = _suspicion(row[column])
        return number if low_first else -number, score

    rows = list(rows)
    unread = [row for row in rows if row["is_ood"] is None]
    return sorted((row for row in rows if row["is_ood"] is not None), key=key) + unread


def _suspicion(value: str | float | bool | None) -> float:
    """The number; None is what JSON has for an infinite score, the most suspicious there is."""
    return np.inf if value is None else float(value)
