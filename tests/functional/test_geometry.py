"""Geometry measures against NumPy, scikit-learn, SciPy, slow loops and numbers worked by hand."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import entropy, variation
from sklearn.covariance import empirical_covariance
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestCentroid
from torch import Tensor

from goen.errors import FitError, UsageError
from goen.functional.cues import normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.geometry import (
    Geometry,
    condition_number,
    effective_rank,
    feature_geometry,
    nearest_mean_agreement,
    top_share,
)

Array = NDArray[np.float64]


def blobs(seed: int = 0, classes: int = 4, dim: int = 6, rows: int = 240) -> tuple[Tensor, Tensor]:
    """Unequal classes, correlated features, far from the origin."""
    rng = np.random.default_rng(seed)
    labels = rng.choice(classes, rows, p=np.arange(1, classes + 1) / (classes * (classes + 1) / 2))
    mixing = np.eye(dim) + 0.4 * rng.normal(size=(dim, dim))
    x = 3 * rng.normal(size=(classes, dim))[labels] + rng.normal(size=(rows, dim)) @ mixing + 5
    return torch.from_numpy(x), torch.from_numpy(labels)


def seen(rows: Tensor, labels: Tensor, classes: int) -> ClassStatistics:
    return ClassStatistics(classes, rows.shape[1]).update(rows, labels)


def slow_geometry(x: Array, y: NDArray[np.int64], weight: Array) -> dict[str, float]:
    """Every measure by its definition, from the rows."""
    classes = np.unique(y)
    means = np.stack([x[y == c].mean(0) for c in classes])
    own = means[np.searchsorted(classes, y)]
    within = empirical_covariance(x - own, assume_centered=True)
    centred = means - means.mean(0)
    between = sum(np.outer(m, m) for m in centred) / len(classes)
    apart = [np.sum((a - b) ** 2) for a, b in combinations(means, 2)]
    cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in combinations(centred, 2)]
    pca = PCA().fit(x)
    share = np.linalg.eigvalsh(within) / np.trace(within)
    ideal = -1 / (len(classes) - 1)
    return {
        "inter_intra_ratio": np.sqrt(np.mean(apart) / np.mean(np.sum((x - own) ** 2, axis=1))),
        "total_top_share": pca.explained_variance_ratio_[0],
        "within_top_share": np.linalg.norm(within, 2) / np.trace(within),
        "total_effective_rank": np.exp(entropy(pca.explained_variance_ratio_)),
        "within_effective_rank": np.exp(entropy(share)),
        "condition_number": np.linalg.cond(within),
        "condition_number_ridged": np.linalg.cond(within + 0.25 * np.eye(len(within))),
        "nc1": np.trace(within @ np.linalg.pinv(between, rcond=1e-10)) / len(classes),
        "nc2_equinorm": variation(np.linalg.norm(centred, axis=1)),
        "nc2_equiangularity": np.std(cosines),
        "nc2_simplex": np.mean([abs(c - ideal) for c in cosines]),
        "nc3": np.linalg.norm(
            weight[classes] / np.linalg.norm(weight[classes]) - centred / np.linalg.norm(centred)
        )
        ** 2,
    }


# -- against the slow reference --------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("unit", [False, True])
def test_every_measure_matches_its_definition(seed: int, unit: bool) -> None:
    rows, labels = blobs(seed)
    rows = normalise(rows) if unit else rows
    weight = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    g = feature_geometry(seen(rows, labels, 4), weight, ridge=0.25)
    for name, expected in slow_geometry(rows.numpy(), labels.numpy(), weight.numpy()).items():
        assert getattr(g, name) == pytest.approx(expected, rel=1e-9), name
    assert (g.num_rows, g.num_classes, g.dim) == (240, 4, 6)


def test_a_class_without_rows_changes_nothing() -> None:
    rows, labels = blobs()
    weight = torch.randn(4, 6, dtype=torch.float64)
    plain = feature_geometry(seen(rows, labels, 4), weight)
    gap = torch.tensor([0, 2, 3, 5])
    wide = torch.randn(6, 6, dtype=torch.float64)
    wide[gap] = weight
    assert feature_geometry(seen(rows, gap[labels], 6), wide) == plain


def test_the_means_of_features_decide_nc4_as_in_sklearn() -> None:
    rows, labels = blobs(3, rows=300)
    logits = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    statistics = seen(rows, labels, 4)
    nearest = NearestCentroid().fit(rows.numpy(), labels.numpy()).predict(rows.numpy())
    expected = np.mean(nearest == logits.numpy().argmax(1))
    assert nearest_mean_agreement(rows, logits, statistics.means_) == expected


def test_an_offset_of_a_million_costs_no_digits_that_matter() -> None:
    rows, labels = blobs(7)
    near, far = (feature_geometry(seen(x, labels, 4)) for x in (rows, rows + 2.0**20))
    for name in ("inter_intra_ratio", "nc1", "nc2_equinorm", "nc2_simplex", "condition_number"):
        assert getattr(far, name) == pytest.approx(getattr(near, name), rel=1e-7), name


# -- by hand ---------------------------------------------------------------------------------

HEIGHT = 0.75**0.5
TRIANGLE = torch.tensor([[1.0, 0.0], [-0.5, HEIGHT], [-0.5, -HEIGHT]], dtype=torch.float64)


def test_a_perfect_simplex_is_collapsed() -> None:
    labels = torch.arange(12) % 3
    g = feature_geometry(seen(7 + 2 * TRIANGLE[labels], labels, 3), 5 * TRIANGLE)
    assert g.nc1 == 0
    for value in (g.nc2_equinorm, g.nc2_equiangularity, g.nc2_simplex, g.nc3):
        assert value == pytest.approx(0, abs=1e-12)
    assert g.inter_intra_ratio == math.inf
    assert g.total_top_share == pytest.approx(0.5)
    assert g.total_effective_rank == pytest.approx(2)
    # All spread is the ridge, and the ridge is round.
    assert math.isnan(g.condition_number)
    assert g.condition_number_ridged == 1


def test_a_simplex_of_ten_classes_of_unequal_size_is_one_still() -> None:
    corners = torch.eye(10, dtype=torch.float64)
    labels = torch.repeat_interleave(torch.arange(10), torch.arange(1, 11))
    g = feature_geometry(seen(corners[labels], labels, 10), corners - 0.1)
    assert g.nc1 == pytest.approx(0, abs=1e-20)
    for value in (g.nc2_equinorm, g.nc2_equiangularity, g.nc2_simplex, g.nc3):
        assert value == pytest.approx(0, abs=1e-12)


def test_four_rows_worked_by_hand() -> None:
    # Means (1, 0) and (-3, 0), centre (-1, 0); each row 1 above or below: within = diag(0, 1).
    rows = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-3.0, 1.0], [-3.0, -1.0]])
    weight = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    g = feature_geometry(seen(rows, torch.tensor([0, 0, 1, 1]), 2), weight)
    assert g == Geometry(
        num_rows=4,
        num_classes=2,
        dim=2,
        inter_intra_ratio=4.0,  # 4 apart, 1 around
        total_top_share=0.8,  # total = diag(4, 1)
        within_top_share=1.0,
        total_effective_rank=pytest.approx(0.8**-0.8 * 0.2**-0.2),
        within_effective_rank=1.0,
        condition_number=math.inf,
        condition_number_ridged=pytest.approx(100_001),
        nc1=0.0,  # no spread along the line of the means
        nc2_equinorm=0.0,
        nc2_equiangularity=0.0,
        nc2_simplex=0.0,  # cosine -1 = -1 / (2 - 1)
        nc3=pytest.approx(2.0),  # orthogonal to the means
    )


def test_nc1_of_spread_along_the_means_worked_by_hand() -> None:
    # Within variance 1 along the means at +-2: Σ_B = 4, and 1 / 4 / 2 classes = 0.125.
    rows = torch.tensor([[1.0], [3.0], [-3.0], [-1.0]])
    g = feature_geometry(seen(rows, torch.tensor([0, 0, 1, 1]), 2))
    assert g.nc1 == pytest.approx(0.125)
    assert (g.inter_intra_ratio, g.nc3) == (4.0, None)


def test_weights_that_point_the_other_way_are_four_apart() -> None:
    labels = torch.arange(3)
    assert feature_geometry(seen(TRIANGLE, labels, 3), -TRIANGLE).nc3 == pytest.approx(4)


def test_unequal_lengths_and_angles_worked_by_hand() -> None:
    # Means 3, 0, -3 on a line: lengths 3, 0, 3 with mean 2 and deviation sqrt 2; no angle to 0.
    g = feature_geometry(seen(torch.tensor([[3.0], [0.0], [-3.0]]), torch.arange(3), 3))
    assert g.nc2_equinorm == pytest.approx(2**0.5 / 2)
    assert math.isnan(g.nc2_equiangularity)
    assert math.isnan(g.nc2_simplex)
    # Means 2, -1, -1: cosines -1, -1, 1, and the simplex has -1/2: off by 1/2, 1/2 and 3/2.
    g = feature_geometry(seen(torch.tensor([[2.0], [-1.0], [-1.0]]), torch.arange(3), 3))
    assert g.nc2_equiangularity == pytest.approx(8**0.5 / 3)
    assert g.nc2_simplex == pytest.approx(5 / 6)


def test_spectra_worked_by_hand() -> None:
    cov = torch.diag(torch.tensor([8.0, 4.0, 4.0]))
    assert (top_share(cov), condition_number(cov)) == (0.5, 2.0)
    assert effective_rank(cov) == pytest.approx(2**1.5)
    assert effective_rank(torch.eye(7)) == pytest.approx(7)
    assert condition_number(torch.ones(3, 3)) == math.inf


# -- laws ------------------------------------------------------------------------------------


def test_turning_scaling_and_moving_change_nothing_but_the_ridge() -> None:
    rows, labels = blobs(2)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))
    moved = 2.5 * rows @ torch.from_numpy(turn) + torch.arange(6)
    before, after = (
        feature_geometry(seen(rows, labels, 4)),
        feature_geometry(seen(moved, labels, 4)),
    )
    for name in Geometry.__dataclass_fields__:
        if name not in ("condition_number_ridged", "nc3"):
            assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-9), name


def test_tighter_classes_have_a_higher_ratio_and_a_lower_nc1() -> None:
    rows, labels = blobs(1)
    means = seen(rows, labels, 4).means_[labels]
    loose, tight = (
        feature_geometry(seen(means + s * (rows - means), labels, 4)) for s in (1.0, 0.5)
    )
    assert tight.inter_intra_ratio == pytest.approx(2 * loose.inter_intra_ratio)
    assert tight.nc1 == pytest.approx(loose.nc1 / 4)
    assert tight.condition_number == pytest.approx(loose.condition_number)


# -- degenerate ------------------------------------------------------------------------------


def test_one_class_has_a_spectrum_and_no_classes_to_compare() -> None:
    rows = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0], [2.0, 1.0]])
    g = feature_geometry(seen(rows, torch.zeros(4, dtype=torch.int64), 3), torch.ones(3, 2))
    assert (g.num_classes, g.total_top_share, g.condition_number) == (1, 0.8, 4.0)
    undefined = ("inter_intra_ratio", "nc1", "nc2_equinorm", "nc2_equiangularity", "nc2_simplex")
    for name in (*undefined, "nc3"):
        assert math.isnan(getattr(g, name)), name


def test_constant_features_have_no_geometry() -> None:
    g = feature_geometry(seen(torch.full((6, 3), 0.1), torch.arange(6) % 2, 2))
    for name in ("inter_intra_ratio", "total_top_share", "within_effective_rank", "nc1"):
        assert math.isnan(getattr(g, name)), name
    assert math.isnan(g.nc2_equinorm)
    assert math.isnan(g.condition_number)
    assert g.condition_number_ridged == 1


def test_classes_with_equal_means_are_not_called_collapsed() -> None:
    rows = torch.tensor([[-1.0], [1.0], [-2.0], [2.0]])
    g = feature_geometry(seen(rows, torch.tensor([0, 0, 1, 1]), 2))
    assert (g.nc1, g.inter_intra_ratio) == (math.inf, 0.0)


def test_fewer_rows_than_dimensions_is_singular() -> None:
    rows, labels = blobs(rows=10, dim=20)
    g = feature_geometry(seen(rows, labels, 4))
    assert g.condition_number == math.inf
    assert 1 < g.condition_number_ridged < math.inf


def test_a_class_without_a_mean_is_left_out_of_nc4() -> None:
    means = torch.tensor([[0.0], [torch.nan], [4.0]])
    rows = torch.tensor([[1.9], [2.1], [9.0]])
    logits = torch.tensor([[1.0, 0, 0], [0, 0, 1.0], [0, 0, 1.0]])
    assert nearest_mean_agreement(rows, logits, means) == 1
    assert math.isnan(nearest_mean_agreement(rows[:0], logits[:0], means))


def test_what_cannot_be_meant_is_refused() -> None:
    rows, labels = blobs()
    statistics = seen(rows, labels, 4)
    with pytest.raises(FitError, match="No rows"):
        feature_geometry(ClassStatistics(2, 2))
    with pytest.raises(FitError, match="too large to square"):
        feature_geometry(seen(rows * 1e160, labels, 4))
    with pytest.raises(UsageError, match=r"\(4, 6\), got \(6, 4\)"):
        feature_geometry(statistics, torch.zeros(6, 4))
