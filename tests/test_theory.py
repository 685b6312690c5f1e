"""What the paper's appendix claims, and where it holds: the numbers on docs/theory.md."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.stats import chi2, multivariate_normal, ncx2, norm
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
from torch import Tensor

from goen.detectors.calibration_head import (
    CalibrationHead,
    HeadConfig,
    probability_of_ood,
    train_head,
)
from goen.functional.bounds import log_density_bounds, mixture_log_density
from goen.functional.covariance import tied_covariance
from goen.functional.cues import normalise
from goen.functional.gaussian import ClassStatistics
from goen.functional.geometry import condition_number, feature_geometry
from goen.functional.whitening import whitener
from goen.metrics import ood_calibration, ood_metrics

Array = NDArray[np.float64]
DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)


def auroc(id_scores: Array | Tensor, ood_scores: Array | Tensor) -> float:
    return ood_metrics(np.asarray(id_scores), np.asarray(ood_scores)).auroc


# -- the least distance against the density --------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_the_density_lies_within_the_priors_of_the_least_distance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    classes, dim = int(rng.integers(2, 12)), int(rng.integers(1, 6))
    priors = rng.dirichlet(np.full(classes, 0.5))
    means = 2 * rng.normal(size=(classes, dim))
    mixing = rng.normal(size=(dim, dim)) + 2 * np.eye(dim)
    cov = mixing @ mixing.T
    rows = 5 * rng.normal(size=(400, dim))

    distances = whitener(torch.from_numpy(means), torch.from_numpy(cov)).distances(
        torch.from_numpy(rows)
    )
    density = mixture_log_density(distances, torch.from_numpy(priors))
    low, high = log_density_bounds(distances, torch.from_numpy(priors))
    constant = dim / 2 * np.log(2 * np.pi) + np.linalg.slogdet(cov)[1] / 2
    by_scipy = sum(
        p * multivariate_normal(m, cov).pdf(rows) for p, m in zip(priors, means, strict=True)
    )
    assert np.allclose(density.numpy() - constant, np.log(by_scipy), rtol=1e-9)
    assert bool((low <= density + 1e-12).all())
    assert bool((density <= high + 1e-12).all())
    assert torch.allclose(high, -distances.amin(dim=1) / 2)
    # No wider than the priors: log C when they are equal, and then so for every row.
    equal = torch.full((classes,), 1 / classes, dtype=torch.float64)
    low, high = log_density_bounds(distances, equal)
    assert torch.allclose(high - low, torch.tensor(np.log(classes)))


def test_both_bounds_are_reached() -> None:
    priors = torch.tensor([0.25, 0.75], dtype=torch.float64)
    distances = torch.tensor([[4.0, 4.0], [4.0, 4000.0]], dtype=torch.float64)
    density = mixture_log_density(distances, priors)
    low, high = log_density_bounds(distances, priors)
    assert float(density[0]) == pytest.approx(float(high[0])) == pytest.approx(-2)
    assert float(density[1]) == pytest.approx(float(low[1])) == pytest.approx(-2 + np.log(0.25))


def test_the_papers_lower_bound_is_broken_by_a_single_row() -> None:
    # The proof has e^(-M/2) <= sum of pi e^(-d/2). At a mean, far from the other: 1 <= 0.5.
    distances = torch.tensor([[0.0, 100.0]])
    density = mixture_log_density(distances, torch.tensor([0.5, 0.5]))
    assert float(density) == pytest.approx(np.log(0.5))


def test_nearer_is_not_always_denser() -> None:
    whitening = whitener(torch.tensor([[-1.0], [1.0]]), torch.eye(1))
    distances = whitening.distances(torch.tensor([[0.0], [1.9]], dtype=torch.float64))
    assert distances.amin(dim=1).tolist() == pytest.approx([1.0, 0.81])
    density = mixture_log_density(distances, torch.tensor([0.5, 0.5])).exp()
    assert density.tolist() == pytest.approx([0.6065, 0.3409], abs=5e-5)


def test_a_rare_class_is_near_and_not_dense() -> None:
    whitening = whitener(torch.tensor([[0.0], [10.0]]), torch.eye(1))
    distances = whitening.distances(torch.tensor([[1.5], [10.0]], dtype=torch.float64))
    assert distances.amin(dim=1).tolist() == pytest.approx([2.25, 0.0])
    density = mixture_log_density(distances, torch.tensor([0.99, 0.01])).exp()
    assert density.tolist() == pytest.approx([0.3214, 0.01], abs=5e-5)


@pytest.mark.parametrize(
    ("radius", "equal", "by_distance", "by_density"),
    [(2, True, 0.868, 0.872), (8, True, 0.894, 0.894), (2, False, 0.868, 0.914)],
)
def test_what_the_shortcut_costs_against_uniform_ood(
    radius: float, equal: bool, by_distance: float, by_density: float
) -> None:
    rng = np.random.default_rng(0)
    priors = np.full(10, 0.1) if equal else np.geomspace(1, 0.01, 10)
    priors = priors / priors.sum()
    angle = 2 * np.pi * np.arange(10) / 10
    means = radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    inside = means[rng.choice(10, 20_000, p=priors)] + rng.normal(size=(20_000, 2))
    outside = rng.uniform(-radius - 4, radius + 4, size=(20_000, 2))
    whitening = whitener(torch.from_numpy(means), torch.eye(2))
    d_in, d_out = (whitening.distances(torch.from_numpy(x)) for x in (inside, outside))
    share = torch.from_numpy(priors)
    assert auroc(d_in.amin(dim=1), d_out.amin(dim=1)) == pytest.approx(by_distance, abs=0.006)
    optimum = auroc(-mixture_log_density(d_in, share), -mixture_log_density(d_out, share))
    assert optimum == pytest.approx(by_density, abs=0.006)


# -- two scales ------------------------------------------------------------------------------


def optimal_auroc(shift: Array, cov: Array) -> float:
    """Of the likelihood ratio between N(0, cov) and N(shift, cov)."""
    return float(norm.cdf(np.sqrt(shift @ np.linalg.solve(cov, shift) / 2)))


@pytest.mark.parametrize("seed", range(5))
def test_the_ratio_of_two_scales_is_never_worse_than_of_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(5, 5))
    cov, shift = mixing @ mixing.T + 0.1 * np.eye(5), rng.normal(size=5)
    both = optimal_auroc(shift, cov)
    for scale in (slice(0, 2), slice(2, 5)):
        assert optimal_auroc(shift[scale], cov[scale, scale]) <= both


def test_the_scale_that_did_not_move_helps_when_correlated() -> None:
    cov, shift = np.array([[1.0, 0.8], [0.8, 1.0]]), np.array([2.0, 0.0])
    assert optimal_auroc(shift[:1], cov[:1, :1]) == pytest.approx(0.9214, abs=5e-5)
    assert optimal_auroc(shift[1:], cov[1:, 1:]) == 0.5
    assert optimal_auroc(shift, cov) == pytest.approx(0.9908, abs=5e-5)
    # So the ratio is no function of z_a alone, as the theorem has it: its weight on z_b is not 0.
    assert np.linalg.solve(cov, shift) == pytest.approx([2 / 0.36, -1.6 / 0.36])
    # And sampled, with the ratio itself as the score.
    rng = np.random.default_rng(0)
    rows = rng.multivariate_normal([0, 0], cov, size=20_000)
    other = rng.multivariate_normal(shift, cov, size=20_000)
    weights = np.linalg.solve(cov, shift)
    assert auroc(rows @ weights, other @ weights) == pytest.approx(0.9908, abs=0.002)


def test_a_scale_that_only_repeats_the_other_adds_nothing() -> None:
    # z_b = z_a + noise, moved along with it: the conditional of z_b given z_a is the same.
    cov, shift = np.array([[1.0, 1.0], [1.0, 2.0]]), np.array([2.0, 2.0])
    assert optimal_auroc(shift, cov) == pytest.approx(optimal_auroc(shift[:1], cov[:1, :1]))


def test_a_shift_of_the_correlation_alone_is_seen_by_both_scales_only() -> None:
    rng = np.random.default_rng(0)
    cov = np.array([[1.0, 0.9], [0.9, 1.0]])
    rows, other = rng.multivariate_normal([0, 0], cov, size=20_000), rng.normal(size=(20_000, 2))
    precision = np.linalg.inv(cov) - np.eye(2)
    ratio = [np.einsum("ni,ij,nj->n", x, precision, x) for x in (rows, other)]
    assert auroc(*ratio) == pytest.approx(0.826, abs=0.006)
    for scale in (0, 1):
        alone = auroc(rows[:, scale] ** 2, other[:, scale] ** 2)
        assert alone == pytest.approx(0.5, abs=0.008)


def distance_auroc(dims: int, shift: float) -> float:
    """Of the squared distance in `dims` dimensions, by the integral of its two densities."""
    return float(quad(lambda q: ncx2.sf(chi2.ppf(q, dims), dims, shift**2), 0, 1, limit=200)[0])


def test_the_distance_over_two_scales_is_worse_than_over_the_one_that_moved() -> None:
    one, two = distance_auroc(8, 4), distance_auroc(8 + 128, 4)
    assert (one, two) == pytest.approx((0.9636, 0.7420), abs=1e-4)
    assert distance_auroc(8 + 512, 4) == pytest.approx(0.6351, abs=1e-4)
    assert optimal_auroc(np.array([4.0]), np.eye(1)) == pytest.approx(0.9977, abs=5e-5)
    # The package's own distance, sampled.
    rng = np.random.default_rng(0)
    rows, other = rng.normal(size=(2, 6_000, 136))
    other[:, 0] += 4
    for dims, expected in ((8, one), (136, two)):
        whitening = whitener(torch.zeros(1, dims), torch.eye(dims))
        scores = [whitening.nearest(torch.from_numpy(x[:, :dims])).distance for x in (rows, other)]
        assert auroc(*scores) == pytest.approx(expected, abs=0.012)


def test_a_scale_in_which_ood_lies_nearer_than_id_turns_the_distance_around() -> None:
    rng = np.random.default_rng(0)
    a, other_a = rng.chisquare(8, 20_000), rng.noncentral_chisquare(8, 9, 20_000)
    b, other_b = rng.chisquare(32, 20_000), 0.49 * rng.chisquare(32, 20_000)
    assert auroc(a, other_a) == pytest.approx(0.875, abs=0.006)
    assert auroc(a + b, other_a + other_b) == pytest.approx(0.268, abs=0.008)
    # Each scale with its own sign: nearer than usual is unusual too.
    assert auroc(-b, -other_b) == pytest.approx(0.976, abs=0.006)


# -- the condition number --------------------------------------------------------------------


def two_condition_numbers(rows: Array, labels: NDArray[np.int64]) -> tuple[float, float]:
    """Of the tied covariance of the rows, and of their unit vectors."""
    x, y = torch.from_numpy(rows), torch.from_numpy(labels)
    raw, unit = (
        feature_geometry(
            ClassStatistics(int(y.max()) + 1, x.shape[1]).update(z, y)
        ).condition_number
        for z in (x, normalise(x))
    )
    return raw, unit


def second_moment_condition(rows: Array) -> float:
    return condition_number(torch.from_numpy(rows.T @ rows / len(rows)))


def test_the_lemmas_bound_does_not_contain_the_covariance() -> None:
    rng = np.random.default_rng(0)
    for _ in range(5):
        values = np.sort(rng.exponential(size=6))
        kappa, trace, delta = values[-1] / values[0], values.sum(), 0.3
        bound = kappa * (trace / values[-1]) * (values[0] / (trace * (1 - delta)))
        assert bound == pytest.approx(1 / (1 - delta))


@pytest.mark.parametrize("kappa", [4.0, 100.0])
def test_in_two_dimensions_normalising_takes_the_square_root(kappa: float) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200_000, 2)) * np.sqrt([kappa, 1.0])
    unit = normalise(torch.from_numpy(rows)).numpy()
    assert second_moment_condition(unit) == pytest.approx(np.sqrt(kappa), rel=0.02)


def test_one_large_direction_among_64_falls_from_1000_to_180() -> None:
    # E[f_i² / |f|²] = integral over t of v_i / (1 + 2 v_i t) · prod (1 + 2 v_j t)^(-1/2), t = e^s.
    def eigenvalue(own: float) -> float:
        def slope(s: float) -> float:
            t = 2 * np.exp(s)
            rest = 0.5 * np.log1p(1000 * t) + 63 * 0.5 * np.log1p(t)
            return float(own * t / 2 / (1 + own * t) * np.exp(-rest))

        return float(quad(slope, -35, 35, limit=200)[0])

    assert eigenvalue(1000) + 63 * eigenvalue(1) == pytest.approx(1)
    assert eigenvalue(1000) / eigenvalue(1) == pytest.approx(180.1, abs=0.1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("tails", ["normal", "student", "flat"])
def test_elliptical_features_of_mean_zero_are_never_worse_conditioned(
    seed: int, tails: str
) -> None:
    rng = np.random.default_rng(seed)
    dim = int(rng.integers(2, 9))
    rows = rng.normal(size=(20_000, dim))
    if tails == "student":
        rows /= np.sqrt(rng.chisquare(5, size=(20_000, 1)))
    elif tails == "flat":
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows *= np.sqrt(rng.uniform(0.01, 1, size=dim))
    unit = normalise(torch.from_numpy(rows)).numpy()
    assert second_moment_condition(unit) < second_moment_condition(rows)


def test_even_lengths_leave_the_condition_number_where_it_was() -> None:
    # 256 directions of variance 10 and 256 of variance 1: lengths vary by 4 %, and 10 stays 9.94.
    rng = np.random.default_rng(0)
    variances = np.repeat([10.0, 1.0], 256)
    rows = rng.normal(size=(4_000, 512)) * np.sqrt(variances)
    lengths = np.linalg.norm(rows, axis=1)
    assert lengths.std() / lengths.mean() == pytest.approx(0.040, abs=0.003)
    power = (rows**2 / lengths[:, None] ** 2).mean(axis=0)
    assert power[:256].mean() / power[256:].mean() == pytest.approx(9.94, abs=0.05)


def test_a_case_of_mean_zero_where_normalising_makes_it_nine_times_worse() -> None:
    # Nine rows of length 1 along one axis for each of length 3 along the other.
    rows = np.array([[1.0, 0], [-1, 0]] * 9 + [[0, 3.0], [0, -3]])
    assert rows.mean(axis=0).tolist() == [0, 0]
    labels = np.zeros(20, dtype=np.int64)
    assert two_condition_numbers(rows, labels) == pytest.approx((1.0, 9.0))


@pytest.mark.parametrize(
    ("spread", "raw", "unit"), [(0.0, 1.0, 13.2), (0.36, 13.2, 13.2), (0.5, 23.1, 13.2)]
)
def test_around_a_far_mean_normalising_helps_only_if_lengths_vary(
    spread: float, raw: float, unit: float
) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60_000, 16))
    rows[:, 0] += 10
    rows *= np.exp(spread * rng.normal(size=(60_000, 1)))
    measured = two_condition_numbers(rows, np.zeros(60_000, dtype=np.int64))
    assert measured == pytest.approx((raw, unit), rel=0.08)


# -- the head --------------------------------------------------------------------------------

MOVED = torch.tensor([1.0, -1.0, 0.5])


def cues(count: int, ood: bool, seed: int) -> Tensor:
    noise = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    return noise + MOVED if ood else noise


def posterior(rows: Tensor) -> Tensor:
    """P(OOD | cues) at equal prevalence, from the two Gaussian densities."""
    return torch.sigmoid(rows @ MOVED - MOVED @ MOVED / 2)


def trained(num_id: int = 8_000, num_ood: int = 8_000) -> CalibrationHead:
    ood = {"ood": cues(num_ood, True, 1)}
    return train_head(cues(num_id, False, 0), ood, HeadConfig(epochs=12, batch_size=256))[0]


@pytest.fixture(scope="module")
def head() -> CalibrationHead:
    return trained()


def fitted_line(head: CalibrationHead) -> tuple[float, float, float]:
    """Slope and intercept of u on the true posterior, and the mean error from 0.05 + 0.9 P."""
    rows = torch.cat([cues(10_000, False, 10), cues(10_000, True, 11)])
    truth = posterior(rows).numpy()
    with torch.no_grad():
        u = torch.sigmoid(head(rows)).numpy()
    slope, intercept = np.polyfit(truth, u, 1)
    return slope, intercept, float(np.abs(u - 0.05 - 0.9 * truth).mean())


def test_the_least_loss_is_at_the_compressed_posterior() -> None:
    u = np.linspace(0.001, 0.999, 9_981)
    for p in (0.0, 0.3, 0.5, 1.0):
        target = 0.95 * p + 0.05 * (1 - p)
        loss = -target * np.log(u) - (1 - target) * np.log(1 - u)
        assert u[loss.argmin()] == pytest.approx(0.05 + 0.9 * p, abs=2e-4)


def test_the_trained_head_is_the_posterior_compressed(head: CalibrationHead) -> None:
    slope, intercept, error = fitted_line(head)
    assert slope == pytest.approx(0.9, abs=0.04)
    assert intercept == pytest.approx(0.05, abs=0.03)
    assert error < 0.025


def test_ten_times_fewer_ood_images_move_it_hardly() -> None:
    # Batches are half and half whatever the counts, so this too is the posterior at one in two;
    # at one in eleven the mean of P would be 0.09 and not 0.5.
    slope, intercept, error = fitted_line(trained(num_ood=800))
    assert slope == pytest.approx(0.9, abs=0.08)
    assert intercept == pytest.approx(0.05, abs=0.05)
    assert error < 0.04


@pytest.mark.parametrize(("prevalence", "as_it_stands"), [(0.5, 0.0), (0.1, 0.255), (0.01, 0.31)])
def test_at_another_prevalence_the_odds_must_be_moved(
    head: CalibrationHead, prevalence: float, as_it_stands: float
) -> None:
    num_ood = round(40_000 * prevalence)
    rows = torch.cat([cues(40_000 - num_ood, False, 20), cues(num_ood, True, 21)])
    is_ood = np.arange(40_000) >= 40_000 - num_ood
    with torch.no_grad():
        p = probability_of_ood(head(rows)).double().numpy()
    odds = prevalence / (1 - prevalence)
    moved = p * odds / (p * odds + 1 - p)
    assert ood_calibration(p, is_ood).ece == pytest.approx(as_it_stands, abs=0.025)
    assert ood_calibration(moved, is_ood).ece < 0.025


def test_the_widest_gap_belongs_to_a_head_that_is_too_sure() -> None:
    rows = [posterior(cues(100_000, ood, seed)) for ood, seed in ((False, 30), (True, 31))]
    right, hard = (
        float((f(rows[1]) - f(rows[0])).mean()) for f in (lambda p: p, lambda p: (p > 0.5).float())
    )
    assert (right, 0.9 * right) == pytest.approx((0.381, 0.343), abs=0.004)
    assert (
        hard == pytest.approx(2 * norm.cdf(0.75) - 1, abs=0.004) == pytest.approx(0.547, abs=0.004)
    )


# -- centre loss -----------------------------------------------------------------------------


@pytest.mark.parametrize(("ratio", "times"), [(2.5, 1.56), (7.5, 14.1)])
def test_halfway_between_two_classes_is_farther_the_tighter_they_are(
    ratio: float, times: float
) -> None:
    # Two classes `ratio` apart in units of the root mean square spread, with the paper's ridge.
    rng = np.random.default_rng(0)
    labels = torch.arange(4_000) % 2
    rows = torch.from_numpy(rng.normal(size=(4_000, 32)) / np.sqrt(32))
    rows[:, 0] += ratio * labels
    statistics = ClassStatistics(2, 32).update(rows, labels)
    assert feature_geometry(statistics).inter_intra_ratio == pytest.approx(ratio, rel=0.01)
    whitening = whitener(statistics.means_, tied_covariance(statistics))
    halfway = whitening.nearest(statistics.means_.mean(dim=0, keepdim=True)).distance
    usual = whitening.nearest(rows).distance.mean()
    assert float(halfway / usual) == pytest.approx(times, rel=0.08)


# -- the page --------------------------------------------------------------------------------


def test_the_page_shows_every_picture_and_none_is_heavy() -> None:
    pictures = list((DOCS / "pictures").glob("theory-*.png"))
    assert len(pictures) == 4
    for path in pictures:
        assert f"](pictures/{path.name})" in (DOCS / "theory.md").read_text()
        assert 5_000 < path.stat().st_size < 60_000


@pytest.mark.slow
def test_the_pictures_are_drawn_again(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("theory", DOCS / "pictures" / "theory.py")
    assert spec is not None
    assert spec.loader is not None
    theory = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theory)
    theory.main(tmp_path)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == sorted(path.name for path in (DOCS / "pictures").glob("theory-*.png"))
