"""
A gate on a pretrained network
==============================

Few images are enough if the network has seen many: a linear classifier on EfficientNet-Lite0, whose
weights are a Python package (``goen[pretrained]``), learns two kinds of pictures from 150 patches.
"""

import matplotlib.pyplot as plt
import numpy as np

import goen
from goen.training import fit_probe

patches = goen.data.load_set("photographs")  # half a temple, half a flower, 32 x 32 pixels each
parts = {"train": 150, "validation": 60, "held_out": 150, "test": 100}
train, validation, held_out, test = patches.split(parts, 0).values()
probe = fit_probe("efficientnet-lite0", train, validation, size=64)

# %%
# The network itself is not changed: the probe is its classifier, chosen with the validation images.
# Other images set the threshold of the gate.

gate = goen.Gate.fit(probe.network, train, held_out, calibration=validation)
found = gate.predict(test)
print(f"accuracy {(found.label == test.labels).mean():.0%}, {found.is_ood.mean():.0%} flagged")

# %%
# Neither handwritten digits nor noise are temples or flowers.

others = {name: goen.data.load_set(name).read(range(100)) for name in ("digits", "noise")}
predictions = {"temple and flower": found, **{n: gate.predict(i) for n, i in others.items()}}
for name, prediction in predictions.items():
    print(f"{name}: {prediction.is_ood.mean():.0%} flagged")

figure, axes = plt.subplots(figsize=(7, 3))
scores = np.concatenate([p.score for p in predictions.values()])
for name, prediction in predictions.items():
    axes.hist(prediction.score, np.linspace(scores.min(), scores.max(), 50), alpha=0.6, label=name)
axes.axvline(gate.threshold, color="black", linestyle="--", label="threshold")
axes.set(xlabel="score, higher = more OOD", ylabel="images")
axes.legend()
figure.tight_layout()
