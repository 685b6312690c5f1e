"""Several networks that differ by their seed as one: two ways to join their outputs."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from goen.errors import UsageError
from goen.functional.predictive import log_mean, summed_variance
from goen.models.backbone import Backbone
from goen.outputs import Outputs


def ensemble(members: Sequence[Outputs]) -> Outputs:
    """The joint outputs of several networks for the same images; their spread is the uncertainty.

    The softmax of the logits is the mean of the members' probabilities, the uncertainty their
    variance over members summed over classes. Features are the members' own: there are none.

    Paper: GOEN §4.2; Lakshminarayanan et al., "Simple and scalable predictive uncertainty
    estimation using deep ensembles", NeurIPS 2017. Departs from the paper: nothing.

    Example:
        >>> sure = torch.tensor([[0.9, 0.1]]).log()
        >>> both = ensemble([Outputs(sure, {}), Outputs(sure.flip(1), {})])
        >>> both.logits.softmax(1), both.uncertainty
        (tensor([[0.5000, 0.5000]]), tensor([0.3200], dtype=torch.float64))
    """
    logits = torch.stack([member.logits for member in members])
    log_probabilities = torch.log_softmax(logits.to(torch.float64), dim=2)
    return Outputs(
        log_mean(log_probabilities).to(logits.dtype), {}, summed_variance(log_probabilities)
    )


class LogitEnsemble(nn.Module):
    """Networks of the same settings, each trained with a seed of its own, as one network.

    Logits are averaged, and not probabilities as by ``ensemble``: the energy of the
    logits is a cue, and logarithms of probabilities always have the energy 0. Each member's
    features are scaled to unit length and stand beside the others', so that the distance between
    two images is the root mean square of the members' distances (nearly so when the outputs are
    averaged over flips afterwards). The logits are not linear in features of unit length, so the
    outputs have no classifier. It costs a pass of each member.

    Paper: none; deep ensembles (Lakshminarayanan et al. 2017) average probabilities.

    Args:
        members: two or more, with linear classifiers.

    Raises:
        UsageError: fewer than two, different settings, or another classifier.

    Example:
        >>> from goen.models import NetworkConfig, ResNet18
        >>> members = [ResNet18(NetworkConfig(width=4)).eval() for _ in range(2)]
        >>> images = torch.arange(3 * 32 * 32).view(1, 3, 32, 32) / (3 * 32 * 32)
        >>> both = LogitEnsemble(members)(images)
        >>> torch.allclose(both.logits, (members[0](images).logits + members[1](images).logits) / 2)
        True
        >>> both.features["layer4"].shape
        torch.Size([1, 64])
    """

    def __init__(self, members: Sequence[Backbone]) -> None:
        super().__init__()
        if len(members) < 2 or any(other.config != members[0].config for other in members):
            raise UsageError(
                "An ensemble joins two or more networks of the same settings, got "
                f"{len(members)} of {len({member.config for member in members})} settings."
            )
        self.config = members[0].config
        if self.config.classifier != "linear":
            raise UsageError(
                f"Networks with the classifier {self.config.classifier} have their own uncertainty "
                "estimate, which an ensemble of logits would lose: join linear ones."
            )
        self.members = nn.ModuleList(members)

    def forward(self, images: Tensor) -> Outputs:
        return joined([member(images) for member in self.members])


def joined(members: Sequence[Outputs]) -> Outputs:
    """The outputs of the ensemble from those of its members for the same images."""
    logits = torch.stack([member.logits for member in members]).mean(dim=0)
    features = {
        name: torch.cat([normalize(member.features[name]) for member in members], dim=1)
        for name in members[0].features
    }
    return Outputs(logits, features)
