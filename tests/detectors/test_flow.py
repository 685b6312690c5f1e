"""The arithmetic of a flow is goen's own and needs no zuko; fitting one does."""

import math
import sys

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal
from sklearn.preprocessing import normalize
from torch import Tensor

from goen.detectors import Flow
from goen.detectors.flow import flow_tensors, new_flow, trained_flow
from goen.errors import ExtraMissing, FitError, UsageError
from goen.gate import Gate
from goen.outputs import Outputs
from tests.detectors.saving import reloaded

DIM = 4


def of(z: Tensor) -> Outputs:
    return Outputs(torch.zeros(len(z), 2), {"z": z})


def crescents(count: int, seed: int = 0) -> Outputs:
    """No Gaussian: the second feature bends with the first."""
    draw = torch.Generator().manual_seed(seed)
    z = torch.randn(count, DIM, generator=draw)
    z[:, 1] = z[:, 0] ** 2 + 0.1 * z[:, 1]
    return of(z)


def labels(count: int) -> Tensor:
    return torch.arange(count) % 2


def by_hand(**changed: Tensor) -> Flow:
    """Two features, one transform, one hidden unit that is the first feature where it is > 0."""
    state = {
        "centre": torch.zeros(2, dtype=torch.float64),
        "precision_chol": torch.eye(2, dtype=torch.float64),
        "weights0": torch.tensor([[[1.0, 0.0]]]),
        "biases0": torch.zeros(1, 1),
        "weights1": torch.ones(1, 1, 1),
        "biases1": torch.zeros(1, 1),
        "weights2": torch.tensor([[[0.0], [2.0], [0.0], [0.0]]]),  # the shift of the second is 2 x
        "biases2": torch.tensor([[0.0, 0.0, 0.0, 0.5]]),  # and its scale 0.5, before its bound
    }
    flow = Flow(transforms=1, hidden=1)
    return flow.load_state({**state, **changed}, {"z": 2}, 2)


def test_by_hand() -> None:
    log_scale = 0.5 / (1 + 0.5 / math.log(1000))
    for z, shift in (((0.6, 0.8), 1.2), ((-0.6, 0.8), 0.0)):
        y = 0.8 * math.exp(log_scale) + shift
        expected = (0.36 + y**2) / 2 + math.log(2 * math.pi) - log_scale
        found = by_hand().score(of(5 * torch.tensor([z], dtype=torch.float64)))
        assert float(found) == pytest.approx(expected, rel=1e-12)


def test_a_stretched_feature_has_a_lower_density() -> None:
    at_the_centre = of(torch.tensor([[1.0, 0.0]]))
    centre = torch.tensor([1.0, 0.0], dtype=torch.float64)
    found = by_hand(centre=centre).score(at_the_centre)
    stretched = by_hand(
        centre=centre, precision_chol=torch.diag(torch.tensor([0.5, 1.0], dtype=torch.float64))
    )
    assert float(stretched.score(at_the_centre) - found) == pytest.approx(math.log(2))


def test_without_training_it_is_one_gaussian_of_all_rows() -> None:
    """Flow.fit, but for its training: what the flow begins with is the identity."""
    fit, other = crescents(300), crescents(50, seed=1)
    detector = Flow().fit(fit, labels(300))
    zeros = {
        name: torch.zeros_like(value)
        for name, value in detector.state().items()
        if name.startswith(("weights", "biases"))
    }
    gaussian = reloaded(detector, zeros)
    upper = detector.precision_chol_.numpy()
    reference = multivariate_normal(detector.centre_.numpy(), np.linalg.inv(upper @ upper.T))
    expected = -reference.logpdf(normalize(other.features["z"].numpy().astype(np.float64)))
    assert gaussian.score(other).tolist() == pytest.approx(expected, rel=1e-9)
    begun = flow_tensors(new_flow(DIM, 3, 64, seed=0))
    assert all(not begun[name].any() for name in ("weights2", "biases2"))
    # Trained it describes images that it has not seen better, by far.
    assert float(detector.score(other).mean()) < float(gaussian.score(other).mean()) - 0.5


def test_its_density_is_that_of_zuko() -> None:
    pytest.importorskip("zuko", reason="needs zuko: pip install 'goen[flow]'")
    fit, other = crescents(600), crescents(200, seed=1)
    detector = Flow(transforms=4, hidden=32).fit(fit, labels(600))
    assert float(detector.weights2_.abs().max()) > 0.1
    white = detector._whitened(fit).float()
    flow = trained_flow(white, transforms=4, hidden=32, seed=0).double()
    rows = detector._whitened(other)
    with torch.no_grad():
        density = flow().log_prob(rows)
    expected = -(density + detector.precision_chol_.diagonal().log().sum())
    assert torch.allclose(detector.score(other), expected, atol=1e-5, rtol=0)
    assert torch.allclose(detector.score(other), expected, atol=1e-9)  # both are in float64


