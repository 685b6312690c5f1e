"""The loss of a training, with parts that improve OOD detection without any OOD image."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from goen.models import Backbone
from goen.models.backbone import TURNS
from goen.training.batches import TrainingBatch
from goen.training.config import TrainingConfig


class TrainingLoss(nn.Module):
    """The loss of a batch, and how many labels are right: one module, so that DDP can wrap it.

    Args:
        network: what is trained.
        config: how.
        device: where its own parameters are drawn.

    Attributes:
        centres: of the classes, for the centre loss.
    """

    def __init__(self, network: Backbone, config: TrainingConfig, device: torch.device) -> None:
        super().__init__()
        self.network, self.config = network, config
        self.centres: nn.Parameter | None = None
        if config.center_loss:
            centres = torch.randn(network.config.num_classes, network.z_width, device=device)
            self.centres = nn.Parameter(centres)

    def forward(self, batch: TrainingBatch, progress: float) -> tuple[Tensor, Tensor]:
        config, device = self.config, self.network.mean.device
        images, labels = batch.images.to(device), batch.labels.to(device)
        bfloat16 = config.precision == "bfloat16"
        with torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            hidden, features = self.network.encode(images)
        whole = hidden.float()
        loss, logits = self._classification_loss(whole[: len(labels)], labels, progress)
        upright_and_turned = len(batch.turns)
        if config.rotation_loss and self.network.rotation is not None:
            predicted = self.network.rotation(whole[:upright_and_turned])
            rotation = rotation_loss(predicted, batch.turns.to(device), len(labels))
            loss = loss + config.rotation_loss * rotation
        if config.outlier_loss:
            outliers: Tensor = self.network.classifier(self._read(whole[upright_and_turned:]))
            loss = loss + config.outlier_loss * outlier_loss(outliers)
        if self.centres is not None:
            z = features["z"].float()[: len(labels)]
            distance = (z - self.centres[labels]).square().sum(1)
            loss = loss + config.center_loss * distance.mean()
        return loss, (logits.argmax(1) == labels).sum()

    def _read(self, hidden: Tensor) -> Tensor:
        """What the classifier reads in training, from what it reads afterwards."""
        return normalised(hidden, self.network) if self.config.feature_norm else hidden

    def _classification_loss(
        self, hidden: Tensor, labels: Tensor, progress: float
    ) -> tuple[Tensor, Tensor]:
        hidden = self._read(hidden)
        classifier, smoothing = self.network.classifier, self.config.label_smoothing
        if not self.config.logit_norm:
            return classifier.loss(hidden, labels, label_smoothing=smoothing, progress=progress)
        logits: Tensor = classifier(hidden)
        temperature = self.config.logit_norm
        loss = logit_norm_loss(logits, labels, temperature=temperature, label_smoothing=smoothing)
        return loss, logits


def normalised(hidden: Tensor, network: Backbone) -> Tensor:
    """What the classifier would read of z at unit length, ``(N, D)``; T2FNorm trains with it."""
    return normalize(hidden) * network.classifier_scale


def outlier_loss(logits: Tensor) -> Tensor:
    """The mean cross-entropy of outliers' probabilities to the uniform distribution.

    Source: Hendrycks, Mazeika and Dietterich, Deep Anomaly Detection with Outlier Exposure (2019).

    Args:
        logits: ``(N, C)`` of images that belong to no class.

    Example:
        >>> import torch
        >>> round(float(outlier_loss(torch.zeros(2, 4))), 4)
        1.3863
    """
    return (logits.logsumexp(1) - logits.mean(1)).mean()


def logit_norm_loss(
    logits: Tensor, labels: Tensor, *, temperature: float, label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of the logits divided by their length and by a temperature.

    A network cannot make it small by long logits, which OOD images would get as well.

    Source: Wei et al., Mitigating Neural Network Overconfidence with Logit Normalization (2022).

    Args:
        logits: ``(N, C)``.
        labels: ``(N,)``.
        temperature: a small one lets probabilities come near 1; theirs is 0.04 for CIFAR-10.
        label_smoothing: share of the target spread over all classes.

    Example:
        >>> import torch
        >>> short, long = torch.tensor([[3.0, 4.0]]), torch.tensor([[30.0, 40.0]])
        >>> labels = torch.tensor([1])
        >>> round(float(logit_norm_loss(short, labels, temperature=1.0)), 4)
        0.5981
        >>> round(float(logit_norm_loss(long, labels, temperature=1.0)), 4)
        0.5981
    """
    scaled = normalize(logits) / temperature
    return cross_entropy(scaled, labels, label_smoothing=label_smoothing)


def rotation_loss(logits: Tensor, turns: Tensor, upright: int) -> Tensor:
    """Cross-entropy of the right angles by which images were rotated.

    Source: Hendrycks et al., Using Self-Supervised Learning Can Improve Model Robustness and
    Uncertainty (2019). There every image comes in all four rotations, which count the same. Where
    fewer are rotated, they and the others count the same.

    Args:
        logits: ``(N, 4)``.
        turns: ``(N,)`` right angles, from 0 to 3.
        upright: so many of them, the first, are not rotated.

    Example:
        >>> import torch
        >>> round(float(rotation_loss(torch.zeros(3, 4), torch.tensor([0, 0, 2]), 2)), 4)
        1.3863
    """
    losses = cross_entropy(logits, turns, reduction="none")
    if len(losses) == TURNS * upright:
        return losses.mean()
    return (losses[:upright].mean() + losses[upright:].mean()) / 2
