"""Draws docs/pictures/metrics.png: .venv/bin/python docs/pictures/metrics.py"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from scipy.stats import norm

from goen.metrics import OODResult, ood_metrics

ID, OOD, DARK, GREY = "#0072B2", "#D55E00", "#222222", "#888888"
OOD_MEAN, OOD_SD = 2.2, 1.5


def quantile_sample(num_id: int, num_ood: int) -> tuple[np.ndarray, np.ndarray]:
    """Evenly spread quantiles stand in for a draw, so the curves show the metric and no noise."""
    id_share, ood_share = ((np.arange(num) + 0.5) / num for num in (num_id, num_ood))
    return norm.ppf(id_share), norm.ppf(ood_share, OOD_MEAN, OOD_SD)


def two_fpr95(axes: Axes) -> None:
    x = np.linspace(-5.4, 7.4, 900)
    inside, outside = norm.pdf(x), norm.pdf(x, OOD_MEAN, OOD_SD)
    catch = norm.ppf(0.05, OOD_MEAN, OOD_SD)  # 95 % of OOD lies above
    accept = norm.ppf(0.95)  # 95 % of ID lies below
    axes.fill_between(x, inside, where=x >= catch, color=ID, alpha=0.25, lw=0)
    axes.fill_between(
        x, outside, where=x <= accept, facecolor="none", edgecolor=OOD, hatch="///", lw=0
    )
    axes.plot(x, inside, color=ID, lw=2)
    axes.plot(x, outside, color=OOD, lw=2)
    for cut, side, text in (
        (catch, "right", "flag from here:\n95 % of OOD is caught"),
        (accept, "left", "accept up to here:\n95 % of ID is kept"),
    ):
        axes.plot([cut, cut], [0, 0.5], color=DARK, lw=1, ls="--")
        shift = -0.15 if side == "right" else 0.15
        axes.text(cut + shift, 0.5, text, ha=side, va="top", fontsize=9, color=DARK)
    axes.text(-1.45, 0.27, "ID", color=ID, ha="right", fontsize=12, weight="bold")
    axes.text(4.0, 0.155, "OOD", color=OOD, fontsize=12, weight="bold")
    axes.text(
        -5.3, 0.13, f"fpr95_ood_positive\n= blue area\n= {norm.sf(catch):.2f}", color=ID, fontsize=9
    )
    share = norm.cdf(accept, OOD_MEAN, OOD_SD)
    axes.text(2.9, 0.30, f"fpr95_id_positive\n= hatched area\n= {share:.2f}", color=OOD, fontsize=9)
    axes.set(title="One score, two FPR95s", xlabel="score (higher = more OOD)", yticks=[])
    axes.set(xlim=(-5.4, 7.4), ylim=(0, 0.52))


def curves(
    axes: Axes, x: np.ndarray, metrics: list[OODResult], lines: tuple[tuple[str, str, str], ...]
) -> None:
    for name, color, style in lines:
        axes.plot(x, [getattr(m, name) for m in metrics], style, color=color, lw=2, label=name)
    axes.set(ylim=(0, 1.02))


def ratio(axes: Axes) -> None:
    id_per_ood = np.logspace(-2, 2, 41)
    metrics = []
    for t in id_per_ood:
        num_id, num_ood = (50_000, round(50_000 / t)) if t > 1 else (round(50_000 * t), 50_000)
        metrics.append(ood_metrics(*quantile_sample(num_id, num_ood)))
    lines = (
        ("aupr_out", OOD, "-"),
        ("aupr_in", ID, "-"),
        ("detection_accuracy", DARK, "-"),
        ("auroc", GREY, "--"),
        ("balanced_detection_accuracy", GREY, "-."),
        ("fpr95_ood_positive", GREY, ":"),
    )
    curves(axes, id_per_ood, metrics, lines)
    axes.set(title="What the ID:OOD ratio moves", xlabel="ID images per OOD image", xscale="log")
    axes.legend(loc="lower right", fontsize=8.5, frameon=False)


def ties(axes: Axes) -> None:
    id_scores, ood_scores = quantile_sample(10_000, 10_000)
    share = np.linspace(0, 0.9, 91)
    metrics = []
    for s in share:
        floor = np.quantile(id_scores, s)
        metrics.append(ood_metrics(np.maximum(id_scores, floor), np.maximum(ood_scores, floor)))
    lines = (
        ("auroc", GREY, "--"),
        ("aupr_out", OOD, "-"),
        ("aupr_out_trapezoid", OOD, ":"),
        ("fpr95_ood_positive", DARK, "-"),
        ("fpr95_id_positive", ID, "-"),
    )
    curves(axes, share, metrics, lines)
    axes.set(title="What ties do", xlabel="share of ID tied at the lowest score")
    axes.legend(loc="lower left", fontsize=8.5, frameon=False)


def main() -> None:
    plt.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10})
    figure, panels = plt.subplots(1, 3, figsize=(13.5, 4.2), layout="constrained")
    for panel, axes in zip((two_fpr95, ratio, ties), panels, strict=True):
        panel(axes)
        axes.title.set(fontsize=12, weight="bold")
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
