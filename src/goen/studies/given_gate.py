"""``goen evaluate``: a gate on ID and OOD images that it was not fitted with."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from goen.data.feature_set import FeatureSet
from goen.data.imageset import ImageSet, named_files
from goen.data.inputs import hash_of_each
from goen.data.protocol import OodSet
from goen.errors import LeakError, UsageError
from goen.extraction import BATCH_SIZE, stream
from goen.functional.conformal import false_alarm_interval, false_alarm_p_value
from goen.gate import Gate
from goen.io.manifest import JsonObject, Manifest
from goen.io.results import (
    Origin,
    Result,
    write_mistakes,
    write_results,
    write_scores,
)
from goen.io.stages import alone_in, summarised
from goen.outputs import Outputs
from goen.studies.gate_evaluation import find_mistakes, gate_arrays
from goen.studies.given_network import BUDGET, identity
from goen.studies.rows import (
    Arrays,
    error_rows,
    flagged_rows,
    id_rows,
    ood_rows,
    share_rows,
    summary_of,
)

_log = getLogger(__name__)
TOO_MANY = 0.05
"""A smaller p-value is more false alarms than chance explains."""
GATE, CLASSIFIER, TEST = "gate", "classifier", "test"


@dataclass(frozen=True)
class Evaluated:
    """The images that a gate is evaluated on.

    Attributes:
        test: ID images.
        ood: OOD sets by name.
        labelled: whether the ID images have the labels of the gate's classes.
        reuse: evaluate on images that fitted the gate as well; the rows say so.
        name: of the data, for tables.
    """

    test: ImageSet
    ood: Mapping[str, OodSet]
    labelled: bool = True
    reuse: bool = False
    name: str = "own"

    @property
    def sets(self) -> dict[str, ImageSet]:
        """The ID images (``test``) and the OOD sets, by name."""
        return {TEST: self.test, **{name: ood.images for name, ood in self.ood.items()}}


def evaluate(
    gate: Gate, images: Evaluated, out: Path | str, *, batch_size: int = BATCH_SIZE
) -> list[Result]:
    """Accuracy, AUROC, FPR95 and the share flagged of a gate, each share with its interval.

    The false alarms are compared with the promise: ``p_false_alarms`` is the probability of as many
    or more of them, if these ID images are like the held-out images of the gate.

    Writes results.jsonl, scores.safetensors, mistakes.safetensors and, last, run.json.

    Args:
        gate: itself.
        images: that it is evaluated on.
        out: the folder of the study.
        batch_size: images per forward pass.

    Raises:
        LeakError: images that fitted, calibrated or chose something of the gate, unless
            ``images.reuse``.
        UsageError: ID images of other classes than the gate's.
    """
    out = Path(out)
    used = require_others(gate, images)
    if images.labelled and images.test.classes != gate.classes:
        raise UsageError(
            f"{images.test.name} has other classes than the gate ({', '.join(gate.classes[:5])}, "
            "...). Name its folders as the gate's classes, or evaluate without labels."
        )
    with alone_in(out):
        scores: dict[str, Arrays] = {}
        network = gate.detector.prepare_network(gate.network)
        first: Outputs | None = None
        for name, part in images.sets.items():
            _log.info(f"scoring {name}, {len(part):,} images")
            scores[name], outputs = gate_scores(gate, network, part, batch_size)
            first = first or outputs[:2]
        assert first is not None, "there are ID images"
        if images.labelled:
            scores[TEST]["truth"] = np.asarray(images.test.labels)
        results = _results(gate, images, scores, used, identity(gate.network, first))
        summary = {**_summary(gate, images), "conclusion": _conclusion(gate, results)}
        with summarised(out, summary):
            write_results(out / "results.jsonl", results)
            write_scores(out / "scores.safetensors", scores)
            if images.test.image_shape[0] == 3 and not isinstance(images.test, FeatureSet):
                mistakes = {n: find_mistakes(n, s, scores[n]) for n, s in images.sets.items()}
                write_mistakes(out / "mistakes.safetensors", mistakes)
    return results


def gate_scores(
    gate: Gate, network: nn.Module, images: ImageSet, batch_size: int
) -> tuple[Arrays, Outputs]:
    """What the gate returns for these images, its scores by its detector's name, and the outputs.

    Args:
        gate: itself.
        network: as its detector prepares it.
        images: in batches.
        batch_size: images per forward pass.
    """
    batches = stream(network, images, batch_size=batch_size)
    outputs = Outputs.concatenate(o.keep(gate.detector.features) for o in batches)
    scores = gate.detector.score(outputs).numpy()
    return {**gate_arrays(gate, outputs), gate.detector.name: scores}, outputs


def require_others(gate: Gate, images: Evaluated) -> frozenset[str]:
    """The sets that share images with those of the gate.

    Raises:
        LeakError: there are some, and the images are not to be reused.
    """
    if not gate.image_hashes:
        _log.warning("The gate keeps no hashes of its images: whether these are others is unknown.")
    found: dict[str, tuple[str, NDArray[Any]]] = {}
    for name, part in images.sets.items():
        hashes = hash_of_each(part.digests)
        shared = {role: np.isin(hashes, own) for role, own in gate.image_hashes.items()}
        found.update((name, (role, copied)) for role, copied in shared.items() if copied.any())
    for name, (role, copied) in found.items():
        if not images.reuse:
            part = images.sets[name]
            raise LeakError(
                f"{part.name} shares {copied.sum()} of its {len(part)} images with the gate's "
                f"{role} images{named_files(part, np.flatnonzero(copied))}. Evaluate on other "
                "images, or ask for these (--reuse): the rows then say so."
            )
    return frozenset(found)


def gate_origin(gate: Gate, network: str) -> Origin:
    """Of the detector's numbers."""
    metadata = Manifest(gate.metadata)
    splits = metadata.part("splits") if "splits" in metadata else Manifest({})

    def identities(*, train: bool) -> tuple[str, ...]:
        parts = [splits.part(role) for role in splits.content if (role == "train") == train]
        return tuple(
            f"{part.text('name')}:{part.text('fingerprint')}"
            for part in parts
            if "fingerprint" in part
        )

    return Origin(
        gate.detector.name, BUDGET, 0, network, identities(train=True), identities(train=False)
    )