def test_the_density_of_two_features_integrates_to_one() -> None:
    """Of whitened rows: on a grid, since nothing but a density does."""
    detector = Flow(hidden=8).fit(of(crescents(400).features["z"][:, :2]), labels(400))
    axis = torch.linspace(-12, 12, 601, dtype=torch.float64)
    grid = torch.cartesian_prod(axis, axis)
    log_scale = detector.precision_chol_.diagonal().log().sum()
    density = (-detector._negative_log_density(grid) - log_scale).exp()
    assert float(density.sum() * (axis[1] - axis[0]) ** 2) == pytest.approx(1, abs=0.02)


def test_a_seed_is_a_training_and_another_seed_another() -> None:
    fit, other = crescents(200), crescents(20, seed=1)
    before = torch.get_rng_state()
    one, same = (Flow(seed=1).fit(fit, labels(200)).score(other) for _ in range(2))
    assert torch.equal(one, same)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(one, Flow(seed=2).fit(fit, labels(200)).score(other))


def test_class_labels_do_not_matter() -> None:
    fit = crescents(100)
    scores = [Flow().fit(fit, given).score(fit) for given in (labels(100), 1 - labels(100))]
    assert torch.equal(*scores)


@pytest.mark.parametrize("rate", [2e-3, 0.3])
def test_the_training_stops_where_the_likelihood_of_other_rows_does(
    rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of Gaussian rows there is nothing to learn; forty rows would be learnt by heart, at once."""
    pytest.importorskip("zuko", reason="needs zuko: pip install 'goen[flow]'")
    monkeypatch.setattr("goen.detectors.flow._LEARNING_RATE", rate)
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 20, generator=draw)
    other = torch.randn(2000, 20, generator=draw)
    flow = trained_flow(rows, transforms=3, hidden=64, seed=0)
    with torch.no_grad():
        found = float(flow().log_prob(other).mean())
    normal = float(-(other.square().sum(dim=1) / 2).mean() - 10 * math.log(2 * math.pi))
    assert found > normal - 2


def test_too_few_rows_or_features_are_refused() -> None:
    with pytest.raises(FitError, match="needs 20 training rows, got 19"):
        Flow().fit(crescents(19), labels(19))
    with pytest.raises(UsageError, match="width 2 or more, got 1"):
        Flow().fit(of(torch.randn(30, 1)), labels(30))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"transforms": 0}, "transforms must be an integer, at least 1"),
        ({"hidden": 0}, "hidden must be an integer, at least 1"),
        ({"seed": -1}, "seed must be an integer"),
    ],
    ids=str,
)
def test_settings_are_checked(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Flow(**wrong)  # type: ignore[arg-type]


def test_without_zuko_it_scores_and_says_what_fitting_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "zuko", None)  # as if not installed
    assert torch.isfinite(by_hand().score(of(torch.randn(5, 2)))).all()
    with pytest.raises(ExtraMissing, match=r"zuko is not here .*: pip install 'goen\[flow\]'"):
        Flow().fit(crescents(30), labels(30))
    images = torch.arange(60 * 4).reshape(60, 1, 2, 2) / 240
    network, seen = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 4)), []
    network.register_forward_hook(lambda module, given, found: seen.append(len(found)))
    sets = (images[:30], torch.arange(30) % 4), images[30:]
    with pytest.raises(ExtraMissing, match=r"pip install 'goen\[flow\]'"):
        Gate.fit(network, *sets, detector="flow", layers=["0"], false_alarm_rate=0.1)
    assert max(seen) < 30  # the network was tried, and no set passed through it


def test_a_forged_state_is_refused() -> None:
    for name, wrong, message in (
        ("weights0", torch.zeros(1, 1, 3), r"weights0 should be float32 of shape \(1, 1, 2\)"),
        ("biases2", torch.zeros(1, 2), r"biases2 should be float32 of shape \(1, 4\)"),
        ("weights1", torch.full((1, 1, 1), torch.inf), "weights1 should hold finite numbers"),
        ("precision_chol", torch.eye(2), r"precision_chol should be float64 of shape \(2, 2\)"),
        ("more", torch.eye(2), "unknown names: more"),
    ):
        with pytest.raises(ValueError, match=message):
            by_hand(**{name: wrong})
