"""One page about a gate that was fitted to somebody's own model."""

from collections.abc import Mapping

import numpy as np

from goen.artifacts import FIT_REPORT_TITLE
from goen.data.imageset import ImageSet
from goen.functional.conformal import false_alarm_interval
from goen.metrics import ood_metrics
from goen.scoring import Gate


def report(gate: Gate, ood: Mapping[str, ImageSet]) -> str:
    """What was fitted on what, what is promised, and what was seen of the OOD images.

    Args:
        gate: fitted.
        ood: the OOD images it was fitted with: numbers about them are about images it has seen.
    """
    low, mean, high = false_alarm_interval(len(gate.held_out_scores), gate.false_alarm_rate)
    lines = [
        FIT_REPORT_TITLE + str(gate.facts.get("factory", gate.facts["model"])),
        "",
        f"  classes            {len(gate.classes)}",
        f"  images             {gate.image_size[0]}×{gate.image_size[1]}",
        *(
            f"  {role:<18} {split['images']:,} images ({split['name']})"
            for role, split in gate.facts["splits"].items()
        ),
    ]
    accuracy = gate.facts.get("held_out_accuracy")
    if accuracy is not None:
        lines.append(f"  accuracy           {accuracy:.3f} on held_out")
    lines += [
        "",
        f"  false-alarm rate   {gate.false_alarm_rate:g} promised, {mean:.4f} expected, "
        f"{low:.4f} to {high:.4f} for this gate with 90 %",
        f"  threshold          {gate.threshold:.4f}, from {len(gate.held_out_scores)} images that "
        "did nothing else",
        "",
        "  cue                weight   (each is standardised; the score can only rise with it)",
    ]
    weights = gate.scorer.config().get("weights", {})
    lines += [f"  {name:<18} {weight:6.3f}" for name, weight in weights.items()]
    if ood:
        lines += ["", "  OOD, seen in fitting          AUROC   flagged"]
    known = gate.held_out_scores
    for kind, images in ood.items():
        strange = gate.predict_set(images)
        auroc = ood_metrics(known, strange.score).auroc
        lines.append(f"  {kind:<28} {auroc:6.3f}   {np.mean(strange.is_ood):6.1%}")
    if not ood:
        lines += ["", "  No OOD images: no probability, and every cue counts the same."]
    return "\n".join(lines)
