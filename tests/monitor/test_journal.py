"""The journal of a kept monitor: what it writes, how it resumes, and what it refuses."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from goen.errors import ArtifactError, StorageError, UsageError
from goen.gate.prediction import ScoreRow
from goen.monitor import Monitor, keeping
from goen.monitor.journal import EVENTS, IMAGES, STATE, Journal, read_json_lines
from goen.monitor.keeping import KeptMonitor, MonitorSettings, open_monitor_folder
from tests.monitor.predictions import digit_gate, like_held_out

PLAIN = MonitorSettings()


def score_rows(count: int, seed: int = 0, shift: float = 0.0) -> list[ScoreRow]:
    """Rows as ``goen score`` writes and another process reads them."""
    prediction = like_held_out(digit_gate(), count, seed, shift)
    rows = [
        {"path": f"{seed}/{number}.png", **row, "error": None}
        for number, row in enumerate(prediction.rows())
    ]
    return json.loads(json.dumps(rows))  # type: ignore[no-any-return]


def journal(kept: KeptMonitor) -> Journal:
    assert kept.journal is not None
    return kept.journal


def lines(file: Path) -> list[dict]:  # type: ignore[type-arg]
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_image_has_a_row_and_every_change_an_event(tmp_path: Path) -> None:
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        assert [event["event"] for event in kept.opened] == ["started"]
        assert kept.add_rows(score_rows(150)) == []
        events = kept.add_rows(score_rows(100, seed=1, shift=3.0))
    expected = Monitor(digit_gate())
    expected.update(like_held_out(digit_gate(), 150))
    state = expected.update(like_held_out(digit_gate(), 100, seed=1, shift=3.0))
    rows = lines(tmp_path / IMAGES)
    assert [row["image"] for row in rows] == list(range(1, 251))
    assert rows[0]["path"] == "0/0.png"
    names = list(state.streams)
    for row, p, values in zip(
        rows[150:], state.batch.p_values, state.batch.log_e_value, strict=True
    ):
        assert list(row["p"].values()) == pytest.approx(p.tolist(), rel=1e-5)
        assert list(row["log_e_value"].values()) == pytest.approx(values.tolist(), abs=1e-4)
        assert list(row["p"]) == names
    assert [event["event"] for event in events] == ["alarm"] + ["moved"] * (len(state.moved) - 1)
    alarm = events[0]
    assert (alarm["image"], alarm["since"]) == (state.alarm_at, state.since)
    for event in events:  # the value at that image, not at the end of the batch
        value = rows[event["image"] - 1]["log_e_value"][event["stream"]]
        assert event["log_e_value"] == value >= state.alarm_line
        assert rows[event["image"] - 2]["log_e_value"][event["stream"]] < state.alarm_line
    assert lines(tmp_path / EVENTS)[1:] == events


def test_a_resumed_monitor_continues_with_the_same_numbers(tmp_path: Path) -> None:
    for folder, sizes in ((tmp_path / "whole", (200,)), (tmp_path / "parts", (3, 100, 97))):
        rows, start = score_rows(200), 0
        for size in sizes:
            with open_monitor_folder(folder, digit_gate(), "digits", PLAIN) as kept:
                kept.add_rows(rows[start : start + size])
            start += size
    one, other = (lines(tmp_path / name / IMAGES) for name in ("whole", "parts"))
    assert one == other
    events = [event["event"] for event in lines(tmp_path / "parts" / EVENTS)]
    assert events == ["started", "resumed", "resumed"]


def test_what_was_written_after_the_last_state_is_as_if_it_had_never_been(tmp_path: Path) -> None:
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        kept.add_rows(score_rows(50))
        saved = (tmp_path / STATE).read_bytes()
        written = (tmp_path / IMAGES).read_bytes()
        kept.add_rows(score_rows(60, seed=1))
    (tmp_path / STATE).write_bytes(saved)  # killed before the state was saved
    with (tmp_path / IMAGES).open("ab") as file:
        file.write(b'{"image": 111, "pa')  # and in the middle of a row
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        assert (tmp_path / IMAGES).read_bytes() == written
        assert journal(kept).is_new("1/5.png")
        assert not journal(kept).is_new("0/5.png")
        kept.add_rows(score_rows(60, seed=1))
    assert [row["image"] for row in lines(tmp_path / IMAGES)] == list(range(1, 111))


@pytest.mark.parametrize("failing", [0, 1])
def test_rows_that_could_not_be_written_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    calls: list[int] = []

    def full(file: int) -> None:
        calls.append(file)
        if len(calls) > failing:
            raise OSError(errno.ENOSPC, "No space left on device")

    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        kept.add_rows(score_rows(50))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(StorageError, match="Cannot write"):
                kept.add_rows(score_rows(60, seed=1))
        with pytest.raises(UsageError, match="Open it again"):
            kept.add_rows(score_rows(60, seed=1))
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        assert kept.monitor.state.images == 50
        kept.add_rows(score_rows(60, seed=1))
        assert kept.monitor.state.images == 110
    assert [row["image"] for row in lines(tmp_path / IMAGES)] == list(range(1, 111))


def test_a_path_is_counted_once_and_rows_without_one_always(tmp_path: Path) -> None:
    rows = score_rows(10)
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        kept.add_rows(rows[:6])
        kept.add_rows(rows)
        assert kept.monitor.images == 10
        kept.add_rows([rows[0], {**rows[1], "path": "new"}, {**rows[2], "path": "new"}])
        assert kept.monitor.images == 11
        bare = {name: value for name, value in rows[3].items() if name != "path"}
        kept.add_rows([bare, bare])
        assert kept.monitor.images == 13
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        kept.add_rows(rows)
        assert kept.monitor.images == 13


def test_unreadable_files_are_events_and_not_images(tmp_path: Path) -> None:
    broken = {**dict.fromkeys(score_rows(1)[0]), "path": "x.png", "error": "x.png is broken"}
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        events = kept.add_rows([*score_rows(3), broken])
        assert (kept.monitor.images, journal(kept).unreadable) == (3, 1)
    assert [(e["event"], e["path"], e["error"]) for e in events] == [
        ("unreadable", "x.png", "x.png is broken")
    ]
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        assert journal(kept).unreadable == 1
        # It is not on record twice, and counts when it can be read after all.
        assert kept.add_rows([broken]) == []
        assert journal(kept).unreadable == 1
        assert journal(kept).is_new("x.png")
        kept.add_rows([{**score_rows(4)[3], "path": "x.png"}])
        assert (kept.monitor.images, journal(kept).unreadable) == (4, 0)
        assert not journal(kept).is_new("x.png")
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        kept.add_rows([{**score_rows(4)[3], "path": "x.png"}, broken])
        assert (kept.monitor.images, journal(kept).unreadable) == (4, 0)


def test_half_a_character_in_an_error_is_written_and_read_again(tmp_path: Path) -> None:
    odd = "caf\udce9.npz and \ud800 are broken"
    broken = {**dict.fromkeys(score_rows(1)[0]), "path": "x.png", "error": odd}
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        kept.add_rows([*score_rows(3), broken])
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert [json.loads(line).get("error") for line in lines].count(odd) == 1
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        assert journal(kept).unreadable == 1


def test_a_bad_row_changes_nothing(tmp_path: Path) -> None:
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        kept.add_rows(score_rows(20))
        before = {name: (tmp_path / name).read_bytes() for name in (STATE, IMAGES, EVENTS)}
        with pytest.raises(UsageError, match="not a row of goen score"):
            kept.add_rows([*score_rows(5, seed=1), {"path": "y", "label": "3"}])
        for path in (3, ["a"], {"a": "b"}, "half a character: \ud800"):
            with pytest.raises(UsageError, match="its path should be text"):
                kept.add_rows([{**score_rows(1, seed=2)[0], "path": path}])
        assert before == {name: (tmp_path / name).read_bytes() for name in before}
        kept.add_rows(score_rows(5, seed=1))
        assert kept.monitor.images == 25


def test_a_restart_is_on_record(tmp_path: Path) -> None:
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        kept.add_rows(score_rows(60, shift=4.0))
        assert kept.monitor.state.alarm
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN, restart=True) as kept:
        assert [event["event"] for event in kept.opened] == ["resumed", "restarted"]
    assert [event["event"] for event in lines(tmp_path / EVENTS)[-2:]] == ["resumed", "restarted"]
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        assert not kept.monitor.state.alarm
        assert kept.monitor.images == 60


# -- what it refuses -------------------------------------------------------------------------


def begin(folder: Path, settings: MonitorSettings = PLAIN) -> None:
    with open_monitor_folder(folder, digit_gate(), "digits", settings) as kept:
        kept.add_rows(score_rows(10))


def test_another_gate_or_promise_or_seed_is_refused(tmp_path: Path) -> None:
    begin(tmp_path, MonitorSettings(alarm_probability=0.05, seed=3))
    gate = digit_gate()
    other = replace(gate, held_out=replace(gate.held_out, scores=gate.held_out.scores + 1))
    for changed, settings, message in (
        (other, PLAIN, "another gate"),
        (gate, MonitorSettings(alarm_probability=0.01), "another guarantee"),
        (gate, MonitorSettings(average_run_length=1000), "another guarantee"),
        (gate, MonitorSettings(seed=4), "begun with seed 3"),
    ):
        with (
            pytest.raises(UsageError, match=message),
            open_monitor_folder(tmp_path, changed, "digits", settings),
        ):
            pass
    with open_monitor_folder(
        tmp_path, gate, "digits", MonitorSettings(alarm_probability=0.05, seed=3)
    ) as kept:
        assert kept.monitor.guarantee.alarm_probability == 0.05


def test_a_folder_in_which_nothing_was_counted_is_begun_again(tmp_path: Path) -> None:
    gate = digit_gate()
    other = replace(gate, held_out=replace(gate.held_out, scores=gate.held_out.scores + 1))
    with (
        pytest.raises(UsageError, match="not of the gate that the monitor was made for"),
        open_monitor_folder(tmp_path, other, "other", PLAIN) as kept,
    ):
        kept.add_rows(score_rows(10))
    begin(tmp_path, MonitorSettings(seed=4))
    assert len(lines(tmp_path / IMAGES)) == 10
    [started] = lines(tmp_path / EVENTS)
    assert (started["event"], started["gate"]) == ("started", "digits")


def test_a_row_without_label_and_error_is_no_row(tmp_path: Path) -> None:
    with open_monitor_folder(tmp_path, digit_gate(), "digits", PLAIN) as kept:
        with pytest.raises(UsageError, match="it has neither a label nor an error"):
            kept.add_rows([*score_rows(3), {"bad": 1}])
        assert kept.state.images == 0
        kept.add_rows([{"path": "a.png", "label": None, "error": "damaged"}])
    assert [event["event"] for event in lines(tmp_path / EVENTS)] == ["started", "unreadable"]


def test_nothing_of_others_is_touched(tmp_path: Path) -> None:
    for name in (IMAGES, EVENTS, STATE, "run.json"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        (folder / name).write_text("notes")
        with (
            pytest.raises(UsageError, match="not a watch folder that goen made"),
            open_monitor_folder(folder, digit_gate(), "digits", PLAIN),
        ):
            pass
        assert (folder / name).read_text() == "notes"


def test_a_monitor_that_was_killed_before_its_first_state_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(keeping, "write_monitor", killed)
        with pytest.raises(KeyboardInterrupt):
            begin(tmp_path)
    assert not (tmp_path / STATE).exists()
    (tmp_path / IMAGES).touch()
    begin(tmp_path)
    assert len(lines(tmp_path / IMAGES)) == 10
    assert [event["event"] for event in lines(tmp_path / EVENTS)] == ["started"]


def test_rows_without_their_state_are_refused(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / STATE).unlink()
    with pytest.raises(UsageError, match="holds the rows of a monitor, but not its state"):
        begin(tmp_path)
    assert len(lines(tmp_path / IMAGES)) == 10


def test_rows_that_are_missing_are_noticed(tmp_path: Path) -> None:
    begin(tmp_path)
    (tmp_path / IMAGES).write_bytes((tmp_path / IMAGES).read_bytes()[:-5])
    with pytest.raises(ArtifactError, match="when the state of the monitor was saved"):
        begin(tmp_path)


def test_a_row_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text('{"a": 1}\n' + '{"a":' * 100_000 + "\n")
    with pytest.raises(ArtifactError, match="line 2, is damaged"):
        list(read_json_lines(tmp_path / "rows"))


def test_a_monitor_saved_without_a_journal_is_refused(tmp_path: Path) -> None:
    begin(tmp_path)
    Monitor(digit_gate()).save(tmp_path / STATE, overwrite=True)
    with pytest.raises(ArtifactError, match="not a monitor that was kept so"):
        begin(tmp_path)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    from filelock import FileLock

    begin(tmp_path)
    with FileLock(tmp_path / ".lock"), pytest.raises(UsageError, match="Another goen"):
        begin(tmp_path)
