"""What goen adds to the network: to a training step, and to a forward pass.

    python benchmarks/gate.py

ResNet-18 of width 16, batches of 128 images of 32×32. Training: reading, augmenting, the schedule
and the book-keeping of `train_backbone`, against bare forward, backward and SGD step on a ready
batch. Predicting: `Gate.predict` (checks, cues, head, p-values, decision) against the bare
network. Interleaved, medians of the ratios.

Goals: 1.05 each.
"""

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from goen.data.imageset import ImageSet
from goen.detectors import Goen
from goen.detectors.calibration_head import CalibrationHead
from goen.extraction import extract
from goen.gate import Gate, HeldOut
from goen.models import NetworkConfig, ResNet18
from goen.training import TrainingConfig, train_backbone
from timing import header, interleave, ratio, report

BATCH, STEPS, REPEATS = 128, 8, 11


def main() -> None:
    header()
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (STEPS * BATCH, 3, 32, 32), dtype=np.uint8)
    train = ImageSet("train", pixels, np.arange(len(pixels)) % 10, tuple("0123456789"))
    tiny = train.take([0])
    config = TrainingConfig(epochs=1, batch_size=BATCH)
    network_config = NetworkConfig(width=16)
    network = ResNet18(network_config)
    optimiser = torch.optim.SGD(network.parameters(), 0.1, 0.9, weight_decay=5e-4, nesterov=True)
    images = torch.from_numpy(train.read(slice(0, BATCH)))
    labels = torch.from_numpy(train.labels[:BATCH])

    def bare_steps() -> None:
        network.train()
        for _ in range(STEPS):
            optimiser.zero_grad()
            logits = network(images).logits
            cross_entropy(logits, labels, label_smoothing=0.1).backward()
            optimiser.step()

    def our_steps() -> None:
        train_backbone(network_config, config, train, tiny)

    taken = interleave({"bare": bare_steps, "ours": our_steps}, REPEATS)
    report("training step / bare step", ratio(taken, "ours", "bare"), 1.05)

    gate = a_gate(network, train)

    def forward() -> None:
        with torch.inference_mode():
            network(images)

    network.eval()
    taken = interleave({"forward": forward, "predict": lambda: gate.predict(images)}, 100)
    report("Gate.predict / bare forward", ratio(taken, "predict", "forward"), 1.05)


def a_gate(network: ResNet18, train: ImageSet) -> Gate:
    outputs = extract(network, train)
    detector = Goen(feature="z").fit(outputs, torch.from_numpy(train.labels))
    return Gate(
        network=network.eval(),
        detector=detector.with_head(CalibrationHead().eval(), None),
        held_out=HeldOut(np.random.default_rng(1).random(2000)),
        false_alarm_rate=0.05,
        classes=train.classes,
        image_size=(32, 32),
    )


if __name__ == "__main__":
    main()
