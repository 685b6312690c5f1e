"""The pictures of docs/results.md, from results/ alone: python recipes/figures.py"""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import page
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from goen.results import Result

OUT = Path(__file__).parents[1] / "docs" / "pictures"
SETS = {
    "svhn": "SVHN",
    "mnist": "MNIST",
    "textures": "textures",
    "cifar100": "CIFAR-100 (50)",
    "tiny-imagenet": "Tiny ImageNet",
    "places": "places",
}
SHOWN = {
    "goen_distance": ("GOEN, distance only", "#999999"),
    "goen": ("GOEN, the paper's head", "#d55e00"),
    "knn_multi_scale": ("KNN on z", "#0072b2"),
    "goen_m": ("goen-m", "#009e73"),
    "knn_multi_scale_mirrored": ("KNN on z, mirrored", "#003d66"),
    "goen_m_mirrored": ("goen-m, mirrored", "#004d39"),
}


def methods(by_seed: dict[int, list[Result]]) -> None:
    """AUROC by set: a dot for each seed."""
    figure, axes = plt.subplots(figsize=(7.2, 4.6), layout="constrained")
    for i, (method, (title, colour)) in enumerate(SHOWN.items()):
        offset = (i - (len(SHOWN) - 1) / 2) * 0.13
        points = [
            (r.value, y + offset)
            for results in by_seed.values()
            for r in results
            for y, name in enumerate(SETS)
            if (r.method, r.dataset, r.metric) == (method, name, "auroc")
        ]
        x, y = zip(*points, strict=True)
        axes.scatter(x, y, s=22, color=colour, label=title, linewidths=0)
    for y in range(len(SETS) - 1):
        axes.axhline(y + 0.5, color="#dddddd", linewidth=0.7)
    axes.set(
        yticks=range(len(SETS)), yticklabels=SETS.values(), xlabel="AUROC, a dot for each seed"
    )
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.45, 1), ncols=3, fontsize=9)
    _finish(figure, axes, "results-methods.png")


def differences(lines: list[dict[str, Any]]) -> None:
    """What each change does to the mean over unseen sets: an interval for each seed."""
    titles = page.PAIRED["ablation-paired"]
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    means = [line for line in lines if line["dataset"] == "mean of unseen sets"]
    seeds = list(dict.fromkeys(line["seed"] for line in means))
    for line in means:
        y = list(titles).index((line["method"], line["against"]))
        y += (seeds.index(line["seed"]) - (len(seeds) - 1) / 2) * 0.2
        away = [[line["value"] - line["low"]], [line["high"] - line["value"]]]
        axes.errorbar(line["value"], y, xerr=away, fmt="o", color="#0072b2", markersize=4)
    axes.axvline(0, color="#999999", linewidth=0.8)
    labels = [title.replace(": ", "\n") for title in titles.values()]
    axes.set(
        yticks=range(len(titles)),
        yticklabels=labels,
        xlabel="difference of the mean AUROC over unseen sets, 95 %, a line for each seed",
    )
    axes.invert_yaxis()
    _finish(figure, axes, "results-ablation.png")


def _finish(figure: Figure, axes: Axes, name: str) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(OUT / name, dpi=130)


def main() -> None:
    """Draw all."""
    mpl.rcParams["font.size"] = 10
    methods(page.benchmarks())
    differences(page.read_lines(page.RESULTS / "ablation-paired.jsonl"))


if __name__ == "__main__":
    main()
