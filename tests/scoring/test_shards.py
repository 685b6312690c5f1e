import pickle
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from goen.data.images.decoding import read_image
from goen.data.images.pixel_format import COLOUR, Bits
from goen.errors import DataCorrupt
from goen.io.files import printable
from goen.scoring import shards as shards_module
from goen.scoring.shards import (
    FileShard,
    Item,
    LostConnection,
    ParquetShard,
    Shard,
    StackShard,
    TarShard,
    TensorShard,
    UnreadableShard,
)
from tests.image_sources import BROKEN, encoded, write_folder, write_parquet, write_tar

SIZE = (32, 32)


def contents(shard: Shard) -> list[tuple[str, str | np.ndarray]]:
    """Each image's name with its pixels or the reason why there are none."""
    found: list[tuple[str, str | np.ndarray]] = []
    for item in shard.items():
        name = printable(item.name)
        try:
            found.append((name, item.read(SIZE, COLOUR)))
        except DataCorrupt as error:
            found.append((name, printable(str(error))))
    return found


def check(shard: Shard, names: list[str], expected: list[bytes]) -> None:
    found = contents(shard)
    assert [name for name, _ in found] == names
    for (name, pixels), content in zip(found, expected, strict=True):
        if content == BROKEN:
            assert isinstance(pixels, str)
            assert pixels.startswith(f"{name} is not an image")
        else:
            assert np.array_equal(pixels, read_image(content, SIZE))


def test_files_are_read_by_path_and_by_url(tmp_path: Path) -> None:
    pictures = encoded(5)
    folder = write_folder(tmp_path / "p", pictures)
    paths = [str(folder / f"{n:05}.png") for n in range(5)]
    check(FileShard(tuple(paths)), paths, pictures)
    urls = [f"file://{path}" for path in paths]
    check(FileShard(tuple(urls)), urls, pictures)
    assert (
        contents(FileShard((str(folder / "x.png"),)))[0][1] == f"{folder / 'x.png'} does not exist."
    )


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz"])
def test_pictures_of_a_tar_are_read_and_other_members_passed_over(
    tmp_path: Path, name: str
) -> None:
    pictures = encoded(4)
    members = {f"d/{n}.PNG": content for n, content in enumerate(pictures)}
    others = {"0.cls": b"7", "d/._0.PNG": b"of macOS", "0.json": b"{}"}
    file = write_tar(tmp_path / name, {**others, **members})
    check(TarShard(str(file)), [f"{file}#{member}" for member in members], pictures)
    check(TarShard(f"file://{file}"), [f"file://{file}#{m}" for m in members], pictures)


def test_a_tar_that_is_cut_short_or_is_none_ends_in_one_row(tmp_path: Path) -> None:
    members = {f"{n}.png": content for n, content in enumerate(encoded(5, broken=9))}
    file = write_tar(tmp_path / "a.tar", members)
    file.write_bytes(file.read_bytes()[:2000])
    found = contents(TarShard(str(file)))
    assert 1 <= len(found) < 5
    assert isinstance(found[-1][1], str)
    file.write_bytes(b"no tar")
    (row,) = contents(TarShard(str(file)))
    assert "and what follows cannot be read" in str(row[1])


def test_hostile_members_are_rows_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["../../etc/x.png", "/abs.png", "a\nb.png", "caf\udce9.png"]
    file = write_tar(tmp_path / "a.tar", dict.fromkeys(names, encoded(1)[0]))
    found = contents(TarShard(str(file)))
    shown = ["../../etc/x.png", "/abs.png", "a\nb.png", "caf\\xe9.png"]
    assert [name for name, _ in found] == [f"{file}#{name}" for name in shown]
    assert not any(isinstance(pixels, str) for _, pixels in found)
    monkeypatch.setattr(shards_module, "MOST_BYTES", len(encoded(1)[0]))
    assert not any(isinstance(pixels, str) for _, pixels in contents(TarShard(str(file))))
    monkeypatch.setattr(shards_module, "MOST_BYTES", len(encoded(1)[0]) - 1)
    assert all("holds no content" in str(pixels) for _, pixels in contents(TarShard(str(file))))


def test_identities_differ_by_what_is_read_and_survive_a_pickle() -> None:
    shards: list[Shard] = [
        FileShard(("a", "b")),
        FileShard(("ab",)),
        FileShard(("b", "a")),
        ParquetShard("a", "image", 0, 5, 9),
        ParquetShard("a", "image", 0, 5, 8),
        ParquetShard("a", "image", 0, 6, 9),
        ParquetShard("a", "png", 0, 5, 9),
        TarShard("a"),
        StackShard("a", 3, 8),
        StackShard("a", 3, 16),
        TensorShard("a", True),
        TensorShard("a", False),
        UnreadableShard("a", "gone"),
        FileShard(("caf\udce9.png",)),
    ]
    assert len({shard.identity for shard in shards}) == len(shards)
    for shard in shards:
        assert pickle.loads(pickle.dumps(shard)).identity == shard.identity
    assert len({*shards}) == len(shards)


def test_an_identity_is_a_hash_of_the_lengths_and_texts_of_all_fields() -> None:
    # Folders of scores keep it: with another one, what was scored is scored again.
    assert FileShard(("a", "bc")).identity == sha256(b"FileShard2;1:a2:bc").hexdigest()
    parquet = b"ParquetShard1;1:a1;5:image1;1:01;1:51;2:10"
    assert ParquetShard("a", "image", 0, 5, 10).identity == sha256(parquet).hexdigest()


@pytest.mark.parametrize(("bits", "dtype"), [(8, np.uint8), (16, np.uint16)])
def test_images_of_a_stack_have_the_channels_and_bits_that_are_asked_for(
    bits: Bits, dtype: type[np.generic], tmp_path: Path
) -> None:
    np.save(tmp_path / "s.npy", np.arange(4 * 5 * 6, dtype=np.uint8).reshape(2, 2, 5, 6))
    first, second = StackShard(str(tmp_path / "s.npy"), 2, bits).items()
    assert (first.name, second.name) == tuple(f"{tmp_path / 's.npy'}#{n}" for n in range(2))
    assert isinstance(second.content, np.ndarray)
    assert (second.content.shape, second.content.dtype) == ((2, 5, 6), dtype)
    assert second.content.flat[0] == 60 * (1 if bits == 8 else 257)
    assert second.bytes_held == 60 * bits // 8


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
    with pytest.raises(LostConnection) as raised:
        list(ParquetShard(str(file), "image", 0, 5, 5).items())
    assert raised.value.item.name == f"{file}#0"


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 12, ([0, 1, 2], 0)),
        (4, 8, ([1], 0)),
        (3, 8, ([0, 1], 3)),
        (4, 9, ([1, 2], 0)),
        (7, 8, ([1], 3)),
        (0, 0, ([], 0)),
    ],
)
def test_no_row_group_is_read_that_has_no_row_of_the_range(
    start: int, stop: int, expected: tuple[list[int], int]
) -> None:
    assert ParquetShard("a.parquet", "image", start, stop, 12)._groups([4, 4, 4]) == expected


def test_bytes_are_held_where_the_content_is_in_memory() -> None:
    held = [Item("a", content).bytes_held for content in (b"four", np.zeros((2, 3, 4), np.uint16))]
    assert held == [4, 48]
    nowhere = (Path("a.png"), "http://a/b.png", DataCorrupt("broken"))
    assert [Item("a", content).bytes_held for content in nowhere] == [0, 0, 0]
