"""
Unusual training images
=======================

A detector scores training images as well: those far from the others are often mislabelled or
damaged. Two thirds of the digits fit the detector, the last third is looked at; twelve of its
images were damaged.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch

import goen

fitted, checked = goen.data.load_set("digits").split({"fitted": 1200, "checked": 597}, 0).values()
pixels = checked.read()
damaged = np.random.default_rng(0).choice(len(pixels), 12, replace=False)
pixels[damaged] = 255 - pixels[damaged]


def outputs(images):
    """Eight by eight grey levels in place of a network's features."""
    rows = torch.from_numpy(images[:, 0, 2::4, 2::4].reshape(len(images), -1).astype(np.float32))
    return goen.Outputs(torch.zeros(len(rows), 10), {"pixels": rows})


knn = goen.detectors.KNN(k=5).fit(outputs(fitted.read()), torch.from_numpy(fitted.labels))
scores = knn.score(outputs(pixels)).numpy()
order = np.argsort(-scores)
print(f"{np.isin(order[:12], damaged).sum()} of the 12 damaged images are among the first 12")

# %%
# The first sixteen:

figure, axes = plt.subplots(2, 8, figsize=(8, 2.4))
for panel, number in zip(axes.flat, order[:16], strict=True):
    panel.imshow(pixels[number].transpose(1, 2, 0))
    panel.set_title(f"{scores[number]:.2f}", fontsize=8)
    panel.axis("off")
figure.tight_layout()
