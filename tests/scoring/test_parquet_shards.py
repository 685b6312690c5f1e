from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goen.scoring.parquet_shards import ParquetShard
from tests.image_sources import encoded, write_parquet
from tests.scoring.test_shards import check, contents


@pytest.mark.parametrize("struct", [False, True])
@pytest.mark.parametrize(("start", "stop"), [(0, 35), (0, 10), (10, 20), (7, 23), (33, 35)])
def test_rows_of_parquet_are_those_of_the_range(
    tmp_path: Path, start: int, stop: int, struct: bool
) -> None:
    pictures = encoded(35, broken=12)
    file = write_parquet(tmp_path / "a.parquet", pictures, group=10, struct=struct)
    for place in (str(file), f"file://{file}"):
        shard = ParquetShard(place, "image", start, stop, 35)
        check(shard, [f"{place}#{n}" for n in range(start, stop)], pictures[start:stop])


def test_row_groups_larger_than_a_read_are_cut_in_the_right_places(tmp_path: Path) -> None:
    pictures = encoded(100, broken=98)
    file = write_parquet(tmp_path / "a.parquet", pictures, group=1000)
    shard = ParquetShard(str(file), "image", 67, 99, 100)
    check(shard, [f"{file}#{n}" for n in range(67, 99)], pictures[67:99])


def test_a_row_without_bytes_is_a_row_with_an_error(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", [None, *encoded(1)])  # type: ignore[list-item]
    found = contents(ParquetShard(str(file), "image", 0, 2, 2))
    assert found[0] == (f"{file}#0", f"{file}#0 holds no content of an image file.")
    assert not isinstance(found[1][1], str)


def test_what_is_damaged_in_the_middle_ends_in_one_row(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", encoded(160, broken=999), group=32)
    whole = contents(ParquetShard(str(file), "image", 0, 160, 160))
    content = bytearray(file.read_bytes())
    content[len(content) // 2 : len(content) // 2 + 2000] = bytes(2000)
    file.write_bytes(content)
    found = contents(ParquetShard(str(file), "image", 0, 160, 160))
    read = [name for name, pixels in found if not isinstance(pixels, str)]
    assert 32 <= len(read) < 160
    assert read == [name for name, _ in whole][: len(read)]
    assert isinstance(found[-1][1], str)
    missing = tmp_path / "b.parquet"
    (row,) = contents(ParquetShard(str(missing), "image", 0, 40, 40))
    assert row[0] == f"{missing}#0"
    assert "and what follows cannot be read" in str(row[1])


def test_a_lost_connection_is_raised_and_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_parquet(tmp_path / "a.parquet", encoded(5))

    def lost(self: ParquetShard) -> Iterator[Any]:
        raise ConnectionResetError("gone")

    monkeypatch.setattr(ParquetShard, "_contents", lost)
    with pytest.raises(ConnectionResetError):
        list(ParquetShard(str(file), "image", 0, 5, 5).items())
