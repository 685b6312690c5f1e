from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from goen.errors import UsageError
from goen.io.results import Origin, write_results, write_scores
from goen.io.stages import Stages, alone_in, summarised

ROWS = Origin("goen", "full", 42, "net", ("a:1",)).rows("svhn", "far", {"auroc": 0.9})


def test_a_finished_stage_is_not_done_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="goen")
    stages, calls = Stages(tmp_path), []

    def make(result: Path, work: Path) -> None:
        calls.append(1)
        (result / "out").write_text("done")

    first = stages.run("s", {"a": 1}, make)
    assert stages.run("s", {"a": 1}, make) == first
    assert caplog.messages == ["s: working", f"s: done before ({first})"]
    assert (first / "out").read_text() == "done"
    assert len(calls) == 1
    assert stages.run("s", {"a": 2}, make) != first
    assert stages.run("t", {"a": 1}, make) != first
    assert len(calls) == 3


def test_studies_beside_each_other_share_their_stages() -> None:
    assert Stages.beside(Path("runs/a")) == Stages.beside(Path("runs/b"))
    assert Stages.beside(Path("runs/a")).folder == Path("runs/stages")


def test_an_interrupted_stage_keeps_its_work_and_no_result(tmp_path: Path) -> None:
    stages = Stages(tmp_path)

    def interrupted(result: Path, work: Path) -> None:
        (result / "half").touch()
        (work / "checkpoint").write_text("epoch 3")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stages.run("s", {}, interrupted)
    assert {p.name for p in tmp_path.iterdir()} == {".goen", "work"}

    def resumed(result: Path, work: Path) -> None:
        assert (work / "checkpoint").read_text() == "epoch 3"
        (result / "whole").touch()

    done = stages.run("s", {}, resumed)
    assert sorted(p.name for p in done.iterdir()) == [".goen", "inputs.json", "whole"]
    assert [p.suffix for p in (tmp_path / "work").iterdir()] == [".lock"]


def test_two_that_want_the_same_stage_do_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, waiting, go_on, made = Event(), Event(), Event(), []
    logged = "goen.io.stages._log.info"
    monkeypatch.setattr(logged, lambda message: "waiting" in message and waiting.set())

    def make(result: Path, work: Path) -> None:
        begun.set()
        assert go_on.wait(10)
        made.append(result)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(Stages(tmp_path).run, "s", {}, make)
        assert begun.wait(10)
        second = pool.submit(Stages(tmp_path).run, "s", {}, make)
        assert waiting.wait(10)
        go_on.set()
        assert first.result() == second.result()
    assert len(made) == 1


def test_work_left_by_a_kill_just_after_the_end_is_cleared(tmp_path: Path) -> None:
    stages = Stages(tmp_path)
    done = stages.run("s", {}, lambda result, work: None)
    left = tmp_path / "work" / done.name
    left.mkdir(parents=True)
    (left / "checkpoint").touch()
    stages.run("s", {}, lambda result, work: None)
    assert not left.exists()


def test_only_one_process_works_in_a_run(tmp_path: Path) -> None:
    def intrude() -> None:
        with alone_in(tmp_path / "run"):
            pass

    with ThreadPoolExecutor(1) as elsewhere:  # a lock is a thread's, as it is a process's
        with alone_in(tmp_path / "run"):
            with alone_in(tmp_path / "run"):  # its own report, say
                pass
            with pytest.raises(UsageError, match="Another goen is at work"):
                elsewhere.submit(intrude).result()
        elsewhere.submit(intrude).result()


def test_nothing_of_an_earlier_run_stays_when_a_study_has_results(tmp_path: Path) -> None:
    with summarised(tmp_path, {"study": "bench"}):
        write_results(tmp_path / "results.jsonl", ROWS)
        write_scores(tmp_path / "scores.safetensors", {"test": {"knn": np.zeros(2)}})
    (tmp_path / "mine.txt").write_text("mine")
    with summarised(tmp_path, {"study": "geometry"}):
        assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
    assert {file.name for file in tmp_path.iterdir()} == {"mine.txt", "run.json"}
