"""Rows of every source; ``goen score`` itself is tested in tests/cli/test_score.py."""

import os
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from goen.errors import DataCorrupt, UsageError
from goen.gate import Gate
from goen.gate.prediction import NOT_FINITE, ScoreRow
from goen.outputs import Outputs
from goen.scoring import pipeline
from goen.scoring.pipeline import NumberedShard, ScoreSettings, ShardScorer, score
from goen.scoring.rows import RowCounts, all_columns
from goen.scoring.shards import FileShard, Item, LostConnection, ParquetShard, Shard, TarShard
from goen.scoring.sinks import RowFormat, RowSink, open_writer
from goen.scoring.sources import Sources
from tests.gate.test_gate import make_gate
from tests.image_sources import (
    Seen,
    encoded,
    features_gate,
    scored_rows,
    write_folder,
    write_parquet,
    write_tar,
)
from tests.own_model import LAYERS, digits, preprocess, trained


@pytest.fixture(scope="module")
def gate() -> Gate:
    return make_gate().with_false_alarm_rate(0.3)


@pytest.fixture(scope="module")
def own() -> Gate:
    p = digits()
    return Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, pixels in enumerate(digits().test.read(range(130))):
        Image.fromarray(pixels.transpose(1, 2, 0)).save(tmp_path / f"{i:03}.png")
    (tmp_path / "077.png").write_bytes(b"no picture")
    return tmp_path


def rows_of(gate: Gate, shard: Shard, batch_size: int = 128) -> list[ScoreRow]:
    scorer = ShardScorer(gate, ScoreSettings(batch_size))
    return [row for rows in scorer.rows(NumberedShard(0, shard)) for row in rows]


