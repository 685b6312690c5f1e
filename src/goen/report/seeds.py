"""The page of a study over seeds: how much of a difference is luck."""

from collections.abc import Sequence

from markupsafe import Markup

from goen.report.blocks import Drawing, Gallery, Numbers, Page, Section, Words
from goen.report.figures.seeds import seed_points
from goen.report.run_folder import RunFolder
from goen.runs.results import Result

_DRAWN = {
    "auroc": "AUROC",
    "fpr95_ood_positive": "FPR95, OOD positive",
    "flagged": "share flagged",
    "false_alarm_rate": "share of ID flagged",
    "accuracy": "accuracy",
    "ece": "ECE",
}


def seeds_page(run: RunFolder, beside: Sequence[RunFolder]) -> Page:
    """Points per seed with mean and standard deviation; a table of every number."""
    del beside
    seeds = list(dict.fromkeys(r.seed for r in run.results))
    lead = Markup(
        "The same configuration on {}, trained with {} seeds ({}). Data and splits stay the same: "
        "what differs is the training alone."
    ).format(run.summary["data"], len(seeds), ", ".join(map(str, seeds)))
    by_metric: dict[str, list[Result]] = {}
    for r in run.results:
        by_metric.setdefault(r.metric, []).append(r)
    words = "The standard deviation is that of a sample (n − 1). With few seeds it is itself rough."
    sections = [
        Section("The spread", [Words(words), Gallery(tuple(_drawings(run, by_metric)))]),
        Section("The numbers", list(map(Numbers, run.tables()))),
    ]
    return Page(f"Seeds on {run.summary['data']}", [Words(lead, "lead")], sections)


def _drawings(run: RunFolder, by_metric: dict[str, list[Result]]) -> list[Drawing]:
    drawings = []
    for metric, words in _DRAWN.items():
        by_set: dict[str, dict[str, list[float]]] = {}
        for r in by_metric.get(metric, []):
            by_set.setdefault(r.dataset, {}).setdefault(_short(run, r.method), []).append(r.value)
        for dataset, rows in by_set.items():
            several = {name: values for name, values in rows.items() if len(values) > 1}
            if not several:
                continue
            told = "; ".join(
                f"{name} from {min(v):.4f} to {max(v):.4f}" for name, v in several.items()
            )
            drawings.append(
                Drawing(
                    f"seeds-{metric}-{dataset}",
                    seed_points(f"{words}: {dataset}", words, several),
                    f"{words} on {dataset} over the seeds: {told}.",
                )
            )
    return drawings


def _short(run: RunFolder, method: str) -> str:
    return run.label(method).partition(" (")[0]
