import io
import socket
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from goen.errors import UsageError
from goen.gate import Gate
from goen.scoring import urls
from goen.scoring.shards import (
    FileShard,
    ParquetShard,
    Shard,
    StackShard,
    TarShard,
    TensorShard,
    UnreadableShard,
)
from goen.scoring.sources import Sources, check_given, is_stack, read_list
from tests.gate.test_gate import make_gate
from tests.image_sources import encoded, features_gate, write_folder, write_parquet, write_tar


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


GATE = make_gate()


def shards(
    *given: Path | str, size: int = 10, gate: Gate = GATE, **settings: object
) -> list[Shard]:
    return list(Sources([*map(str, given)], gate, size, **settings).shards())  # type: ignore[arg-type]


def files(found: list[Shard]) -> list[str]:
    return [place for shard in found if isinstance(shard, FileShard) for place in shard.places]


def test_a_folder_is_cut_into_shards_in_order(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", encoded(23))
    write_folder(folder / "deep", encoded(3))
    (folder / "notes.txt").write_text("no picture")
    sources = Sources([str(folder), str(folder / "00001.png")], GATE, 10)
    found = list(sources.shards())
    assert [len(shard.places) for shard in found if isinstance(shard, FileShard)] == [10, 10, 6]
    others = [file for file in sorted(folder.glob("*.png")) if file.name != "00001.png"]
    deep = sorted((folder / "deep").iterdir())
    assert files(found) == [*map(str, [*others, *deep]), str(folder / "00001.png")]
    assert sources.skipped == Counter({".txt": 1})


def test_each_image_is_found_once_and_other_files_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(tmp_path / "p", encoded(5))
    (folder / "deep").mkdir()
    (folder / "00000.png").rename(folder / "deep" / "00000.png")
    (folder / "deep" / "a.txt").touch()
    (folder / "notes.TXT").touch()
    (folder / "Makefile").write_text("all:")
    (folder / ".hidden.png").touch()
    expected = [*map(str, sorted(folder.glob("0*.png"))), str(folder / "deep" / "00000.png")]
    sources = Sources([*map(str, (folder, folder / "deep", folder))], GATE, 10)
    assert files(list(sources.shards())) == expected
    assert sources.skipped == Counter({".txt": 2, "no ending": 1, "hidden": 1})
    # `find FOLDER` prints folders and files: each image once, other files with a row in any case.
    monkeypatch.chdir(folder)
    printed = [Path(), *sorted(path.relative_to(folder) for path in folder.rglob("*"))]
    printed = [path for path in printed if path.suffix.lower() != ".txt"]  # these would be lists
    listed = files(shards("-", stdin=io.BytesIO("\n".join(map(str, printed)).encode())))
    assert sorted(listed) == sorted(str(path) for path in printed if path.is_file())
    # A file that is given twice keeps its rows: they stand for what was given.
    assert files(shards("00001.png", "00001.png")) == ["00001.png"] * 2


def test_what_a_stack_is(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros((3, 4, 4), np.uint8))
    np.save(tmp_path / "many.npy", np.zeros((2, 3, 4, 4), np.uint8))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    names = ("one.npy", "many.npy", "broken.npz", "missing.npy", "photo.png")
    assert [is_stack(str(tmp_path / name)) for name in names] == [False, True, False, False, False]
    # In a folder without images, arrays are images.
    broken, many, one = (str(tmp_path / name) for name in ("broken.npz", "many.npy", "one.npy"))
    expected = [FileShard((broken,)), StackShard(many, 3, 8), FileShard((one,))]
    assert shards(tmp_path) == expected
    assert shards(f"file://{many}") == [StackShard(f"file://{many}", 3, 8)]
    write_folder(tmp_path / "p", encoded(1))
    assert files(shards(tmp_path)) == [str(tmp_path / "p" / "00000.png")]


def test_a_gate_of_features_takes_files_of_them(tmp_path: Path) -> None:
    for name in ("b.npz", "a.parquet", "notes.md"):
        (tmp_path / name).touch()
    gate = features_gate()
    a, b = str(tmp_path / "a.parquet"), str(tmp_path / "b.npz")
    assert shards(tmp_path, gate=gate) == [TensorShard(a, True), TensorShard(b, True)]
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"no \.npy, .* files, of whose rows this gate scores"):
        shards(tmp_path / "empty", gate=gate)


