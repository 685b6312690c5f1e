"""Predictions of a gate without its network: of cues drawn from its held-out images."""

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from goen.gate import Gate, Prediction
from tests.own_model import LAYERS, digits, preprocess, trained


@cache
def digit_gate() -> Gate:
    """A gate for digits with the cues ``early``, ``late`` and ``entropy``, 120 held-out images.

    Its monitor follows the properties of the images, too."""
    p = digits()
    return Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)


def predicted(
    gate: Gate,
    cues: NDArray[np.float64],
    labels: NDArray[np.int64] | None = None,
    properties: NDArray[np.float64] | None = None,
) -> Prediction:
    """The gate's prediction of images with these cues, and the properties of held-out images."""
    known = gate.held_out.properties
    assert known is not None
    if properties is None:
        properties = known[np.random.default_rng(len(cues)).integers(0, len(known), len(cues))]
    if labels is None:
        labels = np.zeros(len(cues), dtype=np.int64)
    score = gate.detector.score_cues(torch.from_numpy(cues)).numpy()
    p_value = gate.p_values(score, labels)
    return Prediction(
        label=labels,
        confidence=np.ones(len(cues)),
        score=score,
        p_value=p_value,
        probability=None,
        is_ood=p_value <= gate.false_alarm_rate,
        cues=dict(zip(gate.detector.cue_names, cues.T, strict=True)),
        classes=gate.classes,
        properties=dict(zip(gate.property_names, properties.T, strict=True)),
    )


def like_held_out(gate: Gate, count: int, seed: int = 0, shift: float = 0.0) -> Prediction:
    """Images drawn from the gate's held-out images, the first cue shifted by so many deviations.

    A little noise makes them distinct.
    """
    held_out = gate.held_out
    assert held_out.cues is not None
    assert held_out.labels is not None
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, len(held_out), count)
    spread = held_out.cues.std(axis=0)
    cues = held_out.cues[rows] + 0.01 * spread * rng.normal(size=(count, held_out.cues.shape[1]))
    cues[:, 0] += shift * spread[0]
    assert held_out.properties is not None
    return predicted(gate, cues, held_out.labels[rows], held_out.properties[rows])


def cues_of(count: int, seed: int = 0) -> np.ndarray:
    """Cues of so many of the held-out digits, drawn at random."""
    known = digit_gate().held_out.cues
    assert known is not None
    return known[np.random.default_rng(seed).integers(0, len(known), count)]


def without_cues() -> Gate:
    """A gate that was saved without the cues of its held-out images."""
    return replace(digit_gate(), held_out=replace(digit_gate().held_out, cues=None))
