"""The Mahalanobis distance in several layers at once."""

from collections.abc import Sequence
from functools import partial
from typing import ClassVar, final

import torch
from torch import Tensor

from goen.checks import check_number
from goen.detectors._base import Detector
from goen.detectors._gaussians import (
    class_statistics,
    labelled_rows,
    load_whitening,
    mean_variance,
    whitening_tensors,
)
from goen.errors import UsageError
from goen.functional.covariance import ledoit_wolf_shrinkage, tied_covariance
from goen.functional.cues import normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.whitening import Whitening, whitener
from goen.io.tensors import Tensors
from goen.outputs import Outputs


@final
class MultilayerMahalanobis(Detector):
    r"""Squared Mahalanobis distance to the nearest class in several layers; high for OOD.

    Features have unit length in each layer. The entropy density of a layer is

    .. math:: h_l = -\frac{1}{D_l} \sum_i \lambda_i \log \lambda_i

    with the eigenvalues of its covariance within classes, scaled to the sum 1. The last layer
    always takes part; the others are those, without the first, in which the density falls most from
    the layer before. Each is weighted by the softmax of these falls. The covariance, one for all
    classes, is that of all these layers together, shrunk as Ledoit and Wolf do.

    Args:
        feature: the layers, from the first to the last: names of the outputs' features; all of
            them if not given.
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

    name: ClassVar[str] = "mm_pp"
    reads_all_features = True
    whitening_: Whitening
    layers_: Tensor
    weights_: Tensor

    def __init__(self, *, feature: str | Sequence[str] | None = None, num_layers: int = 3) -> None:
        self.feature = feature
        self.num_layers = num_layers
        if feature is not None and not feature:
            raise UsageError("MultilayerMahalanobis needs the name of at least one feature.")
        check_number("num_layers", num_layers, whole=True, at_least=1)

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        names = self.feature_names(outputs)
        alone = [partial(_side_by_side, names=(name,), weights=(1.0,)) for name in names]
        densities = [_entropy_density(class_statistics(outputs, labels, read)) for read in alone]
        self.layers_, self.weights_ = _select(
            torch.tensor(densities, dtype=torch.float64, device="cpu"), self.num_layers
        )
        read = partial(_side_by_side, names=self._chosen(), weights=self.weights_.tolist())
        statistics = class_statistics(outputs, labels, read)
        share = ledoit_wolf_shrinkage(statistics, labelled_rows(outputs, labels, read))
        cov = tied_covariance(statistics, 0.0, shrinkage=share)
        self.whitening_ = whitener(statistics.means_, cov)

    def _chosen(self) -> tuple[str, ...]:
        """The layers that take part."""
        return tuple(self.features[layer] for layer in self.layers_.tolist())

    def _prepare(self) -> None:
        self._layers, self._weights = self._chosen(), tuple(self.weights_.tolist())

    def state(self) -> dict[str, Tensor]:
        whitening = {f"whitening.{k}": v for k, v in whitening_tensors(self.whitening_).items()}
        return {**super().state(), **whitening}

    def _load(self, tensors: Tensors) -> None:
        whitening = tensors.part("whitening.")
        tensors.check_names(["layers", "weights", *(f"whitening.{name}" for name in whitening)])
        last = len(self.features) - 1
        self.layers_ = tensors.integers("layers", ("layers",), low=0, high=last)
        layers = self.layers_.tolist()
        if layers[-1] != last or sorted({*layers}) != layers:
            raise ValueError(f"its tensor {tensors.prefix}layers should end with the last layer")
        self.weights_ = tensors.floats("weights", (len(layers),), low=0.0, high=1.0)
        width = sum((self.widths_ or {})[name] for name in self._chosen())
        self.whitening_ = load_whitening(whitening, width, self.num_classes_)

    def _score(self, outputs: Outputs) -> Tensor:
        rows = _side_by_side(outputs, self._layers, self._weights)
        return self.whitening_.nearest(rows).distance


def _side_by_side(outputs: Outputs, names: Sequence[str], weights: Sequence[float]) -> Tensor:
    """These features, each of unit length times its weight, ``(N, D)`` float64."""
    parts = [
        normalise(outputs.feature(name)) * weight
        for name, weight in zip(names, weights, strict=True)
    ]
    return torch.cat(parts, dim=1)


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
