"""Monitors on disk: the same numbers after loading, and a sentence for every damage."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from goen.errors import ArtifactError, UsageError
from goen.monitor import Monitor
from goen.monitor.saving import load_parts, monitor_bytes, write_monitor
from tests.monitor.predictions import digit_gate, like_held_out


def example(tmp_path: Path, **settings: float) -> tuple[Monitor, Path]:
    rng = np.random.default_rng(0)
    monitor = Monitor.from_scores(rng.normal(size=200), **settings)  # type: ignore[arg-type]
    monitor.update(rng.normal(size=300))
    monitor.save(tmp_path / "monitor.safetensors")
    return monitor, tmp_path / "monitor.safetensors"


@pytest.mark.parametrize("settings", [{"alarm_probability": 0.05}, {"average_run_length": 1000}])
def test_a_loaded_monitor_continues_with_the_same_numbers(
    tmp_path: Path, settings: dict[str, float]
) -> None:
    monitor, file = example(tmp_path, seed=5, **settings)
    loaded = Monitor.load(file)
    assert loaded.guarantee == monitor.guarantee
    assert loaded.state.streams == monitor.state.streams
    more = np.random.default_rng(1).normal(1, 1, 300)
    one, other = monitor.update(more), loaded.update(more)
    assert (one.batch.log_e_value == other.batch.log_e_value).all()
    assert (one.batch.p_values == other.batch.p_values).all()
    assert one.streams == other.streams
    assert one.alarm
    monitor.save(file, overwrite=True)
    assert Monitor.load(file).state.moved == one.moved


@pytest.mark.parametrize("per_class", [False, True])
def test_the_monitor_of_a_gate_is_saved_with_what_it_needs(tmp_path: Path, per_class: bool) -> None:
    gate = digit_gate().with_false_alarm_rate(0.3).with_per_class(per_class)
    monitor = Monitor(gate)
    monitor.update(like_held_out(gate, 100))
    monitor.restart()
    monitor.update(like_held_out(gate, 100, seed=1))
    monitor.save(tmp_path / "m")
    loaded = Monitor.load(tmp_path / "m")
    one, other = (m.update(like_held_out(gate, 50, seed=2)) for m in (monitor, loaded))
    assert one.streams == other.streams
    assert (one.images, one.flagged) == (other.images, other.flagged)
    with pytest.raises(UsageError, match="not of the gate"):
        loaded.update(like_held_out(digit_gate().with_per_class(False), 40)) if per_class else (
            loaded.update(like_held_out(gate.with_per_class(), 40))
        )


def test_nothing_is_replaced_unless_asked(tmp_path: Path) -> None:
    monitor, file = example(tmp_path)
    with pytest.raises(UsageError, match="overwrite=True"):
        monitor.save(file)
    monitor.save(file, overwrite=True)


def test_what_is_saved_beside_it_comes_back(tmp_path: Path) -> None:
    monitor, file = example(tmp_path)
    write_monitor(monitor_bytes(monitor.parts, {"bytes": 17}), file, overwrite=True)
    assert load_parts(file)[1].count("bytes") == 17


# -- damage ----------------------------------------------------------------------------------


def rewritten(file: Path, change: object) -> None:
    """Change the manifest and the arrays, and write them with the checksum that was saved."""
    with safe_open(file, framework="numpy") as content:
        arrays = {name: content.get_tensor(name) for name in content.keys()}  # noqa: SIM118
        manifest = json.loads(content.metadata()["goen_monitor"])
    change(manifest, arrays)  # type: ignore[operator]
    save_file(arrays, file, metadata={"goen_monitor": json.dumps(manifest)})


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="is not there"):
        Monitor.load(tmp_path / "none")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_half_a_file_is_an_error_and_stays(tmp_path: Path, share: float) -> None:
    _, file = example(tmp_path)
    content = file.read_bytes()
    file.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(ArtifactError, match="not a monitor that can be loaded"):
        Monitor.load(file)
    assert len(file.read_bytes()) == int(len(content) * share)


def test_a_changed_byte_is_noticed(tmp_path: Path) -> None:
    _, file = example(tmp_path)
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)
    with pytest.raises(ArtifactError, match="checksum"):
        Monitor.load(file)


def test_another_version_is_named(tmp_path: Path) -> None:
    _, file = example(tmp_path)
    rewritten(file, lambda manifest, arrays: manifest.update(form=9))
    with pytest.raises(ArtifactError, match="has form 9, this goen reads form 1"):
        Monitor.load(file)


def test_another_kind_of_file(tmp_path: Path) -> None:
    save_file({"a": np.zeros(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(ArtifactError, match="it holds something else"):
        Monitor.load(tmp_path / "weights.safetensors")


def test_a_manifest_that_is_nested_too_deeply(tmp_path: Path) -> None:
    file = tmp_path / "deep.safetensors"
    save_file({"a": np.zeros(3)}, file, metadata={"goen_monitor": "[" * 100_000})
    with pytest.raises(ArtifactError, match="not a monitor that can be loaded"):
        Monitor.load(file)


def forged(name: str, array: np.ndarray) -> object:
    return lambda manifest, arrays: arrays.update({name: array})


FORGERIES = {
    "guarantee": lambda m, a: m["guarantee"].update(alarm_probability=2.0),
    "both guarantees": lambda m, a: m["guarantee"].update(average_run_length=1000),
    "seed": lambda m, a: m.update(seed=-1),
    "images": lambda m, a: m.update(images=10**9),
    "no images": lambda m, a: m.pop("images"),
    "weights": lambda m, a: m["streams"][0].update(weight=0.5),
    "a negative weight": lambda m, a: m["streams"][0].update(weight=-1),
    "more streams": lambda m, a: m["streams"].append(m["streams"][0]),
    "no streams": lambda m, a: m.update(streams=[]),
    "change_points": lambda m, a: m.update(change_points=[]),
    "a change_point": lambda m, a: m.update(
        change_points=[{"at": 1, "since": 0, "direction": "up"}]
    ),
    "log_e_value": lambda m, a: m.update(log_e_value=["x"]),
    "more log_e_value": lambda m, a: m.update(log_e_value=[0.0, 0.0]),
    "values": forged("values.0", np.arange(300.0)[::-1].copy()),
    "counts": forged("counts.0", np.zeros(300, dtype=np.int64)),
    "flags": forged("flags", np.zeros(5000, dtype=bool)),
    "flags of numbers": forged("flags", np.zeros(5)),
    "capital": forged("capital", np.zeros((1, 3))),
    "NaN": lambda m, a: a["gains"].fill(np.nan),
    "stakes": lambda m, a: a["joined"].fill(0.0),
    "float32": lambda m, a: a.update(capital=a["capital"].astype(np.float32)),
    "no capital": lambda m, a: a.pop("capital"),
    "gate": lambda m, a: m.update(gate={"classes": ["a"], "cues": [], "has_labels": False}),
    "a list": lambda m, a: m.update(extra=[1]),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_content_is_an_error(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, file = example(tmp_path)
    rewritten(file, FORGERIES[name])
    monkeypatch.setattr("goen.monitor.saving._digest", lambda arrays: "")
    rewritten(file, lambda manifest, arrays: manifest.update(sha256=""))  # a forger's, too
    with pytest.raises(ArtifactError, match="not a monitor that can be loaded"):
        Monitor.load(file)


# -- killed ----------------------------------------------------------------------------------

_ENDLESS = """
import sys
import numpy as np
from goen.monitor import Monitor

scores = np.random.default_rng(0).normal(size=100_000)
monitor = Monitor.from_scores(scores[:200])
while True:
    start = 200 + monitor.images
    monitor.update(scores[start : start + 37])
    monitor.save(sys.argv[1], overwrite=True)
    print(monitor.images, flush=True)
"""


@pytest.mark.parametrize("attempt", range(2))
def test_killed_while_saving_it_resumes_with_the_same_numbers(tmp_path: Path, attempt: int) -> None:
    file = tmp_path / "monitor"
    child = subprocess.Popen(
        [sys.executable, "-c", _ENDLESS, str(file)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    child.stdout.readline()
    time.sleep(0.01 + 0.037 * attempt)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    loaded = Monitor.load(file)
    assert loaded.images > 0
    assert loaded.images % 37 == 0
    scores = np.random.default_rng(0).normal(size=100_000)
    whole = Monitor.from_scores(scores[:200])
    whole.update(scores[200 : 200 + loaded.images])
    assert loaded.state.streams == whole.state.streams
    more = scores[200 + loaded.images :][:500]
    one, other = loaded.update(more), whole.update(more)
    assert (one.batch.log_e_value == other.batch.log_e_value).all()
