import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.covariance import LedoitWolf
from torch import Tensor

from goen.detectors import Mahalanobis, MultilayerMahalanobis
from goen.detectors.multilayer_mahalanobis import _select
from goen.errors import FitError, UsageError
from goen.outputs import Outputs
from tests.detectors.saving import reloaded

LAYERS = ("first", "second", "third", "fourth", "last")
WIDTHS = (3, 4, 6, 8, 5)


def outputs(count: int, seed: int, shift: float = 0.0) -> tuple[Outputs, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=rng)
    features = {}
    for number, (name, width) in enumerate(zip(LAYERS, WIDTHS, strict=True)):
        # Another shape in each layer: the deeper, the fewer directions vary, but for the third.
        spread = torch.linspace(1, 0.02 if number in (1, 3) else 0.5, width)
        around = torch.randn(count, width, generator=rng) * spread
        features[name] = around + 3 * torch.eye(3, width)[labels] + shift * torch.arange(width)
    return Outputs(torch.zeros(count, 3), features), labels


def unit(rows: Tensor) -> np.ndarray:
    values = rows.double().numpy()
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def centred(rows: np.ndarray, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    means = np.stack([rows[labels.numpy() == c].mean(axis=0) for c in range(3)])
    return rows - means[labels.numpy()], means


def slow(train: Outputs, labels: Tensor, tested: Outputs, num_layers: int) -> list[float]:
    """By the words of the docstring, with NumPy, SciPy's entropy and scikit-learn's shrinkage."""
    densities = []
    for name in LAYERS:
        deviations, _ = centred(unit(train.features[name]), labels)
        eigenvalues = np.linalg.eigvalsh(deviations.T @ deviations)
        densities.append(entropy(eigenvalues / eigenvalues.sum()) / deviations.shape[1])
    falls = {layer: densities[layer - 1] - densities[layer] for layer in range(1, len(LAYERS))}
    most = sorted(range(1, len(LAYERS) - 1), key=lambda layer: -falls[layer])[: num_layers - 1]
    layers = sorted([*most, len(LAYERS) - 1])
    weights = np.exp([falls[layer] for layer in layers])
    weights /= weights.sum()

    def joined(of: Outputs) -> np.ndarray:
        parts = zip(weights, layers, strict=True)
        return np.hstack([weight * unit(of.features[LAYERS[layer]]) for weight, layer in parts])

    deviations, means = centred(joined(train), labels)
    precision = LedoitWolf(assume_centered=True).fit(deviations).precision_
    return [
        min(float((row - mean) @ precision @ (row - mean)) for mean in means)
        for row in joined(tested)
    ]


@pytest.mark.parametrize("num_layers", [1, 2, 3, 9])
def test_it_is_the_slow_loop(num_layers: int) -> None:
    train, labels = outputs(200, 0)
    tested = Outputs.concatenate([outputs(12, 1)[0], outputs(12, 2, shift=3.0)[0]])
    detector = MultilayerMahalanobis(feature=LAYERS, num_layers=num_layers).fit(train, labels)
    wanted = slow(train, labels, tested, min(num_layers, len(LAYERS) - 1))
    assert detector.score(tested).tolist() == pytest.approx(wanted, rel=1e-9)


def test_layers_by_hand() -> None:
    densities = torch.tensor([0.9, 0.8, 0.3, 0.2, 0.5], dtype=torch.float64)
    # They fall by 0.1, 0.5, 0.1 and -0.3; of two that fall alike, the earlier.
    layers, weights = _select(densities, 3)
    assert layers.tolist() == [1, 2, 4]
    shares = np.exp([0.1, 0.5, -0.3])
    assert weights.tolist() == pytest.approx(shares / shares.sum())
    assert _select(densities, 2)[0].tolist() == [2, 4]
    assert _select(densities, 1)[0].tolist() == [4]
    assert _select(densities, 99)[0].tolist() == [1, 2, 3, 4]
    for few in (1, 2):  # the first takes no part unless it is the last
        layers, weights = _select(densities[:few], 3)
        assert (layers.tolist(), weights.tolist()) == ([few - 1], [1.0])


def test_one_layer_is_mahalanobis_plus_plus_but_for_the_shrinkage() -> None:
    train, labels = outputs(20_000, 0)
    tested, _ = outputs(50, 1, shift=1.0)
    one = MultilayerMahalanobis(feature="last").fit(train, labels).score(tested)
    other = Mahalanobis(feature="last", normalise=True, ridge=0.0).fit(train, labels)
    assert one.tolist() == pytest.approx(other.score(tested).tolist(), rel=0.01)
    assert not torch.equal(one, other.score(tested))


def test_the_length_of_a_feature_does_not_count() -> None:
    train, labels = outputs(200, 0)
    tested, _ = outputs(20, 1)
    longer = Outputs(tested.logits, {name: 7 * rows for name, rows in tested.features.items()})
    detector = MultilayerMahalanobis(feature=LAYERS).fit(train, labels)
    assert detector.score(longer).tolist() == pytest.approx(detector.score(tested).tolist())


def test_a_layer_that_does_not_vary_is_refused() -> None:
    train, labels = outputs(200, 0)
    train.features["third"][:] = 1.0
    with pytest.raises(FitError, match="No feature varies within a class"):
        MultilayerMahalanobis(feature=LAYERS).fit(train, labels)


def test_no_layer_and_no_number_are_refused() -> None:
    with pytest.raises(UsageError, match="at least one feature"):
        MultilayerMahalanobis(feature=())
    with pytest.raises(UsageError, match="at least 1; got 0"):
        MultilayerMahalanobis(num_layers=0)
    with pytest.raises(UsageError, match=r"num_layers must be an integer, at least 1; got 1\.5"):
        MultilayerMahalanobis(num_layers=1.5)  # type: ignore[arg-type]


@pytest.mark.parametrize("layers", [[1, 2, 3], [2, 1, 4], [2, 2, 4], [1, 5], [-1, 4]], ids=str)
def test_a_forged_state_is_refused(layers: list[int]) -> None:
    train, labels = outputs(200, 0)
    detector = MultilayerMahalanobis(feature=LAYERS).fit(train, labels)
    state = detector.state()
    assert state["layers"].tolist()[-1] == 4
    assert torch.equal(reloaded(detector).score(train), detector.score(train))
    with pytest.raises(ValueError, match="its tensor layers should"):
        reloaded(detector, {"layers": torch.tensor(layers)})
    with pytest.raises(ValueError, match="its tensor weights should"):
        reloaded(detector, {"weights": state["weights"][1:]})
    with pytest.raises(ValueError, match=r"its tensor whitening\.centre should"):
        reloaded(detector, {"whitening.centre": state["whitening.centre"][1:]})


def test_layers_in_a_list_are_saved_and_loaded() -> None:
    train, labels = outputs(200, 0)
    detector = MultilayerMahalanobis(feature=list(LAYERS)).fit(train, labels)
    of_tuple = MultilayerMahalanobis(feature=LAYERS).fit(train, labels)
    assert torch.equal(reloaded(detector).score(train), of_tuple.score(train))
