"""Draws docs/pictures/monitor.png: .venv/bin/python docs/pictures/monitor.py"""

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from goen.monitor import Monitor

BLUE, RED, DARK, GREY = "#0072B2", "#D55E00", "#222222", "#888888"
CHANGE, LENGTH = 2000, 2600


def main() -> None:
    rng = np.random.default_rng(3)
    scores = rng.normal(size=LENGTH)
    moved = (np.arange(LENGTH) >= CHANGE) & (rng.random(LENGTH) < 0.1)
    scores[moved] += 3
    monitor = Monitor.from_scores(rng.normal(size=1000), alarm_probability=0.01, seed=0)
    state = monitor.update(scores)
    images = np.arange(1, LENGTH + 1)
    figure, (top, middle, bottom) = plt.subplots(
        3, 1, figsize=(9, 6.4), sharex=True, layout="constrained", height_ratios=(1, 1, 1.3)
    )
    for axes, values in ((top, scores), (middle, state.batch.p_values[:, 0])):
        axes.scatter(images[~moved], values[~moved], s=3, color=BLUE, lw=0)
        axes.scatter(images[moved], values[moved], s=12, color=RED, lw=0)
    top.set(title="Scores: a tenth of the images moves at image 2,000", ylabel="score")
    middle.set(title="P-values: each among all scores before it", ylabel="p-value", ylim=(0, 1))
    bottom.plot(images, state.batch.log_e_value[:, 0], color=DARK, lw=1.5)
    bottom.axhline(state.alarm_line, color=RED, lw=1.2)
    bottom.text(
        5,
        state.alarm_line + 0.3,
        "alarm: without a change it comes here with probability 1 % at most",
        color=RED,
    )
    assert state.alarm_at is not None
    assert state.since is not None
    bottom.axvline(state.alarm_at, color=RED, lw=1)
    bottom.axvspan(state.since, state.alarm_at, color=RED, alpha=0.15, lw=0)
    bottom.set(
        title="Log e-value", ylabel="log e-value", xlabel="image", xlim=(0, LENGTH), ylim=(-2.5, 14)
    )
    bottom.text(
        state.since - 15,
        8.5,
        f"alarm at image {state.alarm_at:,}\nsince about image {state.since:,}",
        ha="right",
        color=DARK,
    )
    for axes in (top, middle, bottom):
        axes.spines[["top", "right"]].set_visible(False)
        axes.axvline(CHANGE, color=GREY, lw=1, ls="--")
    figure.savefig(Path(__file__).parent / "monitor.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
