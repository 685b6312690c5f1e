"""Two rows of a study on the same images, seed by seed.

    python recipes/paired.py bench-paired 42 123 ...     (after bench.sh, flip_averaged.py)
    python recipes/paired.py ablation-paired 42 123 ...  (after ablate.sh of the seeds)
    python recipes/paired.py table2-paired 42 123 ...    (after table2.sh of the seeds)
    python recipes/paired.py width-paired 42             (after width.sh of the seeds)
    python recipes/paired.py baselines-paired 42 123 ... (after baselines.sh of the seeds)

Each set has DeLong's paired test, and the mean over the sets that calibrated neither row has one of
its own. Writes results/cifar10/NAME.jsonl; the lines of other seeds in it stay.
"""

import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Literal

import tyro
from sets import UNSEEN

from goen.io.results import read_results, read_scores
from goen.metrics import PairedTest, paired_auroc_test, paired_mean_auroc_test

OUT = Path(__file__).parents[1] / "results" / "cifar10"
MEAN = "mean of unseen sets"


@dataclass(frozen=True)
class Pair:
    """Two rows of one study, and the title of their difference."""

    study: str
    ours: str
    against: str
    title: str


def _center_loss(study: str) -> tuple[Pair, Pair]:
    title = "without CenterLoss: against with it"
    return (
        Pair(study, "no_center_loss", "default", f"{title}, calibrated head"),
        Pair(study, "no_center_loss_distance", "default_distance", f"{title}, distance alone"),
    )


PAIRS = {
    "bench-paired": (
        Pair("bench", "goen_m", "goen", "goen-m: against the paper's head"),
        Pair(
            "flip-averaged",
            "goen_m_flip_averaged",
            "goen_flip_averaged",
            "the same, both flip-averaged",
        ),
        Pair("bench", "goen_m_ood", "goen", "goen-m, fitted with SVHN and noise: against the head"),
        Pair("bench", "goen_distance", "goen", "the distance alone: against the head"),
        Pair("bench", "goen_m", "knn_multi_scale", "goen-m: against KNN on z"),
        Pair(
            "flip-averaged",
            "goen_m_flip_averaged",
            "knn_multi_scale_flip_averaged",
            "goen-m: against KNN on z, both flip-averaged",
        ),
    ),
    "ablation-paired": (
        *_center_loss("ablate"),
        Pair(
            "ablate",
            "single_scale_no_center_loss",
            "no_center_loss",
            "layer 4 alone: against both scales, calibrated head",
        ),
        Pair(
            "ablate",
            "single_scale_no_center_loss_distance",
            "no_center_loss_distance",
            "layer 4 alone: against both scales, distance alone",
        ),
        Pair(
            "ablate",
            "no_svhn_no_center_loss",
            "no_center_loss",
            "calibrated with noise alone: against with SVHN too",
        ),
    ),
    "table2-paired": (
        *_center_loss("table2"),
        Pair(
            "table2",
            "single_scale",
            "default",
            "layer 4 alone: against both scales, both with CenterLoss, calibrated head",
        ),
        Pair(
            "table2",
            "single_scale_distance",
            "default_distance",
            "layer 4 alone: against both scales, both with CenterLoss, distance alone",
        ),
        Pair(
            "table2",
            "no_svhn",
            "default",
            "calibrated with noise alone: against with SVHN too, both with CenterLoss",
        ),
    ),
    "width-paired": (
        *_center_loss("width"),
        Pair(
            "width", "no_center_loss_distance", "no_center_loss", "distance alone: against the head"
        ),
    ),
    "baselines-paired": (
        Pair("baselines", "goen", "max_softmax", "the paper's head: against max softmax"),
        Pair("baselines", "goen", "energy", "the paper's head: against energy"),
        Pair("baselines", "goen", "knn", "the paper's head: against KNN"),
        Pair("baselines", "goen_m_plain", "knn", "goen-m on the ordinary network: against KNN"),
        Pair("baselines", "goen_m", "goen_m_plain", "goen-m: on GOEN's against the ordinary"),
    ),
}


def tests(run: Path, ours: str, against: str) -> dict[str, PairedTest]:
    """By set, and for the mean of the unseen sets: ours is a, the other b."""
    rows = read_results(run / "results.jsonl")
    sets = [r.dataset for r in rows if (r.method, r.metric) == (against, "auroc")]
    scores = read_scores(run / "scores.safetensors")
    id_scores = {"id_a": scores["test"][ours], "id_b": scores["test"][against]}
    found = {
        name: paired_auroc_test(ood_a=scores[name][ours], ood_b=scores[name][against], **id_scores)
        for name in sets
    }
    found[MEAN] = paired_mean_auroc_test(
        ood_a={name: scores[name][ours] for name in UNSEEN},
        ood_b={name: scores[name][against] for name in UNSEEN},
        **id_scores,
    )
    return found


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The JSON lines of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def main(
    name: tyro.conf.Positional[
        Literal[
            "bench-paired", "ablation-paired", "table2-paired", "width-paired", "baselines-paired"
        ]
    ],
    seeds: tyro.conf.Positional[tuple[int, ...]],
    runs: Path = Path("runs"),
) -> None:
    """Test, print and write.

    Args:
        name: which comparisons.
        seeds: of the networks.
        runs: the folder of the studies.
    """
    if not seeds:
        raise SystemExit("Name at least one seed.")
    out = OUT / f"{name}.jsonl"
    before = read_lines(out) if out.is_file() else []
    lines = [line for line in before if line["seed"] not in seeds]
    for seed, pair in product(seeds, PAIRS[name]):
        run = runs / f"cifar10-{pair.study}-{seed}"
        missing = {pair.ours, pair.against} - {
            r.method for r in read_results(run / "results.jsonl")
        }
        if missing:
            print(f"seed {seed}  {pair.ours} against {pair.against}: {run} has no {missing}")
            continue
        found = tests(run, pair.ours, pair.against)
        for dataset, test in found.items():
            line = {
                "method": pair.ours,
                "against": pair.against,
                "seed": seed,
                "dataset": dataset,
                "metric": "auroc_difference",
                "auroc": test.auroc_a,
                "auroc_against": test.auroc_b,
                "value": test.difference,
                "low": test.low,
                "high": test.high,
                "p_value": test.p_value,
            }
            lines.append(line)
        mean = found[MEAN]
        print(
            f"seed {seed}  {pair.ours} {mean.auroc_a:.4f}  {pair.against} {mean.auroc_b:.4f}  "
            f"{mean.difference:+.4f} [{mean.low:+.4f}, {mean.high:+.4f}]  p = {mean.p_value:.2g}"
        )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