def _results(
    gate: Gate, images: Evaluated, scores: Mapping[str, Arrays], used: frozenset[str], network: str
) -> list[Result]:
    own = gate_origin(gate, network)
    of_gate = replace(own, method=GATE)
    test, seen = scores[TEST], TEST in used
    found: list[Result] = []
    if images.labelled:
        classifier = replace(own, method=CLASSIFIER)
        wrong = test["label"] != test["truth"]
        found += id_rows(classifier, test["logits"], images.test)
        found += error_rows(classifier, 1 - test["confidence"], wrong)
        found += error_rows(own, test[own.method], wrong)
        if "accepted" in test:
            found += _accepted(gate, of_gate, test["accepted"], wrong, seen=seen)
    alarms = test["is_ood"]
    found += share_rows(of_gate, TEST, "id", "false_alarm_rate", alarms, seen=seen)
    if gate.held_out.groups is None and not gate.per_class:
        p = false_alarm_p_value(
            int(alarms.sum()), len(alarms), gate.num_held_out, gate.false_alarm_rate
        )
        found += of_gate.rows(TEST, "id", {"p_false_alarms": p}, seen=seen)
    found += ood_rows(own, scores, images.ood, used)
    marked = images.ood if seen else used
    return found + flagged_rows(of_gate, own, scores, images.ood, marked, intervals=True)


def _accepted(
    gate: Gate,
    origin: Origin,
    accepted: NDArray[np.bool_],
    wrong: NDArray[np.bool_],
    *,
    seen: bool,
) -> list[Result]:
    """The share of ID images that is accepted, and that of wrong classes among them.

    ``p_error_rate`` is the probability of as many errors or more if the gate just kept its rate.
    """
    from scipy.stats import binom  # slow to import

    assert gate.error_rate is not None, "it accepts images"
    found = share_rows(origin, TEST, "id", "accepted", accepted, seen=seen)
    if not accepted.any():
        return found
    errors = wrong[accepted]
    p = binom.sf(errors.sum() - 1, len(errors), gate.error_rate.rate)
    found += share_rows(origin, TEST, "id", "error_rate", errors, seen=seen)
    return found + origin.rows(TEST, "id", {"p_error_rate": float(p)}, seen=seen)


def _conclusion(gate: Gate, results: list[Result]) -> str:
    """The false alarms against the promise, in a sentence."""
    found = {r.metric: r for r in results if (r.method, r.dataset) == (GATE, TEST)}
    alarms, tested = found["false_alarm_rate"], found.get("p_false_alarms")
    accuracy = next((r.value for r in results if r.metric == "accuracy"), None)
    sentence = "" if accuracy is None else f"accuracy on the ID images: {accuracy:.1%}; "
    sentence += (
        f"false alarms: {alarms.value:.1%} of the ID images "
        f"({alarms.low:.1%} to {alarms.high:.1%}), "
        f"promised: at most {gate.false_alarm_rate:.3g} on average"
    )
    if tested is not None and tested.value > TOO_MANY:
        sentence += f"; they agree (p = {tested.value:.2g})"
    elif tested is not None:
        sentence += (
            f"; that is more than chance explains (p = {tested.value:.2g}): these ID images are "
            "not like the gate's held-out images"
        )
    return sentence + _about_accepted(gate, found)


def _about_accepted(gate: Gate, found: Mapping[str, Result]) -> str:
    """The errors among accepted images against the promise, if there is one."""
    if gate.error_rate is None or "error_rate" not in found:
        return ""
    share, errors, p = (found[m] for m in ("accepted", "error_rate", "p_error_rate"))
    sentence = (
        f"; {share.value:.1%} of the ID images are accepted, and {errors.value:.2%} of these "
        f"({errors.low:.2%} to {errors.high:.2%}) are misclassified, promised: at most "
        f"{gate.error_rate.rate:.3g} with {gate.error_rate.confidence:.3g} probability"
    )
    if p.value > TOO_MANY:
        return sentence
    return f"{sentence}; that is more than the promise (p = {p.value:.2g})"


def _summary(gate: Gate, images: Evaluated) -> JsonObject:
    low, expected, high = false_alarm_interval(gate.num_held_out, gate.false_alarm_rate)
    wanted = gate.error_rate
    errors: JsonObject = {}
    if wanted is not None:
        errors = {"error_rate": wanted.rate, "error_confidence": wanted.confidence}
    detector = gate.detector
    return summary_of(
        "evaluate",
        {"reuse": images.reuse, "false_alarm_rate": gate.false_alarm_rate},
        images.name,
        {detector.name: (detector.name, "")},
        threshold=None if gate.per_class else gate.threshold,
        metadata={"splits": {n: s.to_json() for n, s in images.sets.items()}},
        gate={
            "classes": list(gate.classes),
            "false_alarm_rate": gate.false_alarm_rate,
            "held_out": gate.num_held_out,
            "expected": expected,
            "low": low,
            "high": high,
            **errors,
        },
    )
