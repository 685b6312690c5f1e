"""The numbers of methods and gates on image sets, as rows of results."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goen.data.imageset import ImageSet
from goen.data.protocol import OodSet, Protocol
from goen.io.manifest import JsonObject, JsonValue
from goen.io.results import Group, Origin, Result
from goen.metrics import (
    holm,
    id_metrics,
    ood_calibration,
    ood_metrics,
    paired_auroc_test,
    selective_metrics,
)

Arrays = dict[str, NDArray[Any]]
WRONG = "test errors"
"""Under this name the scores of a comparison hold which answers of each method are wrong."""


def id_rows(
    origin: Origin, logits: NDArray[Any], images: ImageSet, dataset: str = "test", **more: float
) -> list[Result]:
    """Accuracy, ECE, NLL and Brier score of a classifier on ID images, and further numbers.

    Args:
        origin: of the numbers.
        logits: of the images.
        images: with their labels.
        dataset: the name of the set in the results.
        more: further numbers by metric.
    """
    numbers = asdict(id_metrics(logits=logits, labels=images.labels))
    return origin.rows(dataset, "id", {**numbers, **more})


def error_rows(
    origin: Origin, scores: NDArray[Any], wrong: NDArray[np.bool_], dataset: str = "test"
) -> list[Result]:
    """How well a score finds wrong answers on ID images; nothing if all are right, or all wrong.

    Args:
        origin: of the numbers.
        scores: of the images, an OOD score or an uncertainty.
        wrong: whether the predicted class of each is wrong.
        dataset: the name of the set in the results.
    """
    if wrong.all() or not wrong.any():
        return []
    return origin.rows(dataset, "id", asdict(selective_metrics(scores, wrong)))


def ood_rows(
    origin: Origin,
    scores: Mapping[str, Arrays],
    evaluation: Mapping[str, OodSet],
    seen: Collection[str],
) -> list[Result]:
    """Every OOD metric of one method on every OOD set.

    Args:
        origin: of the numbers.
        scores: of the ID images (``test``) and of each OOD set, by set and method.
        evaluation: the OOD sets.
        seen: the sets of a kind that calibrated the method.
    """
    rows: list[Result] = []
    for name, ood in evaluation.items():
        measured = asdict(ood_metrics(scores["test"][origin.method], scores[name][origin.method]))
        rows += origin.rows(name, ood.group, measured, seen=name in seen)
    return rows


def paired_tests(
    reference: Result, others: Sequence[Result], scores: Mapping[str, Arrays], metric: str
) -> list[Result]:
    """The p-values of differences in AUROC: DeLong's paired test with Holm's correction.

    Args:
        reference: the AUROC of one method on one set.
        others: those of others on the same set.
        scores: by set and method.
        metric: the name of the p-value, for results like those of the others.
    """
    test, ood = scores["test"], scores[reference.dataset]
    key = reference.method
    p_values = [
        paired_auroc_test(
            id_a=test[key], ood_a=ood[key], id_b=test[r.method], ood_b=ood[r.method]
        ).p_value
        for r in others
    ]
    return [
        replace(r, metric=metric, value=p, low=None, high=None)
        for r, p in zip(others, holm(p_values), strict=True)
    ]


def summary_of(
    study: str,
    config: JsonObject,
    protocol: Protocol | str,
    titles: Mapping[str, Sequence[str]],
    **more: JsonValue,
) -> JsonObject:
    """What ``run.json`` of a study holds.

    Args:
        study: its command.
        config: the options of the command.
        protocol: the images; or the name of the data, where no OOD images take part.
        titles: title and table section of each method, in the order of the tables.
        more: what this study has beside.
    """
    return {
        "study": study,
        "data": protocol if isinstance(protocol, str) else protocol.name,
        "config": config,
        "titles": {key: list(title) for key, title in titles.items()},
        "calibration_ood": [] if isinstance(protocol, str) else list(protocol.calibration_ood),
        "missing": {} if isinstance(protocol, str) else dict(protocol.missing),
        "skipped": {},
        **more,
    }


def evaluation_sets(protocol: Protocol) -> dict[str, ImageSet]:
    """The ID test set (``test``) and the OOD sets, by name."""
    return {"test": protocol.test, **{n: ood.images for n, ood in protocol.evaluation.items()}}


def flagged_rows(
    gate: Origin,
    own: Origin,
    scores: Mapping[str, Arrays],
    evaluation: Mapping[str, OodSet],
    seen: Collection[str],
    *,
    intervals: bool = False,
) -> list[Result]:
    """The share that a gate flags of every OOD set, and the calibration of its P(OOD).

    Args:
        gate: the origin of the shares.
        own: that of the detector's numbers.
        scores: of the ID images (``test``) and of each OOD set, as ``gate_arrays`` gives them.
        evaluation: the OOD sets.
        seen: the sets whose rows are marked.
        intervals: whether the shares have theirs.
    """
    found: list[Result] = []
    for name, ood in evaluation.items():
        flags, marked = scores[name]["is_ood"], name in seen
        found += share_rows(
            gate, name, ood.group, "flagged", flags, seen=marked, interval=intervals
        )
        if "probability" in scores["test"]:
            both = scores["test"]["probability"], scores[name]["probability"]
            found += own.rows(name, ood.group, probability_numbers(*both), seen=marked)
    return found


def share_rows(
    origin: Origin,
    dataset: str,
    group: Group,
    metric: str,
    flags: NDArray[Any],
    *,
    seen: bool,
    interval: bool = True,
) -> list[Result]:
    """The share of true flags, with its exact (Clopper-Pearson) 95 % interval."""
    rows = origin.rows(dataset, group, {metric: float(flags.mean())}, seen=seen)
    if not interval:
        return rows
    from scipy.stats import binomtest  # slow to import

    low, high = binomtest(int(flags.sum()), len(flags)).proportion_ci()
    return [replace(row, low=float(low), high=float(high)) for row in rows]


def probability_numbers(id_: NDArray[Any], ood: NDArray[Any]) -> dict[str, float]:
    """Calibration of P(OOD), which depends on the prevalence: one half in the head's training."""
    probability = np.concatenate([id_, ood])
    is_ood = np.arange(len(probability)) >= len(id_)
    measured = ood_calibration(probability, is_ood)
    return {
        "ood_ece": measured.ece,
        "ood_brier": measured.brier,
        "ood_prevalence": float(is_ood.mean()),
    }
