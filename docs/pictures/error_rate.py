"""Draws docs/pictures/error-rate.png: .venv/bin/python docs/pictures/error_rate.py"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from goen.functional.selective import select, selections
from goen.metrics import risk_coverage_curve

BLUE, RED, DARK, GREY = "#0072B2", "#D55E00", "#222222", "#888888"
RATE, CONFIDENCE, HELD_OUT, GATES = 0.02, 0.95, 2000, 300


def images(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Uncertainties, and answers that are wrong more often where it is high."""
    uncertainty = rng.random(count)
    return uncertainty, rng.random(count) < 0.4 * uncertainty**4


def main() -> None:
    rng = np.random.default_rng(1)
    uncertainty, wrong = images(rng, HELD_OUT)
    found = select(uncertainty, wrong, RATE, CONFIDENCE)
    assert found is not None
    candidates = selections(uncertainty, wrong, CONFIDENCE)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    coverage, risk = risk_coverage_curve(uncertainty, wrong)
    left.plot(coverage, risk, color=BLUE, lw=1.5, label="held-out images")
    shares = [one.count / HELD_OUT for one in candidates]
    left.plot(shares, [c.bound for c in candidates], "v", color=RED, ms=5, label="bounds")
    left.axhline(RATE, color=DARK, lw=1, ls="--")
    left.text(0.02, RATE + 0.001, f"the rate, {RATE:.0%}", color=DARK)
    left.axvline(found.count / HELD_OUT, color=GREY, lw=1)
    left.text(found.count / HELD_OUT - 0.01, 0.066, "accepted", ha="right", color=GREY)
    left.set(ylim=(0, 0.1), xlim=(0, 1.01), xlabel="share of images accepted")
    left.set(ylabel="share of errors among them", title="One gate: as many as a bound allows")
    left.legend(loc="upper left", frameon=False)
    whole, errors = images(rng, 200_000)
    points = []
    for _ in range(GATES):
        one = select(*images(rng, HELD_OUT), RATE, CONFIDENCE)
        accepted = whole < one.limit if one is not None else np.zeros(len(whole), bool)
        points.append((accepted.mean(), errors[accepted].mean() if accepted.any() else 0.0))
    x, y = np.array(points).T
    right.plot(x, y, "o", color=BLUE, ms=3, alpha=0.4)
    right.axhline(RATE, color=DARK, lw=1, ls="--")
    right.set(xlabel="share of new images accepted", ylabel="share of errors among them")
    above = int((y > RATE).sum())
    right.set(title=f"{GATES} gates: {above} above the rate", xlim=(0, 1.01), ylim=(0, 0.03))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(__file__).parent / "error-rate.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
