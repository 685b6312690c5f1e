"""The page of ``goen evaluate``: a gate on ID and OOD images that it was not fitted with."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from goen.io.results import Result
from goen.report.blocks import Drawing, Page, PageBlock, Paragraph, Section
from goen.report.comparison import METRICS, Comparison
from goen.report.figures.scores import flagged_bars
from goen.report.pages.run import calibration, curves, errors, histogram, methods_of
from goen.report.run_folder import RunFolder
from goen.report.summary import Study, Summary, dataset_title
from goen.report.table import Cell, Row, Table
from goen.report.texts import text_of
from goen.report.wrong_answers import risk_sections, wrong_answers_tables
from goen.studies.given_gate import TOO_MANY

_text = partial(text_of, "evaluate.html")
_METRICS = ("auroc", "fpr95_ood_positive", "fpr95_id_positive")
_SEEN = "†: some of these images fitted the gate, so its numbers here are not those of new images."


def evaluate_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """A row per dataset: the share flagged, AUROC and FPR95s, with intervals where known."""
    study = Study(results, summary)
    (method,) = summary.titles
    rows = [("test (ID)", study.by_key["gate", "test", "false_alarm_rate"])]
    rows += [(dataset_title(*s), study.by_key["gate", s[0], "flagged"]) for s in study.sets.items()]
    seen = any(r.seen_in_calibration for _, r in rows)
    lines = []
    for label, share in rows:
        numbers = [study.by_key.get((method, share.dataset, metric)) for metric in _METRICS]
        cells = [
            Cell(text="") if r is None else Cell(r.value, low=r.low, high=r.high) for r in numbers
        ]
        count = Cell(text=f"{summary.splits[share.dataset].images:,}")
        flagged = Cell(
            share.value, ".1%", low=share.low, high=share.high, seen=share.seen_in_calibration
        )
        lines.append(Row(label, (count, flagged, *cells)))
    notes = [f"{METRICS[metric].title}: {METRICS[metric].meaning}" for metric in _METRICS] + [
        "Intervals: 95 %, over images; of shares exact (Clopper-Pearson)."
    ]
    title = f"{summary.titles[method][0]}: {study.where}"
    columns = ("images", "share flagged", *(METRICS[metric].title for metric in _METRICS))
    table = Table("evaluation", title, columns, tuple(lines), (*notes, *([_SEEN] if seen else [])))
    return [table, *_wrong_answers(results, summary)]


def _wrong_answers(results: Sequence[Result], summary: Summary) -> list[Table]:
    """Of the gate's score and the classifier's confidence, where the ID images have labels."""
    titles = {**summary.titles, "classifier": ("confidence of the classifier", "")}
    return wrong_answers_tables(Comparison(results, replace(summary, titles=titles)))


def evaluate_page(run: RunFolder, tables: Sequence[Table]) -> Page:
    """Summary, shares, detection, calibration of the classifier, errors."""
    drawn = [drawing for name in run.sets for drawing in curves(run, name)]
    sections = [Section("OOD detection", [*tables, drawn])]
    if "truth" in run.scores["test"]:
        sections += [*_risk(run), calibration(run)]
    if (run.path / "mistakes.safetensors").is_file():
        sections.append(errors(run, run.summary.gate.texts("classes")))
    return Page(f"A gate on {run.summary.data}", _summary(run), sections)


def _risk(run: RunFolder) -> list[Section]:
    titles = {**run.titles, "classifier": ("confidence of the classifier", "")}
    both = replace(run, summary=replace(run.summary, titles=titles))
    (method,) = run.titles
    test = run.scores["test"]
    scores = {method: test[method], "classifier": 1 - test["confidence"]}
    return risk_sections(both, scores, list(scores))


def _summary(run: RunFolder) -> list[PageBlock]:
    gate = run.summary.gate
    alarms = run.by_key["gate", "test", "false_alarm_rate"]
    tested = run.by_key.get(("gate", "test", "p_false_alarms"))
    accuracy = run.by_key.get(("classifier", "test", "accuracy"))
    rate = gate.number("false_alarm_rate")
    lead = _text(
        "lead",
        images=run.summary.splits["test"].images,
        accuracy=None if accuracy is None else accuracy.value,
        alarms=alarms,
        flagged=[(name, run.by_key["gate", name, "flagged"]) for name in run.sets],
    )
    p = None if tested is None else tested.value
    blocks: list[PageBlock] = [Paragraph(lead, "lead")]
    promise = _text("promise", gate=gate, alarms=alarms, p=p, too_many=TOO_MANY)
    blocks.append(Paragraph(promise, "warn") if p is not None and p <= TOO_MANY else promise)
    numbers = {
        name: run.by_key.get(("gate", "test", metric))
        for name, metric in (("share", "accepted"), ("errors", "error_rate"), ("p", "p_error_rate"))
    }
    if all(numbers.values()):
        blocks.append(_text("accepted", gate=gate, too_many=TOO_MANY, **numbers))
    shares = {"test (ID)": alarms.value}
    shares |= {name: run.number("gate", name, "flagged") for name in run.sets}
    values = "; ".join(f"{name} {share:.1%}" for name, share in shares.items())
    bars = Drawing(
        "flagged", flagged_bars(shares, rate, {}), f"Bars, share flagged of each set: {values}."
    )
    return [*blocks, [bars, histogram(run, methods_of(run)[-1], run.summary.threshold)]]
