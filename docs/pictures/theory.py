"""Draws docs/pictures/theory-*.png: .venv/bin/python docs/pictures/theory.py

One picture per claim of the paper's appendix; docs/theory.md says what they show.
"""

from io import BytesIO
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import chi2, ncx2, norm

from goen.detectors.calibration_head import HeadConfig, probability_of_ood, train_head
from goen.functional.bounds import log_density_bounds, mixture_log_density
from goen.functional.whitening import whitener
from goen.metrics import reliability_curve

BLUE, ORANGE, GREEN, DARK, GREY = "#0072B2", "#D55E00", "#009E73", "#222222", "#888888"
STYLE = {"axes.spines.top": False, "axes.spines.right": False, "font.size": 10}
HERE = Path(__file__).parent


# -- the least distance and the density ------------------------------------------------------


def distance_on_a_line(axes: Axes) -> None:
    x = torch.linspace(-3.4, 3.4, 681, dtype=torch.float64)[:, None]
    whitening = whitener(torch.tensor([[-1.0], [1.0]]), torch.eye(1))
    priors = torch.tensor([0.5, 0.5])
    density = mixture_log_density(whitening.distances(x), priors)
    low, high = log_density_bounds(whitening.distances(x), priors)
    axes.fill_between(x[:, 0], low, high, color=GREY, alpha=0.25, lw=0, label="what M allows")
    axes.plot(x, density, color=BLUE, lw=2, label="log density")
    axes.plot(x, high, color=ORANGE, lw=1.5, ls="--", label="−M / 2")
    marks = torch.tensor([[0.0], [1.9]])
    values = mixture_log_density(whitening.distances(marks), priors)
    axes.plot(marks, values, "o", color=DARK, ms=6)
    axes.annotate(
        "A: M = 1.00\nfarther, but denser", (0, values[0]), (0, -2.15), ha="center", fontsize=9,
        arrowprops={"arrowstyle": "-", "color": DARK, "lw": 0.8},
    )  # fmt: skip
    axes.text(1.78, -1.3, "B: M = 0.81", fontsize=9, ha="right")
    axes.set(title="Two classes at ±1", xlabel="feature", ylabel="log density, no constant")
    axes.set(ylim=(-3.4, 0.75))
    axes.legend(loc="upper center", fontsize=8.5, frameon=False, ncols=3, columnspacing=1.2)


def distance_of_many(axes: Axes) -> None:
    rng = np.random.default_rng(0)
    priors = torch.from_numpy(np.geomspace(1, 0.01, 10) / np.geomspace(1, 0.01, 10).sum())
    means = torch.from_numpy(2 * rng.normal(size=(10, 2)))
    rows = torch.from_numpy(rng.uniform(-7, 7, size=(900, 2)))
    distances = whitener(means, torch.eye(2)).distances(rows)
    density = mixture_log_density(distances, priors)
    half = -distances.amin(dim=1) / 2
    edge = np.array([-12.0, 0.0])
    axes.plot(edge, edge, color=ORANGE, lw=1.5, ls="--", label="upper bound: −M / 2")
    low = edge + float(priors.min().log())
    axes.plot(edge, low, color=DARK, lw=1.5, ls=":", label="lower bound: with the least prior")
    axes.scatter(half, density, s=5, color=BLUE, lw=0, alpha=0.7)
    axes.set(title="Ten classes, shares 40 % to 0.4 %", xlabel="−M / 2", ylabel="log density")
    axes.set(xlim=(-9, 0.3), ylim=(-15, 1.2))
    axes.legend(loc="lower right", fontsize=8.5, frameon=False)


# -- two scales ------------------------------------------------------------------------------


def auroc_of_distance(dims: int, shift: float) -> float:
    """Of a squared distance in `dims` dimensions to OOD moved by `shift` deviations."""
    ranks = (np.arange(500) + 0.5) / 500
    return float(ncx2.sf(chi2.ppf(ranks, dims), dims, shift**2).mean())


