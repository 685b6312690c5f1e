"""What all classifiers share: logits with an uncertainty estimate, and a loss."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from goen.functional.predictive import log_mean, mutual_information

# The paper's number of passes, and the seed of whatever makes one pass differ from the next.
NUM_SAMPLES, SAMPLES_SEED = 20, 0


class ClassifierOutput(NamedTuple):
    """Logits ``(N, C)`` whose softmax is the probability of each class, and an uncertainty.

    ``uncertainty`` is ``(N,)`` float64, higher means more; ``None`` where a method has none.
    """

    logits: Tensor
    uncertainty: Tensor | None


class Classifier(nn.Module, ABC):
    """Features ``(N, D)`` to a prediction; built from the width D and the number of classes.

    In evaluation mode a prediction depends on its own row of features and on nothing else. In
    training mode it may be random, from torch's global generator. Called like a function, a
    classifier gives the logits alone.
    """

    @abstractmethod
    def predict(self, hidden: Tensor) -> ClassifierOutput:
        """Logits and uncertainty of each row."""

    @abstractmethod
    def loss(
        self, hidden: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, progress: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """What training makes small, and the logits ``(N, C)`` it was computed from.

        Args:
            hidden: ``(N, D)``.
            labels: ``(N,)``.
            label_smoothing: share of the target spread over all classes.
            progress: share of the whole training that is done, for what changes as it goes on.
        """

    def forward(self, hidden: Tensor) -> Tensor:
        return self.predict(hidden).logits


class SamplingClassifier(Classifier):
    """A classifier that makes several predictions; their mutual information is its uncertainty."""

    @abstractmethod
    def samples(self, hidden: Tensor) -> Tensor:
        """Logits ``(S, N, C)``: in evaluation the same S functions for every row, every time."""

    def predict(self, hidden: Tensor) -> ClassifierOutput:
        log_probabilities = torch.log_softmax(self.samples(hidden).to(torch.float64), dim=2)
        logits = log_mean(log_probabilities).to(hidden.dtype)
        return ClassifierOutput(logits, mutual_information(log_probabilities))

    def loss(
        self, hidden: Tensor, labels: Tensor, *, label_smoothing: float = 0.0, progress: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """The cross-entropy of each sample, averaged."""
        samples = self.samples(hidden)
        repeated = labels.repeat(len(samples))
        loss = cross_entropy(samples.flatten(0, 1), repeated, label_smoothing=label_smoothing)
        return loss, log_mean(torch.log_softmax(samples.detach(), dim=2))
