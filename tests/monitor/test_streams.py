import numpy as np
import pytest

from goen.errors import FitError
from goen.functional.online_conformal import uniforms
from goen.monitor.streams import Stream, Streams, _grid, begin

LINE = np.log(20)


def one(held_out: np.ndarray, seed: int = 0) -> Streams:
    return begin({"score": held_out}, {"score": 1.0}, set(), seed=seed, starts="once")


def test_scores_are_rounded_to_a_power_of_two_near_a_five_hundredth_of_their_spread() -> None:
    held_out = np.random.default_rng(0).normal(7, 3, 2000)
    stream = one(held_out).streams[0]
    assert np.log2(stream.step) % 1 == 0
    assert 3 / 2000 < stream.step < 3 / 200  # the interquartile range is 4
    assert stream.origin in held_out
    values = stream.origin + stream.step * np.array([5.0, -0.4, 0.6, np.inf])
    assert stream.rounded(values).tolist() == [5, 0, 1, np.inf]
    assert Stream("s", 1.0, 2.0**-60).rounded(np.array([1e300]))[0] == 1e300 * 2.0**60
    assert Stream("s", 1.0, 2.0**-60).rounded(np.array([1e308])).tolist() == [np.inf]
    assert Stream("s", 1.0).rounded(np.array([0.1])).tolist() == [0.1]


def test_without_a_spread_in_the_middle_the_range_sets_the_resolution() -> None:
    values = np.array([5.0] * 9 + [5.0 + 3 * 512])
    assert _grid(values) == (2.0, 5.0)
    assert _grid(values[:9]) == (0.0, 0.0)


def test_the_images_that_set_the_resolution_are_not_ranked() -> None:
    held_out = np.arange(2000.0)
    streams = one(held_out)
    assert len(streams.counts[0]) == 2000 - 20
    order = np.argsort(uniforms(0, 1 << 62, 2000), kind="stable")
    stream = streams.streams[0]
    expected = {np.rint((v - stream.origin) / stream.step) for v in held_out[order[20:]]}
    assert {*streams.counts[0].values} == expected
    assert len(one(np.arange(100.0)).counts[0]) == 95


@pytest.mark.parametrize(
    ("values", "expected"),
    [(np.ones(100), 0.0), (np.full(100, np.inf), 0.0), (np.array([0.0] * 50 + [1.0] * 50), None)],
)
def test_scores_without_spread_are_not_rounded(values: np.ndarray, expected: float | None) -> None:
    step = one(values).streams[0].step
    assert step == expected if expected is not None else step in (0.0, 2.0**-9)


def test_an_image_that_comes_again_and_again_keeps_its_rank_under_rounding() -> None:
    """A fifth are the same test card, scored in a batch when held out and alone afterwards."""
    rng = np.random.default_rng(3)

    def scores(count: int, noise: float) -> np.ndarray:
        return np.where(rng.random(count) < 0.2, 0.7 + noise, rng.normal(size=count))

    alarms = 0
    for seed in range(40):
        card = rng.normal()  # wherever it lies within a cell
        streams = one(scores(300, 0.0) + card, seed)
        streams.add({"score": scores(1000, 3e-4) + card}, LINE)
        alarms += streams.change_points[0] is not None
    assert alarms <= 5


def test_classes_are_not_rounded() -> None:
    labels = np.arange(100.0) % 7
    streams = begin({"c": labels}, {"c": 1.0}, {"c"}, seed=0, starts="once")
    assert streams.streams[0].step == 0


def test_too_few_held_out_scores() -> None:
    with pytest.raises(FitError, match="at least 20 held-out scores, got 19"):
        one(np.arange(19.0))


def test_memory_hardly_grows_with_the_number_of_images() -> None:
    rng = np.random.default_rng(0)
    streams = one(rng.normal(size=2000))
    sizes = []
    for _ in range(2):
        for _ in range(40):
            streams.add({"score": rng.normal(size=1024)}, LINE)
        sizes.append(len(streams.counts[0].values))
    assert streams.images == 81_920
    assert sizes[1] < 1.2 * sizes[0] < 12_000


def test_a_finding_is_where_the_line_is_reached_for_the_first_time() -> None:
    rng = np.random.default_rng(2)
    streams = one(rng.normal(size=500))
    first = streams.add({"score": rng.normal(size=300)}, LINE)
    assert streams.change_points == [None]
    batch = streams.add({"score": rng.normal(1.5, 1, size=300)}, LINE)
    change_point = streams.change_points[0]
    assert change_point is not None
    row = change_point.at - 301
    assert batch.log_e_value[row, 0] >= LINE
    assert (batch.log_e_value[:row, 0] < LINE).all()
    assert (first.log_e_value < LINE).all()
    assert 290 <= change_point.since <= 305
    assert change_point.direction == "higher"
    streams.add({"score": rng.normal(size=300)}, LINE)
    assert streams.change_points == [change_point]


def test_a_restart_keeps_the_scores_and_forgets_the_evidence() -> None:
    rng = np.random.default_rng(2)
    streams = one(rng.normal(size=500))
    streams.add({"score": rng.normal(4, 1, size=50)}, LINE)
    again = streams.restarted()
    assert (again.images, again.change_points) == (50, [None])
    assert len(again.counts[0]) == 480 + 50
    assert again.log_e_value.tolist() == [0.0]
    batch = again.add({"score": rng.normal(4, 1, size=100)}, LINE)
    assert (batch.p_values[:5] < 0.2).all()  # still ranked among the old images
    assert again.change_points[0] is not None
    assert 50 < again.change_points[0].since <= again.change_points[0].at <= 150


def test_weights_lower_the_evidence_of_each_stream() -> None:
    scores = np.random.default_rng(0).normal(size=(2, 400))
    streams = begin(
        {"a": scores[0], "b": scores[0]}, {"a": 0.75, "b": 0.25}, set(), seed=0, starts="once"
    )
    batch = streams.add({"a": scores[1], "b": scores[1]}, LINE)
    assert batch.log_e_value[:, 0] - batch.log_e_value[:, 1] == pytest.approx(np.log(3))


@pytest.mark.parametrize(
    ("weight", "step", "origin"),
    [(0, 0, 0), (1.1, 0, 0), (1, -1, 0), (1, np.inf, 0), (np.nan, 0, 0), (1, 1, np.nan)],
)
def test_a_stream_has_a_weight_and_cells(weight: float, step: float, origin: float) -> None:
    with pytest.raises(ValueError, match="has weight"):
        Stream("s", weight, step, origin)
