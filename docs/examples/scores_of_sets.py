"""
Scores of images that the gate knows, and of others
===================================================

The bundled gate classifies the ten classes of CIFAR-10. Its score is higher for images that are
less like those; the threshold is set for the false-alarm rate.
"""

import matplotlib.pyplot as plt
import numpy as np

import goen
from goen.data.sets.embedded import digits, noise, photographs

gate = goen.load("cifar10-w16")
sets = {
    "digits": digits().read(range(300)),
    "photographs": photographs().read(range(300)),
    "noise": noise(300, 0, stream=0).read(),
}
scores = {name: gate.predict(images).score for name, images in sets.items()}

figure, axes = plt.subplots(figsize=(7, 3))
low = min(values.min() for values in scores.values())
high = max(values.max() for values in scores.values())
for name, values in scores.items():
    axes.hist(values, np.linspace(low, high, 60), alpha=0.6, label=name)
axes.axvline(gate.threshold, color="black", linestyle="--", label="threshold")
axes.set(xlabel="score, higher = more OOD", ylabel="images")
axes.legend()
figure.tight_layout()

# %%
# What share of each set is flagged? None of them is CIFAR-10, so a flag is the right decision.

for name, images in sets.items():
    print(f"{name}: {gate.predict(images).is_ood.mean():.0%} flagged")
