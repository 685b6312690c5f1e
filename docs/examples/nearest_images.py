"""
Why was it flagged? The nearest training images
===============================================

goen-m measures how far an image is from training images. ``gate.nearest`` returns those: an ID
image has relatives of its own class, an OOD image does not look like its nearest images.
"""

import matplotlib.pyplot as plt
import numpy as np

import goen

digits = goen.data.load_set("digits").take(range(1500))
train, held_out, test = digits.split({"train": 900, "held_out": 450, "test": 150}, 0).values()
letter = np.zeros((1, 3, 32, 32), np.uint8)  # an E
letter[..., 4:28, 9:13] = letter[..., 4:8, 9:23] = letter[..., 14:18, 9:23] = 255
letter[..., 24:28, 9:23] = 255


def rows(images):
    """Sixteen by sixteen grey levels in place of a network's features."""
    return {"pixels": images[:, 0, ::2, ::2].reshape(len(images), -1).astype(np.float32)}


gate = goen.Gate.fit_outputs(rows(train.read()), train.labels, rows(held_out.read()))
images = np.concatenate([test.read(range(3)), letter])
prediction = gate.predict_outputs(rows(images))
nearest = gate.nearest(rows(images), 4)

# %%
# Left the image, behind it the four nearest training images with their distances.

figure, axes = plt.subplots(len(images), 5, figsize=(6, 5.5))
for number, image in enumerate(images):
    found = nearest[number]["pixels"]
    pictures = [image, *train.read([one.row for one in found])]
    titles = [f"p = {prediction.p_value[number]:.3f}", *(f"{one.distance:.2f}" for one in found)]
    for panel, picture, title in zip(axes[number], pictures, titles, strict=True):
        panel.imshow(picture.transpose(1, 2, 0))
        panel.set_title(title, fontsize=8)
        panel.axis("off")
figure.tight_layout()