def test_nothing_to_score_gets_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(UsageError, match=r"no images in .*: 1 file skipped"):
        shards(tmp_path)
    with pytest.raises(UsageError, match="Standard input holds no paths"):
        shards("-", stdin=io.BytesIO(b"\n"))
    with pytest.raises(UsageError, match="Name the images or folders"):
        check_given([])
    with pytest.raises(UsageError, match="nowhere does not exist"):
        check_given(["nowhere", "neither"])
    check_given(["nowhere", str(tmp_path)])
    with pytest.raises(UsageError, match="give - once"):
        check_given(["-", "-"])


def test_the_file_to_write_is_not_one_to_score(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "p", encoded(4))
    (tmp_path / "link.csv").symlink_to(folder / "00003.png")
    with pytest.raises(UsageError, match="one of the files to score"):
        shards(folder, output=tmp_path / "link.csv")
    assert shards(folder, output=tmp_path / "new.csv")
    (tmp_path / "other.csv").touch()
    assert shards(folder, "x" * 5000, output=tmp_path / "other.csv")


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
    with pytest.raises(UsageError, match="no column 'id' of images; it has image, mask"):
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
    with pytest.raises(UsageError, match=r"list of paths.* is an image itself"):
        list(read_list(io.BytesIO(encoded(1)[0])))


def test_a_remote_name_that_fsspec_would_take_for_another_file_is_refused(tmp_path: Path) -> None:
    for name in ("clean.png", "clean.png::evil.png"):
        (tmp_path / name).write_bytes(encoded(1)[0])
    for place in (f"file://{tmp_path}", f"file://{tmp_path}/*.png"):
        found = shards(place)
        assert files(found) == [f"file://{tmp_path}/clean.png"]
        (refused,) = [shard for shard in found if isinstance(shard, UnreadableShard)]
        assert refused.reason == f"file://{tmp_path}/clean.png::evil.png has '::' in its name."


# -- hostile sources: errors are rows --------------------------------------------------------------


def test_a_dead_url_is_a_row_and_the_rest_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "_SECONDS_BETWEEN", 0.0)
    folder = write_folder(tmp_path / "p", encoded(2))
    good = sorted(map(str, folder.iterdir()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{free.getsockname()[1]}"
    names = ["/a.png", "/a.tar", "/b.parquet", "/folder", "/*.png", "/c.png?key=1", "/list.txt"]
    given = [good[0], *(dead + name for name in names), "ftp://127.0.0.1:1/x", good[1]]
    found = shards(*given)
    unreadable = [shard.place for shard in found if isinstance(shard, UnreadableShard)]
    listed = [dead + name for name in ("/b.parquet", "/folder", "/*.png", "/list.txt")]
    assert unreadable == [*listed, "ftp://127.0.0.1:1/x"]
    assert files(found) == [good[0], f"{dead}/a.png", f"{dead}/c.png?key=1", good[1]]
    check_given(given)
    with pytest.raises(UsageError, match="nope"):
        check_given([good[0], "nope://x"])


def test_one_table_without_images_in_a_list_is_a_row(tmp_path: Path) -> None:
    pq.write_table(pa.table({"number": [1, 2]}), tmp_path / "no.parquet")
    good = write_parquet(tmp_path / "good.parquet", encoded(2))
    (tmp_path / "l.txt").write_text(f"{tmp_path / 'no.parquet'}\n{good}\n")
    first, second = shards(tmp_path / "l.txt")
    assert isinstance(first, UnreadableShard)
    assert "no column of bytes" in first.reason
    assert isinstance(second, ParquetShard)


def test_a_line_without_end_is_cut() -> None:
    class Endless(io.RawIOBase):
        left = 1000

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            end = b"" if self.left else b"\nnext.png"
            return b"x" * size if self.left > 0 else end

    tracemalloc.start()
    long, last = read_list(Endless())  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(long) < 1 << 14
    assert last == "next.png"
    assert peak < 1 << 20
