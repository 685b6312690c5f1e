"""docs/pictures/goen-m-cues.png: python recipes/two_cues.py --data-dir DATA

Two cues of the gate cifar10-w16 on some images of each set.
"""

from pathlib import Path

import matplotlib as mpl
import numpy as np
import tyro
from matplotlib import pyplot as plt

import goen
from goen.detectors import GoenM

OUT = Path(__file__).parents[1] / "docs" / "pictures" / "goen-m-cues.png"
TITLES = {"svhn": "SVHN", "cifar100": "CIFAR-100 (50 classes)", "noise": "noise"}
COLOURS = ("#777777", "#d55e00", "#0072b2", "#009e73")
SHOWN = 500


def main(data_dir: Path | None = None) -> None:
    """Draw.

    Args:
        data_dir: a folder that holds image sets (else GOEN_DATA).
    """
    gate = goen.load("cifar10-w16")
    detector = gate.detector
    assert isinstance(detector, GoenM)
    p = goen.data.protocol("cifar10", data_dir=data_dir)
    sets = {"CIFAR-10 test": p.test}
    sets |= {title: p.evaluation[name].images for name, title in TITLES.items()}
    rng = np.random.default_rng(0)
    mean, std = detector.mean_.numpy(), detector.std_.numpy()
    mpl.rcParams["font.size"] = 10
    figure, axes = plt.subplots(figsize=(7.2, 5), layout="constrained")
    for (name, images), colour in zip(sets.items(), COLOURS, strict=True):
        rows = np.sort(rng.choice(len(images), SHOWN, replace=False))
        cues = gate.predict(images.take(rows)).cues
        x, y = ((cues[layer] - mean[i]) / std[i] for i, layer in enumerate(detector.features))
        axes.scatter(x, y, s=7, color=colour, alpha=0.5, linewidths=0, label=name)
    left, right = axes.get_xlim()
    low, high = axes.get_ylim()
    line = np.array([left, right])
    for total in range(-2, 24, 4):
        axes.plot(line, total - line, color="#bbbbbb", linewidth=0.7, zorder=0)
    axes.set(
        xlim=(left, right),
        ylim=(low, high),
        xlabel="distance in layer2 (texture), standard deviations",
        ylabel="distance in layer4 (semantics), standard deviations",
        title="Grey lines: equal score for equal entropy",
    )
    axes.legend(frameon=False, markerscale=2)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(OUT, dpi=130)


if __name__ == "__main__":
    tyro.cli(main)
