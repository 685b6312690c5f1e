import math

import numpy as np
import pytest

from goen.errors import UsageError
from goen.functional.martingales import Direction
from goen.monitor.state import (
    Batch,
    ChangePoint,
    Guarantee,
    MonitorState,
    StreamState,
    change,
)

NONE = Batch(np.zeros((0, 3)), np.zeros((0, 3)))


def state(**change_points: ChangePoint | None) -> MonitorState:
    streams = {name: StreamState(1.5, change_point) for name, change_point in change_points.items()}
    return MonitorState(4600, 1.5, 4.6, streams, None, None, None, NONE)


def test_without_a_finding_there_is_no_alarm() -> None:
    found = state(score=None, layer2=None)
    assert (found.alarm, found.alarm_at, found.since, found.moved) == (False, None, None, {})
    assert str(found) == "no alarm after 4,600 images: log e-value 1.5, alarm at 4.6"


def test_the_first_finding_is_the_alarm() -> None:
    late, early = ChangePoint(4590, 4300, "higher"), ChangePoint(4502, 4210, "lower")
    found = state(score=late, layer2=early, layer4=None, entropy=None)
    assert (found.alarm, found.alarm_at, found.since) == (True, 4502, 4210)
    assert list(found.moved) == ["layer2", "score"]
    assert str(found) == (
        "alarm at image 4,502: layer2 has moved since about image 4,210 (lower values); score has "
        "moved since about image 4,300 (higher values); layer4, entropy have not"
    )


def test_no_class_is_higher_than_another() -> None:
    found = state(**{"score": None, "predicted class": ChangePoint(28, 1, "lower")})
    assert str(found) == (
        "alarm at image 28: predicted class has moved since about image 1 (another mix of classes)"
        "; score has not"
    )


@pytest.mark.parametrize(
    ("name", "direction", "words"),
    [("brightness", "lower", "darker"), ("brightness", "higher", "brighter"),
     ("sharpness", "lower", "less sharp"), ("contrast", "higher", "more contrast"),
     ("colour", "lower", "less colourful"), ("entropy", "shape", "another distribution")],
)  # fmt: skip
def test_a_property_is_described_in_its_own_words(
    name: str, direction: Direction, words: str
) -> None:
    assert change(f"image {name}", ChangePoint(9, 4, direction)) == words
    assert change(name, ChangePoint(9, 4, "lower")) == "lower values"  # a cue of that name


def test_one_stream_alone_has_no_others() -> None:
    found = state(score=ChangePoint(5, 2, "shape"))
    assert str(found).endswith("score has moved since about image 2 (another distribution)")
    assert "layer4 has not" in str(state(score=ChangePoint(5, 2, "shape"), layer4=None))


# -- guarantees ------------------------------------------------------------------------------


def test_the_alarm_lines_by_hand() -> None:
    assert Guarantee(0.01).alarm_line == pytest.approx(math.log(100))
    assert Guarantee(None, 5000).alarm_line == pytest.approx(math.log(10_000))
    assert (Guarantee(0.01).starts, Guarantee(None, 5000).starts) == ("once", "restart")


def test_each_mode_says_what_it_promises() -> None:
    assert "ever raises an alarm is at most 0.05" in str(Guarantee(0.05))
    text = str(Guarantee(None, 1_000_000))
    assert "not their probability" in text
    assert "1,000,000 images or more" in text


@pytest.mark.parametrize(
    ("alarm_probability", "length"),
    [(None, None), (0.1, 100), (0.0, None), (1.0, None), (-1, None), (math.nan, None), (None, 9),
     (None, 10**13), (None, True), (None, 100.5), (None, math.nan), ("0.01", None)],
)  # fmt: skip
def test_impossible_guarantees_are_refused(
    alarm_probability: float | None, length: int | None
) -> None:
    with pytest.raises(UsageError, match=r"alarm_probability|average_run_length"):
        Guarantee(alarm_probability, length)


def test_numbers_of_numpy_are_those_of_python() -> None:
    """A monitor is saved as JSON, which knows no others."""
    assert type(Guarantee(np.float32(0.25)).alarm_probability) is float
    assert type(Guarantee(None, np.int64(100)).average_run_length) is int