def test_the_format_of_a_file_does_not_change_its_row(own: Gate, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    forms = {"jpg": {}, "png": {}, "webp": {"lossless": True}, "bmp": {}, "tiff": {}}
    pixels = digits().test.read(range(20))
    for form, options in forms.items():
        (tmp_path / form).mkdir()
        for number, image in enumerate(pixels):
            width, height = rng.integers(20, 200, 2).tolist()
            picture = Image.fromarray(image.transpose(1, 2, 0)).resize((width, height))
            if form == "jpg":
                picture.save(tmp_path / "jpg" / f"{number:02}.jpg", quality=80)
            else:
                decoded = Image.open(tmp_path / "jpg" / f"{number:02}.jpg")
                decoded.save(tmp_path / form / f"{number:02}.{form}", **options)
    scored = {form: scored_rows(own, tmp_path / form) for form in forms}
    expected = [{**row, "path": ""} for row in scored["jpg"]]
    assert RowCounts.of(expected).scored == 20
    for found in scored.values():
        assert [{**row, "path": ""} for row in found] == expected


@pytest.mark.parametrize("batch_size", [128, 7, 1000])
def test_each_file_gets_the_row_of_its_prediction(own: Gate, folder: Path, batch_size: int) -> None:
    files = sorted(folder.iterdir())
    rows = scored_rows(own, folder, batch_size=batch_size)
    expected = own.predict(np.delete(digits().test.read(range(130)), 77, axis=0))
    assert RowCounts.of(rows) == RowCounts(129, int(expected.is_ood.sum()), 1)
    assert [row["path"] for row in rows] == [str(file) for file in files]
    assert [row["path"] for row in rows if row["error"]] == [str(folder / "077.png")]
    read = [row for row in rows if not row["error"]]
    assert np.allclose([float(row["score"] or 0) for row in read], expected.score, atol=1e-4)
    assert [row["is_ood"] for row in read] == expected.is_ood.tolist()
    assert [row["label"] for row in read] == [expected.classes[i] for i in expected.label]
    for row in rows:
        assert list(row) == all_columns(own)


def test_the_network_sees_batches_of_that_size(
    own: Gate, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    outputs_of = Gate.run

    def counting(self: Gate, images: torch.Tensor) -> Outputs:
        seen.append(len(images))
        return outputs_of(self, images)

    monkeypatch.setattr(Gate, "run", counting)
    scored_rows(own, *sorted(folder.iterdir())[:25], batch_size=10)
    assert seen == [10, 10, 5]


def test_an_observer_gets_what_the_network_saw_and_said(own: Gate, folder: Path) -> None:
    seen = Seen()
    rows = scored_rows(own, folder, observer=seen)
    watched = [name for batch in seen.batches for name in batch.names]
    assert watched == [str(file) for file in sorted(folder.iterdir()) if file.name != "077.png"]
    images = np.concatenate([batch.images for batch in seen.batches])
    assert (images == np.delete(digits().test.read(range(130)), 77, axis=0)).all()
    scores = [score for batch in seen.batches for score in batch.prediction.score]
    assert scores == [row["score"] for row in rows if not row["error"]]
    assert [len(batch.outputs) for batch in seen.batches] == [127, 2]
    assert [batch.place for batch in seen.batches] == [(0, 0), (0, 127)]


def test_nothing_is_observed_where_nothing_can_be_read(own: Gate, tmp_path: Path) -> None:
    seen = Seen()
    (row,) = scored_rows(own, tmp_path / "gone.png", observer=seen)
    assert row["error"]
    assert not seen.batches


# -- every source -----------------------------------------------------------------------------


def test_images_of_every_source_get_the_same_rows(gate: Gate, tmp_path: Path) -> None:
    contents = encoded(30)
    folder = write_folder(tmp_path / "p", contents)
    parquet = write_parquet(tmp_path / "a.parquet", contents)
    tar = write_tar(tmp_path / "a.tar", {f"{n}.png": c for n, c in enumerate(contents)})
    expected = scored_rows(gate, folder, batch_size=8)
    names = {parquet: "{0}#{1}", tar: "{0}#{1}.png"}
    for source, name in names.items():
        rows = scored_rows(gate, source, batch_size=8)
        assert [row["path"] for row in rows] == [name.format(source, n) for n in range(30)]
        for row, known in zip(rows, expected, strict=True):
            path, error = str(row.pop("path")), known["error"]
            if error is not None:
                error = str(error).replace(str(known["path"]), path)
            assert row == {n: v for n, v in known.items() if n != "path"} | {"error": error}


def test_each_image_of_a_stack_has_its_row(own: Gate, tmp_path: Path) -> None:
    images = digits().test.read(range(30))
    np.savez_compressed(tmp_path / "new.npz", images=images, labels=np.zeros(30, int))
    np.save(tmp_path / "last.npy", images[:3].transpose(0, 2, 3, 1))
    np.save(tmp_path / "grey.npy", images[:, :1])
    seen = Seen()
    names = ("new.npz", "last.npy", "grey.npy")
    rows = scored_rows(own, *(tmp_path / name for name in names), batch_size=8, observer=seen)
    expected = own.predict(images)
    flagged = expected.is_ood.sum() + expected.is_ood[:3].sum()
    assert RowCounts.of(rows) == RowCounts(33, int(flagged), 1)
    paths = [row["path"] for row in rows]
    assert paths[:2] == [f"{tmp_path / 'new.npz'}#0", f"{tmp_path / 'new.npz'}#1"]
    assert paths[30] == f"{tmp_path / 'last.npy'}#0"
    scores = [float(row["score"] or 0) for row in rows[:33]]
    assert np.allclose(scores[:30], expected.score, atol=1e-4)
    assert np.allclose(scores[30:], expected.score[:3], atol=1e-4)
    assert rows[33]["label"] is None
    assert "images of 3 channels are needed" in str(rows[33]["error"])
    assert [len(batch.images) for batch in seen.batches] == [8, 8, 8, 6, 3]
    assert seen.batches[0].names[7] == f"{tmp_path / 'new.npz'}#7"
    assert scored_rows(own, f"file://{tmp_path / 'new.npz'}", batch_size=8)[:2] == [
        {**row, "path": f"file://{row['path']}"} for row in rows[:2]
    ]


def test_each_row_of_features_is_that_of_the_gate(tmp_path: Path) -> None:
    gate = features_gate()
    values = np.random.default_rng(1).normal(2, 2, (5000, 4))  # more than a batch
    np.save(tmp_path / "rows.npy", values)
    np.save(tmp_path / "wide.npy", values[:, :3])
    others = [tmp_path / "wide.npy", tmp_path / "none.npy", tmp_path / "notes.md"]
    rows = scored_rows(gate, tmp_path / "rows.npy", *others)
    expected = gate.predict_outputs(values)
    assert RowCounts.of(rows) == RowCounts(5000, int(expected.is_ood.sum()), 3)
    assert [row["score"] for row in rows[:5000]] == expected.score.tolist()
    assert rows[4999]["path"] == f"{tmp_path / 'rows.npy'}#4999"
    wide, missing, other = rows[5000:]
    assert (wide["path"], wide["is_ood"]) == (str(tmp_path / "wide.npy"), None)
    assert "(N, 4), got (4096, 3)" in str(wide["error"])
    assert "does not exist" in str(missing["error"])
    assert "are in .npy, .npz, .safetensors, .parquet files" in str(other["error"])
    remote = scored_rows(gate, f"file://{tmp_path / 'rows.npy'}")
    assert [row["score"] for row in remote] == expected.score.tolist()


def test_a_row_that_is_not_finite_is_flagged_with_its_reason(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(3, 1, (3, 4))
    values[1, 2] = np.nan
    np.save(tmp_path / "rows.npy", values)
    rows = scored_rows(features_gate(), tmp_path)
    assert [row["error"] for row in rows] == [None, NOT_FINITE, None]
    assert rows[1]["is_ood"] is True
    assert rows[1]["score"] is None


@pytest.mark.parametrize("row_format", ["csv", "parquet", "jsonl"])
def test_a_file_name_of_any_bytes_becomes_a_row(row_format: RowFormat, tmp_path: Path) -> None:
    gate = features_gate()
    odd = tmp_path / os.fsdecode(b"caf\xe9.npz")
    odd.write_bytes(b"garbage")
    out = tmp_path / f"rows.{row_format}"
    with open_writer(out, row_format, all_columns(gate)) as write:
        sources = Sources([str(odd)], gate)
        summary = score(gate, sources, RowSink(write), ScoreSettings())
    assert out.stat().st_size
    assert r"caf\xe9.npz" in str(summary.first_error)


# -- shards and batches -----------------------------------------------------------------------


def test_only_flagged_rows_are_written_and_all_are_counted(gate: Gate, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", encoded(30))
    rows: list[ScoreRow] = []
    sink = RowSink(rows.append, flagged_only=True)
    summary = score(gate, Sources([str(folder)], gate), sink, ScoreSettings())
    assert len(rows) == summary.counts.flagged
    assert 0 < len(rows) < summary.counts.scored == 29
    assert all(row["is_ood"] for row in rows)
    assert (summary.counts.unreadable, summary.shards, summary.kept) == (1, 1, 0)


def test_whoever_comes_after_a_shard_gets_its_flags(gate: Gate, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", encoded(20))
    rows: list[ScoreRow] = []
    after: list[tuple[Shard, list[bool]]] = []
    sources = Sources([str(folder)], gate, 8)
    score(
        gate,
        sources,
        RowSink(rows.append),
        ScoreSettings(8),
        after=lambda shard, flags: after.append((shard, [*flags])),
    )
    assert [shard.count for shard, _ in after] == [8, 8, 4]
    assert [f for _, flags in after for f in flags] == [row["is_ood"] is True for row in rows]


def test_a_shard_without_images_has_no_rows(gate: Gate) -> None:
    assert rows_of(gate, FileShard(())) == []


@dataclass(frozen=True)
class LostShard:
    """The connection is lost at the third image, as often as it says."""

    place: str
    times: list[int] = field(default_factory=list)

    identity = "lost"
    count = None

    def items(self) -> Iterator[Item]:
        for number, item in enumerate(FileShard((self.place,) * 5).items()):
            if number == 2 and self.times:
                self.times.pop()
                raise LostConnection(Item("the rest", DataCorrupt("gone")))
            yield item


def test_a_shard_whose_connection_was_lost_is_read_again(
    gate: Gate, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_WAITS", (0.0, 0.0))
    place = str(folder / "000.png")
    for batch_size in (128, 1):
        expected = rows_of(gate, FileShard((place,) * 5), batch_size)
        assert rows_of(gate, LostShard(place, [1, 1]), batch_size) == expected
        # What is lost again and again is one row, and not the end of the job.
        *rows, rest = rows_of(gate, LostShard(place, [1, 1, 1]), batch_size)
        assert [row["path"] for row in rows] == [place] * 2
        assert (rest["path"], rest["error"]) == ("the rest", "gone")


class SilentShard(LostShard):
    """One image, and then nothing until it is released."""

    released = Event()

    def items(self) -> Iterator[Item]:
        yield from FileShard((self.place,)).items()
        self.released.wait(60)


def test_who_stops_does_not_wait_for_what_is_read(gate: Gate, folder: Path) -> None:
    shard = SilentShard(str(folder / "000.png"))
    rows = ShardScorer(gate, ScoreSettings(1)).rows(NumberedShard(0, shard))
    assert len(next(rows)) == 1
    stopping = Thread(target=rows.close)  # type: ignore[attr-defined]
    stopping.start()
    stopping.join(20)
    stopped = not stopping.is_alive()
    shard.released.set()
    assert stopped


def test_a_batch_is_the_same_however_few_contents_are_held(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {f"{n}.png": c for n, c in enumerate(encoded(9))}
    shard = TarShard(str(write_tar(tmp_path / "a.tar", members)))
    whole = rows_of(gate, shard, 4)
    monkeypatch.setattr(pipeline, "_BYTES_AT_ONCE", 1)
    assert rows_of(gate, shard, 4) == whole
    assert len(whole) == 9


def test_small_files_of_large_contents_do_not_fill_the_memory(gate: Gate, tmp_path: Path) -> None:
    member = bytes(10 << 20)
    tar = write_tar(tmp_path / "a.tar.bz2", {f"{n}.png": member for n in range(40)})
    assert tar.stat().st_size < 40_000
    table = pa.table({"image": pa.array([member] * 64, pa.binary())})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")  # a dictionary of one value
    del table
    assert (tmp_path / "a.parquet").stat().st_size < 20_000
    shards: list[tuple[Shard, int]] = [
        (TarShard(str(tar)), 40),
        (ParquetShard(str(tmp_path / "a.parquet"), "image", 0, 64, 64), 64),
    ]
    for shard, count in shards:
        tracemalloc.start()
        rows = rows_of(gate, shard)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert RowCounts.of(rows) == RowCounts(0, 0, count)
        assert peak < 300 << 20  # all at once are 400 and 640


def test_a_shard_has_whole_batches(gate: Gate, folder: Path) -> None:
    for size in (12, 0):
        sources = Sources([str(folder)], gate, size)
        with pytest.raises(UsageError, match=rf"multiple of 8 images .*got {size}"):
            score(gate, sources, RowSink(lambda _: None), ScoreSettings(8))


def test_threads_and_device_are_set(gate: Gate) -> None:
    before = torch.get_num_threads()
    try:
        ShardScorer(gate, ScoreSettings(threads=before + 1))
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
    with pytest.raises(UsageError, match="nonsense"):
        ShardScorer(gate, ScoreSettings(device="nonsense"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch_size": 0}, "at least one image, got a batch size of 0"),
        ({"threads": 0}, "threads must be an integer, at least 1; got 0"),
    ],
)
def test_an_invalid_setting_is_an_error(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ScoreSettings(**wrong)
