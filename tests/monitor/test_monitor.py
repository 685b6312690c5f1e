"""The monitor: what it guarantees, what it finds, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

import goen
from goen.errors import FitError, UsageError
from goen.monitor import Monitor, MonitorState
from tests.monitor.predictions import digit_gate, like_held_out, predicted

NAMES = ["score", "early", "late", "entropy", "predicted class"]
PROPERTIES = ["brightness", "contrast", "sharpness", "entropy", "colour"]


def test_the_public_name() -> None:
    assert goen.Monitor is Monitor


# -- the guarantee -----------------------------------------------------------------------------


@pytest.mark.parametrize("digits", [0, 9], ids=["ties", "no ties"])
@pytest.mark.parametrize(("held_out", "length"), [(100, 400), (500, 1000)])
def test_alarms_without_a_change_are_as_rare_as_promised(
    held_out: int, length: int, digits: int
) -> None:
    """recipes/monitor_simulation.py does the same with 2,000 streams of 10,000 images."""
    rng = np.random.default_rng(held_out + digits)
    alarms, streams, rate = 0, 150, 0.1
    for seed in range(streams):
        scores = rng.normal(size=held_out + length).round(digits)
        monitor = Monitor.from_scores(scores[:held_out], rate, seed)
        alarms += monitor.update(scores[held_out:]).alarm
    assert alarms / streams <= rate + 3 * np.sqrt(rate * (1 - rate) / streams)


def test_several_streams_keep_the_promise_together() -> None:
    """Streams of the same images, one a function of the other: x, |x| and -x."""
    rng = np.random.default_rng(4)
    alarms, streams, rate = 0, 150, 0.1
    for seed in range(streams):
        x = rng.normal(size=600)
        named = {"x": x, "size": np.abs(x), "minus": -x}
        monitor = Monitor.from_scores({k: v[:100] for k, v in named.items()}, rate, seed)
        alarms += monitor.update({k: v[100:] for k, v in named.items()}).alarm
    assert alarms / streams <= rate + 3 * np.sqrt(rate * (1 - rate) / streams)


def test_frozen_p_values_would_break_the_promise() -> None:
    """The same e-values on p-values against the held-out scores alone."""
    from goen.functional.martingales import StartMixture, log_bets

    rng = np.random.default_rng(5)
    held_out, scores = np.sort(rng.normal(size=(60, 200))), rng.normal(size=(60, 2000))
    above = 200 - np.stack([np.searchsorted(h, s) for h, s in zip(held_out, scores, strict=True)])
    p = ((above + rng.random(above.shape)) / 201).T
    capital = StartMixture(60, "once").advance(log_bets(p, 1 - p)).log_capital
    assert (capital.max(axis=0) >= np.log(20)).mean() > 0.2  # 0.05 is the bound


# -- what it finds ---------------------------------------------------------------------------


def test_a_tenth_of_the_images_three_deviations_out_is_found_in_all_streams() -> None:
    rng = np.random.default_rng(6)
    delays = []
    for seed in range(20):
        monitor = Monitor.from_scores(rng.normal(size=500), 0.05, seed)
        assert not monitor.update(rng.normal(size=500)).alarm
        state = monitor.update(rng.normal(size=3000) + 3 * (rng.random(3000) < 0.1))
        assert state.alarm_at is not None
        delays.append(state.alarm_at - 500)
    assert np.median(delays) < 300


@pytest.mark.parametrize(
    ("after", "direction"),
    [
        (lambda rng: rng.normal(1, 1, 500), "higher"),
        (lambda rng: rng.normal(-1, 1, 500), "lower"),  # too ordinary is a change as well
        (lambda rng: rng.normal(0, 0.4, 2000), "shape"),
    ],
)
def test_changes_in_either_direction_and_of_shape_are_found(after: object, direction: str) -> None:
    rng = np.random.default_rng(7)
    monitor = Monitor.from_scores(rng.normal(size=1000))
    assert not monitor.update(rng.normal(size=1000)).alarm
    state = monitor.update(after(rng))  # type: ignore[operator]
    assert state.since is not None
    assert 800 < state.since < 1150
    assert state.moved["score"].direction == direction


def test_it_names_the_cue_that_moved() -> None:
    rng = np.random.default_rng(8)

    def images(count: int, shift: float) -> dict[str, np.ndarray]:
        return {"layer2": rng.normal(shift, 1, count), "layer4": rng.normal(size=count)}

    monitor = Monitor.from_scores(images(500, 0.0))
    monitor.update(images(2000, 0.0))
    state = monitor.update(images(400, 1.0))
    assert list(state.moved) == ["layer2"]
    assert not state.streams["layer4"].moved
    assert "layer2 has moved since about image 1,996 (higher values)" in str(state)
    assert str(state).endswith("layer4 has not")


def test_a_class_that_becomes_frequent_is_found_by_the_predicted_class() -> None:
    gate = digit_gate()
    monitor = Monitor(gate)
    assert not monitor.update(like_held_out(gate, 300)).alarm
    usual = like_held_out(gate, 300, seed=1)
    labels = np.where(np.random.default_rng(0).random(300) < 0.6, 3, usual.label)
    cues = np.stack(list(usual.cues.values()), axis=1)
    state = monitor.update(predicted(gate, cues, labels))
    assert list(state.moved) == ["predicted class"]


def test_an_alarm_stays() -> None:
    rng = np.random.default_rng(9)
    monitor = Monitor.from_scores(rng.normal(size=500))
    first = monitor.update(rng.normal(3, 1, 30))
    assert first.alarm
    later = monitor.update(rng.normal(size=3000))
    assert later.alarm
    assert later.moved == first.moved
    assert later.log_e_value < later.alarm_line  # the e-value may fall again


# -- a gate ----------------------------------------------------------------------------------


def test_a_monitor_of_a_gate_follows_score_cues_class_and_properties() -> None:
    gate = digit_gate()
    monitor = Monitor(gate)
    state = monitor.update(like_held_out(gate, 200))
    assert list(state.streams) == [*NAMES, *(f"image {name}" for name in PROPERTIES)]
    weights = [s.weight for s in monitor.streams.streams]
    assert weights == pytest.approx([0.5, *[0.5 / 9] * 9])
    assert not state.alarm
    state = monitor.update(like_held_out(gate, 200, seed=1, shift=3.0))
    assert next(iter(state.moved)) in ("score", "early")
    assert not state.streams["late"].moved
    assert not state.streams["predicted class"].moved


def test_the_share_flagged_is_that_of_the_last_thousand_images() -> None:
    gate = digit_gate()
    monitor = Monitor(gate)
    assert monitor.state.flagged is None
    predictions = [like_held_out(gate, 700, seed, shift=seed) for seed in range(3)]
    for prediction in predictions:
        state = monitor.update(prediction)
    last = np.concatenate([p.is_ood for p in predictions])[-1000:]
    assert state.flagged == last.mean()
    # At each end, the count that was seen or a more extreme one has a probability of 2.5 %.
    assert binom.sf(last.sum() - 1, 1000, state.flagged_low) == pytest.approx(0.025)
    assert binom.cdf(last.sum(), 1000, state.flagged_high) == pytest.approx(0.025)


def test_an_alarm_names_the_property_that_changed() -> None:
    gate, rng = digit_gate(), np.random.default_rng(3)
    known = gate.held_out.properties
    assert known is not None
    monitor = Monitor(gate)
    quiet, dark = like_held_out(gate, 300, seed=1), like_held_out(gate, 100, seed=2)
    assert not monitor.update(quiet).alarm
    brightness = dark.properties["brightness"] - 2 * known[:, 0].std() * rng.random(100)
    state = monitor.update(replace(dark, properties={**dark.properties, "brightness": brightness}))
    assert [*state.moved] == ["image brightness"]
    assert 280 < state.since < 330
    assert f"image brightness has moved since about image {state.since} (darker)" in str(state)


def test_predictions_of_real_images() -> None:
    from tests.own_model import digits

    gate = digit_gate()
    monitor = Monitor(gate)
    assert not monitor.update(gate.predict(digits().test)).alarm
    state = monitor.update(gate.predict(digits().evaluation["noise"].images.take(range(30))))
    assert state.alarm
    assert state.images == len(digits().test) + 30


# -- how it is used --------------------------------------------------------------------------


def same(one: MonitorState, other: MonitorState) -> None:
    assert one.streams == other.streams
    assert (one.images, one.log_e_value, one.flagged) == (
        other.images,
        other.log_e_value,
        other.flagged,
    )


def test_the_division_into_updates_does_not_matter() -> None:
    rng = np.random.default_rng(10)
    held_out, scores = rng.normal(size=300), np.append(rng.normal(size=500), rng.normal(1, 1, 300))
    whole, parted = (Monitor.from_scores(held_out) for _ in range(2))
    path = whole.update(scores).batch.log_e_value
    found = []
    for start, stop in [(0, 0), (0, 1), (1, 300), (300, 511), (511, 800)]:
        found.append(parted.update(scores[start:stop]).batch.log_e_value)
    assert (np.concatenate(found) == path).all()
    same(whole.state, parted.state)


def test_the_same_seed_gives_the_same_numbers_and_another_breaks_ties_otherwise() -> None:
    held_out, scores = np.arange(100) % 5, np.arange(60) % 5
    states = [Monitor.from_scores(held_out, seed=s).update(scores) for s in (1, 1, 2)]
    assert states[0].log_e_value == states[1].log_e_value != states[2].log_e_value


def test_a_restart_begins_anew() -> None:
    rng = np.random.default_rng(11)
    monitor = Monitor.from_scores(rng.normal(size=500))
    assert monitor.update(rng.normal(3, 1, 30)).alarm
    monitor.restart()
    assert not monitor.state.alarm
    assert monitor.images == 30
    assert not monitor.update(rng.normal(size=500)).alarm


def test_the_second_mode_bounds_the_mean_time_instead() -> None:
    rng = np.random.default_rng(12)
    times = []
    for seed in range(100):
        scores = rng.normal(size=600)
        monitor = Monitor.from_scores(scores[:100], seed=seed, average_run_length=100)
        times.append(monitor.update(scores[100:]).alarm_at or 500)
    assert np.mean(times) + 3 * np.std(times) / 10 >= 100
    assert min(times) < 500  # there are false alarms
    monitor = Monitor.from_scores(rng.normal(size=500), average_run_length=100_000)
    monitor.update(rng.normal(size=2000))
    state = monitor.update(rng.normal(1, 1, size=200))
    assert state.since is not None
    assert "not their probability" in str(monitor.guarantee)


# -- what it refuses -------------------------------------------------------------------------


def test_a_refused_update_leaves_the_monitor_as_it_was() -> None:
    gate = digit_gate()
    monitor, untouched = Monitor(gate), Monitor(gate)
    for m in (monitor, untouched):
        m.update(like_held_out(gate, 50))
    prediction = like_held_out(gate, 20, seed=1)
    late = prediction.cues["late"].copy()
    late[7] = np.nan
    stranger = replace(prediction, p_value=prediction.p_value[::-1] / 2)
    with pytest.raises(UsageError, match=r"1 of 20 scores \(late\) are NaN"):
        monitor.update(replace(prediction, cues={**prediction.cues, "late": late}))
    with pytest.raises(UsageError, match="not of the gate"):
        monitor.update(stranger)
    with pytest.raises(UsageError, match="give it what gate"):
        monitor.update(prediction.score)
    for m in (monitor, untouched):
        m.update(prediction)
    same(monitor.state, untouched.state)


def test_scores_monitors_refuse_what_is_not_theirs() -> None:
    monitor = Monitor.from_scores(np.arange(100.0))
    with pytest.raises(UsageError, match="made from scores"):
        monitor.update(like_held_out(digit_gate(), 3))
    with pytest.raises(UsageError, match="Expected scores for score, got layer2"):
        monitor.update({"layer2": [1.0]})
    with pytest.raises(UsageError, match="NaN"):
        monitor.update([1.0, np.nan])
    assert monitor.images == 0


def test_bad_settings_are_refused() -> None:
    with pytest.raises(FitError, match="at least 20"):
        Monitor.from_scores([1.0, 2.0])
    with pytest.raises(UsageError, match="either"):
        Monitor.from_scores(np.arange(50.0), 0.01, average_run_length=1000)
    with pytest.raises(UsageError, match=r"held-out scores .* NaN"):
        Monitor.from_scores([np.nan] * 50)
    with pytest.raises(UsageError, match="at least one stream"):
        Monitor.from_scores({})
    with pytest.raises(UsageError, match="whole number"):
        Monitor.from_scores(np.arange(50.0), seed=0.5)  # type: ignore[arg-type]


def test_infinite_scores_are_scores() -> None:
    monitor = Monitor.from_scores(np.arange(100.0))
    state = monitor.update([np.inf] * 10)
    assert state.alarm
    assert np.isfinite(state.log_e_value)


def test_its_repr_is_a_sentence() -> None:
    assert repr(Monitor.from_scores(np.arange(100.0))) == (
        "Monitor(score; no alarm after 0 images: log e-value 0.0, alarm at 4.6)"
    )
