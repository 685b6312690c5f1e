"""The report of ``goen run``: what the gate flags, how well, and where it is wrong."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import torch
from scipy.special import softmax

from goen.data.images.data_urls import image_url
from goen.functional.conformal import required_held_out, threshold_rank
from goen.io.manifest import Manifest
from goen.io.results import Mistakes, Result, read_mistakes
from goen.io.tensors import read_tensors
from goen.metrics import ood_calibration, reliability_curve
from goen.report.blocks import Drawing, Page, PageBlock, Paragraph, Section
from goen.report.comparison import Comparison, left_out_notes
from goen.report.figures.run import (
    classifier_reliability,
    feature_map,
    ood_reliability,
    training_curve,
)
from goen.report.figures.scores import (
    flagged_bars,
    histograms,
    precision_recall_curves,
    prevalence_of,
    roc_curves,
)
from goen.report.five_panels import five_panel_section
from goen.report.gallery import Card, Gallery
from goen.report.run_folder import RunFolder
from goen.report.spread import recorded_spread
from goen.report.summary import Summary, dataset_title
from goen.report.table import Cell, Row, Table
from goen.report.texts import bold, slug, text_of
from goen.report.wrong_answers import risk_sections, wrong_answers_tables

_text = partial(text_of, "run.html")
_CLASSIFIER = {"accuracy": "accuracy", "ece": "ECE (15 bins)", "nll": "NLL", "brier": "Brier score"}
_PROBABILITY = {
    "ood_ece": "ECE (15 bins)",
    "ood_brier": "Brier score",
    "ood_prevalence": "share of OOD images",
}
# An expected rate below this share of the allowed one is worth a few more held-out images.
_FAR_BELOW = 0.8


# -- tables --------------------------------------------------------------------------------------


def run_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """AUROC, the share that the gate flags, both FPR95s, AUPR, and AURC."""
    comparison = Comparison(results, summary)
    alarms = comparison.by_key["gate", "test", "false_alarm_rate"]
    shares = [alarms, *(comparison.by_key["gate", name, "flagged"] for name in comparison.sets)]
    seen = [r.seen_in_calibration for r in shares]
    gate = Table(
        "flagged",
        f"Share flagged: {comparison.where}",
        ("test (ID)", *comparison.sets),
        (
            Row(
                f"gate: {[*summary.titles.values()][-1][0]}",
                tuple(Cell(r.value, ".1%", seen=r.seen_in_calibration) for r in shares),
            ),
        ),
        (
            *(["†: other images of this kind calibrated the gate."] if any(seen) else []),
            *left_out_notes(summary),
        ),
        apart=1 + len(comparison.unseen) if comparison.seen else None,
    )
    return [comparison.auroc(), gate, *comparison.others(), *wrong_answers_tables(comparison)]


def _table(
    run: RunFolder, name: str, title: str, rows: Mapping[str, str], metrics: Mapping[str, str]
) -> Table:
    """A table of these metrics, by title, with a row per dataset; what was measured of them."""
    method = "classifier" if name == "classifier" else methods_of(run)[-1]
    found = {
        (r.dataset, r.metric): Cell(r.value, low=r.low, high=r.high, seen=r.seen_in_calibration)
        for r in run.results
        if r.method == method and r.dataset in rows
    }
    measured = [metric for metric in metrics if any(key[1] == metric for key in found)]
    lines = tuple(
        Row(label, tuple(found.get((dataset, m), Cell()) for m in measured))
        for dataset, label in rows.items()
    )
    missing = any(cell.missing for line in lines for cell in line.cells)
    notes = ("n/a: not measured.",) if missing else ()
    return Table(name, title, tuple(metrics[m] for m in measured), lines, notes)


# -- page ----------------------------------------------------------------------------------------


def run_page(run: RunFolder, tables: Sequence[Table]) -> Page:
    """Summary, detection, scores, calibration, feature map, errors, training, five panels."""
    if run.gate is None:
        raise ValueError("the manifest of the gate is missing")
    auroc, *others = tables
    drawn = [drawing for name in run.sets for drawing in curves(run, name)]
    sections = [
        Section("OOD detection", [auroc, _text("curves"), drawn, *others]),
        *_other_scores(run),
        *wrong_answers(run),
        calibration(run),
        *_feature_map(run, run.gate.texts("classes")),
        errors(run, run.gate.texts("classes")),
        _training(run),
        *five_panel_section(run),
    ]
    return Page(f"goen on {run.summary.data}", _summary(run, run.gate), sections)


def methods_of(run: RunFolder) -> list[str]:
    """Those with scores; the last one is the gate's detector."""
    return [method for method in run.titles if method in run.scores["test"]]


