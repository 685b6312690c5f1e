"""The report of ``goen bench``: methods side by side, and what they cost."""

from collections.abc import Sequence

from goen.report.blocks import Drawing, Gallery, Page, Paragraph, Section
from goen.report.comparison import Comparison, comparison_page
from goen.report.figures.bench import Cost, cost_against
from goen.report.run_folder import RunFolder
from goen.report.summary import Summary
from goen.report.table import Cell, Table
from goen.runs.results import Result


def bench_tables(results: Sequence[Result], summary: Summary) -> list[Table]:
    """AUROC, both FPR95s, the classifier and the cost."""
    comparison = Comparison(results, summary)
    rows = [comparison.by_key[m, "test", "training_seconds"] for m in comparison.methods]
    cost = {
        "training s": [Cell(r.value, ".0f") for r in rows],
        "fit and score s": [Cell(r.seconds, ".2f") for r in rows],
    }
    classifier = comparison.table(
        "classifier", "Classifier and cost", {**comparison.classifier(), **cost}
    )
    return [comparison.auroc(), *comparison.fpr95(), classifier]


def bench_page(run: RunFolder, tables: Sequence[Table]) -> Page:
    """The comparison of the methods, and their cost."""
    return comparison_page(
        run, tables, title="Benchmark", compared="methods", sections=_cost_section(run)
    )


def _cost_section(run: RunFolder) -> list[Section]:
    unseen = [name for name in run.sets if name not in run.seen]
    sets = unseen or list(run.sets)
    costs = []
    for method in run.titles:
        training = run.by_key.get((method, "test", "training_seconds"))
        aurocs = [run.by_key.get((method, name, "auroc")) for name in sets]
        if training is None or training.seconds is None or None in aurocs:
            continue
        mean = sum(r.value for r in aurocs if r is not None) / len(aurocs)
        seconds = training.value + training.seconds
        costs.append(Cost(run.label(method), run.titles[method][1], seconds, mean))
    if not costs:
        return []
    which = "unseen OOD datasets" if unseen else "all OOD datasets"
    values = "; ".join(f"{c.label} {c.seconds:.3g} s, {c.value:.4f}" for c in costs)
    drawing = Drawing(
        "cost",
        cost_against(costs, f"mean AUROC, {which}"),
        f"Cost against mean AUROC over {which}: {values}.",
        wide=True,
    )
    text = (
        "Training counts in full for every method, also where several share one network: it is "
        "the cost of using that one method. Measured on the machine named under Provenance."
    )
    return [Section("Cost", [Paragraph(text), Gallery.of(drawing)])]