def scales_ratio(axes: Axes) -> None:
    rho = np.linspace(-0.97, 0.97, 195)
    both = norm.cdf(2 / np.sqrt(1 - rho**2) / np.sqrt(2))
    axes.plot(rho, both, color=BLUE, lw=2)
    axes.axhline(norm.cdf(np.sqrt(2)), color=ORANGE, lw=2, ls="--")
    axes.axhline(0.5, color=DARK, lw=2, ls=":")
    axes.text(0, 0.955, "both scales", color=BLUE, ha="center", fontsize=10)
    axes.text(0, 0.882, "scale a alone: it moved by 2", color=ORANGE, ha="center", fontsize=10)
    axes.text(0, 0.52, "scale b alone: it did not move", color=DARK, ha="center", fontsize=10)
    axes.set(title="The true likelihood ratio", xlabel="correlation of the two scales")
    axes.set(ylabel="AUROC", ylim=(0.47, 1.015), xticks=[-1, -0.5, 0, 0.5, 1])


def scales_distance(axes: Axes) -> None:
    added = np.array([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512])
    axes.axhline(norm.cdf(4 / np.sqrt(2)), color=BLUE, lw=2)
    axes.text(
        550, 0.985, "likelihood ratio, moved by 4", color=BLUE, fontsize=10, ha="right", va="top"
    )
    for shift, marker, style in ((4, "o", "-"), (3, "s", "--")):
        values = [auroc_of_distance(8 + more, shift) for more in added]
        label = f"distance, scale a moved by {shift}"
        axes.plot(added, values, style, marker=marker, ms=4, color=ORANGE, lw=1.8, label=label)
    axes.axhline(0.5, color=DARK, lw=1, ls=":")
    axes.set(title="The distance, 8 dimensions and more", ylim=(0.47, 1.015))
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks([0, 2, 8, 32, 128, 512], ["0", "2", "8", "32", "128", "512"])
    axes.minorticks_off()
    axes.set(xlabel="dimensions of scale b, which did not move", ylabel="AUROC", xlim=(-0.3, 620))
    axes.legend(loc="lower left", fontsize=8.5, frameon=False, bbox_to_anchor=(0, 0.06))


# -- the condition number --------------------------------------------------------------------


def normalised_condition(variances: np.ndarray) -> float:
    """κ of E[f f^T / |f|²] for a Gaussian f with these variances, largest first, least last.

    E[f_i² / |f|²] is the integral over t > 0 of v_i / (1 + 2 v_i t) · Π_j (1 + 2 v_j t)^(-1/2).
    With t = e^s it is smooth and dies out on both sides, so a plain sum is exact.
    """
    t = np.exp(np.linspace(-35, 35, 1401))
    product = np.exp(-0.5 * np.log1p(2 * t * variances[:, None]).sum(axis=0))
    first, last = (np.sum(v * t / (1 + 2 * v * t) * product) for v in variances[[0, -1]])
    return float(first / last)


def condition_of_gaussians(axes: Axes) -> None:
    before = np.geomspace(1.001, 1e4, 13)
    families = (
        ("one large, 63 equal", ORANGE, "-", lambda k: np.r_[k, np.ones(63)]),
        ("512, half large", GREEN, "-.", lambda k: np.repeat([k, 1.0], 256)),
        ("64, falling evenly", BLUE, "-", lambda k: np.geomspace(k, 1, 64)),
        ("2 dimensions: √κ", DARK, "--", lambda k: np.array([k, 1.0])),
    )
    axes.plot(before, before, color=GREY, lw=1, ls=":", label="unchanged")
    for name, color, style, variances in families:
        after = [normalised_condition(variances(k)) for k in before]
        axes.plot(before, after, style, color=color, lw=2, label=name)
    axes.plot(1, 9, "X", color=DARK, ms=9)
    axes.text(1.3, 12.5, "1 → 9:\nnot elliptical", fontsize=9, va="bottom", color=DARK)
    axes.set(title="Mean zero: κ falls", xlabel="κ of raw features", ylabel="κ of unit vectors")
    axes.set(xscale="log", yscale="log", xlim=(0.7, 1.4e4), ylim=(0.7, 1.4e4))
    axes.legend(loc="upper left", fontsize=8.5, frameon=False, bbox_to_anchor=(0, 1.02))


def condition_around_means(axes: Axes) -> None:
    spread = np.linspace(0, 0.8, 81)
    raw = 1 + 100 * (1 - np.exp(-(spread**2)))
    unit = radial_condition(dim=16, length=10.0)
    axes.plot(spread, raw, color=ORANGE, lw=2)
    axes.axhline(unit, color=BLUE, lw=2, ls="--")
    axes.text(0.79, unit * 0.93, f"unit vectors: {unit:.1f}", color=BLUE, ha="right", va="top")
    axes.text(0.42, 32, "raw features", color=ORANGE, ha="right")
    axes.set(title="One class, mean 10 deviations away", yscale="log", ylim=(0.8, 80))
    axes.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    axes.set(xlabel="spread of the length (sd of its log)", ylabel="κ of the tied covariance")


