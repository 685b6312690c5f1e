"""What a monitor may be given: predictions of its gate, rows of ``goen score``, or plain scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from goen.errors import UsageError
from goen.functional import conformal
from goen.functional.conformal import Numbers
from goen.functional.ranking import Floats
from goen.gate import Gate, Prediction
from goen.gate.prediction import property_column
from goen.gate.threshold import engine_tolerance, tie_tolerance
from goen.io.manifest import JsonObject, Manifest
from goen.monitor.state import CLASS, PROPERTY, SCORE


@dataclass(frozen=True, eq=False)
class MonitoredGate:
    """The gate whose predictions a monitor follows.

    Attributes:
        classes: its class names.
        cues: its cues.
        held_out_scores: ``(n,)``, those of its threshold.
        held_out_labels: ``(n,)``, of a gate with a threshold per class; else ``None``.
        has_labels: whether the predicted class is followed: the labels of the held-out images are
            known.
        properties: of the images, those that are followed.
    """

    classes: tuple[str, ...]
    cues: tuple[str, ...]
    held_out_scores: Floats
    held_out_labels: NDArray[np.int64] | None
    has_labels: bool
    properties: tuple[str, ...] = ()

    @classmethod
    def of(cls, gate: Gate, *, properties: bool = True) -> "MonitoredGate":
        """That of a gate, with the properties of its images or without."""
        held_out = gate.held_out
        if held_out.groups is not None:
            raise UsageError(
                "The held-out images of this gate come in groups, and a monitor needs held-out "
                "images and a stream that were drawn one by one: fit a gate without groups."
            )
        names = gate.detector.cue_names
        followed = gate.property_names if properties else ()
        taken = {SCORE, CLASS, *map(property_stream, followed)} & {*names}
        if taken:
            raise UsageError(
                f"This gate has a cue called {taken.pop()!r}, which is a monitor's name for "
                "something else. Give its scores to Monitor.from_scores."
            )
        return cls(
            classes=gate.classes,
            cues=names,
            held_out_scores=held_out.scores,
            held_out_labels=held_out.labels if gate.per_class else None,
            has_labels=held_out.labels is not None,
            properties=followed,
        )

    def same_as(self, other: "MonitoredGate") -> bool:
        """Whether both are of one gate."""
        named = ("classes", "cues", "has_labels", "properties")
        arrays = ("held_out_scores", "held_out_labels")
        return all(getattr(self, n) == getattr(other, n) for n in named) and all(
            np.array_equal(getattr(self, n), getattr(other, n)) for n in arrays
        )

    def values(self, prediction: Prediction) -> dict[str, Floats]:
        """The numbers of a prediction of this gate, by stream, ``(B,)`` each.

        Raises:
            UsageError: it is of another gate.
        """
        if prediction.classes != self.classes or tuple(prediction.cues) != self.cues:
            raise self._other("it has other classes or cues")
        if not {*self.properties} <= {*prediction.properties}:
            raise UsageError(
                "This monitor follows properties of the images, and the prediction has none: give "
                "it what gate.predict returns, or make it with Monitor(gate, properties=False). "
                "Nothing was counted."
            )
        labels = np.asarray(prediction.label)
        score = np.asarray(prediction.score, dtype=np.float64)
        if np.isnan(score).any():
            raise UsageError("The prediction has scores that are NaN; nothing was counted.")
        self._check_p_values(score, labels, np.asarray(prediction.p_value))
        values = {SCORE: score, **_followed(prediction.cues)}
        if self.has_labels:
            values[CLASS] = class_values(labels, self.classes)
        return values | {property_stream(n): prediction.properties[n] for n in self.properties}

    def _check_p_values(self, score: Floats, labels: NDArray[np.int64], p_values: Floats) -> None:
        """The gate's p-value of a score is that of its held-out images: another gate's is not.

        In another engine than torch a score within a tolerance above a held-out one counts as equal
        to it, and a row does not say which engine it is from.
        """
        tolerance = tie_tolerance(self.held_out_scores, engine_tolerance(self.held_out_scores))
        low = self._p_values(score, labels)
        high = self._p_values(score - tolerance, labels)
        rounding = 1 + 1e-9
        if p_values.shape != low.shape or not bool(
            ((low <= p_values * rounding) & (p_values <= high * rounding)).all()
        ):
            raise self._other("its p-values are not those of this gate's held-out images")

    def _p_values(self, score: Floats, labels: NDArray[np.int64]) -> Floats:
        if self.held_out_labels is None:
            return conformal.p_values(score, self.held_out_scores)
        return conformal.class_conditional_p_values(
            score, labels, self.held_out_scores, self.held_out_labels
        )

    def _other(self, why: str) -> UsageError:
        return UsageError(
            f"This prediction is not of the gate that the monitor was made for: {why}. Make a "
            "monitor for each gate (--gate); nothing was counted."
        )

    def from_rows(self, rows: Sequence[JsonObject]) -> Prediction:
        """The prediction in rows of ``goen score`` with this gate, each of a readable image.

        A score or cue of ``null`` is infinite: the network's outputs were not finite.

        Raises:
            UsageError: a field is missing or has another type, or the rows are of another gate.
        """
        numbers = _first_of_each_name(self.classes)
        if len(numbers) < len(self.classes) and self.held_out_labels is not None:
            raise UsageError(
                "Two classes of this gate have one name, and it has a threshold for each: its rows "
                "do not say which is meant. Give the monitor what gate.predict returns, or fit the "
                "gate with different names."
            )
        for row in rows[:1]:
            there = [name.removeprefix("cue_") for name in row if name.startswith("cue_")]
            if there and any(f"cue_{cue}" not in row for cue in self.cues):
                of = f"{', '.join(there[:5])}; this gate's are {', '.join(self.cues)}"
                raise self._other(f"its cues are {of}")
        try:
            parsed = [Manifest(row) for row in rows]
            labels = np.array([numbers[row.text("label")] for row in parsed], dtype=np.int64)
            score = np.array([_number(row, "score") for row in parsed])
            cues = {
                name: np.array([_number(row, f"cue_{name}") for row in parsed])
                for name in self.cues
            }
            properties = {
                name: np.array([row.number(property_column(name)) for row in parsed])
                for name in self.properties
            }
            p_values = np.array([row.number("p_value") for row in parsed])
            flagged = np.array([row.flag("is_ood") for row in parsed], dtype=bool)
        except KeyError as error:
            raise self._other(f"it has no class {error}") from error
        except ValueError as error:
            raise UsageError(f"This is not a row of goen score: {error}.") from error
        return Prediction(
            label=labels,
            confidence=np.zeros(len(rows)),
            score=score,
            p_value=p_values,
            probability=None,
            is_ood=flagged,
            cues=cues,
            classes=self.classes,
            properties=properties,
        )


def property_stream(name: str) -> str:
    """The name of the stream of a property of the images: a cue may be called ``entropy``, too.

    Example:
        >>> property_stream("brightness")
        'image brightness'
    """
    return PROPERTY + name


def class_values(labels: NDArray[np.int64], classes: Sequence[str]) -> Floats:
    """The classes as numbers for a stream; classes of one name are one, as they are in rows.

    Example:
        >>> class_values(np.array([2, 1, 0]), ("crane", "dog", "crane")).tolist()
        [0.0, 1.0, 0.0]
    """
    numbers = _first_of_each_name(classes)
    return np.array([float(numbers[name]) for name in classes])[labels]


def _first_of_each_name(classes: Sequence[str]) -> dict[str, int]:
    """The number of the first class of each name: ImageNet has two cranes."""
    last_first = reversed(list(enumerate(classes)))
    return {name: number for number, name in last_first}


def _number(row: Manifest, name: str) -> float:
    if name in row.content and row.content[name] is None:
        return float("inf")
    return row.number(name)


def held_out_values(gate: Gate, *, properties: bool = True) -> dict[str, Floats]:
    """The held-out images of a gate, by stream: scores without the threshold's tolerance.

    The tolerance would make every new image look a little more ordinary than the held-out ones.

    Args:
        gate: whose.
        properties: with those of the images, if it has kept them.

    Raises:
        UsageError: the gate was saved without the cues of its held-out images.
    """
    cues = gate.held_out.cues
    if cues is None:
        raise UsageError(
            "This gate was saved without the cues of its held-out images, which a monitor needs. "
            "Fit it again, or give held-out scores to Monitor.from_scores."
        )
    values = {SCORE: gate.detector.score_cues(torch.tensor(cues, device="cpu")).numpy()}
    values |= _followed(dict(zip(gate.detector.cue_names, cues.T, strict=True)))
    if gate.held_out.labels is not None:
        values[CLASS] = class_values(gate.held_out.labels, gate.classes)
    kept = gate.held_out.properties
    if properties and kept is not None:
        names = map(property_stream, gate.property_names)
        values |= dict(zip(names, kept.T, strict=True))
    return values


def _followed(cues: Mapping[str, Floats]) -> Mapping[str, Floats]:
    """The cues that are streams of their own: an only cue is the score."""
    return cues if len(cues) > 1 else {}


def checked_scores(
    given: Numbers | Mapping[str, Numbers], what: str, names: Sequence[str] | None = None
) -> dict[str, Floats]:
    """Scores ``(N,)`` or one number, or several streams of them by name, as float64 arrays.

    Args:
        given: the scores.
        what: they are, for error messages.
        names: of the streams; any if none are given.

    Raises:
        UsageError: a stream is missing or unknown, or has NaN or another length or shape.
    """
    named = given if isinstance(given, Mapping) else {SCORE: given}
    if names is not None and set(named) != set(names):
        got = ", ".join(map(str, named)) or "none"
        raise UsageError(f"Expected {what} for {', '.join(names)}, got {got}.")
    arrays: dict[str, Floats] = {}
    for name, values in named.items():
        if not isinstance(name, str):
            raise UsageError(f"A stream of scores has a name that is text, got {name!r}.")
        if isinstance(values, torch.Tensor):
            values = values.detach().to("cpu", torch.float64).numpy()
        try:
            arrays[name] = np.atleast_1d(np.asarray(values, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise UsageError(f"Expected scores (N,), got {type(values).__name__}.") from error
        if arrays[name].ndim != 1:
            shape = arrays[name].shape
            raise UsageError(f"Expected {what} of shape (N,), got {shape} for {name}.")
        bad = int(np.isnan(arrays[name]).sum())
        if bad:
            raise UsageError(
                f"{bad} of {arrays[name].size} {what} ({name}) are NaN. Leave those images out, "
                "or find what gave them; nothing was counted."
            )
    sizes = {name: len(values) for name, values in arrays.items()}
    if len(set(sizes.values())) > 1:
        raise UsageError(f"Every stream needs the same number of {what}, got {sizes}.")
    return arrays
