"""The pictures of docs/results.md and docs/pretrained.md: python recipes/figures.py

From results/ alone.
"""

from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl
import page
import pretrained
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator
from paired import MEAN, PAIRS, read_lines
from sets import UNSEEN

from goen.io.results import Result, read_results

OUT = Path(__file__).parents[1] / "docs" / "pictures"
SETS = {
    "svhn": "SVHN",
    "mnist": "MNIST",
    "textures": "textures",
    "cifar100": "CIFAR-100 (50)",
    "cifar100-rest": "CIFAR-100 (other 50)",
    "tiny-imagenet": "Tiny ImageNet",
    "places": "places",
}
COLOURS = {
    "goen_distance": "#999999",
    "goen": "#d55e00",
    "knn_multi_scale": "#0072b2",
    "goen_m": "#009e73",
}
GATES = {"cifar10-w16": "#999999", "cifar10-fast": "#0072b2", page.BEST: "#009e73"}
NETWORKS = {
    "an ordinary network": "#0072b2",
    "networks of their own": "#999999",
    "GOEN's network": "#d55e00",
}


def methods(studies: dict[int, list[Result]]) -> None:
    """AUROC by set: a dot for each seed, hollow with flip averaging."""
    figure, axes = plt.subplots(figsize=(7.2, 5.4), layout="constrained")
    aurocs = [r for results in studies.values() for r in results if r.metric == "auroc"]
    for i, (method, colour) in enumerate(COLOURS.items()):
        for end, face, lower in (("", colour, 0.0), ("_flip_averaged", "none", 0.09)):
            offset = (i - 1.7) * 0.2 + lower
            points = [
                (r.value, list(SETS).index(r.dataset) + offset)
                for r in aurocs
                if r.method == method + end and r.dataset in SETS
            ]
            x, y = zip(*points, strict=True)
            title = page.BENCHED[method] if not end else "flip-averaged"
            axes.scatter(x, y, s=20, edgecolors=colour, facecolors=face, label=title)
    _label_sets(axes, list(SETS.values()), "AUROC, a dot for each seed", columns=4)
    _finish(figure, axes, "results-methods.png")


def gates(found: dict[str, list[dict[str, float]]]) -> None:
    """AUROC by set of the gates: a dot for each seed."""
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    for i, (name, colour) in enumerate(GATES.items()):
        points = [
            (seed[dataset], place + (i - 1) * 0.2)
            for seed in found[name]
            for place, dataset in enumerate(SETS)
        ]
        x, y = zip(*points, strict=True)
        axes.scatter(x, y, s=20, color=colour, label=name)
    _label_sets(axes, list(SETS.values()), "AUROC, a dot for each seed", columns=3)
    _finish(figure, axes, "results-gates.png")


def differences(lines: list[dict[str, Any]]) -> None:
    """The effect of each change on the mean over unseen sets: an interval for each seed."""
    pairs = PAIRS["ablation-paired"]
    places = [(pair.ours, pair.against) for pair in pairs]
    figure, axes = plt.subplots(figsize=(7.2, 3.6), layout="constrained")
    means = [line for line in lines if line["dataset"] == MEAN]
    seeds = list(dict.fromkeys(line["seed"] for line in means))
    for line in means:
        y: float = places.index((line["method"], line["against"]))
        y += (seeds.index(line["seed"]) - (len(seeds) - 1) / 2) * 0.2
        away = [[line["value"] - line["low"]], [line["high"] - line["value"]]]
        axes.errorbar(line["value"], y, xerr=away, fmt="o", color="#0072b2", markersize=4)
    axes.axvline(0, color="#999999", linewidth=0.8)
    axes.xaxis.set_major_locator(MultipleLocator(0.05))
    labels = [pair.title.replace(": ", "\n") for pair in pairs]
    axes.set(
        yticks=range(len(pairs)),
        yticklabels=labels,
        xlabel="difference of the mean AUROC over unseen sets (95 %)",
    )
    axes.invert_yaxis()
    _finish(figure, axes, "results-ablation.png")


def against_others(studies: dict[int, list[Result]], titles: dict[str, tuple[str, str]]) -> None:
    """The mean over unseen sets of every method, a dot for each seed, the best on top."""
    values: dict[str, list[float]] = {}
    for results, method in product(studies.values(), titles):
        found = {r.dataset: r.value for r in results if (r.method, r.metric) == (method, "auroc")}
        if found:
            values.setdefault(method, []).append(fmean(found[name] for name in UNSEEN))
    order = sorted(values, key=lambda method: fmean(values[method]))
    figure, axes = plt.subplots(figsize=(7.2, 6.4), layout="constrained")
    for network, colour in NETWORKS.items():
        points = [
            (value, place)
            for place, method in enumerate(order)
            if titles[method][1] == network
            for value in values[method]
        ]
        if points:
            x, y = zip(*points, strict=True)
            axes.scatter(x, y, s=22, color=colour, label=network)
    axes.set(
        yticks=range(len(order)),
        yticklabels=[titles[method][0] for method in order],
        xlabel="mean AUROC over unseen sets, a dot for each seed",
    )
    axes.grid(axis="y", color="#eeeeee")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="upper left")
    _finish(figure, axes, "results-baselines.png")


def pretrained_features(results: list[Result]) -> None:
    """AUROC by set of the bundled gate and of those with pretrained features, seed by seed."""
    titles = {
        pretrained.BUNDLED: ("the bundled gate, trained on CIFAR-10 alone", "#999999"),
        "probe": ("linear probe, two pretrained layers", "#56b4e9"),
        "probe_last": ("linear probe, the last pretrained layer", "#0072b2"),
        "w16_last": ("the bundled classifier, its layers and a pretrained one", "#009e73"),
    }
    sets = {"cifar100-all": "CIFAR-100", **SETS}
    shown = [*pretrained.NEAR, *pretrained.FAR]
    figure, axes = plt.subplots(figsize=(7.2, 4.4), layout="constrained")
    for i, (method, (title, colour)) in enumerate(titles.items()):
        points = [
            (r, shown.index(r.dataset) + (i - 1.5) * 0.2)
            for r in results
            if (r.method, r.metric) == (method, "auroc") and r.dataset in shown
        ]
        for r, y in points:
            axes.plot([r.low or r.value, r.high or r.value], [y, y], color=colour, linewidth=0.8)
        x, y = [r.value for r, _ in points], [place for _, place in points]
        axes.scatter(x, y, s=18, color=colour, label=title)
    label = "AUROC, a dot for each seed, with its 95 % interval over images"
    _label_sets(axes, [sets[name] for name in shown], label)
    _finish(figure, axes, "pretrained.png")


def _label_sets(axes: Axes, titles: list[str], label: str, columns: int = 1) -> None:
    """A line between the sets, which are rows from the top, their titles, and a legend above."""
    for y in range(len(titles) - 1):
        axes.axhline(y + 0.5, color="#dddddd", linewidth=0.7)
    axes.set(yticks=range(len(titles)), yticklabels=titles, xlabel=label)
    axes.invert_yaxis()
    anchor = (0.42, 1)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=anchor, ncols=columns, fontsize=9)


def _finish(figure: Figure, axes: Axes, name: str) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(OUT / name, dpi=130)


def main() -> None:
    """Draw all."""
    mpl.rcParams["font.size"] = 10
    gates(page.gates_by_seed())
    methods(page.benchmarks())
    against_others(*page.by_network("baselines"))
    differences(read_lines(page.RESULTS / "ablation-paired.jsonl"))
    pretrained_features(read_results(pretrained.OUT / "cifar10.jsonl"))


if __name__ == "__main__":
    main()
