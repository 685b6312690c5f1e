"""A text summary of a gate that was fitted to a user's own model."""

from collections.abc import Mapping

import numpy as np

from goen.data.imageset import ImageSet
from goen.data.input_spec import ImageInputs
from goen.functional.conformal import false_alarm_interval
from goen.gate.base import BaseGate
from goen.io.manifest import Manifest
from goen.metrics import ood_metrics


def fit_summary(gate: BaseGate, ood: Mapping[str, ImageSet]) -> str:
    """The sets the gate was fitted on, its guarantee, and its metrics on the OOD images.

    Args:
        gate: fitted.
        ood: the OOD images it was fitted with.
    """
    low, mean, high = false_alarm_interval(len(gate.held_out), gate.false_alarm_rate)
    metadata = Manifest(gate.metadata)
    splits = metadata.part("splits")
    inputs = "images" if isinstance(gate.inputs, ImageInputs) else "rows"
    lines = [
        "A gate for " + metadata.text("factory" if "factory" in metadata else "model"),
        "",
        f"  classes            {len(gate.classes)}",
        f"  inputs             {gate.inputs}",
        *(
            f"  {role:<18} {split.number('images'):,.0f} {inputs} ({split.text('name')})"
            for role in splits.content
            for split in [splits.part(role)]
        ),
    ]
    accuracies = [
        f"{metadata.number(f'{role}_accuracy'):.3f} on {role}"
        for role in ("train", "held_out")
        if f"{role}_accuracy" in metadata
    ]
    if accuracies:
        lines.append(f"  accuracy           {', '.join(accuracies)}")
    lines += [
        "",
        f"  false-alarm rate   {gate.false_alarm_rate:g} guaranteed, {mean:.4f} expected, "
        f"{low:.4f} to {high:.4f} for this gate with 90 % probability",
        f"  threshold          {gate.threshold:.4f}, from {len(gate.held_out)} held-out {inputs}",
        "",
        f"  detector           {gate.detector}",
    ]
    weights = gate.detector.cue_weights
    if weights:
        lines += ["  cue                weight   (each is standardised; the score rises with it)"]
        lines += [f"  {name:<18} {weight:6.3f}" for name, weight in weights.items()]
    if ood:
        lines += ["", "  OOD, used in the fit          AUROC   flagged"]
    for kind, images in ood.items():
        prediction = gate.predict(images)
        auroc = ood_metrics(gate.held_out.scores, prediction.score).auroc
        lines.append(f"  {kind:<28} {auroc:6.3f}   {np.mean(prediction.is_ood):6.1%}")
    if gate.detector.uses_ood and not gate.detector.has_probability:
        lines += ["", "  Fitted without OOD images: the gate returns no probability of OOD."]
    return "\n".join(lines)
