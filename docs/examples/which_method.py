"""
Which method for my model?
==========================

One pass of your network over each set, every method on the same outputs, one table. Here a small
network has learnt the digits 0 to 6; the digits 7 to 9 are near to these, photographs are far.
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import goen

digits = goen.data.protocol("digits")
torch.manual_seed(0)
model = nn.Sequential(
    nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()),
    nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
    nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()),
    nn.Linear(128, 7),
)
optimiser = torch.optim.Adam(model.parameters(), 1e-2)
images, labels = (torch.from_numpy(a) for a in (digits.train.read(), digits.train.labels))
for _ in range(150):
    rows = torch.randint(len(images), (64,))
    nn.functional.cross_entropy(model(images[rows] / 255), labels[rows]).backward()
    optimiser.step()
    optimiser.zero_grad()

# %%
# The images: what the model was trained on, held-out ID images, test images, and OOD images, which
# fit nothing.

protocol = goen.Protocol.from_sets(
    digits.train,
    digits.validation,
    digits.test,
    ood={
        "near": {"digits 7 to 9": digits.evaluation["unseen-digits"].images},
        "far": {"photographs": digits.evaluation["photographs"].images},
    },
    calibration_ood={},
)
table = goen.bench(
    model, protocol, detectors=["max_softmax", "energy", "react", "vim", "knn", "goen_m"]
)
print(table)

# %%
# A method that is good on far images need not be on near ones, and the order is another for another
# network. ``table.best`` has the highest mean; the methods within chance of it are as good.

print(f"best: {table.best}, within chance: {', '.join(table.ranking.within_chance) or 'none'}")
figure, axes = plt.subplots(figsize=(7, 3))
for offset, (kind, name) in enumerate({"near": "digits 7 to 9", "far": "photographs"}.items()):
    auroc = {r.method: r.value for r in table.results if (r.dataset, r.metric) == (name, "auroc")}
    places = [place + 0.4 * offset for place in range(len(auroc))]
    axes.bar(places, auroc.values(), 0.4, label=f"{kind}: {name}")
axes.set_xticks([place + 0.2 for place in range(len(auroc))], [table.titles[m] for m in auroc])
axes.axhline(0.5, color="black", linestyle=":", label="chance")
axes.set(ylabel="AUROC", ylim=(0, 1.25))
axes.legend(ncols=3, loc="upper center")
figure.tight_layout()
