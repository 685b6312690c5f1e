"""``goen watch`` as a person would type it."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from goen.cli.main import main
from goen.cli.watch import _caption
from goen.data import protocol
from goen.data.sets.embedded import noise
from goen.gate import Gate
from goen.monitor import Monitor
from tests.own_model import LAYERS, digits, preprocess, trained


def save_images(folder: Path, pixels: np.ndarray, first: int = 0) -> None:
    """PNG files, each a second younger than the one before, all of an hour ago."""
    folder.mkdir(exist_ok=True)
    for number, image in enumerate(pixels, first):
        file = folder / f"{number:04}.png"
        Image.fromarray(image.transpose(1, 2, 0)).save(file)
        os.utime(file, (time.time() - 3600 + number,) * 2)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options for a gate that tells digits from noise, on every processor."""
    folder, p = tmp_path_factory.mktemp("gates") / "gate", digits()
    Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess).save(folder)
    own = ["--model", "tests.own_model:DigitNet", "--preprocess", "tests.own_model:preprocess"]
    return ["--gate", str(folder), *own]


@pytest.fixture(scope="module")
def digits_and_noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty digits, then forty images of noise."""
    folder = tmp_path_factory.mktemp("camera")
    save_images(folder, protocol("digits").test.read(range(60)))
    save_images(folder, noise(40, 0, stream=0).read(), first=60)
    return folder


def piped(text: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(text.encode()))


def events(text: str) -> list[dict]:  # type: ignore[type-arg]
    return [json.loads(line) for line in text.splitlines()]


def test_an_alarm_has_its_own_exit_code_and_event(
    gate: list[str], digits_and_noise: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["watch", str(digits_and_noise), *gate, "--once"]
    command += ["--out", str(tmp_path / "w"), "--alarm-probability", "0.05"]
    assert main(command) == 3
    out, err = capsys.readouterr()
    found = events(out)
    assert [event["event"] for event in found][:2] == ["started", "alarm"]
    assert found[1]["image"] > 55
    assert "ever raises an alarm is at most 0.05" in err
    assert "alarm at image" in err
    assert "Stopped at the alarm: --keep-going counts the images after it, too." in err
    assert main(command) == 3
    out, err = capsys.readouterr()
    assert [event["event"] for event in events(out)] == ["resumed"]
    assert "The alarm was raised before" in err
    assert main([*command, "--restart"]) in (0, 3)
    assert "restarted" in capsys.readouterr().out


def test_without_a_change_the_code_is_zero_and_new_files_continue(
    gate: list[str], digits_and_noise: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    camera = tmp_path / "camera"
    camera.mkdir()
    for number in range(20):
        shutil.copy2(digits_and_noise / f"{number:04}.png", camera)
    (camera / "0005.png").write_bytes(b"\x89PNG\r\n\x1a\n, and then the disk was full")
    command = [
        "watch",
        str(camera),
        *gate,
        "--once",
        "--out",
        str(tmp_path / "w"),
    ]
    assert main(command) == 0
    out, err = capsys.readouterr()
    assert [event["event"] for event in events(out)] == ["started", "unreadable"]
    assert "no alarm after 19 images" in err
    assert "1 file could not be read" in err
    for number in range(20, 30):
        shutil.copy2(digits_and_noise / f"{number:04}.png", camera)
    assert main(command) == 0
    assert "no alarm after 29 images" in capsys.readouterr().err


def test_rows_of_goen_score_give_the_same_as_the_folder(
    gate: list[str],
    digits_and_noise: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert main(["score", str(digits_and_noise), *gate]) == 0
    rows = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", piped(rows))
    assert main(["watch", "-", *gate, "--keep-going", "--out", str(tmp_path / "rows")]) == 3
    folder = ["watch", str(digits_and_noise), *gate, "--keep-going", "--once"]
    assert main([*folder, "--out", str(tmp_path / "folder")]) == 3
    one, other = ((tmp_path / name / "images.jsonl").read_text() for name in ("rows", "folder"))
    assert one == other
    assert len(one.splitlines()) == 100


def test_bad_input_is_a_sentence_and_code_two(
    gate: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = [*gate, "--out", str(tmp_path / "w")]
    monkeypatch.setattr(sys, "stdin", piped("path,label,score\n"))
    assert main(["watch", "-", *command]) == 2
    assert "Line 1 is not a row of goen score" in capsys.readouterr().err
    assert main(["watch", str(tmp_path / "none"), *command]) == 2
    assert "is not a folder" in capsys.readouterr().err
    (tmp_path / "images").mkdir()
    within = [*gate, "--out", str(tmp_path)]
    for folder in (tmp_path, tmp_path / "images"):
        assert main(["watch", str(folder), *within]) == 2
        assert "lies within" in capsys.readouterr().err
    assert {file.name for file in tmp_path.iterdir()} == {"w", "images"}  # nothing was begun
    for every in ("0", "1e6", "nan"):
        assert main(["watch", str(tmp_path), *command, "--every", every]) == 2
        assert "--every is a number of seconds above 0, got" in capsys.readouterr().err
    assert main(["watch", str(tmp_path / "none"), *command, "--every", "0.5"]) == 2
    assert "is not a folder" in capsys.readouterr().err
    (tmp_path / "w" / "monitor.safetensors").write_bytes(b"half a fi")
    assert main(["watch", str(tmp_path), *command]) == 2
    assert "not a monitor that can be loaded" in capsys.readouterr().err


def test_a_gate_that_takes_no_images_is_refused_before_the_watch_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    Gate.fit_outputs(rows[:100], None, rows[100:]).save(tmp_path / "gate")
    (tmp_path / "images").mkdir()
    options = ["--gate", str(tmp_path / "gate"), "--out", str(tmp_path / "w")]
    assert main(["watch", str(tmp_path / "images"), "--once", *options]) == 2
    assert "takes no images" in capsys.readouterr().err
    assert not (tmp_path / "w").exists()


def test_a_cue_whose_name_is_a_command_for_the_terminal_is_text() -> None:
    """The names are those of a gate, which may come from anyone."""
    scores = np.random.default_rng(0).normal(size=50)
    monitor = Monitor.from_scores({"\x1b[2J": scores})
    assert "\\x1b[2J" in _caption(monitor.state)
    assert "\x1b" not in _caption(monitor.state)


def test_killed_and_resumed_it_continues_with_the_same_numbers(
    gate: list[str], digits_and_noise: Path, tmp_path: Path
) -> None:
    """Rows come slowly through a pipe; the process is killed, and all rows are given again."""
    options = [*gate, "--keep-going"]
    scores = tmp_path / "scores.jsonl"
    assert main(["score", str(digits_and_noise), *gate, "--out", str(scores)]) == 0
    lines = scores.read_text().splitlines(keepends=True)
    command = [sys.executable, "-m", "goen", "watch", "-", *options]
    command += ["--out", str(tmp_path / "killed")]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    assert child.stdin is not None
    images = tmp_path / "killed" / "images.jsonl"
    for line in lines[:70]:
        child.stdin.write(line)
        child.stdin.flush()
    deadline = time.time() + 120
    while time.time() < deadline and not (images.is_file() and images.stat().st_size > 2000):
        time.sleep(0.005)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdin.close()
    assert images.stat().st_size
    with scores.open() as stdin:
        done = subprocess.run(command, stdin=stdin, capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", piped("".join(lines)))
        assert main(["watch", "-", *options, "--out", str(tmp_path / "whole")]) == 3
    assert images.read_text() == (tmp_path / "whole" / "images.jsonl").read_text()
