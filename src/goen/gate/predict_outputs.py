"""What a gate says about the outputs of its network."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from goen.functional._rows import sums_are_finite
from goen.functional.ranking import Floats
from goen.gate.nearest_rows import find_neighbours
from goen.gate.prediction import Prediction
from goen.outputs import Outputs

if TYPE_CHECKING:
    from goen.gate.gate import Gate


@torch.no_grad()
def predict_outputs(gate: "Gate", outputs: Outputs, nearest: int = 0) -> Prediction:
    """Label, score, p-value, probability and decision for each image.

    An image with NaN or infinity among its outputs is flagged: it is measured with zeros in their
    place, and what comes of it is replaced.

    Args:
        gate: whose network they are from.
        outputs: logits, and the features that the gate's detector reads.
        nearest: how many of the nearest training images to find in each layer.
    """
    detector = gate.detector
    broken = _not_finite(outputs, detector.features)
    if broken is not None:
        outputs = _with_zeros(outputs, broken)
    cues = detector.cues(outputs)
    score = detector.score_cues(cues)
    confidence, label = torch.softmax(outputs.logits.double(), dim=1).max(dim=1)
    probability = detector.probability(score)
    cue_p_values = detector.cue_p_values(cues)
    if broken is not None:
        score = score.masked_fill(broken, torch.inf)
        confidence = confidence.masked_fill(broken, 0.0)
        cues = cues.masked_fill(broken[:, None], torch.inf)
        if probability is not None:
            probability = probability.masked_fill(broken, 1.0)
        if cue_p_values is not None and detector.id_cues_ is not None:
            least = 1 / (1 + len(detector.id_cues_))
            cue_p_values = cue_p_values.masked_fill(broken[:, None], least)
    p_value = gate.p_values(score.numpy(), label.numpy())

    def named(columns: Tensor) -> dict[str, Floats]:
        return dict(zip(detector.cue_names, columns.numpy().T, strict=True))

    return Prediction(
        label=label.numpy(),
        confidence=confidence.numpy(),
        score=score.numpy(),
        p_value=p_value,
        probability=None if probability is None else probability.numpy(),
        is_ood=p_value <= gate.false_alarm_rate,
        cues=named(cues),
        classes=gate.classes,
        cue_p_values={} if cue_p_values is None else named(cue_p_values),
        num_held_out=gate.num_held_out,
        neighbours=find_neighbours(detector, outputs, nearest, broken),
    )


def _not_finite(outputs: Outputs, features: Sequence[str]) -> Tensor | None:
    """Which images have NaN or infinity among their logits or these features; ``None``: none."""
    parts = [outputs.logits, *(outputs.features[name] for name in features)]
    if all(sums_are_finite(part) for part in parts):
        return None
    finite = torch.stack([torch.isfinite(part).all(dim=1) for part in parts]).all(dim=0)
    return None if bool(finite.all()) else ~finite


def _with_zeros(outputs: Outputs, rows: Tensor) -> Outputs:
    """The outputs with zeros in place of those of these images."""

    def replaced(values: Tensor) -> Tensor:
        return values.masked_fill(rows[:, None], 0.0)

    features = {name: replaced(values) for name, values in outputs.features.items()}
    return Outputs(replaced(outputs.logits), features, outputs.uncertainty)
