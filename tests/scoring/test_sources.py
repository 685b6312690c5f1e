import io
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from goen.data.picture_shards import (
    FileShard,
    ParquetShard,
    PictureShard,
    TarShard,
    UnreadableShard,
)
from goen.data.picture_sources import PictureSources, read_list
from goen.errors import UsageError
from goen.gate.score_files import find_files

from ..picture_sources import encoded, write_folder, write_parquet, write_tar


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def shards(*given: Path | str, size: int = 10, **settings: object) -> list[PictureShard]:
    return list(PictureSources([*map(str, given)], size, **settings).shards())  # type: ignore[arg-type]


def files(found: list[PictureShard]) -> list[str]:
    return [place for shard in found if isinstance(shard, FileShard) for place in shard.places]


def test_a_folder_is_cut_into_shards_in_the_order_of_goen_score(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", encoded(23))
    write_folder(folder / "deep", encoded(3))
    (folder / "notes.txt").write_text("no picture")
    sources = PictureSources([str(folder), str(folder / "00001.png")], 10)
    found = list(sources.shards())
    assert [len(shard.places) for shard in found if isinstance(shard, FileShard)] == [10, 10, 6]
    same = find_files([folder, folder / "00001.png"])
    assert files(found) == [str(file) for file in same.files]
    assert sources.skipped == same.skipped
    assert sources.skipped.total() == 1


def test_parquet_is_cut_by_rows_and_a_tar_is_one_shard(tmp_path: Path) -> None:
    parquet = write_parquet(tmp_path / "a.parquet", encoded(25))
    tar = write_tar(tmp_path / "b.tar", {"0.png": encoded(1)[0]})
    assert shards("x.png", parquet, tar, "y.png") == [
        FileShard(("x.png",)),
        ParquetShard(str(parquet), "image", 0, 10, 25),
        ParquetShard(str(parquet), "image", 10, 20, 25),
        ParquetShard(str(parquet), "image", 20, 25, 25),
        TarShard(str(tar)),
        FileShard(("y.png",)),
    ]


def test_a_picture_in_a_folder_is_a_picture_whatever_its_name(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", encoded(1))
    (folder / "b.parquet").write_bytes(encoded(1)[0])
    (folder / "c.tar").write_bytes(encoded(1)[0])
    assert files(shards(folder)) == [str(folder / n) for n in ("00000.png", "b.parquet", "c.tar")]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\0"])
def test_a_list_names_files_folders_and_urls(
    tmp_path: Path, memory: MemoryFileSystem, end: bytes
) -> None:
    folder = write_folder(tmp_path / "p", encoded(2))
    memory.pipe("/m/1.png", b"x")
    names = [b"caf\xe9.png", b"", str(folder).encode(), b"memory://m", b"last.png"]
    content = end.join(names)
    (tmp_path / "list.txt").write_bytes(content)
    expected = ["caf\udce9.png", f"{folder}/00000.png", f"{folder}/00001.png"]
    expected += ["memory:///m/1.png", "last.png"]
    assert files(shards(tmp_path / "list.txt")) == expected
    assert files(shards("-", stdin=io.BytesIO(content))) == expected
    memory.pipe("/list.txt", content)
    assert files(shards("memory://list.txt")) == expected


def test_a_carriage_return_is_part_of_a_name_unless_it_ends_a_line() -> None:
    assert list(read_list(io.BytesIO(b"a\rb.png\r\n\r\nc.png\r"))) == ["a\rb.png", "c.png"]
    assert list(read_list(io.BytesIO(b"a\r\0b.png\0"))) == ["a\r", "b.png"]


def test_a_long_list_is_read_block_by_block() -> None:
    names = [f"{number}.png" for number in range(50_000)]
    assert list(read_list(io.BytesIO("\n".join(names).encode()))) == names


def test_the_column_is_the_only_one_the_one_called_image_or_the_one_asked_for(
    tmp_path: Path,
) -> None:
    contents = encoded(2)
    both = write_parquet(tmp_path / "a.parquet", contents, mask=contents)
    (first,) = shards(both)
    (asked,) = shards(both, column="mask")
    assert isinstance(first, ParquetShard)
    assert isinstance(asked, ParquetShard)
    assert (first.column, asked.column) == ("image", "mask")
    with pytest.raises(UsageError, match="no column 'id' of pictures; it has image, mask"):
        shards(both, column="id")


def test_a_table_without_one_column_of_bytes_gets_a_sentence(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": [1]}), tmp_path / "none.parquet")
    pq.write_table(pa.table({"a": [b"1"], "b": [b"2"]}), tmp_path / "two.parquet")
    with pytest.raises(UsageError, match=r"has no column of bytes.*--image-column"):
        shards(tmp_path / "none.parquet")
    with pytest.raises(UsageError, match=r"several columns of bytes: a, b.*--image-column"):
        shards(tmp_path / "two.parquet")


def test_a_file_that_is_no_parquet_is_a_row_and_the_others_are_read(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"no table")
    good = write_parquet(tmp_path / "good.parquet", encoded(2))
    bad, missing, kept = shards(tmp_path / "bad.parquet", tmp_path / "not.parquet", good)
    assert isinstance(bad, UnreadableShard)
    assert isinstance(missing, UnreadableShard)
    assert f"{tmp_path / 'bad.parquet'} cannot be read" in bad.reason
    assert isinstance(kept, ParquetShard)


def test_mistakes_get_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"The list .*none.txt cannot be read"):
        shards(tmp_path / "none.txt")
    with pytest.raises(UsageError, match=r"list of paths.* is a picture itself"):
        list(read_list(io.BytesIO(encoded(1)[0])))


def test_a_remote_name_that_fsspec_would_take_for_another_file_is_refused(tmp_path: Path) -> None:
    for name in ("clean.png", "clean.png::evil.png"):
        (tmp_path / name).write_bytes(encoded(1)[0])
    for place in (f"file://{tmp_path}", f"file://{tmp_path}/*.png"):
        found = shards(place)
        assert files(found) == [f"file://{tmp_path}/clean.png"]
        (refused,) = [shard for shard in found if isinstance(shard, UnreadableShard)]
        assert refused.reason == f"file://{tmp_path}/clean.png::evil.png has '::' in its name."
