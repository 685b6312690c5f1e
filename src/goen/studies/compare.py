"""Methods compared on the same images, whatever network they score: the numbers of a benchmark."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from logging import getLogger
from pathlib import Path
from typing import Any

import numpy as np

from goen.errors import ArtifactError, ExtraMissing, FitError, UsageError, describe_left_out
from goen.io.json_files import json_object
from goen.io.manifest import JsonObject, Manifest
from goen.io.results import Result, read_results, read_scores, write_results, write_scores
from goen.io.stages import summarised
from goen.metrics import Ranking, rank_methods
from goen.studies.base import BaseExperiment
from goen.studies.methods import Method
from goen.studies.rows import (
    WRONG,
    Arrays,
    error_rows,
    evaluation_sets,
    id_rows,
    ood_rows,
    paired_tests,
    summary_of,
)

_log = getLogger(__name__)
# Options that another call into the same folder may change: its methods are added.
_ADDED = ("methods", "sets", "detectors")


@dataclass(frozen=True)
class Asked:
    """What a comparison was asked for.

    Attributes:
        config: the options of the command.
        named: the methods that were named.
        skipped: methods left out, with the reason.
        lenient: leave out a method that cannot be fitted, unless it was named.
        next_step: the command that makes a gate of the method with this key; empty if none does.
    """

    config: JsonObject
    named: Collection[str] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    lenient: bool = False
    next_step: Callable[[str], str] = lambda key: ""


@dataclass(frozen=True, eq=False)
class Compared:
    """The numbers of a comparison.

    Attributes:
        results: every number with its origin.
        scores: by set and method, and under ``WRONG`` which answers of each method are wrong.
        ranking: of the methods, over the OOD sets of a kind that may not calibrate; ``None`` if no
            method was measured on all of them.
        titles: title and section by method.
        skipped: methods left out, with the reason.
    """

    results: list[Result]
    scores: Mapping[str, Arrays]
    ranking: Ranking | None
    titles: Mapping[str, tuple[str, str]]
    skipped: Mapping[str, str]


def compare(
    experiment: BaseExperiment[Any], methods: Sequence[Method], out: Path, asked: Asked
) -> Compared:
    """Fit and score every method, test the differences, and write it all into the folder.

    What an earlier comparison on the same networks and images left in the folder stays, except for
    methods that are measured again.

    Args:
        experiment: the networks and the images.
        methods: in the order of the tables.
        out: the folder, which is held.
        asked: what the command was.

    Raises:
        UsageError: the folder holds another comparison, or no method is left.
    """
    protocol = experiment.protocol
    sets = {"train": protocol.train, **evaluation_sets(protocol)}
    identities = {name: images.fingerprint for name, images in sets.items()}
    earlier = _read_earlier(out, _same(experiment, asked), identities)
    results, scores, skipped = _measure_all(methods, experiment, asked)
    titles = {m.key: (m.title, str(m.section)) for m in methods if m.key not in skipped}
    uses_ood = {m.key for m in methods if m.uses_ood}
    networks: dict[str, str] = {m.key: m.network for m in methods}
    if earlier is not None:
        results, scores, titles = earlier.with_newer(results, scores, titles)
        uses_ood |= earlier.uses_ood
        networks = {**earlier.networks, **networks}
        identities = {**earlier.identities, **identities}
        skipped = {**earlier.skipped, **skipped}
    skipped = {name: why for name, why in skipped.items() if name not in titles}
    ranking = rank(results, scores, protocol.calibration_ood)
    results += _against_the_best(scores, results)
    compared = Compared(results, scores, ranking, titles, skipped)
    summary = summary_of(
        "bench",
        asked.config,
        protocol,
        titles,
        recipe=experiment.recipe,
        uses_ood=sorted(uses_ood & titles.keys()),
        skipped=skipped,
        same=_same(experiment, asked),
        identities=identities,
        networks={key: networks[key] for key in titles},
        ranking=ranking.to_json() if ranking else None,
        next_step=asked.next_step(ranking.best) if ranking else "",
    )
    with summarised(out, summary):
        write_results(out / "results.jsonl", results)
        write_scores(out / "scores.safetensors", scores)
    return compared


def _measure_all(
    methods: Sequence[Method], experiment: BaseExperiment[Any], asked: Asked
) -> tuple[list[Result], dict[str, Arrays], dict[str, str]]:
    """The numbers of the methods, their scores by set, and those left out with the reason."""
    skipped = dict(asked.skipped)
    results: list[Result] = []
    names = [*evaluation_sets(experiment.protocol), WRONG]
    scores: dict[str, Arrays] = {name: {} for name in names}
    for method in methods:
        try:
            rows, of_method = _measure(method, experiment)
        except (FitError, UsageError, ExtraMissing) as error:
            if not asked.lenient or method.key in asked.named:
                raise
            skipped[method.key] = str(error)
            continue
        results += rows
        for name, values in of_method.items():
            scores[name][method.key] = values
    for sentence in describe_left_out(skipped):
        _log.warning(sentence)
    if not results:
        raise UsageError("No method is left to compare.")
    return results, scores, skipped


def _measure(method: Method, experiment: BaseExperiment[Any]) -> tuple[list[Result], Arrays]:
    """All numbers of the method but the comparison with the best, and its scores by set."""
    protocol = experiment.protocol
    fitted = experiment.fit(method)
    fit_seconds = fitted.origin.seconds or 0.0
    scores: dict[str, Arrays] = {}
    seconds, count = 0.0, 0
    for name, images in evaluation_sets(protocol).items():
        found, taken = experiment.score(fitted, images)
        scores[name] = {method.key: found}
        seconds, count = seconds + taken, count + len(images)
    _log.info(f"{method.title}: {fit_seconds + seconds:.2f} s")
    origin = replace(fitted.origin, seconds=fit_seconds + seconds)
    logits = experiment.class_logits(fitted, protocol.test)
    _, passed = experiment.outputs(method.network, protocol.test)
    rows = id_rows(
        origin,
        logits,
        protocol.test,
        training_seconds=fitted.training_seconds,
        fit_seconds=fit_seconds,
        score_ms_per_image=1000 * seconds / count,
        network_ms_per_image=1000 * passed / len(protocol.test),
    )
    rows += ood_rows(origin, scores, protocol.evaluation, fitted.seen)
    wrong = logits.argmax(axis=1) != np.asarray(protocol.test.labels)
    rows += error_rows(origin, scores["test"][method.key], wrong)
    scores[WRONG] = {method.key: wrong}
    return rows, {name: of_method[method.key] for name, of_method in scores.items()}


def rank(
    results: Sequence[Result], scores: Mapping[str, Arrays], may_calibrate: Collection[str]
) -> Ranking | None:
    """The methods by mean AUROC over the OOD sets of a kind that calibrates none of them.

    Where every set is of such a kind, over all of them, without the methods that they calibrated.
    A method that was not measured on one of the sets takes no part.
    """
    measured = [r for r in results if r.metric == "auroc"]
    names = list(dict.fromkeys(r.dataset for r in measured))
    over = [name for name in names if name not in may_calibrate] or names
    methods = list(dict.fromkeys(r.method for r in measured))
    seen = {r.method for r in measured if r.seen_in_calibration and r.dataset in over}
    whole = [m for m in methods if m not in seen and all(m in scores[name] for name in over)]
    if not whole:
        return None
    return rank_methods(
        {m: scores["test"][m] for m in whole},
        {m: {name: scores[name][m] for name in over} for m in whole},
    )


def _against_the_best(scores: Mapping[str, Arrays], results: Sequence[Result]) -> list[Result]:
    """For each set and each method but the best: the p-value of its difference in AUROC.

    A method calibrated with other images of the set's kind takes no part: its AUROC there is not
    comparable. DeLong's paired test on the same images, with Holm's correction for the number of
    methods. It includes neither the spread over seeds nor the selection of the best method on these
    images.
    """
    found: list[Result] = []
    rows = [r for r in results if r.metric == "auroc" and not r.seen_in_calibration]
    for name in dict.fromkeys(r.dataset for r in rows):
        here = [r for r in rows if r.dataset == name]
        best = max(here, key=lambda r: r.value)
        others = [r for r in here if r is not best]
        found += paired_tests(best, others, scores, "p_against_best")
    return found


# -- an earlier comparison in the same folder ----------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Earlier:
    """What a comparison left in its folder."""

    results: list[Result]
    scores: Mapping[str, Arrays]
    titles: Mapping[str, tuple[str, str]]
    uses_ood: frozenset[str]
    identities: Mapping[str, str]
    skipped: Mapping[str, str]
    networks: Mapping[str, str]

    def with_newer(
        self,
        results: Sequence[Result],
        scores: Mapping[str, Arrays],
        titles: Mapping[str, tuple[str, str]],
    ) -> tuple[list[Result], dict[str, Arrays], dict[str, tuple[str, str]]]:
        """All results, scores and titles; newer ones replace those of the same method and set."""
        newer = {(r.method, r.dataset) for r in results}
        kept = [
            r
            for r in self.results
            if (r.method, r.dataset) not in newer and r.metric != "p_against_best"
        ]
        names = dict.fromkeys((*self.scores, *scores))
        every = {name: {**self.scores.get(name, {}), **scores.get(name, {})} for name in names}
        return [*kept, *results], every, {**self.titles, **titles}


def _same(experiment: BaseExperiment[Any], asked: Asked) -> JsonObject:
    """What two comparisons in one folder must share beside their images."""
    config = {name: value for name, value in asked.config.items() if name not in _ADDED}
    return {"data": experiment.protocol.name, **config, "network": experiment.recipe}


def _read_earlier(out: Path, same: JsonObject, identities: Mapping[str, str]) -> _Earlier | None:
    """The comparison in the folder, if there is a finished one.

    Raises:
        UsageError: it is another study, or one on other networks or images.
    """
    if not (out / "run.json").is_file():
        return None
    try:
        run = Manifest(json_object(out / "run.json"))
        differs = _difference(run, same, identities)
    except (OSError, ValueError) as error:
        raise _damaged(out, error) from error
    if differs:
        raise UsageError(
            f"{out} holds another study ({differs}), which this one would replace. Choose another "
            "folder with --out, or remove it."
        )
    try:
        titles, skipped, networks, recorded = map(
            run.part, ("titles", "skipped", "networks", "identities")
        )
        named = {key: titles.texts(key) for key in titles.content}
        return _Earlier(
            read_results(out / "results.jsonl"),
            read_scores(out / "scores.safetensors"),
            {key: (title, section) for key, (title, section) in named.items()},
            frozenset(run.texts("uses_ood")),
            {name: recorded.text(name) for name in recorded.content},
            {name: skipped.text(name) for name in skipped.content},
            {name: networks.text(name) for name in networks.content},
        )
    except (OSError, ValueError) as error:
        raise _damaged(out, error) from error


def _damaged(out: Path, error: Exception) -> ArtifactError:
    return ArtifactError(
        f"{out} holds a damaged study: {error}. Choose another folder with --out, or remove it."
    )


def _difference(run: Manifest, same: JsonObject, identities: Mapping[str, str]) -> str:
    """What differs between the study in the folder and this one; empty if they can be joined."""
    if run.text("study") != "bench":
        return f"it is goen {run.text('study')}"
    if "same" not in run:
        return "by an earlier version of goen"
    recorded = run.part("identities").content
    mine, theirs = json.loads(json.dumps(same)), run.part("same").content
    names = [name for name in mine if mine[name] != theirs.get(name)]
    if names:
        return f"with another {' and '.join(names)}"
    others = [n for n, identity in identities.items() if recorded.get(n, identity) != identity]
    return f"on other images of {', '.join(others)}" if others else ""
