"""MC dropout on the input of a linear classifier."""

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from goen.models.classifiers.classifier import NUM_SAMPLES, SAMPLES_SEED, SamplingClassifier


class MCDropout(SamplingClassifier):
    """Twenty passes with half of the features dropped; their mutual information is the uncertainty.

    Paper: GOEN §4.2; Gal and Ghahramani, "Dropout as a Bayesian approximation", ICML 2016.
    Departs from the paper: the masks are drawn once and saved with the network, the same twenty for
    every image. A score then depends on its image alone, and two images differ by what they are and
    not by the luck of their masks. All passes are one matrix product.

    Args:
        inputs: width of the features.
        num_classes: classes.
        rate: the share that is dropped.

    Example:
        >>> logits, uncertainty = MCDropout(8, 3).eval().predict(torch.ones(2, 8))
        >>> logits.shape, uncertainty.shape
        (torch.Size([2, 3]), torch.Size([2]))
    """

    masks: Tensor

    def __init__(self, inputs: int, num_classes: int, *, rate: float = 0.5) -> None:
        super().__init__()
        self.rate = rate
        self.linear = nn.Linear(inputs, num_classes)
        generator = torch.Generator().manual_seed(SAMPLES_SEED)
        kept = torch.rand(NUM_SAMPLES, inputs, generator=generator, device="cpu") >= rate
        self.register_buffer("masks", kept)

    def samples(self, hidden: Tensor) -> Tensor:
        if self.training:
            out: Tensor = self.linear(dropout(hidden, self.rate))
            return out[None]
        # Dropping a feature is dropping its column of the weights: S networks side by side.
        weights = self.linear.weight * (self.masks[:, None] / (1 - self.rate))
        bias = self.linear.bias.repeat(len(self.masks))
        logits = linear(hidden, weights.flatten(0, 1), bias)
        return logits.view(len(hidden), *weights.shape[:2]).transpose(0, 1)
