"""A text summary of a gate that was fitted to a user's own model."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np

from goen.data.input_spec import ImageInputs
from goen.functional.conformal import false_alarm_interval
from goen.gate.base import BaseGate
from goen.gate.fitting.near_copies import describe_near_copies
from goen.io.files import printable_path
from goen.io.manifest import Manifest
from goen.metrics import Ranking, ood_metrics


def fit_summary(gate: BaseGate, files: Sequence[Path] = ()) -> str:
    """The sets the gate was just fitted on, its guarantee, and its metrics on the OOD images.

    Args:
        gate: just fitted.
        files: of the held-out images, if they have any.
    """
    low, mean, high = false_alarm_interval(gate.num_held_out, gate.false_alarm_rate)
    grouped = gate.held_out.groups is not None
    groups = f" in {gate.num_held_out} groups" if grouped else ""
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
        f"  false-alarm rate   at most {gate.false_alarm_rate:g} guaranteed: the probability that "
        "a new ID image is flagged",
        f"  this gate's rate   {mean:.4f} expected; between {low:.4f} and {high:.4f} with 90 % "
        "probability, for these held-out images",
        f"  threshold          {gate.threshold:.4f}, from {len(gate.held_out)} held-out "
        f"{inputs}{groups}",
        *_accepted(gate),
        "",
        f"  detector           {gate.detector}",
    ]
    lines += [*_weights(gate), *_selection(gate)]
    ood = {} if gate.diagnostics is None else gate.diagnostics.ood_scores
    if ood:
        lines += ["", "  OOD, used in the fit          AUROC   flagged"]
    for kind, scores in ood.items():
        auroc = ood_metrics(gate.held_out.scores, scores).auroc
        lines.append(f"  {kind:<28} {auroc:6.3f}   {np.mean(scores > gate.threshold):6.1%}")
    if gate.detector.uses_ood and not gate.detector.has_probability:
        lines += ["", "  Fitted without OOD images: the gate returns no probability of OOD."]
    if gate.diagnostics is not None:
        names = [printable_path(file) for file in files]
        found = describe_near_copies(gate.diagnostics.near_copies, names, grouped=grouped)
        lines += [line for one in found for line in ("", *_wrapped(f"Warning: {one}"))]
    return "\n".join(lines)


def _weights(gate: BaseGate) -> list[str]:
    weights = gate.detector.cue_weights
    lines = [f"  {name:<18} {weight:6.3f}" for name, weight in (weights or {}).items()]
    heading = "  cue                weight   (each is standardised; the score rises with it)"
    return [heading, *lines] if lines else []


def _accepted(gate: BaseGate) -> list[str]:
    if gate.error_rate is None or gate.acceptance is None:
        return []
    wanted, found = gate.error_rate, gate.acceptance.selection
    return [
        f"  error rate         at most {wanted.rate:g} of accepted ID images are misclassified, "
        f"with {wanted.confidence:.3g} probability",
        f"  accepted           {gate.acceptance.coverage:.1%} of the held-out images, with "
        f"{found.errors} errors among {found.count:,}; bound {found.bound:.4f}",
    ]


def selection_sentences(gate: BaseGate) -> list[str]:
    """Which detector was chosen for the gate, among which, and with what; none if it was given."""
    metadata = Manifest(gate.metadata)
    if "selection" not in metadata:
        return []
    ranking = Ranking.from_json(metadata.part("selection").content)
    best = ranking.means[ranking.best]
    lead = "".join(
        f" It leads {name}, the second, by {best - mean:.3f} (p = {ranking.p_values[name]:.2g})."
        for name, mean in [*ranking.means.items()][1:2]
    )
    unfit = metadata.part("selection").part("left_out").content
    others = f" ({len(unfit)} others could not be fitted: {', '.join(unfit)})" if unfit else ""
    return [
        f"The detector was chosen among {len(ranking.means)}{others}, with the OOD images "
        f"({', '.join(ranking.sets)}) and the held-out images that do not set the threshold: "
        f"{ranking.describe({})}.{lead}",
        "These AUROCs were seen in the choice, and are too good for it: measure the gate on other "
        "OOD images (goen evaluate). The false-alarm rate is guaranteed as for any detector.",
    ]


def _selection(gate: BaseGate) -> list[str]:
    return [line for one in selection_sentences(gate) for line in ("", *_wrapped(one))]


def _wrapped(sentence: str) -> list[str]:
    return wrap(sentence, 100, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
