"""A kept monitor: the same numbers as ``Monitor``, over restarts and kills."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from goen.errors import ArtifactError, StorageError, UsageError
from goen.gate import Gate, HeldOut
from goen.io.manifest import Manifest
from goen.monitor import Monitor, keeping
from goen.monitor.keeping import KeptMonitor, MonitorSettings
from tests.monitor.predictions import cues_of, digit_gate, predicted


def test_it_counts_as_a_monitor_does(tmp_path: Path) -> None:
    kept, monitor = KeptMonitor(digit_gate(), MonitorSettings()), Monitor(digit_gate())
    for seed in range(3):
        prediction = predicted(digit_gate(), cues_of(20, seed))
        kept.add(prediction)
        monitor.update(prediction)
        assert kept.state.images == monitor.images
    assert kept.state.images == 60
    assert kept.state.log_e_value == monitor.state.log_e_value
    told = kept.to_json()
    assert told["images"] == 60
    assert told["sentence"] == str(monitor.state)
    assert [point["images"] for point in kept.history] == [20, 40, 60]
    assert kept.history[-1]["log_e_values"] == monitor.state.log_e_values
    kept.save()  # there is no file
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_counted_is_an_error_once() -> None:
    kept = KeptMonitor(digit_gate(), MonitorSettings())
    good = predicted(digit_gate(), cues_of(20))
    kept.add(replace(good, p_value=good.p_value / 2))
    with pytest.raises(UsageError, match="not of the gate"):
        kept.state  # noqa: B018
    kept.add(good)
    assert kept.state.images == 20


def test_a_saved_monitor_goes_on_with_the_same_numbers(tmp_path: Path) -> None:
    file = tmp_path / "a.monitor.safetensors"
    parts = [predicted(digit_gate(), cues_of(15, seed)) for seed in range(4)]
    whole = KeptMonitor(digit_gate(), MonitorSettings())
    for part in parts:
        whole.add(part)
        assert whole.state.images
    first = KeptMonitor(digit_gate(), MonitorSettings(), file)
    for part in parts[:2]:
        first.add(part)
        assert first.state.images
    first.save()
    written = file.stat().st_mtime_ns
    first.save()
    assert file.stat().st_mtime_ns == written  # nothing has changed
    second = KeptMonitor(digit_gate(), MonitorSettings(), file)
    for part in parts[2:]:
        second.add(part)
        assert second.state.images
    assert second.state.log_e_value == whole.state.log_e_value
    assert [p["log_e_values"] for p in second.history] == [p["log_e_values"] for p in whole.history]


def test_a_restart_ends_an_alarm_and_keeps_what_was_seen(tmp_path: Path) -> None:
    file = tmp_path / "a.monitor.safetensors"
    first = KeptMonitor(digit_gate(), MonitorSettings(), file)
    first.add(predicted(digit_gate(), cues_of(40) + 9))
    assert first.state.alarm
    moved = Manifest(first.to_json()).part("moved")
    assert moved.text("score") == "higher values"
    assert moved.text("predicted class") == "another mix of classes"
    first.save()
    assert KeptMonitor(digit_gate(), MonitorSettings(), file).state.alarm
    again = KeptMonitor(digit_gate(), MonitorSettings(), file, restart=True)
    assert not again.state.alarm
    assert again.state.images == 40
    assert len(again.history) == 1
    again.save()
    assert not KeptMonitor(digit_gate(), MonitorSettings(), file).state.alarm


def test_many_images_are_counted_at_once() -> None:
    kept = KeptMonitor(digit_gate(), MonitorSettings())
    one, many = predicted(digit_gate(), cues_of(1)), predicted(digit_gate(), cues_of(255))
    kept.add(many)
    assert kept.history == []
    kept.add(one)
    assert [point["images"] for point in kept.history] == [256]
    kept.add(one)
    assert kept.to_json()["images"] == 257
    whole = Monitor(digit_gate())
    for part in (many, one, one):
        whole.update(part)
    assert kept.state.log_e_value == whole.state.log_e_value


def test_the_history_stays_short_and_keeps_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_MOST_POINTS", 60)
    kept = KeptMonitor(digit_gate(), MonitorSettings())
    one = predicted(digit_gate(), cues_of(1))
    for _ in range(130):
        kept.add(one)
        assert kept.state.images
    numbers = [point["images"] for point in kept.history]
    assert len(numbers) <= 61
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == 130
    assert numbers[0] < 10
    assert max(np.diff(numbers[:20])) <= 8


def test_the_monitor_of_another_gate_or_bound_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.monitor.safetensors"
    kept = KeptMonitor(digit_gate(), MonitorSettings(), file)
    kept.add(predicted(digit_gate(), cues_of(5)))
    kept.save()
    with pytest.raises(UsageError, match="another guarantee"):
        KeptMonitor(digit_gate(), MonitorSettings(0.02), file)
    gate = digit_gate()
    scores = HeldOut(gate.held_out.scores + 1, gate.held_out.labels, cues=gate.held_out.cues)
    other = Gate(gate.network, gate.detector, scores, 0.05, gate.classes, gate.image_size)
    with pytest.raises(UsageError, match="the monitor of another gate"):
        KeptMonitor(other, MonitorSettings(), file)
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    with pytest.raises(ArtifactError):
        KeptMonitor(digit_gate(), MonitorSettings(), file)


def test_images_are_counted_while_the_state_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptMonitor(digit_gate(), MonitorSettings(), tmp_path / "a.monitor.safetensors")
    kept.add(predicted(digit_gate(), cues_of(20)))

    def slow(*_: object, **__: object) -> None:
        kept.add(predicted(digit_gate(), cues_of(5)))  # it would wait for ever for a lock
        assert kept.state.images == 25
        raise StorageError("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(keeping, "write_monitor", slow)
        with pytest.raises(StorageError):
            kept.save()
    kept.save()  # tried again
    assert KeptMonitor(digit_gate(), MonitorSettings(), kept.file).state.images == 25
