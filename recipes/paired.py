"""Rows of a study against one of them on the same images, seed by seed.

    python recipes/paired.py against-the-head 42 123 ...      (after recipes/bench.sh of each seed)
    python recipes/paired.py ablation-paired 42 123 ...       (after recipes/ablate.sh of each seed)

Each set has DeLong's paired test, and the mean over the sets that neither row was shown and by
which neither was chosen has one of its own. Writes results/cifar10/NAME.jsonl.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
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
class Comparison:
    """Which rows of which study, each beside the row it is compared with."""

    study: str
    against: Mapping[str, str]


COMPARISONS = {
    "against-the-head": Comparison(
        "bench",
        dict.fromkeys(("goen_distance", "goen_m_ood", "goen_m", "goen_m_mirrored"), "goen"),
    ),
    "ablation-paired": Comparison(
        "ablate",
        {
            "no_center_loss": "default",
            "no_center_loss_distance": "default_distance",
            "single_scale_no_center_loss": "no_center_loss",
            "single_scale_no_center_loss_distance": "no_center_loss_distance",
            "no_svhn_no_center_loss": "no_center_loss",
        },
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
    name: tyro.conf.Positional[Literal["against-the-head", "ablation-paired"]],
    seeds: tyro.conf.Positional[tuple[int, ...]],
    runs: Path = Path("runs"),
) -> None:
    """Test, print and write.

    Args:
        name: which comparison.
        seeds: of the networks.
        runs: where the studies' folders lie.
    """
    comparison = COMPARISONS[name]
    lines = []
    for seed in seeds:
        run = runs / f"cifar10-{comparison.study}-{seed}"
        for ours, against in comparison.against.items():
            for dataset, test in tests(run, ours, against).items():
                line = {
                    "method": ours,
                    "against": against,
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
                if dataset == MEAN:
                    print(
                        f"seed {seed}  {ours:38} {test.auroc_a:.4f}  {against} {test.auroc_b:.4f}  "
                        f"{test.difference:+.4f} [{test.low:+.4f}, {test.high:+.4f}]  "
                        f"p = {test.p_value:.2g}"
                    )
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (OUT / f"{name}.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
