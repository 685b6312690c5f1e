"""The Mahalanobis distance in several layers at once."""

from collections.abc import Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import SimpleDetector
from goen.detectors._gaussians import (
    WHITENING,
    check_whitening,
    mean_variance,
    whitening_from_tensors,
    whitening_tensors,
)
from goen.errors import UsageError
from goen.functional._rows import blocks
from goen.functional.covariance import ledoit_wolf_shrinkage, tied_covariance
from goen.functional.cues import normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.whitening import whitener
from goen.outputs import Outputs
from goen.runs.tensors import Tensors

_LAYERS, _WEIGHTS = "layers", "weights"


@final
class MultilayerMahalanobis(SimpleDetector):
    r"""Squared Mahalanobis distance to the nearest class in several layers; high for OOD.

    Features have unit length in each layer. The entropy density of a layer is

    .. math:: h_l = -\frac{1}{D_l} \sum_i \lambda_i \log \lambda_i

    with the eigenvalues of its covariance within classes, scaled to the sum 1. The last layer
    always takes part; the others are those, without the first, in which the density falls most from
    the layer before. Each is weighted by the softmax of these falls. The covariance, one for all
    classes, is that of all these layers together, shrunk as Ledoit and Wolf do.

    Args:
        feature: the layers, from the first to the last: names of the outputs' features; the last
            of them alone if not given.
        num_layers: how many take part; the paper's 3 for a CNN, where it has 2 for a transformer.

    Paper: Hossain et al. 2026, "MM++: Unsupervised Scale-Invariant Multilayer OOD Detection via
    Top-K Gated Feature Fusion", by its abstract and a public program of its algorithms.
    Departs from the paper: layers of equal width are concatenated as all others, where that program
    adds their features; the eigenvalues are those of the covariance before it is shrunk; a layer is
    a scale of the network, pooled as the network pools it.

    Example:
        >>> rows = torch.tensor([[3.0, 4.0], [4.0, 3.0], [-3.0, 4.0], [-4.0, 3.0]])
        >>> outputs = Outputs(torch.zeros(4, 2), {"z": rows})
        >>> detector = MultilayerMahalanobis().fit(outputs, torch.tensor([0, 0, 1, 1]))
        >>> tested = Outputs(torch.zeros(2, 2), {"z": torch.tensor([[7.0, 7.0], [0.0, -1.0]])})
        >>> near, far = detector.score(tested)
        >>> bool(near < 1 < far)
        True
    """

    def __init__(self, *, feature: str | Sequence[str] | None = None, num_layers: int = 3) -> None:
        self.feature = feature
        self.num_layers = num_layers
        if feature is not None and not feature:
            raise UsageError("MultilayerMahalanobis needs the name of at least one feature.")
        check_number("num_layers", num_layers, whole=True, at_least=1)

    def _learn(self, outputs: Outputs, labels: Tensor) -> Mapping[str, Tensor]:
        names = self.feature_names(outputs)
        alone = torch.ones(1, dtype=torch.float64, device="cpu")
        densities = [
            _entropy_density(_statistics(outputs, labels, (name,), alone)) for name in names
        ]
        layers, weights = _select(alone.new_tensor(densities), self.num_layers)
        chosen = tuple(names[layer] for layer in layers.tolist())
        statistics = _statistics(outputs, labels, chosen, weights)
        share = ledoit_wolf_shrinkage(statistics, _blocks(outputs, labels, chosen, weights))
        whitening = whitener(statistics.means_, tied_covariance(statistics, 0.0, shrinkage=share))
        return {**whitening_tensors(whitening), _LAYERS: layers, _WEIGHTS: weights}

    def _check_state(self, tensors: Tensors) -> None:
        tensors.check_names([*WHITENING, _LAYERS, _WEIGHTS])
        check_whitening(tensors)
        count = 1 if self.feature is None or isinstance(self.feature, str) else len(self.feature)
        last = count - 1
        layers = tensors.integers(_LAYERS, ("layers",), low=0, high=last).tolist()
        if not layers or layers[-1] != last or sorted({*layers}) != layers:
            raise ValueError(f"its tensor {tensors.prefix}{_LAYERS} should end with the last layer")
        tensors.floats(_WEIGHTS, (len(layers),), low=0.0, high=1.0, dtype=torch.float64)

    def _measure(self, outputs: Outputs) -> Tensor:
        fitted = self.fitted_ or {}
        names = self.feature_names(outputs)
        chosen = tuple(names[layer] for layer in fitted[_LAYERS].tolist())
        whitening = whitening_from_tensors(fitted)
        scores = torch.empty(len(outputs), dtype=torch.float64, device="cpu")
        for block in blocks(len(outputs)):
            rows = _side_by_side(outputs[block], chosen, fitted[_WEIGHTS])
            scores[block] = whitening.nearest(rows).distance
        return scores


def _side_by_side(outputs: Outputs, names: tuple[str, ...], weights: Tensor) -> Tensor:
    """These features, each of unit length times its weight, ``(N, D)`` float64."""
    parts = [
        normalise(outputs.feature(name)) * weight
        for name, weight in zip(names, weights.tolist(), strict=True)
    ]
    return torch.cat(parts, dim=1)


def _blocks(
    outputs: Outputs, labels: Tensor, names: tuple[str, ...], weights: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    for block in blocks(len(outputs)):
        yield _side_by_side(outputs[block], names, weights), labels[block]


def _statistics(
    outputs: Outputs, labels: Tensor, names: tuple[str, ...], weights: Tensor
) -> ClassStatistics:
    width = sum(outputs.feature(name).shape[1] for name in names)
    statistics = ClassStatistics(outputs.logits.shape[1], width, device=outputs.logits.device)
    for rows, of_rows in _blocks(outputs, labels, names, weights):
        statistics.update(rows, of_rows)
    return statistics


def _entropy_density(statistics: ClassStatistics) -> float:
    """The entropy of the variances along the principal axes within classes, per feature."""
    cov = statistics.within_scatter_ / (mean_variance(statistics) * statistics.num_rows)
    shares = torch.linalg.eigvalsh(cov).clamp(min=0) / statistics.dim
    return float(torch.special.entr(shares).sum()) / statistics.dim


def _select(densities: Tensor, num_layers: int) -> tuple[Tensor, Tensor]:
    """The layers that take part, in their order, and their weights."""
    last = len(densities) - 1
    falls = torch.cat([densities.new_zeros(1), densities[:-1] - densities[1:]])
    between = falls[1:last].argsort(descending=True, stable=True)[: num_layers - 1] + 1
    layers = torch.cat([between.sort().values, between.new_tensor([last])])
    return layers, torch.softmax(falls[layers], dim=0)
