"""The main job's page: what the gate flags, how well, and where it errs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray
from safetensors.numpy import load_file
from scipy.special import softmax

from goen.metrics import ood_calibration, reliability_curve
from goen.report.blocks import (
    Block,
    Drawing,
    Gallery,
    Numbers,
    Page,
    Photographs,
    Section,
    Words,
    bold,
    listed,
    slug,
)
from goen.report.figures.curves import precision_recall_curves, prevalence_of, roc_curves
from goen.report.figures.feature_map import feature_map
from goen.report.figures.learning import training_curve
from goen.report.figures.reliability import classifier_reliability, ood_reliability
from goen.report.figures.scores import flagged_bars, histograms
from goen.report.five_panels import five_panel_section
from goen.report.pivot import aupr_table, classifier_table, probability_table
from goen.report.run_folder import RunFolder
from goen.report.table import Table

_METHODS = ("max_softmax", "mahalanobis_z", "goen")
_SHORT = {"max_softmax": "max softmax", "mahalanobis_z": "distance", "goen": "GOEN"}


def main_job_page(run: RunFolder, beside: Sequence[RunFolder]) -> Page:
    """Summary, detection, scores, calibration, map, mistakes, training, five panels."""
    tables = {table.name: table for table in run.tables()}
    sections = [
        _detection(run, tables),
        *_other_scores(run),
        _calibration(run),
        *_map(run),
        *_mistakes(run),
        _training(run),
        five_panel_section([run, *beside]),
    ]
    return Page(f"goen on {run.summary['data']}", _summary(run), sections)


def _methods(run: RunFolder) -> list[str]:
    return [method for method in _METHODS if method in run.scores["test"]]


def _summary(run: RunFolder) -> list[Block]:
    rate = run.summary["config"]["false_alarm_rate"]
    alarms = run.number("gate", "test", "false_alarm_rate")
    flagged = {name: run.number("gate", name, "flagged") for name in run.sets}
    promise = run.manifest["guarantee"]
    low, high = promise["of_this_gate_90_percent"]
    lead = Markup(
        "A classifier of {} classes was trained on {} images and is right on {} of the test "
        "images. Its gate may flag, on average, at most {} of what it knows; of the test images it "
        "flagged {}. Of what it was never trained on it flagged {}."
    ).format(
        len(run.manifest["classes"]),
        f"{run.summary['facts']['splits']['train']['images']:,}",
        bold(run.number("classifier", "test", "accuracy"), ".1%"),
        Markup("<b>{:.3g}%</b>").format(100 * rate),
        bold(alarms, ".1%"),
        listed([Markup("{} of {}").format(bold(v, ".1%"), n) for n, v in flagged.items()]),
    )
    words = (
        f"The promise is split conformal prediction on {promise['held_out_images']} held-out images"
        " that trained, calibrated and chose nothing: averaged over such held-out sets, at most "
        f"{promise['expected_false_alarm_rate']:.1%} of known images are flagged. This one gate's "
        f"own rate lies between {low:.1%} and {high:.1%} with 90 % probability."
    )
    shares = {"test (ID)": alarms} | flagged
    told = "; ".join(f"{name} {share:.1%}" for name, share in shares.items())
    drawing = Drawing(
        "flagged", flagged_bars(shares, rate), f"Bars, share flagged of each set: {told}."
    )
    score = _histogram(run, _methods(run)[-1], run.summary["threshold"])
    return [Words(lead, "lead"), Gallery.of(drawing, score), Words(words)]


def _detection(run: RunFolder, tables: Mapping[str, Table]) -> Section:
    methods = _methods(run)
    point = run.number("gate", "test", "false_alarm_rate")
    drawings = []
    for name in run.sets:
        area, precision = (
            {m: f"{_SHORT[m]} {run.number(m, name, metric):.4f}" for m in methods}
            for metric in ("auroc", "aupr_out")
        )
        gate = (point, run.number("gate", name, "flagged"))
        test, ood = run.scores["test"], run.scores[name]
        known, unknown = (_renamed(area, scores) for scores in (test, ood))
        drawings.append(
            Drawing(
                f"roc-{slug(name)}",
                roc_curves(name, known, unknown, gate),
                f"ROC curves on {name}. AUROC: {'; '.join(area.values())}. The gate flags "
                f"{gate[1]:.1%} of it and {gate[0]:.1%} of the ID images.",
            )
        )
        share = prevalence_of(test[methods[0]], ood[methods[0]])
        drawings.append(
            Drawing(
                f"precision-recall-{slug(name)}",
                precision_recall_curves(name, _renamed(precision, test), _renamed(precision, ood)),
                f"Precision-recall curves on {name}, of which {share:.1%} are OOD. "
                f"AUPR: {'; '.join(precision.values())}.",
            )
        )
    flat = [table for name, table in tables.items() if name != "auroc"]
    words = (
        "The curves' legends give AUROC and AUPR. Precision depends on how much OOD there is: the "
        "grey line is the share of OOD among the images of each picture, which is what guessing "
        "would give."
    )
    return Section(
        "How well the sets are told apart",
        [
            Numbers(tables["auroc"]),
            Words(words),
            Gallery(tuple(drawings)),
            *map(Numbers, [*flat, aupr_table(run)]),
        ],
    )


def _renamed(
    names: Mapping[str, str], scores: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    return {name: scores[method] for method, name in names.items()}


def _histogram(run: RunFolder, method: str, limit: float | None) -> Drawing:
    labelled = {"test (ID)": run.scores["test"][method]}
    labelled |= {f"{n} ({group})": run.scores[n][method] for n, group in run.sets.items()}
    words = "." if limit is None else f", with the threshold at {limit:.4g}."
    return Drawing(
        f"histogram-{slug(method)}",
        histograms(_SHORT[method], labelled, limit),
        f"Histograms of the score {_SHORT[method]} of {', '.join(labelled)}{words}",
    )


def _other_scores(run: RunFolder) -> list[Section]:
    """Those that do not decide, which the summary shows."""
    others = _methods(run)[:-1]
    drawings = tuple(_histogram(run, method, None) for method in others)
    words = "The same images by the scores that do not decide. Each histogram has its own height."
    return [Section("Where the other scores lie", [Words(words), Gallery(drawings)])]


def _calibration(run: RunFolder) -> Section:
    test = run.scores["test"]
    blocks: list[Block] = [Numbers(classifier_table(run))]
    drawings = []
    if "truth" in test:
        probabilities = softmax(test["logits"].astype(np.float64), axis=1)
        right = probabilities.argmax(axis=1) == test["truth"]
        ece = run.number("classifier", "test", "ece")
        bins = reliability_curve(probabilities.max(axis=1).clip(0, 1), right)
        alt = f"Reliability diagram of the classifier: {len(bins)} bins hold images, ECE {ece:.4f}."
        drawings.append(Drawing("reliability-classifier", classifier_reliability(bins, ece), alt))
    if "probability" in test:
        curves = {}
        for name in run.sets:
            both = np.concatenate([test["probability"], run.scores[name]["probability"]])
            is_ood = np.arange(len(both)) >= len(test["probability"])
            label = f"{name}: {run.number('goen', name, 'ood_prevalence'):.0%} OOD"
            curves[label] = ood_calibration(both, is_ood).curve
        eces = "; ".join(f"{n} {run.number('goen', n, 'ood_ece'):.4f}" for n in run.sets)
        alt = f"Reliability of the probability of OOD. ECE: {eces}."
        drawings.append(Drawing("reliability-ood", ood_reliability(curves), alt))
        words = (
            "The paper trains its head to 0.05 for ID and 0.95 for OOD, which squeezes the "
            "probability; here that is undone (0.05 is 0, 0.95 is 1). It was trained at one half "
            "OOD and holds for that share; the legend says how much OOD each line has."
        )
        blocks += [Gallery(tuple(drawings)), Words(words), Numbers(probability_table(run))]
    else:
        words = "No head was calibrated with OOD images, so there is no probability of OOD."
        blocks += [Gallery(tuple(drawings)), Words(words)]
    return Section("Whether it means what it says", blocks)


def _map(run: RunFolder) -> list[Section]:
    path = run.path / "map.safetensors"
    if not path.is_file():
        return []
    saved = load_file(path)
    names = {"test (ID)": "test"} | {name: name for name in run.sets}
    points = {label: saved[f"{name}/points"] for label, name in names.items()}
    share = saved["share"]
    figure = feature_map(points, saved["classes"], run.manifest["classes"], share)
    alt = (
        "Map of the features on the two axes along which training images differ most "
        f"({share.sum():.0%} of their variance): {', '.join(points)}."
    )
    words = (
        "Each point is an image: its feature z, scaled to length one, on the first two principal "
        "axes of the training images alone. At most 500 images of each set. Two axes of many: what "
        "overlaps here may be far apart in the others, which the distance does see."
    )
    drawing = Drawing("feature-map", figure, alt)
    return [Section("A map of the features", [Words(words), Gallery.of(drawing)])]


def _mistakes(run: RunFolder) -> list[Section]:
    files = []
    for name in ("test", *run.sets):
        path = run.path / "mistakes" / f"{name}.png"
        if path.is_file():
            wrong = "known, yet flagged" if name == "test" else "unknown, yet passed"
            files.append((path, f"The most confident mistakes on {name}: images {wrong}."))
    if not files:
        return []
    words = (
        "Known images that were flagged with the smallest p-value, and unknown ones that passed "
        "with the largest. A set without a picture has no mistakes."
    )
    return [Section("The most confident mistakes", [Words(words), Photographs(tuple(files))])]


def _training(run: RunFolder) -> Section:
    if not run.story:
        return Section("Training", [Words("training.jsonl is missing: no curve is drawn.", "warn")])
    last = run.story[-1]
    drawings = [
        Drawing(
            f"training-{quantity}",
            training_curve(run.story, quantity, words),
            f"{words} over {len(run.story)} epochs, ending at {last[quantity]:.4g} on training and "
            f"{last[f'validation_{quantity}']:.4g} on validation images.",
        )
        for quantity, words in (("accuracy", "Accuracy"), ("loss", "Loss"))
    ]
    words = "The training loss is against smoothed labels, the validation loss against the labels."
    return Section("Training", [Gallery(tuple(drawings)), Words(words)])
