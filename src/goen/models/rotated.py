"""The uncertainty of a network that was trained to predict how images are rotated."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from goen.errors import UsageError
from goen.models.backbone import TURNS, Backbone
from goen.outputs import Outputs


class Rotated(nn.Module):
    r"""A network whose uncertainty tells how badly it predicts the rotations of an image.

    .. math:: u(x) = \frac14 \sum_{t=0}^{3} -\log r_t(\mathrm{rot}_t x)
              - \mathrm{KL}(U \,\|\, p(x))

    with r the probabilities of the four rotations, p those of the classes and U the uniform
    distribution: rotations of OOD images are predicted badly, and their classes near chance. Four
    passes. The other outputs are those of the image as it is.

    Paper: Hendrycks et al. 2019, "Using Self-Supervised Learning Can Improve Model Robustness and
    Uncertainty". Departs from the paper: natural logarithms in place of those to base 2, which
    rank the same.

    Args:
        network: with a classifier of rotations (``NetworkConfig(rotations=True)``), trained with
            ``TrainingConfig(rotation_loss=1, rotated=3)``.

    Example:
        >>> from goen.models import NetworkConfig, ResNet18
        >>> network = Rotated(ResNet18(NetworkConfig(width=4, rotations=True))).eval()
        >>> network(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).uncertainty.shape
        torch.Size([2])
    """

    network: Backbone

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        if not isinstance(network, Backbone) or network.rotation is None:
            raise UsageError(
                "This network has no classifier of rotations: build it with "
                "NetworkConfig(rotations=True) and train it with a rotation loss."
            )
        self.network = network

    def forward(self, images: Tensor) -> Outputs:
        if images.shape[2] != images.shape[3]:
            height, width = images.shape[2:]
            raise UsageError(f"Images can be rotated where they are square; got {height}×{width}.")
        if images.dtype == torch.uint16:  # which torch cannot rotate
            images = images.float() / 65535
        hidden, features = self.network.encode(images)
        outputs = self.network.classify(hidden, features)
        loss = self._loss(hidden, 0)
        for turn in range(1, TURNS):
            loss = loss + self._loss(self.network.encode(images.rot90(turn, (2, 3)))[0], turn)
        logits = outputs.logits.double()
        from_uniform = logits.logsumexp(1) - logits.mean(1) - torch.tensor(logits.shape[1]).log()
        return Outputs(
            outputs.logits, outputs.features, loss / TURNS - from_uniform, outputs.classifier
        )

    def _loss(self, hidden: Tensor, turn: int) -> Tensor:
        assert self.network.rotation is not None, "checked above"
        logits = self.network.rotation(hidden).double()
        turns = torch.full((len(hidden),), turn, device=hidden.device)
        return cross_entropy(logits, turns, reduction="none")
