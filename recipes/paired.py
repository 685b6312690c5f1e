"""Two rows of a study on the same images, seed by seed.

    python recipes/paired.py bench-paired 42 123 ...     (after bench.sh and mirrored.py)
    python recipes/paired.py ablation-paired 42 123 ...  (after ablate.sh of the seeds)

Each set has DeLong's paired test, and the mean over the sets that neither row was shown and by
which neither was chosen has one of its own. Writes results/cifar10/NAME.jsonl.
"""

import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

import tyro

from goen.metrics import PairedTest, paired_auroc_test, paired_mean_auroc_test
from goen.results import read_results, read_scores

OUT = Path(__file__).parents[1] / "results" / "cifar10"
MEAN = "mean of unseen sets"
# SVHN and noise calibrate; the last fifty classes of CIFAR-100 helped to choose goen-m.
KNOWN = ("svhn", "noise", "cifar100-rest")


@dataclass(frozen=True)
class Pair:
    """Two rows of one study."""

    study: str
    ours: str
    against: str


PAIRS = {
    "bench-paired": (
        Pair("bench", "goen_distance", "goen"),
        Pair("bench", "goen_m_ood", "goen"),
        Pair("bench", "goen_m", "goen"),
        Pair("mirrored", "goen_m_mirrored", "goen_mirrored"),
        Pair("bench", "goen_m", "knn_multi_scale"),
        Pair("mirrored", "goen_m_mirrored", "knn_multi_scale_mirrored"),
    ),
    "ablation-paired": (
        Pair("ablate", "no_center_loss", "default"),
        Pair("ablate", "no_center_loss_distance", "default_distance"),
        Pair("ablate", "single_scale_no_center_loss", "no_center_loss"),
        Pair("ablate", "single_scale_no_center_loss_distance", "no_center_loss_distance"),
        Pair("ablate", "no_svhn_no_center_loss", "no_center_loss"),
    ),
}


def tests(run: Path, ours: str, against: str) -> dict[str, PairedTest]:
    """By set, and for the mean of the unseen: ours is a, the other b."""
    rows = read_results(run / "results.jsonl")
    sets = [r.dataset for r in rows if (r.method, r.metric) == (against, "auroc")]
    scores = read_scores(run / "scores.safetensors")
    unseen = [name for name in sets if name not in KNOWN]
    known = {"id_a": scores["test"][ours], "id_b": scores["test"][against]}
    found = {
        name: paired_auroc_test(ood_a=scores[name][ours], ood_b=scores[name][against], **known)
        for name in sets
    }
    found[MEAN] = paired_mean_auroc_test(
        ood_a={name: scores[name][ours] for name in unseen},
        ood_b={name: scores[name][against] for name in unseen},
        **known,
    )
    return found


def main(
    name: tyro.conf.Positional[Literal["bench-paired", "ablation-paired"]],
    seeds: tyro.conf.Positional[tuple[int, ...]],
    runs: Path = Path("runs"),
) -> None:
    """Test, print and write.

    Args:
        name: which comparisons.
        seeds: of the networks.
        runs: where the studies' folders lie.
    """
    lines = []
    for seed, pair in product(seeds, PAIRS[name]):
        found = tests(runs / f"cifar10-{pair.study}-{seed}", pair.ours, pair.against)
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
    (OUT / f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
