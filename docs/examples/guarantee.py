"""
The false-alarm rate that you choose is kept
============================================

The threshold comes from held-out images alone. For any rate, new images of the same kind are
flagged at most that often, on average over held-out sets: this follows from the ranks, whatever
the score is.
"""

import matplotlib.pyplot as plt
import numpy as np

import goen

rng = np.random.default_rng(0)
rates = np.array([0.02, 0.05, 0.1, 0.2, 0.3])
flagged = np.zeros((20, len(rates)))
for repetition in range(len(flagged)):
    train, held_out, new = (rng.normal(size=(n, 8)).astype(np.float32) for n in (300, 300, 1000))
    gate = goen.Gate.fit_outputs(train, None, held_out, detector="knn")
    for column, rate in enumerate(rates):
        flagged[repetition, column] = (
            gate.with_false_alarm_rate(rate).predict_outputs(new).is_ood.mean()
        )

figure, axes = plt.subplots(figsize=(5, 3.5))
axes.plot([0, 0.3], [0, 0.3], color="grey", linestyle="--", label="the rate that was chosen")
axes.errorbar(rates, flagged.mean(axis=0), flagged.std(axis=0), fmt="o", label="measured, 20 gates")
axes.set(xlabel="false-alarm rate chosen", ylabel="share of new ID rows flagged")
axes.legend()
figure.tight_layout()

# %%
# The bars are the spread of single gates: one gate's own rate may be higher than the one chosen,
# the average over gates is not.

for rate, mean in zip(rates, flagged.mean(axis=0), strict=True):
    print(f"chosen {rate:.2f}, measured {mean:.3f}")
