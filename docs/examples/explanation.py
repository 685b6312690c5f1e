"""
Why was it flagged? One p-value for each layer
==============================================

Each cue of the score has its own p-value: a small one in a middle layer speaks of texture, one in
the last layer of what is shown.
"""

from importlib import resources

import matplotlib.pyplot as plt
import numpy as np

import goen
from goen.data.sets.embedded import digits, noise

gate = goen.load("cifar10-w16")
photographs = resources.files("sklearn.datasets.images")
files = [(photographs / name).read_bytes() for name in ("china.jpg", "flower.jpg")]
images = np.stack([goen.read_image(file, gate.image_size) for file in files])
images = np.concatenate([images, digits().read([3]), noise(1, 0).read()])
prediction = gate.predict(images)
for number in range(len(images)):
    print(f"{prediction.classes[prediction.label[number]]}: {prediction.explain(number)}")

# %%
# The same as bars: the longer, the more unusual.

figure, axes = plt.subplots(2, len(images), figsize=(9, 4), height_ratios=[2, 1])
names = list(prediction.cue_p_values)
for number in range(len(images)):
    axes[0, number].imshow(images[number].transpose(1, 2, 0))
    axes[0, number].set_title("flagged" if prediction.is_ood[number] else "passed")
    axes[0, number].axis("off")
    unusual = [1 - prediction.cue_p_values[name][number] for name in names]
    axes[1, number].barh(names, unusual)
    axes[1, number].set(xlim=(0, 1), xlabel="1 - p")
    if number:
        axes[1, number].set_yticklabels([])
figure.tight_layout()