def _summary(run: RunFolder, gate: Manifest) -> list[PageBlock]:
    rate = gate.number("false_alarm_rate")
    shares = {"test (ID)": run.number("gate", "test", "false_alarm_rate")}
    flagged = {name: run.number("gate", name, "flagged") for name in run.sets}
    used = [n for n in run.sets if run.by_key["gate", n, "flagged"].seen_in_calibration]
    if methods_of(run)[-1] in run.summary.uses_ood:
        used += sorted(run.summary.calibration_ood.difference(used))
    lead = _text(
        "lead",
        classes=len(gate.texts("classes")),
        training=run.summary.splits["train"].images,
        used=used,
        unseen=[name for name in run.sets if name not in used],
        accuracy=run.number("classifier", "test", "accuracy"),
        rate=rate,
        alarms=shares["test (ID)"],
        flagged=[bold(share, ".1%") + f" of {name}" for name, share in flagged.items()],
    )
    guarantee = gate.part("guarantee")
    low, high = guarantee.numbers("of_this_gate_90_percent")
    held_out = int(guarantee.number("held_out_images"))
    expected = guarantee.number("expected_false_alarm_rate")
    needed, allowed = _with_more(held_out, rate) if expected < _FAR_BELOW * rate else (0, rate)
    text = _text(
        "guarantee",
        held_out=held_out,
        expected=expected,
        low=low,
        high=high,
        needed=needed,
        allowed=allowed,
    )
    blocks: list[PageBlock] = [Paragraph(lead, "lead")]
    bands = {}
    spread = recorded_spread(gate.part("metadata"))
    if spread is not None:
        bands = {"test (ID)" if n == "test" else n: b for n, b in spread.flagged.items()}
        ranges = [f"{_range(*band)} of {name}" for name, band in bands.items()]
        blocks.append(_text("luck", spread=spread, ranges=ranges))
    shares |= flagged
    values = "; ".join(f"{name} {share:.1%}" for name, share in shares.items())
    alt = f"Bars, share flagged of each set: {values}."
    bars = Drawing("flagged", flagged_bars(shares, rate, bands), alt)
    return [*blocks, [bars, histogram(run, methods_of(run)[-1], run.summary.threshold)], text]


def _with_more(held_out: int, rate: float) -> tuple[int, float]:
    """The next number of held-out images with a higher expected rate, and that rate."""
    rank = threshold_rank(held_out, rate) + 1
    needed = required_held_out(rate, rank)
    return needed, rank / (needed + 1)


def _range(low: float, high: float) -> str:
    least, most = f"{low:.1%}", f"{high:.1%}"
    return least if least == most else f"{least} to {most}"


def curves(run: RunFolder, name: str) -> list[Drawing]:
    """ROC and precision-recall curves of every method on one OOD dataset."""
    methods = methods_of(run)
    id_scores, ood_scores = run.scores["test"], run.scores[name]
    auroc, aupr = (
        {m: f"{run.label(m)} {run.number(m, name, metric):.4f}" for m in methods}
        for metric in ("auroc", "aupr_out")
    )
    gate = (run.number("gate", "test", "false_alarm_rate"), run.number("gate", name, "flagged"))
    share = prevalence_of(id_scores[methods[0]], ood_scores[methods[0]])
    return [
        Drawing(
            f"roc-{slug(name)}",
            roc_curves(name, auroc, id_scores, ood_scores, gate),
            f"ROC curves on {name}. AUROC: {'; '.join(auroc.values())}. The gate flags "
            f"{gate[1]:.1%} of it and {gate[0]:.1%} of the ID images.",
        ),
        Drawing(
            f"precision-recall-{slug(name)}",
            precision_recall_curves(name, aupr, id_scores, ood_scores),
            f"Precision-recall curves on {name}, of which {share:.1%} are OOD. "
            f"AUPR: {'; '.join(aupr.values())}.",
        ),
    ]


def histogram(run: RunFolder, method: str, threshold: float | None) -> Drawing:
    labelled = {"test (ID)": run.scores["test"][method]}
    labelled |= {dataset_title(n, group): run.scores[n][method] for n, group in run.sets.items()}
    end = "." if threshold is None else f", with the threshold at {threshold:.4g}."
    return Drawing(
        f"histogram-{slug(method)}",
        histograms(run.label(method), labelled, threshold),
        f"Histograms of the score {run.label(method)} of {', '.join(labelled)}{end}",
    )


def wrong_answers(run: RunFolder) -> list[Section]:
    """Risk by coverage of every score."""
    scores = {method: run.scores["test"][method] for method in methods_of(run)}
    return risk_sections(run, scores, list(scores))


def _other_scores(run: RunFolder) -> list[Section]:
    """The scores that the gate does not use; the summary shows the one it uses."""
    drawings = [histogram(run, method, None) for method in methods_of(run)[:-1]]
    return [Section("Other scores", [_text("other_scores"), drawings])] if drawings else []


def calibration(run: RunFolder) -> Section:
    has_probability = "probability" in run.scores["test"]
    drawings = [*_classifier_reliability(run), *(_ood_reliability(run) if has_probability else ())]
    title = "The classifier on the test images"
    classifier = _table(run, "classifier", title, {"test": "test"}, _CLASSIFIER)
    blocks: list[PageBlock] = [classifier, drawings]
    if has_probability:
        title = "Calibration of the probability of OOD, at this share of OOD"
        sets = {name: dataset_title(name, group) for name, group in run.sets.items()}
        probability = _table(run, "ood_probability", title, sets, _PROBABILITY)
        blocks += [_text("probability"), probability]
    else:
        blocks.append(_text("no_probability"))
    return Section("Calibration", blocks)


