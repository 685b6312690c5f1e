"""One self-contained HTML page about a run."""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from numpy.typing import NDArray
from safetensors.numpy import load_file

from goen.errors import ArtifactError
from goen.files import whole_file
from goen.report import figures
from goen.results import Result, read_results

METHODS = {
    "max_softmax": "max softmax (the usual baseline)",
    "mahalanobis_z": "distance on the sphere (GOEN without its head)",
    "goen": "GOEN (the paper's calibrated head)",
}


@dataclass(frozen=True)
class Picture:
    """An image of the page: its data and what it shows, in words."""

    source: str
    alt: str


@dataclass(frozen=True)
class Cell:
    """One AUROC of the main table."""

    text: str
    interval: str
    fpr_ood: str
    fpr_id: str
    best: bool


def write_report(folder: Path) -> Path:
    """The report of the run in ``folder``, as ``report.html`` in it.

    Raises:
        ArtifactError: the folder does not hold a finished run.
    """
    results = read_results(folder / "results.jsonl")
    try:
        summary = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        manifest = json.loads((folder / "gate" / "manifest.json").read_text(encoding="utf-8"))
        scores = _by_set(load_file(folder / "scores.safetensors"))
        lines = (folder / "training.jsonl").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder} does not hold a finished run: {error}.") from error
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("goen.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    page = environment.get_template("run.html").render(
        summary=summary,
        manifest=manifest,
        numbers=_numbers(results),
        sets=_sets(results),
        methods=METHODS,
        table=_table(results),
        pictures=_pictures(summary, results, scores, [json.loads(line) for line in lines]),
        mistakes=_mistakes(folder / "mistakes", ["test", *_sets(results)]),
    )
    with whole_file(folder / "report.html") as temporary:
        temporary.write_text(page, encoding="utf-8")
    return folder / "report.html"


def _by_set(tensors: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, NDArray[Any]]]:
    sets: dict[str, dict[str, NDArray[Any]]] = {"test": {}}
    for key in sorted(tensors):
        name, kind = key.split("/")
        sets.setdefault(name, {})[kind] = tensors[key]
    return sets


def _numbers(results: list[Result]) -> dict[str, float]:
    """What the summary says in words, by ``method/dataset/metric``."""
    return {f"{r.method}/{r.dataset}/{r.metric}": r.value for r in results}


def _sets(results: list[Result]) -> dict[str, dict[str, Any]]:
    """The OOD sets in the order of the file, with their group and whether their kind calibrated."""
    sets: dict[str, dict[str, Any]] = {}
    for result in results:
        if result.group != "id":
            known = sets.setdefault(result.dataset, {"group": result.group, "seen": False})
            known["seen"] |= result.seen_in_calibration
    return sets


def _table(results: list[Result]) -> dict[str, dict[str, Cell]]:
    """AUROC with interval by method and set; the best of each set marked."""
    numbers = _numbers(results)
    aurocs = [r for r in results if r.metric == "auroc"]
    best = {s: max(r.value for r in aurocs if r.dataset == s) for s in _sets(results)}
    table: dict[str, dict[str, Cell]] = {}
    for r in aurocs:
        start = f"{r.method}/{r.dataset}"
        interval = "" if r.low is None else f"{r.low:.3f}–{r.high:.3f}"
        table.setdefault(r.method, {})[r.dataset] = Cell(
            text=f"{r.value:.4f}",
            interval=interval,
            fpr_ood=f"{numbers[f'{start}/fpr95_ood_positive']:.3f}",
            fpr_id=f"{numbers[f'{start}/fpr95_id_positive']:.3f}",
            best=r.value == best[r.dataset],
        )
    return table


def _pictures(
    summary: Mapping[str, Any],
    results: list[Result],
    scores: Mapping[str, Mapping[str, NDArray[Any]]],
    story: list[dict[str, Any]],
) -> dict[str, list[Picture]]:
    numbers = _numbers(results)
    sets = ["test", *_sets(results)]
    methods = [m for m in METHODS if m in scores["test"]]
    deciding = methods[-1]
    rate = summary["config"]["false_alarm_rate"]
    shares = {"test (ID)": numbers["gate/test/false_alarm_rate"]}
    shares |= {name: numbers[f"gate/{name}/flagged"] for name in sets[1:]}
    labelled = {name if name != "test" else "test (ID)": scores[name][deciding] for name in sets}
    told = "; ".join(f"{name} {share:.1%}" for name, share in shares.items())
    return {
        "flagged": [
            _svg(figures.flagged_bars(shares, rate), f"Share flagged of each set: {told}.")
        ],
        "histograms": [
            _svg(
                figures.histograms(METHODS[deciding], labelled, summary["threshold"]),
                f"Histograms of the score {deciding}, with the threshold: {', '.join(labelled)}.",
            )
        ],
        "roc": [
            _svg(
                figures.roc_curves(
                    name,
                    {m: scores["test"][m] for m in methods},
                    {m: scores[name][m] for m in methods},
                ),
                f"ROC curves on {name}: "
                + "; ".join(f"{m} AUROC {numbers[f'{m}/{name}/auroc']:.4f}" for m in methods),
            )
            for name in sets[1:]
        ],
        "training": [
            _svg(
                figures.training_curves(story),
                f"Accuracy and loss over {len(story)} epochs; validation accuracy ends at "
                f"{story[-1]['validation_accuracy']:.1%}.",
            )
        ],
    }


def _mistakes(folder: Path, sets: list[str]) -> list[Picture]:
    paths = [folder / f"{name}.png" for name in sets]
    return [
        Picture(_embedded(path.read_bytes(), "image/png"), f"The worst mistakes on {path.stem}.")
        for path in paths
        if path.is_file()
    ]


def _svg(svg: str, alt: str) -> Picture:
    return Picture(_embedded(svg.encode(), "image/svg+xml"), alt)


def _embedded(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"
