"""
A gate for your own model
=========================

Any classifier of torch, its training images, and held-out images that it was not trained on. Here
a small network learns the digits 0 to 6; the digits 7 to 9 are out of distribution.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import goen

protocol = goen.data.protocol("digits")
torch.manual_seed(0)
model = nn.Sequential(
    *(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()),
    *(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
    *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 7)),
)
optimiser = torch.optim.Adam(model.parameters(), 1e-2)
images, labels = (
    torch.from_numpy(protocol.train.read()) / 255,
    torch.from_numpy(protocol.train.labels),
)
for _ in range(60):
    rows = torch.randint(len(images), (64,))
    nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
    optimiser.step()
    optimiser.zero_grad()

# %%
# The gate: the held-out images calibrate it and set the threshold for a false-alarm rate of 5 %.

gate = goen.Gate.fit(model, protocol.train, protocol.validation, false_alarm_rate=0.05)
known = gate.predict(protocol.test.read())
unseen_images = protocol.evaluation["unseen-digits"].images.read()
unseen = gate.predict(unseen_images)
print(f"digits 0 to 6 flagged: {known.is_ood.mean():.1%}")
print(f"digits 7 to 9 flagged: {unseen.is_ood.mean():.1%}")

# %%
# The unseen digits that the gate finds most unusual, and those that it lets pass.

order = unseen.p_value.argsort(kind="stable")
figure, axes = plt.subplots(2, 8, figsize=(8, 2.4))
for row, numbers in enumerate((order[:8], order[-8:])):
    for panel, number in zip(axes[row], numbers, strict=True):
        panel.imshow(unseen_images[number].transpose(1, 2, 0))
        panel.set_title(f"p = {unseen.p_value[number]:.2f}", fontsize=8)
        panel.axis("off")
figure.tight_layout()
