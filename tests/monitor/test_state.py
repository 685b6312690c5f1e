import numpy as np

from goen.monitor.state import Batch, ChangePoint, MonitorState, StreamState

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


def test_one_stream_alone_has_no_others() -> None:
    found = state(score=ChangePoint(5, 2, "shape"))
    assert str(found).endswith("score has moved since about image 2 (another distribution)")
    assert "layer4 has not" in str(state(score=ChangePoint(5, 2, "shape"), layer4=None))