def _classifier_reliability(run: RunFolder) -> list[Drawing]:
    test = run.scores["test"]
    if "truth" not in test:
        return []
    probabilities = softmax(test["logits"].astype(np.float64), axis=1)
    right = probabilities.argmax(axis=1) == test["truth"]
    ece = run.number("classifier", "test", "ece")
    bins = reliability_curve(probabilities.max(axis=1).clip(0, 1), right)
    alt = f"Reliability diagram of the classifier: {len(bins)} bins hold images, ECE {ece:.4f}."
    return [Drawing("reliability-classifier", classifier_reliability(bins, ece), alt)]


def _ood_reliability(run: RunFolder) -> list[Drawing]:
    test = run.scores["test"]
    found, method = {}, methods_of(run)[-1]
    for name in run.sets:
        both = np.concatenate([test["probability"], run.scores[name]["probability"]])
        is_ood = np.arange(len(both)) >= len(test["probability"])
        label = f"{name}: {run.number(method, name, 'ood_prevalence'):.0%} OOD"
        found[label] = ood_calibration(both, is_ood).curve
    eces = "; ".join(f"{n} {run.number(method, n, 'ood_ece'):.4f}" for n in run.sets)
    alt = f"Reliability of the probability of OOD. ECE: {eces}."
    return [Drawing("reliability-ood", ood_reliability(found), alt)]


def _feature_map(run: RunFolder, classes: Sequence[str]) -> list[Section]:
    path = run.path / "map.safetensors"
    if not path.is_file():
        return []
    saved = read_tensors(path)
    names = {"test (ID)": "test"} | {name: name for name in run.sets}
    points = {
        label: saved.floats(f"{name}/points", ("images", 2)).numpy()
        for label, name in names.items()
    }
    share = saved.floats("share", (2,), low=0.0).numpy()
    # A class without training images has no mean: its row is NaN.
    means = saved.of_shape("classes", (len(classes), 2), torch.float64).numpy()
    alt = (
        "Map of the features on the first two principal axes of the training images "
        f"({share.sum():.0%} of their variance): {', '.join(points)}."
    )
    drawing = Drawing("feature-map", feature_map(points, means, classes, share), alt)
    return [Section("Feature map", [_text("feature_map"), [drawing]])]


def errors(run: RunFolder, classes: tuple[str, ...]) -> Section:
    """A gallery of errors for each set that has any.

    Args:
        run: of ``goen run``.
        classes: of its gate.
    """
    title = "Errors of the gate"
    path = run.path / "mistakes.safetensors"
    if not path.is_file():
        text = "mistakes.safetensors is missing: no images are shown. Run the same command again."
        return Section(title, [Paragraph(text, "warn")])
    blocks: list[PageBlock] = [_text("errors")]
    found = read_mistakes(path)
    for name in ("test", *run.sets):
        blocks += _errors_of(run, name, found[name], classes)
    return Section(title, blocks)


def _errors_of(
    run: RunFolder, name: str, mistakes: Mistakes, classes: tuple[str, ...]
) -> list[PageBlock]:
    flagged = run.scores[name]["is_ood"].astype(bool)
    number = int(flagged.sum() if name == "test" else (~flagged).sum())
    counts = {"number": number, "total": len(flagged), "shown": len(mistakes.rows)}
    heading = Paragraph(_text("errors_of", name=name, **counts), "lead")
    if not number:
        return [heading]
    cards = _error_cards(run, name, mistakes)
    return [heading, Gallery(f"errors-{slug(name)}", cards, classes, small=True)]


def _error_cards(run: RunFolder, name: str, mistakes: Mistakes) -> list[Card]:
    scores, rows = run.scores[name], mistakes.rows
    probabilities = softmax(scores["logits"][rows].astype(np.float64), axis=1)
    return [
        Card(
            name=f"{name}/#{row}",
            seen=image_url(mistakes.images[i]),
            label=int(scores["label"][row]),
            confidence=float(probabilities[i].max()),
            p_value=float(scores["p_value"][row]),
            truth=int(scores["truth"][row]) if "truth" in scores else None,
        )
        for i, row in enumerate(rows.tolist())
    ]


def _training(run: RunFolder) -> Section:
    if "backbone" in run.summary.recipe:
        return Section("Training", [_text("probe", recipe=run.summary.recipe)])
    if not run.epochs:
        warning = Paragraph("training.jsonl is missing: no curve is drawn.", "warn")
        return Section("Training", [warning])
    drawings = []
    for quantity, title in (("accuracy", "Accuracy"), ("loss", "Loss")):
        training = [e.values[quantity] for e in run.epochs]
        validation = [e.values[f"validation_{quantity}"] for e in run.epochs]
        figure = training_curve(title, [e.number for e in run.epochs], training, validation)
        alt = (
            f"{title} over {len(run.epochs)} epochs, ending at {training[-1]:.4g} on training "
            f"and {validation[-1]:.4g} on validation images."
        )
        drawings.append(Drawing(f"training-{quantity}", figure, alt))
    return Section("Training", [drawings, _text("training")])
