"""What goen adds to the network: to a training step, and to a forward pass.

    python benchmarks/gate.py

ResNet-18 of width 16, batches of 128 images of 32×32. Training: reading, augmenting, the schedule
and the book-keeping of `train_backbone`, against bare forward, backward and SGD step on a ready
batch. Predicting: `Gate.predict` (checks, cues, head, p-values, decision) against the bare
network, and the same with the gate cifar10-w16.

Predicting with many classes: goen-m on one layer of width 2,048 whose features lie in a narrow cone
(those of a sigmoid), 5,000 rows in the bank, 1,000 classes, and a network so light that the gate's
own cost shows; against the bare network and one product of the batch with the bank.

Interleaved, medians of the ratios. Goals: 1.05 each, 1.1 with many classes.

    OMP_NUM_THREADS=1 python benchmarks/gate.py --many      these rows alone, on one thread

Measured on two cores of an AMD EPYC (KVM, 32 MB of third-level cache), Python 3.11.7, torch
2.13.0+cpu, one thread, while the machine ran five times as many processes as it has cores; with
AVX-512 and, in brackets, with ATEN_CPU_CAPABILITY=avx2:

    training step / bare step                  0.92
    Gate.predict / bare forward                0.98 to 1.02   (1.01)
    bundled Gate.predict / bare forward        0.99 to 1.04   (1.02)
    many classes, batch 1                      1.41 to 1.44   (1.54)   not met
    many classes, batch 8                      1.16 to 1.25   (1.17)   not met
    many classes, batch 128                    1.07 to 1.12   (1.11)   met in two runs of five

With many classes they were 11.9, 4.9 and 1.75 when the bank was centred anew for every batch. What
is left at batch 1 is some two hundred small operations, 0.4 ms when the caches are warm. They are
not: the bank has 41 MB, and each product leaves nothing else in a cache of 32 MB. On two threads
nothing could be measured beside so much other work.
"""

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import goen
from goen.data.imageset import ImageSet
from goen.data.input_spec import ImageInputs
from goen.detectors import Goen, GoenM
from goen.detectors.calibration_head import CalibrationHead
from goen.extraction import extract
from goen.features.extractor import FeatureExtractor
from goen.gate import Gate, HeldOut
from goen.models import NetworkConfig, ResNet18
from goen.training import TrainingConfig, train_backbone
from timing import header, interleave, ratio, report

BATCH, STEPS, REPEATS = 128, 8, 11
WIDTH, CLASSES, ROWS = 2048, 1000, 5000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--many", action="store_true", help="only the rows with many classes")
    many_alone = parser.parse_args().many
    header()
    if not many_alone:
        training_and_predicting()
    many_classes()


def training_and_predicting() -> None:
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

    for name, gate in {
        "Gate.predict": a_gate(network, train),
        "bundled Gate.predict": goen.load("cifar10-w16"),
    }.items():
        actions = {
            "forward": lambda gate=gate: bare(gate.network, images),
            "predict": lambda gate=gate: gate.predict(images),
        }
        taken = interleave(actions, 100)
        report(f"{name} / bare forward", ratio(taken, "predict", "forward"), 1.05)


@torch.inference_mode()
def bare(network: nn.Module, images: Tensor) -> None:
    network(images)


def many_classes() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, WIDTH, 8, 8),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Sigmoid(),
        nn.Linear(WIDTH, CLASSES),
    ).eval()
    images = torch.randint(0, 256, (ROWS + 1000, 3, 32, 32), dtype=torch.uint8)
    gate = wide_gate(FeatureExtractor(model, "3"), images)
    bank = gate.detector.bank_.unit["3"]
    print(f"squared length of the rows' mean: {float(bank.mean(dim=0).square().sum()):.4f}")
    for batch in (1, 8, 128):
        some, queries = images[:batch], bank[:batch].clone()
        product = torch.empty(batch, len(bank))
        actions = {
            "forward": lambda some=some: bare(model, some / 255),
            "product": lambda q=queries, out=product: torch.mm(q, bank.mT, out=out),
            "predict": lambda some=some: gate.predict(some),
        }
        taken = interleave(actions, 200 if batch < 100 else 60)
        name = f"many classes, batch {batch} / forward + product"
        report(name, ratio(taken, "predict", "forward", "product"), 1.1)


def wide_gate(network: FeatureExtractor, images: Tensor) -> Gate:
    with torch.inference_mode():
        outputs = goen.Outputs.concatenate(network(part) for part in images.split(500))
    labels = torch.arange(ROWS) % CLASSES
    detector = GoenM(rows=ROWS).fit(outputs[:ROWS], labels, held_out=outputs[ROWS:])
    return Gate(
        network=network,
        detector=detector,
        held_out=HeldOut(detector.score(outputs[ROWS:]).numpy()),
        false_alarm_rate=0.05,
        classes=tuple(map(str, range(CLASSES))),
        inputs=ImageInputs(3, 32, 32),
    )


def a_gate(network: ResNet18, train: ImageSet) -> Gate:
    outputs = extract(network, train)
    detector = Goen(feature="z").fit(outputs, torch.from_numpy(train.labels))
    return Gate(
        network=network.eval(),
        detector=detector.with_head(CalibrationHead().eval(), None),
        held_out=HeldOut(np.random.default_rng(1).random(2000)),
        false_alarm_rate=0.05,
        classes=train.classes,
        inputs=ImageInputs(3, 32, 32),
    )


if __name__ == "__main__":
    main()
