"""How long the OOD metrics take, in units of one ``numpy.argsort`` of the same scores.

    .venv/bin/python benchmarks/metrics.py              speed, half a minute
    .venv/bin/python benchmarks/metrics.py --coverage   the coverage table of docs/metrics.md

Goal: a million ID against a million OOD scores, AUROC with its interval, both FPR95s and
both APs together, in at most 2 x the time of one argsort of the two million. `ood_metrics` gives
that and more (trapezoids, detection accuracies, threshold), so it is timed whole.

Two cores of an AMD EPYC (a virtual machine with much other work, so only the ratios mean anything),
Python 3.11.7, numpy 2.4.6, scipy 1.17.1, scikit-learn 1.9.1; medians of 15 pairs run in turn, first
discarded:

    scores                             ratio
    1,000,000 against 1,000,000         0.87
    the same rounded to 0.01 (ties)     0.79
    1,000,000 against 10,000            0.95
    10,000 against 10,000               1.51

Before the sums behind the metrics were taken in parts that stay in the cache, the first row was
1.12 here and 1.85 on an Intel processor; it was not measured there again. Processor time of all but
the two sorts: 138 ms before, 101 ms now. scikit-learn takes 14 times as long as the first row for
the same five numbers without interval.
"""

import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.special
import sklearn
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from goen import metrics
from goen.functional import ranking

REPEATS = 15


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ratio(id_scores: np.ndarray, ood_scores: np.ndarray) -> tuple[float, float, float]:
    """Median argsort time, median metrics time, and the median of their ratios in turn."""
    both = np.concatenate([id_scores, ood_scores])
    times = []
    for repeat in range(REPEATS + 1):
        # In turn, so that a busy moment of the machine meets both; the first pair warms up.
        pair = (
            seconds(lambda: np.argsort(both)),
            seconds(lambda: metrics.ood_metrics(id_scores, ood_scores)),
        )
        if repeat:
            times.append(pair)
    argsort, ours = np.array(times).T
    return float(np.median(argsort)), float(np.median(ours)), float(np.median(ours / argsort))


def with_sklearn(id_scores: np.ndarray, ood_scores: np.ndarray) -> None:
    """The same five numbers, one call each, without the interval."""
    is_ood = np.repeat([False, True], [id_scores.size, ood_scores.size])
    both = np.concatenate([id_scores, ood_scores])
    roc_auc_score(is_ood, both)
    for label, score in ((is_ood, both), (~is_ood, -both)):
        average_precision_score(label, score)
        fpr, tpr, _ = roc_curve(label, score, drop_intermediate=False)
        fpr[np.argmax(tpr >= 0.95)]


def cpu() -> str:
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def coverage(num_id: int, num_ood: int, area: float, alike: float, draws: int = 2000) -> str:
    """How often three 95 % intervals hold the true AUROC; ``alike`` of OOD is drawn from ID."""
    rng = np.random.default_rng(0)
    shift = 2**0.5 * float(scipy.special.ndtri(area))
    truth = (1 - alike) * area + alike / 2
    hits = np.zeros(3)
    for _ in range(draws):
        ood_scores = rng.normal(0, 1, num_ood) + shift * (rng.random(num_ood) >= alike)
        id_scores = rng.normal(0, 1, num_id)
        m = metrics.ood_metrics(id_scores, ood_scores)
        error = sum(ranking.delong_variances(ranking.tally(id_scores, ood_scores), m.auroc)) ** 0.5
        hits[0] += abs(truth - m.auroc) <= 1.96 * error
        if 0 < m.auroc < 1:
            reach = 1.96 * error / (m.auroc * (1 - m.auroc))
            ends = scipy.special.expit(scipy.special.logit(m.auroc) + np.array([-reach, reach]))
            hits[1] += ends[0] <= truth <= ends[1]
        hits[2] += m.auroc_low <= truth <= m.auroc_high
    plain, logit, ours = 100 * hits / draws
    return (
        f"{num_id:6} {num_ood:6}  {truth:.4f} {min(num_id, num_ood) * (1 - truth):8.2f}   "
        f"{plain:5.1f} {logit:7.1f} {ours:7.1f}"
    )


def print_coverage() -> None:
    print("    ID    OOD   AUROC   errors   plain   logit    goen   (coverage in %)")
    for alike in (0.0, 0.01):
        for sizes in ((30, 30), (100, 100), (500, 500), (500, 20)):
            for area in (0.5, 0.8, 0.95, 0.99, 0.999):
                print(coverage(*sizes, area, alike), "  1 % of OOD like ID" if alike else "")


def main() -> None:
    print(
        f"{cpu()}, {platform.system()}, Python {platform.python_version()}, numpy "
        f"{np.__version__}, scipy {scipy.__version__}, scikit-learn {sklearn.__version__}"
    )
    if "--coverage" in sys.argv[1:]:
        print_coverage()
        return
    rng = np.random.default_rng(0)
    million = rng.normal(0, 1, 1_000_000), rng.normal(1, 1, 1_000_000)
    tied = tuple(np.round(scores, 2) for scores in million)
    uneven = million[0], million[1][:10_000]
    small = million[0][:10_000], million[1][:10_000]
    print(f"{'scores':34} argsort    ood_metrics   ratio (median of {REPEATS})")
    for name, scores in (
        ("1,000,000 against 1,000,000", million),
        ("the same rounded to 0.01 (ties)", tied),
        ("1,000,000 against 10,000", uneven),
        ("10,000 against 10,000", small),
    ):
        argsort, ours, times = ratio(*scores)
        print(f"{name:34} {argsort * 1e3:7.1f} ms  {ours * 1e3:8.1f} ms   {times:5.2f}")
    print(f"scikit-learn, five numbers         {seconds(lambda: with_sklearn(*million)):.2f} s")
    took = seconds(lambda: metrics.bootstrap(*small))
    print(f"bootstrap, 1,000 resamples of 10,000 against 10,000   {took:.2f} s")


if __name__ == "__main__":
    main()
