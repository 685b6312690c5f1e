import os
from pathlib import Path

import pytest

from goen.cli.options.score import OutputOptions, ScoringGateOptions, WorkerOptions, default_threads
from goen.errors import UsageError
from goen.scoring.pipeline import run_here


def test_the_cores_are_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert [default_threads(n, None) for n in (2, 3, 8, 20)] == [4, 2, 1, 1]
    assert default_threads(4, "auto") == 1


def test_a_name_stands_for_a_file_or_a_folder(tmp_path: Path) -> None:
    def in_folder(out: str | None, *, workers: bool = False) -> bool:
        output = OutputOptions(out=out)
        return (output.for_workers() if workers else output).in_folder

    assert [in_folder(out) for out in (None, "-", "a.csv", "scores")] == [False] * 4
    assert in_folder("scores/")
    assert in_folder("scores.csv/")
    assert in_folder(str(tmp_path))
    assert [in_folder(out, workers=True) for out in (None, "-", "a.csv")] == [False] * 3
    assert in_folder("scores", workers=True)
    assert OutputOptions(out="scores/").row_format == "parquet"
    assert OutputOptions(out="scores/", format_="csv").row_format == "csv"


def test_the_page_and_the_groups_are_two_files() -> None:
    with pytest.raises(UsageError, match=r"--report and --groups are two files, got page\.html"):
        OutputOptions(report=Path("page.html"), groups=Path("page.html"))


def test_the_engine_is_torch_where_rows_may_be_of_several_processes() -> None:
    gate, here = ScoringGateOptions(), WorkerOptions()
    assert here.settings(gate, OutputOptions(out="a.csv")).engine == "auto"
    assert here.settings(gate, OutputOptions(out="a/")).engine == "torch"
    assert WorkerOptions(workers=2).settings(gate, OutputOptions()).engine == "torch"
    asked = ScoringGateOptions(engine="onnxruntime")
    assert WorkerOptions(workers=2).settings(asked, OutputOptions()).engine == "onnxruntime"
    assert here.settings(gate, OutputOptions()).threads is None
    assert here.run() is WorkerOptions(workers=1).run() is run_here


def test_shards_have_whole_batches() -> None:
    sizes = [WorkerOptions().images_per_shard(size) for size in (1, 100, 128, 5000)]
    assert sizes == [4096, 4000, 4096, 5000]
    assert WorkerOptions(shard_size=7).images_per_shard(128) == 7
