import socket
from collections.abc import Iterator
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from goen.errors import DataCorrupt, UsageError
from goen.scoring import urls
from goen.scoring.urls import FoundUrl, check_protocol, find_urls, open_url, read_url


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "_SECONDS_BETWEEN", 0.0)


def found(url: str) -> list[str]:
    """The files behind a URL, none of them with an error."""
    listed = list(find_urls(url))
    assert not any(error for _, error in listed)
    return [place for place, _ in listed]


def test_pictures_below_a_folder_come_in_the_order_of_local_ones(memory: MemoryFileSystem) -> None:
    for name in ("b.png", "a.JPG", "z/1.png", "c/2.webp", ".hidden.png", ".h/3.png", "notes.txt"):
        memory.pipe(f"/photos/{name}", b"x")
    assert found("memory://photos") == [
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
    assert found("memory://sets/1.txt") == ["memory://sets/1.txt"]
    assert found("memory://sets/none.png") == ["memory://sets/none.png"]
    matching = ["memory:///sets/1.parquet", "memory:///sets/2.parquet"]
    assert found("memory://sets/*.parquet") == found("memory://**/*.parquet") == matching
    assert found("memory://sets/what?.png") == ["memory://sets/what?.png"]


def test_a_folder_that_cannot_be_listed_is_found_with_its_error_and_the_others_are_listed(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("deep/1.png", "next/2.png"):
        memory.pipe(f"/photos/{name}", b"x")
    listed = MemoryFileSystem.ls
    failures = [TimeoutError("slow")] * 2

    def ls(self: MemoryFileSystem, path: str, **options: Any) -> Any:
        if path.endswith("deep"):
            raise PermissionError("forbidden")
        if path.endswith("next") and failures:  # passes at the third attempt
            raise failures.pop()
        return listed(self, path, **options)

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    assert list(find_urls("memory://photos")) == [
        FoundUrl("memory:///photos/deep", "memory:///photos/deep cannot be listed: forbidden."),
        FoundUrl("memory:///photos/next/2.png"),
    ]
    assert not failures


@pytest.mark.parametrize("name", ["a.png", "a.PNG", "a.tar.gz", "a.parquet"])
def test_nothing_is_asked_about_what_ends_like_a_file(
    name: str, memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*args: Any, **options: Any) -> Any:
        raise AssertionError("it was listed")

    for method in ("exists", "isdir", "ls", "glob"):
        monkeypatch.setattr(MemoryFileSystem, method, ask)
    ends = (".png", ".tar.gz", ".parquet")
    for url in (f"memory://sets/{name}", f"nope://{name}", f"https://host/{name}?key=1#part"):
        assert list(find_urls(url, ends)) == [FoundUrl(url)]


def test_endless_folders_end_in_a_row(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(urls, "_DEEPEST", 3)

    def ls(self: MemoryFileSystem, path: str, **options: Any) -> Any:
        names = {"1.png": "file", "deeper": "directory", "..": "directory", ".": "directory"}
        return [{"name": f"{path}/{name}", "type": kind} for name, kind in names.items()]

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    memory.pipe("/photos/deeper/x", b"x")
    *files, last = find_urls("memory://photos")
    assert [file.url.count("deeper") for file in files] == [0, 1, 2, 3]
    assert last.error is not None
    assert last.error.endswith("more than 3 folders deep.")
    monkeypatch.setattr(urls, "_MOST_FOLDERS", 2)
    *files, last = find_urls("memory://photos")
    assert len(files) == 2
    assert str(last.error).endswith("more than 2 folders.")


def test_unknown_protocols_get_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"nope://x cannot be opened: .*nope"):
        open_url("nope://x")
    with pytest.raises(DataCorrupt, match="nope://x cannot be opened"):
        read_url("nope://x")
    with pytest.raises(UsageError, match=r"nope://x cannot be opened: .*nope"):
        check_protocol("nope://x")
    check_protocol("memory://x")
    (row,) = find_urls("nope://x")
    assert "nope://x cannot be opened" in str(row.error)


def test_a_failure_that_passes_is_tried_again(
    memory: MemoryFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe("/1.png", b"content")
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


def test_a_server_that_stops_sending_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "_SILENT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections and answers none
        url = f"http://127.0.0.1:{server.getsockname()[1]}/a.png"
        with pytest.raises(DataCorrupt, match=r"a\.png cannot be opened: .*[Tt]imeout"):
            read_url(url)
