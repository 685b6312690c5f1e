"""
A camera whose images change
============================

A monitor reads p-values one after the other and raises an alarm when the images have changed.
Without a change, the probability that it ever raises one is at most the number chosen here.
"""

import matplotlib.pyplot as plt
import numpy as np

import goen
from goen.data.transforms.corruptions import corrupt

train, held_out, stream = (
    goen.data.load_set("digits").split({"train": 900, "held_out": 500, "stream": 397}, 0).values()
)


def rows(images):
    """Eight by eight grey levels in place of a network's features."""
    return images[:, 0, 2::4, 2::4].reshape(len(images), -1).astype(np.float32)


gate = goen.Gate.fit_outputs(
    rows(train.read()), train.labels, rows(held_out.read()), detector="knn"
)
same, foggy = np.split(stream.read(), [250])
foggy = corrupt(foggy, "fog", 4)

monitor = goen.Monitor(gate, alarm_probability=0.01)
values = []
for image in np.concatenate([same, foggy]):
    state = monitor.update(gate.predict_outputs(rows(image[None])))
    values.append(state.log_e_value)
print(state)

# %%
# The evidence against "nothing has changed" stays low for 250 images, then it grows.

figure, axes = plt.subplots(figsize=(7, 3))
axes.plot(values, label="log e-value")
axes.axhline(state.alarm_line, color="black", linestyle="--", label="alarm")
axes.axvline(250, color="grey", linestyle=":", label="fog from here")
axes.set(xlabel="image", ylabel="log e-value")
axes.legend()
figure.tight_layout()
