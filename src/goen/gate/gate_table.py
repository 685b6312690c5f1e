"""A gate as a table for notebooks."""

from goen.detectors import GoenM
from goen.functional.conformal import false_alarm_interval
from goen.gate.gate import Gate
from goen.notebook import html_table, wide

_MOST_CLASSES = 10


def gate_table(gate: Gate) -> str:
    """What a gate takes, what it was fitted on, and what it guarantees, as HTML.

    A gate may come from anyone: nothing of its facts is taken for granted.
    """
    low, mean, high = false_alarm_interval(gate.num_held_out, gate.false_alarm_rate)
    more = ", ..." if len(gate.classes) > _MOST_CLASSES else ""
    each = " within every predicted class" if gate.per_class else ""
    rows = [
        ("inputs", str(gate.inputs)),
        (f"{len(gate.classes):,} classes", ", ".join(gate.classes[:_MOST_CLASSES]) + more),
        ("detector", gate.detector.kind),
        ("cues", _cues(gate)),
        ("false-alarm rate", f"at most {gate.false_alarm_rate:g}{each}, on average"),
        ("this gate's rate", f"{mean:.3f}, or {low:.3f} to {high:.3f} with 90 % probability"),
        ("held-out images", f"{len(gate.held_out):,} set the threshold, {gate.threshold:.4g}"),
    ]
    if isinstance(gate.detector, GoenM):
        kept, total = gate.detector.num_kept
        rows.append(("training images", f"{kept:,} of {total:,} are kept"))
    accuracy = gate.facts.get("held_out_accuracy")
    if isinstance(accuracy, float):
        rows.append(("accuracy", f"{accuracy:.3f} on held-out images"))
    return html_table("Gate", ("", ""), [(name, wide(value)) for name, value in rows])


def _cues(gate: Gate) -> str:
    if not isinstance(gate.detector, GoenM):
        return ", ".join(gate.detector.cue_names)
    weights = zip(gate.detector.cue_names, gate.detector.weights_.tolist(), strict=True)
    return ", ".join(f"{name} (weight {weight:.2f})" for name, weight in weights)
