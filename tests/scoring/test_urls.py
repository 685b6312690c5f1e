from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from goen.errors import DataCorrupt, UsageError
from goen.scoring import urls
from goen.scoring.urls import find_urls, open_url, read_url


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


def test_pictures_below_a_folder_come_in_the_order_of_local_ones(memory: MemoryFileSystem) -> None:
    for name in ("b.png", "a.JPG", "z/1.png", "c/2.webp", ".hidden.png", ".h/3.png", "notes.txt"):
        memory.pipe(f"/photos/{name}", b"x")
    assert list(find_urls("memory://photos")) == [
        "memory:///photos/a.JPG",
        "memory:///photos/b.png",
        "memory:///photos/c/2.webp",
        "memory:///photos/z/1.png",
    ]


def test_a_file_stands_for_itself_and_a_pattern_for_what_it_matches(
    memory: MemoryFileSystem,
) -> None:
    for name in ("2.parquet", "1.parquet", "1.txt"):
        memory.pipe(f"/sets/{name}", b"x")
    memory.pipe("/sets/what?.png", b"x")
    assert list(find_urls("memory://sets/1.txt")) == ["memory://sets/1.txt"]
    assert list(find_urls("memory://sets/none.png")) == ["memory://sets/none.png"]
    found = ["memory:///sets/1.parquet", "memory:///sets/2.parquet"]
    assert list(find_urls("memory://sets/*.parquet")) == found
    assert list(find_urls("memory://sets/what?.png")) == ["memory://sets/what?.png"]


def test_a_folder_that_cannot_be_listed_is_an_error_and_not_empty(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/photos/deep/1.png", b"x")
    listed = MemoryFileSystem.ls

    def ls(self: MemoryFileSystem, path: str, **options: Any) -> Any:
        if path.endswith("deep"):
            raise PermissionError("forbidden")
        return listed(self, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    with pytest.raises(UsageError, match="memory://photos cannot be listed: forbidden"):
        list(find_urls("memory://photos"))


def test_unknown_protocols_get_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"nope://x cannot be opened: .*nope"):
        open_url("nope://x")
    with pytest.raises(DataCorrupt, match="nope://x cannot be opened"):
        read_url("nope://x")


def test_a_failure_that_passes_is_tried_again(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/1.png", b"content")
    monkeypatch.setattr(urls, "_SECONDS_BETWEEN", 0.0)
    failures = [TimeoutError("slow"), RuntimeError("of the protocol's own")]
    opened = MemoryFileSystem.open

    def fail_first(self: MemoryFileSystem, *args: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return opened(self, *args, **options)

    monkeypatch.setattr(MemoryFileSystem, "open", fail_first)
    assert read_url("memory://1.png") == b"content"
    failures += [TimeoutError("slow")] * 3
    with pytest.raises(DataCorrupt, match=r"memory://1.png cannot be opened: slow"):
        read_url("memory://1.png")


def test_a_missing_or_enormous_file_is_a_sentence(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataCorrupt, match=r"memory://nowhere.png does not exist"):
        read_url("memory://nowhere.png")
    memory.pipe("/1.png", b"12345")
    monkeypatch.setattr(urls, "MOST_BYTES", 4)
    with pytest.raises(DataCorrupt, match="larger than 4 bytes"):
        read_url("memory://1.png")
    memory.pipe("/2.png", b"1234")
    assert read_url("memory://2.png") == b"1234"
