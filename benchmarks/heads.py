"""The time that a classifier with its own uncertainty estimate adds to a forward pass.

    python benchmarks/heads.py

ResNet-18 of width 16, one batch of 256 images of 32×32, evaluation mode. MC dropout and EpiNet
sample twenty predictions each, yet the images pass the network once. Backbone, linear classifier
and every other classifier take turns, each timed alone: a pass with a classifier is the sum of two
times, and its ratio to a pass with the linear one does not depend on the difference of two long
and noisy times. Medians of the ratios. One thread, so that it is the work that is measured: on a
busy machine two threads mostly wait for each other in these small operations.

Goals: 1.1 each.

Measured on two cores of an AMD EPYC (KVM), Python 3.11.7, torch 2.13.0+cpu, beside much other work,
three runs, one of them with ATEN_CPU_CAPABILITY=avx2: dropout 1.002 to 1.012, evidential 1.000,
epinet 1.011 to 1.012, experts 1.000 to 1.001. Whole passes with one classifier and another, timed
against each other, gave anything from 0.97 to 1.05: the evidential classifier takes 0.06 ms and the
backbone 308 ms, so a difference of whole passes is noise.
"""

import torch

from goen.models import CLASSIFIERS, NetworkConfig, ResNet18
from timing import header, interleave, ratio, report

BATCH, REPEATS = 256, 41


def main() -> None:
    torch.set_num_threads(1)
    header()
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (BATCH, 3, 32, 32), dtype=torch.uint8, generator=generator)
    network = ResNet18(NetworkConfig(width=16)).eval()
    classifiers = {kind: make(network.z_width, 10).eval() for kind, make in CLASSIFIERS.items()}

    with torch.inference_mode():
        hidden, _ = network.encode(images)
        actions = {
            kind: lambda head=head: head.predict(hidden) for kind, head in classifiers.items()
        }
        taken = interleave({"backbone": lambda: network.encode(images), **actions}, REPEATS)
    for kind in classifiers:
        if kind != "linear":
            taken[f"with {kind}"] = [
                sum(t) for t in zip(taken["backbone"], taken[kind], strict=True)
            ]
            value = ratio(taken, f"with {kind}", "backbone", "linear")
            report(f"forward with {kind} / with linear", value, 1.1)


if __name__ == "__main__":
    main()
