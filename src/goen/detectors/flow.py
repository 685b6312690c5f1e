"""A normalising flow on the features. Fitting needs zuko; loading, scoring and exporting do not."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch import Tensor, nn

from goen.checks import check_number, check_seed
from goen.detectors._base import Detector, Expected
from goen.detectors._gaussians import class_statistics, mean_variance
from goen.errors import FitError, UsageError
from goen.features.importing import import_library
from goen.functional._rows import blocks
from goen.functional.covariance import oas_shrinkage, tied_covariance
from goen.functional.cues import normalise
from goen.functional.whitening import whitener
from goen.models.seeding import seeded
from goen.outputs import Outputs

# No transform scales by less than this or by more than its inverse.
_SLOPE = 1e-3
# Added to the diagonal of the covariance, as a share of the mean variance.
_RIDGE = 1e-6
_BATCH = 512
# The likelihood is measured after each round, of one pass over the training rows at most.
_ROUND_BATCHES = 100
_ROUNDS = 100
_PATIENCE = 5
_LEARNING_RATE = 2e-3
_LARGEST_GRADIENT = 5.0
# Of the training rows, those that only stop the training.
_STOPPING, _MOST_STOPPING = 0.1, 10_000
_FEWEST_ROWS = 20
_FEWEST_HIDDEN, _MOST_HIDDEN = 64, 256


@final
class Flow(Detector):
    r"""Negative log-density of a normalising flow; high for OOD.

    :math:`-\log p(x)` with x the feature at unit length, as in the paper's distance. The covariance
    of all rows, shrunk as Chen et al. do, whitens x by its Cholesky factor. The result passes
    through a masked autoregressive flow, :math:`y_i = x_i e^{s_i(x_{<i})} + t_i(x_{<i})` several
    times, every second time in the reverse order of features, with s and t a network of two hidden
    layers each time, and is compared with the standard normal distribution. Before its training the
    flow is the identity, and the density that of one Gaussian of all rows.

    The flow is trained on training rows by Adam; a tenth of them only measures the likelihood, and
    the flow with the best is kept. Class labels are not used.

    Args:
        feature: which of the outputs' features to measure; the last if not given.
        transforms: of the flow.
        hidden: the width of the hidden layers. By default that of the features, but at least 64 and
            at most 256; with fewer than features, the last of these depend on the first alone.
        seed: fixes weights, split and order.

    Paper: Papamakarios et al. 2017, "Masked Autoregressive Flow for Density Estimation", by zuko's
    implementation; as a density of features of a classifier it is the outlook of GOEN's.
    Departs from the paper: the whitening, and no batch normalisation between the transforms.

    Example:
        >>> Flow(transforms=5)  # its fit needs zuko
        Flow(transforms=5)
    """

    name: ClassVar[str] = "flow"
    centre_: Tensor
    precision_chol_: Tensor
    weights0_: Tensor
    weights1_: Tensor
    weights2_: Tensor
    biases0_: Tensor
    biases1_: Tensor
    biases2_: Tensor

    def __init__(
        self,
        *,
        feature: str | None = None,
        transforms: int = 3,
        hidden: int | None = None,
        seed: int = 0,
    ) -> None:
        self.feature = feature
        self.transforms = transforms
        self.hidden = hidden
        self.seed = seed
        check_number("transforms", transforms, whole=True, at_least=1)
        if hidden is not None:
            check_number("hidden", hidden, whole=True, at_least=1)
        check_seed(seed)

    def require_library(self) -> None:
        import_library("zuko", "flow")

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        if self.features_width < 2:
            raise UsageError("A flow needs features of width 2 or more, got 1.")
        if len(outputs) < _FEWEST_ROWS:
            raise FitError(f"A flow needs {_FEWEST_ROWS} training rows, got {len(outputs)}.")
        statistics = class_statistics(outputs, torch.zeros_like(labels), self._unit_rows)
        ridge = _RIDGE * mean_variance(statistics)
        cov = tied_covariance(statistics, ridge, shrinkage=oas_shrinkage(statistics))
        whitening = whitener(statistics.means_, cov)
        self.centre_, self.precision_chol_ = whitening.centre, whitening.precision_chol
        rows = [self._whitened(outputs[block]).float() for block in blocks(len(outputs))]
        flow = trained_flow(torch.cat(rows), self.transforms, self._hidden, self.seed)
        for name, tensor in flow_tensors(flow).items():
            setattr(self, f"{name}_", tensor)

    def _unit_rows(self, outputs: Outputs) -> Tensor:
        return normalise(self.feature_rows(outputs))

    def _whitened(self, outputs: Outputs) -> Tensor:
        """The rows that pass through the flow, ``(N, D)`` float64."""
        return (self._unit_rows(outputs) - self.centre_) @ self.precision_chol_

    @property
    def _hidden(self) -> int:
        return self.hidden or min(max(self.features_width, _FEWEST_HIDDEN), _MOST_HIDDEN)

    def _prepare(self) -> None:
        stacked = [self.weights0_, self.biases0_, self.weights1_, self.biases1_]
        stacked += [self.weights2_, self.biases2_]
        self._layers = [
            tuple(part[number].to(torch.float64) for part in stacked)
            for number in range(self.transforms)
        ]
        # Tensors, since exporting to ONNX rounds Python's numbers to float32.
        self._largest = self.centre_.new_tensor([-math.log(_SLOPE)])
        log_volume = self.precision_chol_.diagonal().abs().log().sum(dim=0, keepdim=True)
        self._offset = log_volume - self.features_width * math.log(2 * math.pi) / 2

    def _expected(self) -> Mapping[str, Expected]:
        width, hidden = self.features_width, self._hidden
        shapes = {
            "weights0": (hidden, width),
            "biases0": (hidden,),
            "weights1": (hidden, hidden),
            "biases1": (hidden,),
            "weights2": (2 * width, hidden),
            "biases2": (2 * width,),
        }
        layers = {
            name: Expected((self.transforms, *shape), dtype=torch.float32)
            for name, shape in shapes.items()
        }
        space = {"centre": Expected((width,)), "precision_chol": Expected((width, width))}
        return {**space, **layers}

    def _score(self, outputs: Outputs) -> Tensor:
        return self._negative_log_density(self._whitened(outputs))

    def _negative_log_density(self, x: Tensor) -> Tensor:
        """Of whitened rows ``(N, D)``, as rows of the feature."""
        log_density, width = self._offset, self.features_width
        for weight0, bias0, weight1, bias1, weight2, bias2 in self._layers:
            hidden = torch.relu(x @ weight0.mT + bias0)
            hidden = torch.relu(hidden @ weight1.mT + bias1)
            found = hidden @ weight2.mT + bias2
            shift, free = found[:, :width], found[:, width:]
            log_scale = free / (1 + free.abs() / self._largest)
            x = x * log_scale.exp() + shift
            log_density = log_density + log_scale.sum(dim=1)
        return (x * x).sum(dim=1) / 2 - log_density


def new_flow(width: int, transforms: int, hidden: int, seed: int) -> Any:
    """zuko's flow of this size, in float32; as it is made, it is the identity.

    Its weights are drawn once more: how zuko draws them depends on torch's default type.
    """
    zuko = import_library("zuko", "flow")
    with seeded(seed):
        flow = zuko.flows.MAF(
            width,
            transforms=transforms,
            hidden_features=(hidden, hidden),
            univariate=partial(zuko.transforms.MonotonicAffineTransform, slope=_SLOPE),
        ).to(torch.float32)
    draw = torch.Generator("cpu").manual_seed(seed)
    with torch.no_grad():
        for *layers, last in map(_linear_layers, flow.transform.transforms):
            for layer in layers:
                for tensor in (layer.weight, layer.bias):
                    drawn = torch.rand(tensor.shape, generator=draw, dtype=torch.float32)
                    tensor.copy_((2 * drawn - 1) * layer.in_features**-0.5)
            for tensor in (last.weight, last.bias):
                tensor.zero_()
    return flow


def _linear_layers(transform: Any) -> list[Any]:
    return [layer for layer in transform.hyper if hasattr(layer, "mask")]


# The caller may have turned gradients off; weights made in inference mode could not be trained.
@torch.inference_mode(False)
@torch.enable_grad()
def trained_flow(rows: Tensor, transforms: int, hidden: int, seed: int) -> Any:
    """zuko's flow, trained on these rows ``(N, K)`` float32.

    Raises:
        ExtraMissing: zuko is not here or cannot be imported.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    count = min(round(len(rows) * _STOPPING), _MOST_STOPPING)
    stopping, training = rows[order[:count]].clone(), rows[order[count:]].clone()
    with torch.device("cpu"):  # whatever torch's default device is
        flow = new_flow(rows.shape[1], transforms, hidden, seed).to(rows.device)
    with rows.device:  # where zuko makes tensors
        optimiser = torch.optim.Adam(flow.parameters(), _LEARNING_RATE)
        best, likelihoods = _copied(flow), [_mean_log_density(flow, stopping)]
        while len(likelihoods) <= _ROUNDS:
            order = rng.permutation(len(training))[: _ROUND_BATCHES * _BATCH]
            for start in range(0, len(order), _BATCH):
                _step(flow, optimiser, training[order[start : start + _BATCH]])
            likelihood = _mean_log_density(flow, stopping)
            if likelihood > max(likelihoods):
                best = _copied(flow)
            likelihoods.append(likelihood)
            if len(likelihoods) - 1 - likelihoods.index(max(likelihoods)) >= _PATIENCE:
                break
    flow.load_state_dict(best)
    return flow


def _step(flow: Any, optimiser: torch.optim.Optimizer, rows: Tensor) -> None:
    optimiser.zero_grad()
    loss = -flow().log_prob(rows).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(flow.parameters(), _LARGEST_GRADIENT)
    optimiser.step()


@torch.no_grad()
def _mean_log_density(flow: Any, rows: Tensor) -> float:
    return float(flow().log_prob(rows).mean())


def _copied(flow: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in flow.state_dict().items()}


def flow_tensors(flow: Any) -> dict[str, Tensor]:
    """The weights and biases of a flow of zuko as ``Flow`` has them: masked, transforms stacked.

    zuko has shift and scale of each feature side by side; here all shifts come first.
    """
    transforms = [_linear_layers(transform) for transform in flow.transform.transforms]
    found: dict[str, Tensor] = {}
    for number in range(3):
        layers = [layers[number] for layers in transforms]
        found[f"weights{number}"] = torch.stack([(o.weight * o.mask).detach() for o in layers])
        found[f"biases{number}"] = torch.stack([o.bias.detach() for o in layers])
    for name in ("weights2", "biases2"):
        both = found[name]
        found[name] = torch.cat([both[:, 0::2], both[:, 1::2]], dim=1)
    return found
