"""A deep ensemble: the joint outputs of networks that differ by their seed."""

from collections.abc import Sequence

import torch

from goen.errors import UsageError
from goen.functional.predictive import log_mean, summed_variance
from goen.outputs import Outputs


def ensemble(members: Sequence[Outputs]) -> Outputs:
    """The joint outputs of several networks for the same images; their spread is the uncertainty.

    The softmax of the logits is the mean of the members' probabilities, the uncertainty their
    variance over members summed over classes. Features are the members' own: there are none.

    Paper: GOEN §4.2; Lakshminarayanan et al., "Simple and scalable predictive uncertainty
    estimation using deep ensembles", NeurIPS 2017. Departs from the paper: nothing.

    Raises:
        UsageError: no members, or members with outputs of other images or other classes.

    Example:
        >>> sure = torch.tensor([[0.9, 0.1]]).log()
        >>> both = ensemble([Outputs(sure, {}), Outputs(sure.flip(1), {})])
        >>> both.logits.softmax(1), both.uncertainty
        (tensor([[0.5000, 0.5000]]), tensor([0.3200], dtype=torch.float64))
    """
    shapes = {tuple(member.logits.shape) for member in members}
    if len(shapes) != 1:
        came = ", ".join(map(str, sorted(shapes))) or "no members"
        raise UsageError(
            f"An ensemble's members give logits of one shape (images, classes); got {came}. "
            "Let each member read the same images."
        )
    logits = torch.stack([member.logits for member in members])
    log_probabilities = torch.log_softmax(logits.to(torch.float64), dim=2)
    return Outputs(
        log_mean(log_probabilities).to(logits.dtype), {}, summed_variance(log_probabilities)
    )
