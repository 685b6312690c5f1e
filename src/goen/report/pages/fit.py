"""The page of ``goen fit``: what the gate's threshold rests on, its cues, and its false alarms."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from goen.data.imageset import ImageSet
from goen.errors import UsageError
from goen.functional.conformal import (
    false_alarm_interval,
    required_held_out,
    threshold_rank,
)
from goen.functional.ranking import Floats
from goen.gate import Gate
from goen.gate.fitting.near_copies import describe_near_copies
from goen.gate.fitting.summary import selection_sentences
from goen.gate.threshold import FitDiagnostics, is_near_chance
from goen.io.files import printable_path
from goen.io.manifest import Manifest
from goen.io.provenance import versions
from goen.metrics import ood_metrics
from goen.report.blocks import Drawing, FactTable, Page, PageBlock, Paragraph, Section
from goen.report.cards import explain_neighbours, gate_gallery, make_cards
from goen.report.figures.scores import histograms
from goen.report.gallery import Card
from goen.report.page import write_single_page
from goen.report.table import Cell, Row, Table, share_cell
from goen.report.texts import named, slug, text_of

_text = partial(text_of, "fit.html")
MOST_SUSPICIOUS = 5
# Of more classes, those with the most false alarms are listed.
_MOST_CLASSES = 100


def write_fit_page(
    gate: Gate,
    held_out: ImageSet,
    path: Path,
    *,
    files: Sequence[Path] = (),
    training: ImageSet | None = None,
    training_files: Sequence[Path] = (),
) -> None:
    """Write the report of a gate that was just fitted.

    Only the five most suspicious held-out images are read and passed through the network again.

    Args:
        gate: as ``Gate.fit`` returned it.
        held_out: the held-out images that it was fitted on.
        path: of the page.
        files: of the held-out images, if they have any.
        training: the training images, to show those nearest to the suspicious ones.
        training_files: of the training images, if they have any.

    Raises:
        UsageError: a gate that was not just fitted, other held-out images, or a file at the path.
    """
    diagnostics = gate.diagnostics
    if diagnostics is None:
        raise UsageError(
            "The report of a fit needs the gate as Gate.fit returned it; a loaded or updated gate "
            "no longer has the scores of all its held-out images."
        )
    if len(held_out) != len(diagnostics):
        raise UsageError(
            f"This gate was fitted with {len(diagnostics):,} held-out images, got "
            f"{len(held_out):,}."
        )
    rows = diagnostics.most_suspicious(MOST_SUSPICIOUS)
    cards = _suspicious_cards(gate, diagnostics, held_out, files, rows)
    suspicious = [files[i] for i in rows] if files else ()
    gallery = gate_gallery("suspicious", gate, cards, suspicious, training, training_files)
    sections = [
        _threshold(gate, diagnostics),
        _cues(gate, diagnostics),
        _classes(gate, diagnostics),
        Section(
            f"The {len(cards)} most suspicious held-out images",
            [_text("suspicious"), gallery, explain_neighbours(gate)],
        ),
        _origin(gate),
    ]
    metadata = Manifest(gate.metadata)
    title = f"A gate for {metadata.text('factory' if 'factory' in metadata else 'model')}"
    write_single_page(Page(title, _summary(gate, diagnostics, files), sections), path)


# -- summary and threshold -----------------------------------------------------------------------


def _summary(gate: Gate, diagnostics: FitDiagnostics, files: Sequence[Path]) -> list[PageBlock]:
    splits = Manifest(gate.metadata).part("splits")
    number = {role: splits.part(role).number("images") for role in splits.content}
    counted = None
    if diagnostics.truth is not None:
        right = int((diagnostics.predicted == diagnostics.truth).sum())
        counted = binomtest(right, len(diagnostics))
    lead = _text("lead", images=number, counted=counted, rate=gate.false_alarm_rate)
    blocks: list[PageBlock] = [Paragraph(lead, "lead"), *selection_sentences(gate)]
    accuracy, classes = diagnostics.accuracy, len(gate.classes)
    if accuracy is not None and classes > 1 and is_near_chance(accuracy, len(diagnostics), classes):
        blocks.append(Paragraph(_text("near_chance", classes=classes), "warn"))
    grouped = gate.held_out.groups is not None
    names = [printable_path(file) for file in files]
    found = describe_near_copies(diagnostics.near_copies, names, grouped=grouped)
    return [*blocks, *(Paragraph(sentence, "warn") for sentence in found)]


def _threshold(gate: Gate, diagnostics: FitDiagnostics) -> Section:
    n, rate = gate.num_held_out, gate.false_alarm_rate
    low, mean, high = false_alarm_interval(n, rate)
    rank = threshold_rank(n, rate)
    what = "images" if gate.held_out.groups is None else "groups"
    rests = f"rank {rank:,} among the scores of {n:,} images"
    if gate.held_out.groups is not None:
        rests = f"from {len(gate.held_out):,} images in {n:,} groups, each of which counts once"
    rows = [
        ("chosen rate", f"{rate:g} of ID images at most, on average over held-out sets"),
        ("threshold", f"{gate.threshold:.4f}: {rests}"),
        ("expected rate", f"{mean:.4f} = {rank:,} / {n + 1:,}"),
        ("this gate's rate", f"{low:.4f} to {high:.4f} with 90 % probability"),
        ("lowest rate", f"{1 / (n + 1):.2g} = 1 / {n + 1:,}; a lower one needs more {what}"),
    ]
    others = diagnostics.scores[~diagnostics.sets_threshold]
    if len(others):
        above = int((others > gate.threshold).sum())
        share_low, share_high = binomtest(above, len(others)).proportion_ci()
        check = (
            f"{above:,} of {len(others):,} other held-out images are above the threshold: "
            f"{above / len(others):.4f} ({share_low:.4f} to {share_high:.4f} with 95 % confidence)"
        )
        rows.append(("check", check))
    by_set = {"held-out (ID)": diagnostics.scores}
    by_set |= {f"{kind} (OOD)": scores for kind, scores in diagnostics.ood_scores.items()}
    alt = (
        f"Histograms of the score of {', '.join(by_set)}, with the threshold at "
        f"{gate.threshold:.4g}."
    )
    blocks: list[PageBlock] = [
        _text("threshold", n=len(gate.held_out), calibrated=len(others) > 0),
        FactTable(("false-alarm rate", "value"), rows),
        [Drawing("score", histograms("Score", by_set, gate.threshold), alt)],
    ]
    if len(by_set) > 1:
        blocks.append(_ood_table(gate, by_set))
    return Section("What the threshold rests on", blocks)


def _ood_table(gate: Gate, by_set: Mapping[str, Floats]) -> Table:
    rows = []
    for kind, scores in list(by_set.items())[1:]:
        measured = ood_metrics(gate.held_out.scores, scores)
        flagged = int((scores > gate.threshold).sum())
        rows.append(
            Row(
                kind.removesuffix(" (OOD)"),
                (
                    Cell(len(scores), ",.0f"),
                    Cell(measured.auroc, low=measured.auroc_low, high=measured.auroc_high),
                    share_cell(flagged, len(scores)),
                ),
            )
        )
    note = "These images took part in the fit: of other images of their kind fewer may be flagged."
    columns = ("images", "AUROC", "flagged")
    return Table("ood", "OOD images of the fit", columns, tuple(rows), (note,))


# -- cues and classes ----------------------------------------------------------------------------

_QUANTITIES = {"entropy": "entropy of the softmax", "energy": "energy of the logits"}


def _cues(gate: Gate, diagnostics: FitDiagnostics) -> Section:
    detector, drawings = gate.detector, []
    several = len(detector.cue_names) > 1  # a single cue is the score, which is drawn above
    for column, name in enumerate(detector.cue_names if several else ()):
        by_set = {"held-out (ID)": diagnostics.cues[:, column]}
        for kind, cues in detector.ood_cues_.items():
            by_set[f"{kind} (OOD)"] = cues[:, column].numpy()
        quantity = _QUANTITIES.get(name, "distance" if name in detector.features else "score")
        drawings.append(
            Drawing(
                f"cue-{slug(name)}",
                histograms(name, by_set, None, quantity),
                f"Histograms of the cue {name} of {', '.join(by_set)}.",
            )
        )
    blocks: list[PageBlock] = [detector.description, *([drawings] if drawings else [])]
    if detector.cue_weights:
        rows = [(name, f"{weight:.3f}") for name, weight in detector.cue_weights.items()]
        blocks.append(FactTable(("cue", "weight"), rows))
    return Section("Detector", blocks)


def _classes(gate: Gate, diagnostics: FitDiagnostics) -> Section:
    flagged = diagnostics.scores > gate.threshold
    order = range(len(gate.classes))
    counts = np.bincount(diagnostics.predicted[flagged], minlength=len(gate.classes))
    if len(gate.classes) > _MOST_CLASSES:
        order = np.argsort(-counts, kind="stable")[:_MOST_CLASSES].tolist()
    rows = [_class_row(gate, diagnostics, flagged, label) for label in order]
    columns = (
        "held-out images",
        "flagged",
        "share",
        *(() if diagnostics.truth is None else ("right",)),
    )
    needed = required_held_out(gate.false_alarm_rate)
    setting = np.bincount(
        diagnostics.predicted[diagnostics.sets_threshold], minlength=len(gate.classes)
    )
    few = int((setting < needed).sum())
    note = _text("per_class", needed=needed, few=few, classes=len(gate.classes))
    title = "False alarms by predicted class, on held-out images; intervals of 95 %"
    blocks: list[PageBlock] = [
        _text("classes", flagged=int(flagged.sum()), total=len(diagnostics)),
        Table("classes", title, columns, tuple(rows), (note,)),
    ]
    if len(gate.classes) > _MOST_CLASSES:
        blocks.append(
            f"The {_MOST_CLASSES} of {len(gate.classes):,} classes with the most are listed."
        )
    return Section("False alarms by class", blocks)


def _class_row(
    gate: Gate, diagnostics: FitDiagnostics, flagged: NDArray[np.bool_], label: int
) -> Row:
    mine = diagnostics.predicted == label
    total, count = int(mine.sum()), int((mine & flagged).sum())
    cells = [Cell(total, ",.0f"), Cell(count, ",.0f"), share_cell(count, total)]
    if diagnostics.truth is not None:
        right = float((diagnostics.truth[mine] == label).mean()) if total else None
        cells.append(Cell(right, ".1%"))
    return Row(gate.classes[label], tuple(cells))


# -- suspicious images ---------------------------------------------------------------------------


def _suspicious_cards(
    gate: Gate,
    diagnostics: FitDiagnostics,
    held_out: ImageSet,
    files: Sequence[Path],
    rows: NDArray[np.int64],
) -> list[Card]:
    images = held_out.read(rows)
    outputs = gate.outputs(images)
    names = [printable_path(files[i]) if files else f"{held_out.name}/#{i}" for i in rows]
    truth = None if diagnostics.truth is None else diagnostics.truth[rows].tolist()
    return make_cards(gate, images, names, outputs, gate.predict_outputs(outputs), truth)


def _origin(gate: Gate) -> Section:
    splits = Manifest(gate.metadata).part("splits")
    rows = [
        (role, f"{split.number('images'):,.0f} images ({split.text('name')})")
        for role in splits.content
        for split in [splits.part(role)]
    ]
    rows += [
        ("layers", ", ".join(gate.detector.features) or "none: the detector reads the logits"),
        ("inputs", str(gate.inputs)),
        ("versions", named(versions())),
    ]
    return Section("Origin", [FactTable(("what", "value"), rows)])
