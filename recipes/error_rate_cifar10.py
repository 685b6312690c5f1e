"""The error among accepted images, measured on CIFAR-10 with the bundled gates:
python recipes/error_rate_cifar10.py --data-dir DATA

4,000 test images pass through each gate, which has seen none of them; 2,000 of them set threshold
and limits, the other 2,000 are decided, in 1,000 random splits. Beside it AURC and AUROC of errors
of both scores on all of them, and how many images of SVHN are accepted with the limits of the first
2,000.

Writes results/error-rate/cifar10.jsonl.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import tyro

import goen
from goen.functional.conformal import threshold_rank
from goen.functional.selective import select
from goen.io.provenance import hardware, versions
from goen.metrics import paired_auroc_test, selective_metrics
from goen.report.table import Cell, Row, Table

OUT = Path(__file__).parents[1] / "results" / "error-rate" / "cifar10.jsonl"
GATES = ("cifar10-w16", "cifar10-ensemble")
IMAGES, HELD_OUT, SPLITS, OTHERS = 4000, 2000, 1000, 2000
RATES, CONFIDENCE, FALSE_ALARMS = (0.01, 0.02, 0.05), 0.95, 0.05
Line = dict[str, str | float | int]


def measured(name: str, sets: dict[str, goen.data.ImageSet]) -> Iterator[Line]:
    """The rows of one gate."""
    gate = goen.load(name)
    test = sets.pop("test")
    found = gate.predict(test)
    wrong = found.label != test.labels
    orders = {"confidence": 1 - found.confidence, "score": found.score}
    yield {"gate": name, "what": "accuracy", "value": float(1 - wrong.mean())}
    for by, order in orders.items():
        m = selective_metrics(order, wrong)
        for metric in ("error_auroc", "aurc", "e_aurc", "accuracy_at_95", "accuracy_at_80"):
            yield {"gate": name, "what": metric, "by": by, "value": getattr(m, metric)}
    first, second = orders.values()
    p = paired_auroc_test(
        id_a=first[~wrong], ood_a=first[wrong], id_b=second[~wrong], ood_b=second[wrong]
    ).p_value
    yield {"gate": name, "what": "p_error_auroc", "value": p}
    others = {key: gate.predict(images) for key, images in sets.items()}
    for by, order in orders.items():
        for rate in RATES:
            yield from split(name, found.score, order, wrong, by=by, rate=rate)
            limit, above = limits(np.arange(HELD_OUT), found.score, order, wrong, rate)
            for key, other in others.items():
                own = 1 - other.confidence if by == "confidence" else other.score
                accepted = float(((other.score < limit) & (own < above)).mean())
                row: Line = {"gate": name, "what": f"accepted {key}", "by": by, "rate": rate}
                yield {**row, "value": accepted}


def limits(
    rows: np.ndarray, score: np.ndarray, order: np.ndarray, wrong: np.ndarray, rate: float
) -> tuple[float, float]:
    """Below which score and which place in the order an image is accepted, by held-out rows."""
    threshold = np.sort(score[rows])[-threshold_rank(len(rows), FALSE_ALARMS)]
    below = rows[score[rows] < threshold]
    found = select(order[below], wrong[below], rate, CONFIDENCE)
    return (float(threshold), -np.inf if found is None else found.limit)


def split(
    name: str, score: np.ndarray, order: np.ndarray, wrong: np.ndarray, *, by: str, rate: float
) -> Iterator[Line]:
    """The share accepted, the share of errors among them, and how often it is above the rate."""
    rng, coverage, errors = np.random.default_rng(0), [], []
    for _ in range(SPLITS):
        rows = rng.permutation(len(score))
        below, above = limits(rows[:HELD_OUT], score, order, wrong, rate)
        new = rows[HELD_OUT:]
        accepted = (score[new] < below) & (order[new] < above)
        coverage.append(accepted.mean())
        errors.append(wrong[new][accepted].mean() if accepted.any() else 0.0)
    about = {"gate": name, "by": by, "rate": rate}
    yield {**about, "what": "coverage", "value": float(np.mean(coverage))}
    yield {**about, "what": "error", "value": float(np.mean(errors))}
    yield {
        **about,
        "what": "splits above the rate",
        "value": float(np.mean(np.array(errors) > rate)),
    }
    yield {**about, "what": "splits that accept", "value": float(np.mean(np.array(coverage) > 0))}


def tables(file: Path = OUT) -> dict[str, Table]:
    """The tables of docs/error-rate.md, by name."""
    made, *rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    found = {
        (row["gate"], row["what"], row.get("by", ""), row.get("rate", 0)): row["value"]
        for row in rows
    }
    scored = {
        "error_auroc": "AUROC of errors",
        "aurc": "AURC",
        "e_aurc": "E-AURC",
        "accuracy_at_95": "accuracy at 95 %",
        "accuracy_at_80": "accuracy at 80 %",
    }
    orders, images = ("confidence", "score"), made["config"]["images"]
    body = [
        Row(by, tuple(Cell(found[gate, metric, by, 0]) for metric in scored), gate)
        for gate in GATES
        for by in orders
    ]
    tests = "; ".join(f"{gate}: p = {found[gate, 'p_error_auroc', '', 0]:.2g}" for gate in GATES)
    notes = (f"Paired test of the two AUROCs of errors: {tests}.",)
    title = f"Wrong answers on {images:,} test images of CIFAR-10"
    scores = Table("error-rate-scores", title, tuple(scored.values()), tuple(body), notes)
    columns = {
        "coverage": "accepted",
        "error": "errors among them",
        "splits above the rate": "splits above the rate",
        "accepted svhn": "accepted of SVHN",
    }
    body = [
        Row(
            f"by {by}, rate {rate:.0%}",
            tuple(Cell(found[gate, what, by, rate], ".2%") for what in columns),
            gate,
        )
        for gate in GATES
        for by in orders
        for rate in RATES
    ]
    title = f"Mean over {made['config']['splits']:,} splits of the test images"
    kept = Table("error-rate-cifar10", title, tuple(columns.values()), tuple(body))
    return {"error-rate-scores": scores, "error-rate-cifar10": kept}


def main(data_dir: Path | None = None) -> None:
    """Measure, print and write.

    Args:
        data_dir: where the image sets are.
    """
    torch.set_num_threads(1)
    whole = goen.data.load_set("cifar10/test", data_dir=data_dir)
    chosen = np.random.RandomState(5).permutation(len(whole))[:IMAGES]
    svhn = goen.data.load_set("svhn/test", data_dir=data_dir)
    other = np.random.RandomState(5).permutation(len(svhn))[:OTHERS]
    rows = []
    for name in GATES:
        for row in measured(name, {"test": whole.take(chosen), "svhn": svhn.take(other)}):
            rows.append(row)
            print(row, flush=True)
    config = {"images": IMAGES, "held_out": HELD_OUT, "splits": SPLITS, "confidence": CONFIDENCE}
    made = {"versions": versions(), "hardware": hardware(), "config": config}
    OUT.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(line) + "\n" for line in [made, *rows]]
    OUT.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
