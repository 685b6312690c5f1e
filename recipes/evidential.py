"""Evidential training as the paper writes it, beside goen's, which departs from it:

    python recipes/evidential.py 42 --data-dir DATA

goen lets the gradient through where an image has no evidence for its class (see
``goen.models.classifiers.Evidential``); here it is not. Preset short, every set; the network is a
stage of its own folder, because it has the settings of goen's.
"""

from pathlib import Path
from typing import Annotated

import torch
import tyro
from keep import bench_and_keep
from torch import Tensor
from torch.nn.functional import relu

from goen.functional.predictive import dirichlet_kl_to_uniform, dirichlet_nll
from goen.models.classifiers import ANNEALED_AT, CLASSIFIERS, Evidential
from goen.studies import BenchConfig


class AsWritten(Evidential):
    """Without a gradient where ReLU has none."""

    def loss(
        self, hidden: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, progress: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The same loss of the evidence as it is."""
        alpha = relu(self.linear(hidden).to(torch.float64)) + 1
        misleading = alpha.scatter(1, labels[:, None], 1.0)
        weight = min(1.0, progress / ANNEALED_AT)
        loss = dirichlet_nll(alpha, labels) + weight * dirichlet_kl_to_uniform(misleading)
        probabilities = alpha.detach() / alpha.detach().sum(dim=1, keepdim=True)
        return loss.mean().to(hidden.dtype), probabilities.log()


def main(
    seed: tyro.conf.Positional[int] = 42,
    data_dir: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None,
) -> None:
    """Train and evaluate.

    Args:
        seed: of the training.
        data_dir: a folder of image sets.
    """
    CLASSIFIERS["evidential"] = AsWritten  # type: ignore[index]
    config = BenchConfig(methods=("evidential",), preset="short", seed=seed)
    name = f"evidential-as-written-{seed}"
    bench_and_keep(name, config, (), data_dir, Path("runs/evidential-as-written"))


if __name__ == "__main__":
    tyro.cli(main)
