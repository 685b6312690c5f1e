"""The monitor of a service: the same numbers as ``Monitor``, over restarts and kills."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import sleep

import numpy as np
import pytest
import torch

from goen.errors import ArtifactError, UsageError
from goen.gate import Gate, HeldOut
from goen.monitor import Monitor
from goen.runs.manifest import Manifest
from goen.serve import watching
from goen.serve.service import Service, state_file
from goen.serve.settings import ServeSettings
from goen.serve.watching import WatchedStream

from ..gate.test_gate import make_gate
from ..monitor.predictions import digit_gate, predicted


def cues(count: int, seed: int = 0) -> np.ndarray:
    known = digit_gate().held_out.cues
    assert known is not None
    return known[np.random.default_rng(seed).integers(0, len(known), count)]


def test_it_counts_as_a_monitor_does(tmp_path: Path) -> None:
    stream, monitor = WatchedStream(digit_gate(), 0.01), Monitor(digit_gate(), 0.01)
    for seed in range(3):
        prediction = predicted(digit_gate(), cues(20, seed))
        stream.add(prediction)
        monitor.update(prediction)
        assert stream.state.images == monitor.images
    assert stream.state.images == 60
    assert stream.state.log_evidence == monitor.state.log_evidence
    told = stream.to_json()
    assert told["images"] == 60
    assert told["sentence"] == str(monitor.state)
    assert [point.images for point in stream.history] == [20, 40, 60]
    assert stream.history[-1].evidence == {
        name: state.log_evidence for name, state in monitor.state.streams.items()
    }
    stream.save()  # there is no file
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_counted_is_an_error_once() -> None:
    stream = WatchedStream(digit_gate(), 0.01)
    good = predicted(digit_gate(), cues(20))
    stream.add(replace(good, p_value=good.p_value / 2))
    with pytest.raises(UsageError, match="not of the gate"):
        stream.state  # noqa: B018
    stream.add(good)
    assert stream.state.images == 20


def test_a_monitor_that_cannot_count_does_not_end_the_service(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys.modules[Service.__module__], "_TICK_SECONDS", 0.01)
    service = Service({"a": digit_gate()})
    with service.running():
        stream = service.find("a").stream
        assert stream is not None
        good = predicted(digit_gate(), cues(20))
        for times in (1, 2):
            stream.add(replace(good, p_value=good.p_value / 2))
            for _ in range(1000):
                if (said := caplog.text.count("The monitor of a could not count")) == times:
                    break
                sleep(0.01)
            assert said == times


def test_a_saved_stream_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    file = tmp_path / "a.monitor.safetensors"
    parts = [predicted(digit_gate(), cues(15, seed)) for seed in range(4)]
    whole = WatchedStream(digit_gate(), 0.01)
    for part in parts:
        whole.add(part)
        assert whole.state.images
    first = WatchedStream(digit_gate(), 0.01, file)
    for part in parts[:2]:
        first.add(part)
        assert first.state.images
    first.save()
    written = file.stat().st_mtime_ns
    first.save()
    assert file.stat().st_mtime_ns == written  # nothing has changed
    second = WatchedStream(digit_gate(), 0.01, file)
    for part in parts[2:]:
        second.add(part)
        assert second.state.images
    assert second.state.log_evidence == whole.state.log_evidence
    assert [p.evidence for p in second.history] == [p.evidence for p in whole.history]


def test_a_restart_ends_an_alarm_and_keeps_what_was_seen(tmp_path: Path) -> None:
    file = tmp_path / "a.monitor.safetensors"
    first = WatchedStream(digit_gate(), 0.01, file)
    first.add(predicted(digit_gate(), cues(40) + 9))
    assert first.state.alarm
    moved = Manifest(first.to_json()).part("moved")
    assert moved.text("score") == "higher values"
    assert moved.text("predicted class") == "another mix of classes"
    first.save()
    assert WatchedStream(digit_gate(), 0.01, file).state.alarm
    again = WatchedStream(digit_gate(), 0.01, file, restart=True)
    assert not again.state.alarm
    assert again.state.images == 40
    assert len(again.history) == 1
    again.save()
    assert not WatchedStream(digit_gate(), 0.01, file).state.alarm


def test_many_images_are_counted_at_once() -> None:
    stream = WatchedStream(digit_gate(), 0.01)
    one, many = predicted(digit_gate(), cues(1)), predicted(digit_gate(), cues(255))
    stream.add(many)
    assert stream.history == []
    stream.add(one)
    assert [point.images for point in stream.history] == [256]
    stream.add(one)
    assert stream.to_json()["images"] == 257
    whole = Monitor(digit_gate(), 0.01)
    for part in (many, one, one):
        whole.update(part)
    assert stream.state.log_evidence == whole.state.log_evidence


def test_the_history_stays_short_and_keeps_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "_MOST_POINTS", 60)
    stream = WatchedStream(digit_gate(), 0.01)
    one = predicted(digit_gate(), cues(1))
    for _ in range(130):
        stream.add(one)
        assert stream.state.images
    numbers = [point.images for point in stream.history]
    assert len(numbers) <= 61
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 130
    assert numbers[0] < 10
    assert max(np.diff(numbers[:20])) <= 8


def test_the_state_of_another_gate_or_bound_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.monitor.safetensors"
    stream = WatchedStream(digit_gate(), 0.01, file)
    stream.add(predicted(digit_gate(), cues(5)))
    stream.save()
    with pytest.raises(UsageError, match="another bound"):
        WatchedStream(digit_gate(), 0.02, file)
    gate = digit_gate()
    scores = HeldOut(gate.held_out.scores + 1, gate.held_out.labels, cues=gate.held_out.cues)
    other = Gate(gate.network, gate.detector, scores, 0.05, gate.classes, gate.image_size)
    with pytest.raises(UsageError, match="the state of another gate"):
        WatchedStream(other, 0.01, file)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(ArtifactError):
        WatchedStream(digit_gate(), 0.01, file)


def test_a_service_keeps_its_state_and_is_alone_in_its_folder(tmp_path: Path) -> None:
    settings = ServeSettings(state=tmp_path / "state")
    images = np.zeros((3, *digit_gate().image_size), np.uint8)
    for expected in (3, 6):
        service = Service({"digits": digit_gate()}, settings)
        with service.running():
            for slot in service.find(None).queue.reserve(3):
                slot.fill(images).result(60)
        assert state_file(tmp_path / "state", "digits").is_file()
        stream = service.find(None).stream
        assert stream is not None
        assert stream.state.images == expected
    assert WatchedStream(digit_gate(), 0.01, stream.file).state.images == 6


def few_held_out() -> Gate:
    """A gate with as many held-out images as its rate needs, which are too few for a monitor."""
    known = digit_gate().held_out
    assert known.labels is not None
    assert known.cues is not None
    held_out = HeldOut(known.scores[:19], known.labels[:19], known.cues[:19])
    return replace(digit_gate(), held_out=held_out)


@pytest.mark.parametrize(
    ("gate", "reason"),
    [
        (make_gate, "saved without the cues of its held-out images"),
        (few_held_out, "needs at least 20 held-out scores, got 19"),
    ],
)
def test_a_gate_without_what_a_monitor_needs_is_served_without_one(
    gate: Callable[[], Gate], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service({"digits": gate()}, ServeSettings(state=tmp_path))
    with service.running():
        assert service.find(None).stream is None
    assert "The images of the gate digits are not monitored" in caplog.text
    assert reason in caplog.text


def test_a_gate_that_takes_no_pictures_is_refused() -> None:
    features = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    gate = Gate.fit_outputs(features[:100], None, features[100:])
    with (
        pytest.raises(UsageError, match="takes no images"),
        Service({"features": gate}).running(),
    ):
        pass


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "a\n", "ä", "x" * 65])
def test_names_that_cannot_be_part_of_an_address_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="NAME=GATE"):
        Service({name: digit_gate()})
    with pytest.raises(UsageError, match="at least one gate"):
        Service({})
