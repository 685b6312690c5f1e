"""
The decisions for a folder of pictures
======================================

A gate takes folders and files as they are: pictures of any size and format are decoded, turned
upright and resized. ``goen score FOLDER`` does the same on the command line.
"""

import tempfile
from importlib import resources
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

import goen
from goen.data.sets.embedded import digits

folder = Path(tempfile.mkdtemp())
for name in ("china", "flower"):  # photographs of scikit-learn
    photograph = resources.files("sklearn.datasets.images") / f"{name}.jpg"
    (folder / f"{name}.jpg").write_bytes(photograph.read_bytes())
for row in (3, 5, 8):
    Image.fromarray(digits().read([row])[0].transpose(1, 2, 0)).save(folder / f"digit-{row}.png")

gate = goen.load("cifar10")  # the bundled gate
prediction = gate.predict(folder)
for one in prediction:
    print(f"{Path(one.path).name}: {one.class_name}, p = {one.p_value:.3f}, OOD: {one.is_ood}")

# %%
# Its classes are airplane, automobile, bird, cat, deer, dog, frog, horse, ship and truck. None of
# the pictures shows one, so a flag is right and a pass is a miss: how many OOD images are flagged
# is not guaranteed.

figure, axes = plt.subplots(1, len(prediction), figsize=(9, 2.6))
for panel, one in zip(axes, prediction, strict=True):
    panel.imshow(Image.open(one.path))
    decision = "flagged" if one.is_ood else "passed"
    panel.set_title(f"{one.class_name}?\n{decision}, p = {one.p_value:.3f}", fontsize=9)
    panel.axis("off")
figure.tight_layout()
