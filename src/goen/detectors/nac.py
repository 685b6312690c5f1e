"""NAC: how often training images brought each neuron of the last layer into its state."""

import math
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._bank import sample_rows
from goen.detectors._base import Detector, Expected
from goen.errors import FitError
from goen.functional._rows import blocks, check_finite_for_fit
from goen.functional.logits import check_several_classes
from goen.outputs import Outputs

# Of the logarithm that sets the widths of the bins.
_BASE = 1000.0


@final
class NAC(Detector):
    r"""Minus the mean coverage of the neurons' states; high for OOD.

    The state of neuron i of the feature x that the last linear layer reads is
    :math:`s_i = \sigma(\alpha \, x_i g_i)`, with :math:`g = W^T (p - 1/C)`, the gradient of the
    divergence between the uniform distribution and the softmax p, by x. The states of a sample of
    training images, of each class alike, are counted in bins between 0 and 1, narrow about 1/2. A
    bin's coverage is the share of the sample in it, divided by ``enough`` and at most 1; the
    score is minus the mean, over neurons, of the coverage of the bin that the image's state is in.

    Args:
        steepness: :math:`\alpha`; if not given, such that the root mean square of
            :math:`\alpha x_i g_i` over the sample is where the outermost bin ends.
        bins: how many on either side of 1/2.
        enough: the share of the sample that covers a bin in full.
        rows: the size of the sample.

    Paper: Liu et al. 2024, "Neuron Activation Coverage: Rethinking Out-of-distribution Detection
    and Generalization" (NAC-UE), ICLR 2024, arXiv 2306.02879. Departs from the paper: the
    steepness; the last layer alone, where the gradient has a closed form (the authors' best rows
    add three deeper layers, with settings of their own for each); a share in place of a count of
    50 among 1,000 images, which is the same for 1,000.

    The authors chose steepness (100 for a ResNet-18 on CIFAR-10), bins and count with OOD images,
    layer by layer. Here the steepness follows from training images alone, so that states fill the
    bins whatever the scale of x and W; bins and share are the authors' for the last layer. It fails
    on narrow features, where a mean over few neurons has few values and scores tie.

    Example:
        >>> from goen.outputs import LinearClassifier
        >>> z = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
        >>> classifier = LinearClassifier(torch.eye(2), torch.zeros(2), "z")
        >>> outputs = Outputs(z, {"z": z}, classifier=classifier)
        >>> nac = NAC(enough=0.5).fit(outputs, torch.tensor([0, 1]))
        >>> nac.score(outputs)  # each state is that of one of the two images
        tensor([-1., -1.], dtype=torch.float64)
    """

    name: ClassVar[str] = "nac"
    needs_classifier = True
    weight_: Tensor
    coverage_: Tensor
    steepness_: Tensor

    def __init__(
        self,
        *,
        steepness: float | None = None,
        bins: int = 24,
        enough: float = 0.05,
        rows: int = 1000,
    ) -> None:
        self.steepness = steepness
        self.bins = bins
        self.enough = enough
        self.rows = rows
        if steepness is not None:
            check_number("steepness", steepness, above=0)
        check_number("bins", bins, whole=True, at_least=2)
        check_number("enough", enough, above=0, at_most=1)
        check_number("rows", rows, whole=True, at_least=1)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        check_several_classes(outputs.logits)
        check_finite_for_fit(outputs.logits, "logit")
        self.weight_, _ = self.classifier(outputs)
        kept = outputs[sample_rows(labels, self.num_classes_, self.rows)]
        products = self._products(self.feature_rows(kept), kept.logits)
        self.steepness_ = self._steepness(products)
        place = self._bins(products)
        counts = torch.zeros_like(self.weight_[:1]).repeat(2 * self.bins, 1)
        counts.scatter_add_(0, place, torch.ones_like(products))
        self.coverage_ = (counts / (self.enough * len(kept))).clamp_max(1)

    def _steepness(self, products: Tensor) -> Tensor:
        if self.steepness is not None:
            return products.new_tensor(self.steepness)
        length = products.square().mean().sqrt()
        if not length > 0:
            raise FitError("All features or all gradients of the training rows are 0.")
        return -torch.logit(inner_edges(self.bins)[0]).to(length.device) / length

    def _products(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Each entry of the feature times its gradient, ``(N, D)``."""
        probabilities = torch.softmax(logits.to(torch.float64), dim=1)
        gradient = (probabilities - 1 / probabilities.shape[1]) @ self.weight_
        return gradient * rows.to(torch.float64)

    def _bins(self, products: Tensor) -> Tensor:
        """The bin of each neuron's state."""
        states = torch.sigmoid(self.steepness_ * products)
        return torch.bucketize(states, inner_edges(self.bins).to(states.device), right=True)

    def _expected(self) -> Mapping[str, Expected]:
        return {
            "weight": Expected((self.num_classes_, self.features_width)),
            "coverage": Expected((2 * self.bins, self.features_width), 0.0, 1.0),
            "steepness": Expected((), 0.0),
        }

    def _score(self, outputs: Outputs) -> Tensor:
        rows = self.feature_rows(outputs)
        found = [self._covered(rows[b], outputs.logits[b]) for b in blocks(rows.shape[0])]
        return -torch.cat([rows.new_empty(0, dtype=torch.float64), *found])

    def _covered(self, rows: Tensor, logits: Tensor) -> Tensor:
        products = self._products(rows, logits)
        # A product that is not finite must not pass for one of the last bin.
        return (self.coverage_.gather(0, self._bins(products)) + 0 * products).mean(dim=1)


def inner_edges(bins: int) -> Tensor:
    """The ends of neighbouring bins, ``(2 bins - 1,)``: 2 bins from 0 to 1, narrow about 1/2.

    Example:
        >>> inner_edges(2)
        tensor([0.4042, 0.5000, 0.5958], dtype=torch.float64)
    """
    wide = torch.linspace(1, math.sqrt(_BASE), bins + 1, dtype=torch.float64, device="cpu")
    left = wide[1:].log() / math.log(_BASE)
    return torch.cat([left, 1 - left[:-1].flip(0)])