def radial_condition(dim: int, length: float) -> float:
    """κ of the covariance of unit vectors from N(length · e, I) in `dim` dimensions."""
    rng = np.random.default_rng(0)
    g = rng.normal(size=(400_000, 2))
    along, squared = g[:, 0] + length, g[:, 1] ** 2 + rng.chisquare(dim - 2, 400_000)
    size = along**2 + squared
    return float(np.mean(squared / size) / (dim - 1) / np.var(along / np.sqrt(size)))


# -- the head --------------------------------------------------------------------------------

MOVED = torch.tensor([1.0, -1.0, 0.5])


def cues(count: int, ood: bool, seed: int) -> torch.Tensor:
    """Three Gaussian cues, those of OOD moved: the posterior is known."""
    noise = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return noise + MOVED if ood else noise


def head_against_posterior(axes: Axes, head: torch.nn.Module) -> None:
    rows = torch.cat([cues(700, False, 10), cues(700, True, 11)])
    posterior = torch.sigmoid(rows @ MOVED - MOVED @ MOVED / 2)
    with torch.no_grad():
        u = torch.sigmoid(head(rows))
    axes.scatter(posterior, u, s=5, color=BLUE, lw=0, alpha=0.6)
    axes.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":")
    axes.plot([0, 1], [0.05, 0.95], color=ORANGE, lw=2, ls="--")
    axes.text(0.42, 0.70, "trained head", color=BLUE, ha="right")
    axes.text(0.60, 0.50, "0.05 + 0.9 P(OOD)", color=ORANGE)
    axes.set(title="Half of the images OOD", xlabel="true P(OOD | cues)", ylabel="u")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))


def head_at_prevalence(axes: Axes, head: torch.nn.Module) -> None:
    rows = torch.cat([cues(60_000, False, 20), cues(6_667, True, 21)])
    is_ood = np.repeat([False, True], [60_000, 6_667])
    with torch.no_grad():
        p = probability_of_ood(head(rows)).double().numpy()
    moved = p / 9 / (p / 9 + 1 - p)
    axes.plot([0, 1], [0, 1], color=GREY, lw=1, ls=":")
    for values, color, marker, style in ((p, ORANGE, "o", "-"), (moved, BLUE, "s", "--")):
        bins = [b for b in reliability_curve(values, is_ood, num_bins=10) if b.count >= 50]
        said, observed = [b.mean_predicted for b in bins], [b.observed for b in bins]
        axes.plot(said, observed, style, color=color, marker=marker, lw=1.8)
    axes.text(0.98, 0.02, "(u − 0.05) / 0.9 as it stands", color=ORANGE, ha="right")
    axes.text(0.46, 0.62, "odds × 1/9", color=BLUE, ha="right")
    axes.set(title="One image in ten OOD", xlabel="P(OOD) said", ylabel="share that is OOD")
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))


# -- all -------------------------------------------------------------------------------------


def save(figure: Figure, path: Path) -> None:
    """In 64 colours: a third of the bytes, and the eye sees no difference."""
    whole = BytesIO()
    figure.savefig(whole, dpi=110)
    Image.open(whole).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(
        path, optimize=True
    )


@plt.rc_context(STYLE)
def main(folder: Path = HERE) -> None:
    ood = {"ood": cues(8_000, True, 1)}
    head, _ = train_head(cues(8_000, False, 0), ood, HeadConfig(epochs=12, batch_size=256))
    pictures = {
        "distance": (distance_on_a_line, distance_of_many),
        "scales": (scales_ratio, scales_distance),
        "condition": (condition_of_gaussians, condition_around_means),
        "head": (
            lambda axes: head_against_posterior(axes, head),
            lambda axes: head_at_prevalence(axes, head),
        ),
    }
    for name, panels in pictures.items():
        figure, both = plt.subplots(1, 2, figsize=(9.2, 3.9), layout="constrained")
        for panel, axes in zip(panels, both, strict=True):
            panel(axes)
            axes.title.set(fontsize=12, weight="bold")
        save(figure, folder / f"theory-{name}.png")
        plt.close(figure)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
