"""AdaSCALE: SCALE with a percentile of its own for each image, by how its features can be moved."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal, final, get_args

import torch
from torch import Tensor, nn

from goen.checks import check_choice, check_number
from goen.detectors._base import Detector, Expected
from goen.detectors._gradient import image_gradient
from goen.features.preprocess import perturbed_by
from goen.functional._rows import check_finite_for_fit
from goen.functional.combination import count_at_least
from goen.functional.logits import energy_score
from goen.functional.shaping import kept_count, sharpness
from goen.outputs import Outputs, check_classifier

MOVED = "moved_features"
"""The feature of ``Moved`` that holds the classifier's feature of the moved images."""
Scaled = Literal["features", "logits"]
# The shares of a feature's largest entries whose sum and whose shift are measured, in per cent.
_SUMMED, _SHIFTED = 5, 1
_SHIFT_WEIGHT = 10.0


@final
class Moved(nn.Module):
    r"""A network with one more feature: that of the images, moved where it matters least.

    The share of the input values with the smallest absolute gradient of the largest logit moves by
    ``epsilon`` in the direction of the gradient's sign. One forward, one backward and one more
    forward pass.

    Args:
        network: images to ``Outputs`` with a linear classifier; images are uint8, or floats in
            [0, 1].
        epsilon: the step in units of the [0, 1] pixel.
        share: of the input values that move.
    """

    def __init__(self, network: nn.Module, *, epsilon: float, share: float) -> None:
        super().__init__()
        self.network = network
        self.epsilon = epsilon
        self.share = share

    def extra_repr(self) -> str:
        return f"epsilon={self.epsilon}, share={self.share}"

    def forward(self, images: Tensor) -> Outputs:
        pixels, gradient, outputs = image_gradient(
            self.network, images, lambda logits: logits.amax(dim=1).sum(), "AdaSCALE"
        )
        if outputs.classifier is None:
            check_classifier(outputs)  # which says what to extract
        assert outputs.classifier is not None
        flat = gradient.flatten(1)
        count = int(flat.shape[1] * self.share)
        least = flat.abs().topk(count, dim=1, largest=False).indices
        step = torch.zeros_like(flat).scatter(1, least, flat.sign().gather(1, least))
        with perturbed_by(self.epsilon), torch.no_grad():
            moved: Outputs = self.network(pixels + self.epsilon * step.view_as(pixels))
        feature = moved.feature(outputs.classifier.feature).detach()
        return replace(outputs, features={**outputs.features, MOVED: feature})


@final
class AdaSCALE(Detector):
    r"""The energy of features or logits scaled by a percentile of each image's own; high for OOD.

    As SCALE (features, AdaSCALE-A) or LTS (logits, AdaSCALE-L), where the percentile of an image is
    :math:`p = p_0 + (1 - F(Q)) (p_1 - p_0)`. Q measures how much the feature x changes when the
    image is moved (``Moved``): the sum of the positive entries of the moved feature x' at the
    largest 5 % of x, plus 10 times that of :math:`|x - x'|` at the largest 1 %. F is the share of
    held-out ID images with at most this Q. OOD images move more, have a lower percentile, and are
    scaled less.

    Scores the outputs of ``prepare_network(network)``; a gate and ``goen bench`` do so. On the
    outputs of the network itself no feature has moved. ``held_out`` are the images of F; without
    them, those of the first argument.

    Args:
        scaled: features (AdaSCALE-A) or logits (AdaSCALE-L).
        low: :math:`p_0`.
        high: :math:`p_1`, above ``low``, below 100.
        epsilon: the step in units of the [0, 1] pixel.
        share: of the input values that move, above 0, at most 1.

    Paper: Regmi 2025, "AdaSCALE: Adaptive Scaling for OOD Detection", arXiv 2503.08023.
    Departs from the paper: 0.125 of a [0, 1] pixel, where the paper moves normalised values by 0.5
    (a standard deviation is about 0.25); at least one entry is among the 1 %. The percentiles 75
    and 85 are OpenOOD's before its search with OOD images; no choice from ID images is possible,
    since predictions hardly depend on them.

    It fails as SCALE does: made for features behind a ReLU and average pooling, of large networks;
    on small ones it often ranks the wrong way round. A fit warns of negative features.
    """

    name: ClassVar[str] = "adascale"
    needs_classifier = True
    needs_gradient = True
    made_for_relu = True
    weight_: Tensor
    bias_: Tensor
    stability_: Tensor
    """Q of the held-out images, sorted."""

    def __init__(
        self,
        *,
        scaled: Scaled = "features",
        low: float = 75.0,
        high: float = 85.0,
        epsilon: float = 0.125,
        share: float = 0.05,
    ) -> None:
        self.scaled = scaled
        self.low = low
        self.high = high
        self.epsilon = epsilon
        self.share = share
        check_choice("scaled", scaled, get_args(Scaled))
        check_number("low", low, at_least=0)
        check_number("high", high, above=low, below=100)
        check_number("epsilon", epsilon, at_least=0, below=1)
        check_number("share", share, above=0, at_most=1)

    @property
    def features(self) -> tuple[str, ...]:
        return (*super().features, MOVED)

    def prepare_network(self, network: nn.Module) -> nn.Module:
        return Moved(network, epsilon=self.epsilon, share=self.share)

    def calibrates(self, *, with_ood: bool) -> bool:
        return True

    @property
    def uses_ood(self) -> bool:
        return False

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        self.weight_, self.bias_ = self.classifier(outputs)

    def _calibrate(self, held_out: Outputs, ood: Mapping[str, Outputs]) -> None:
        for values in (self.feature_rows(held_out), self._moved(held_out)):
            check_finite_for_fit(values)
        self.stability_ = self._stability(held_out).sort().values

    def _expected(self) -> Mapping[str, Expected]:
        return {
            "weight": Expected((self.num_classes_, self.features_width)),
            "bias": Expected((self.num_classes_,)),
            "stability": Expected(("images",)),
        }

    def _moved(self, outputs: Outputs) -> Tensor:
        own = self.feature_rows(outputs)
        return outputs.features.get(MOVED, own).to(torch.float64)

    def _stability(self, outputs: Outputs) -> Tensor:
        """Q of each image, ``(N,)``."""
        rows, moved = self.feature_rows(outputs).to(torch.float64), self._moved(outputs)
        summed, shifted = (
            rows.topk(max(int(rows.shape[1] * percent / 100), 1), dim=1).indices
            for percent in (_SUMMED, _SHIFTED)
        )
        shift = (rows - moved).abs().gather(1, shifted).sum(dim=1)
        return moved.clamp_min(0).gather(1, summed).sum(dim=1) + _SHIFT_WEIGHT * shift

    def _score(self, outputs: Outputs) -> Tensor:
        rows = self.feature_rows(outputs).to(torch.float64)
        at_most = count_at_least(-self.stability_.flip(0), -self._stability(outputs))
        share = at_most.to(torch.float64) / len(self.stability_)
        percentile = self.low + (1 - share) * (self.high - self.low)
        counts = kept_count(rows.shape[1], percentile)
        ratio = sharpness(rows, counts)
        if self.scaled == "logits":
            return energy_score(outputs.logits.to(torch.float64) * ratio.square())
        return energy_score((ratio.exp() * rows) @ self.weight_.mT + self.bias_)
