"""goen-m against the paper's head on the sets that neither was shown, seed by seed.

    python recipes/against_the_head.py 42 123 ...        (after recipes/bench.sh of each seed)

Each set has DeLong's paired test on the same images, and the mean over the sets has one of its own.
Writes results/cifar10/against-the-head.jsonl.
"""

import json
from pathlib import Path

import tyro

from goen.metrics import PairedTest, paired_auroc_test, paired_mean_auroc_test
from goen.results import read_results, read_scores

OUT = Path(__file__).parents[1] / "results" / "cifar10" / "against-the-head.jsonl"
HEAD = "goen"
OURS = ("goen_m", "goen_m_mirrored", "goen_m_ood", "goen_distance")
MEAN = "mean of unseen sets"


def tests(run: Path, ours: str) -> dict[str, PairedTest]:
    """By set, and for their mean: ours is a, the head b."""
    rows = read_results(run / "results.jsonl")
    seen = {r.dataset for r in rows if r.seen_in_calibration}
    sets = [r.dataset for r in rows if (r.method, r.metric) == (HEAD, "auroc")]
    scores = read_scores(run / "scores.safetensors")
    unseen = [name for name in sets if name not in seen]
    known = {"id_a": scores["test"][ours], "id_b": scores["test"][HEAD]}
    found = {
        name: paired_auroc_test(ood_a=scores[name][ours], ood_b=scores[name][HEAD], **known)
        for name in sets
    }
    found[MEAN] = paired_mean_auroc_test(
        ood_a={name: scores[name][ours] for name in unseen},
        ood_b={name: scores[name][HEAD] for name in unseen},
        **known,
    )
    return found


def main(seeds: tyro.conf.Positional[tuple[int, ...]], runs: Path = Path("runs")) -> None:
    """Test, print and write.

    Args:
        seeds: of the networks.
        runs: where the benchmark's folders lie.
    """
    lines = []
    for seed in seeds:
        for ours in OURS:
            for name, test in tests(runs / f"cifar10-bench-{seed}", ours).items():
                line = {
                    "method": ours,
                    "against": HEAD,
                    "seed": seed,
                    "dataset": name,
                    "metric": "auroc_difference",
                    "auroc": test.auroc_a,
                    "auroc_against": test.auroc_b,
                    "value": test.difference,
                    "low": test.low,
                    "high": test.high,
                    "p_value": test.p_value,
                }
                lines.append(line)
                if name == MEAN:
                    print(
                        f"seed {seed}  {ours:16} {test.auroc_a:.4f}  head {test.auroc_b:.4f}  "
                        f"{test.difference:+.4f} [{test.low:+.4f}, {test.high:+.4f}]  "
                        f"p = {test.p_value:.2g}"
                    )
    OUT.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
