import io
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from goen.data.picture_shards import FileShard, NamedPicture, ParquetShard, TarShard
from goen.errors import UsageError
from goen.gate import Gate, score_shards
from goen.gate.score_files import FileCounts, ScoredFile, find_files, score_columns, score_files
from goen.gate.score_shards import ShardScorer, ShardSettings
from goen.gate.score_writers import RowFormat, open_writer

from ..picture_sources import encoded, write_folder, write_parquet, write_tar
from .test_gate import make_gate


@pytest.fixture(scope="module")
def gate() -> Gate:
    return make_gate().with_false_alarm_rate(0.3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "p", encoded(30))


def written(gate: Gate, folder: Path, form: RowFormat, out: Path) -> bytes:
    """The file that ``goen score --out`` writes."""
    with open_writer(out, form, ["path", *score_columns(gate), "error"]) as write:
        score_files(gate, find_files([folder]).files, lambda one: write(one.row), batch_size=8)
    return out.read_bytes()


@pytest.mark.parametrize("form", ["jsonl", "csv", "parquet"])
def test_the_content_of_a_shard_is_the_file_of_goen_score(
    gate: Gate, folder: Path, tmp_path: Path, form: RowFormat
) -> None:
    shard = FileShard(tuple(str(file) for file in find_files([folder]).files))
    scored = ShardScorer(gate, ShardSettings(form, batch_size=8)).score(shard)
    assert scored.content == written(gate, folder, form, tmp_path / f"out.{form}")
    assert scored.rows == 30
    assert scored.counts.unreadable == 1
    assert 0 < scored.counts.flagged < scored.counts.scored == 29


def test_pictures_of_every_source_get_the_same_rows(
    gate: Gate, folder: Path, tmp_path: Path
) -> None:
    contents = encoded(30)
    parquet = write_parquet(tmp_path / "a.parquet", contents)
    tar = write_tar(tmp_path / "a.tar", {f"{n}.png": c for n, c in enumerate(contents)})
    expected: list[ScoredFile] = []
    score_files(gate, find_files([folder]).files, expected.append, batch_size=8)
    scorer = ShardScorer(gate, ShardSettings(batch_size=8))
    names = {
        ParquetShard(str(parquet), "image", 0, 30, 30): [f"{parquet}#{n}" for n in range(30)],
        TarShard(str(tar)): [f"{tar}#{n}.png" for n in range(30)],
    }
    for shard, paths in names.items():
        rows = pq.read_table(io.BytesIO(scorer.score(shard).content)).to_pylist()
        assert [row.pop("path") for row in rows] == paths
        for number, (row, one) in enumerate(zip(rows, expected, strict=True)):
            known = {name: value for name, value in one.row.items() if name != "path"}
            if known["error"]:
                known["error"] = str(known["error"]).replace(str(one.file), paths[number])
            assert row == known


def test_only_flagged_rows_are_kept_if_asked(gate: Gate, folder: Path) -> None:
    shard = FileShard(tuple(str(file) for file in find_files([folder]).files))
    scored = ShardScorer(gate, ShardSettings(flagged_only=True)).score(shard)
    rows = pq.read_table(io.BytesIO(scored.content)).to_pylist()
    assert len(rows) == scored.rows == scored.counts.flagged
    assert all(row["is_ood"] for row in rows)
    assert scored.counts.scored == 29


def test_a_shard_without_pictures_has_no_rows(gate: Gate) -> None:
    scored = ShardScorer(gate, ShardSettings()).score(FileShard(()))
    assert (scored.rows, scored.counts) == (0, FileCounts(0, 0, 0))
    assert pq.read_table(io.BytesIO(scored.content)).num_rows == 0


@dataclass(frozen=True)
class LostShard:
    """The connection is lost at the third picture, as often as it says."""

    place: str
    times: list[int] = field(default_factory=list)

    identity = "lost"

    def pictures(self) -> Iterator[NamedPicture]:
        for number, picture in enumerate(FileShard((self.place,) * 5).pictures()):
            if number == 2 and self.times:
                self.times.pop()
                raise ConnectionResetError("gone")
            yield picture


def test_a_shard_whose_connection_was_lost_is_read_from_the_beginning(
    gate: Gate, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_shards, "_WAITS", (0.0, 0.0))
    place = str(folder / "00000.png")
    scorer = ShardScorer(gate, ShardSettings("jsonl"))
    expected = scorer.score(FileShard((place,) * 5))
    assert scorer.score(LostShard(place, [1, 1])) == expected
    with pytest.raises(ConnectionResetError):
        scorer.score(LostShard(place, [1, 1, 1]))


def test_a_batch_is_the_same_however_few_contents_are_held(
    gate: Gate, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = TarShard(
        str(write_tar(tmp_path / "a.tar", {f"{n}.png": c for n, c in enumerate(encoded(9))}))
    )
    settings = ShardSettings("csv", batch_size=4)
    whole = ShardScorer(gate, settings).score(shard)
    monkeypatch.setattr(score_shards, "_BYTES_AT_ONCE", 1)
    assert ShardScorer(gate, settings).score(shard) == whole
    assert whole.rows == 9


def test_small_files_of_large_contents_do_not_fill_the_memory(gate: Gate, tmp_path: Path) -> None:
    member = bytes(10 << 20)
    tar = write_tar(tmp_path / "a.tar.bz2", {f"{n}.png": member for n in range(40)})
    assert tar.stat().st_size < 40_000
    table = pa.table({"image": pa.array([member] * 64, pa.binary())})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")  # a dictionary of one value
    del table
    assert (tmp_path / "a.parquet").stat().st_size < 20_000
    for shard, count in (
        (TarShard(str(tar)), 40),
        (ParquetShard(str(tmp_path / "a.parquet"), "image", 0, 64, 64), 64),
    ):
        tracemalloc.start()
        scored = ShardScorer(gate, ShardSettings("csv")).score(shard)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert scored.counts == FileCounts(0, 0, count)
        assert peak < 300 << 20  # all at once are 400 and 640


def test_threads_and_device_are_set(gate: Gate) -> None:
    before = torch.get_num_threads()
    try:
        ShardScorer(gate, ShardSettings(threads=before + 1))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    with pytest.raises(UsageError, match="nonsense"):
        ShardScorer(gate, ShardSettings(device="nonsense"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"form": "json"}, "Unknown format 'json'. Did you mean 'jsonl'"),
        ({"batch_size": 0}, "at least one image, got a batch size of 0"),
        ({"threads": 0}, "threads must be an integer, at least 1; got 0"),
    ],
)
def test_an_invalid_setting_is_an_error(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ShardSettings(**wrong)
