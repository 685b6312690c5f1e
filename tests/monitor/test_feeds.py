import io
import os
import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import pytest

from goen.errors import UsageError
from goen.io.manifest import JsonObject
from goen.monitor.feeds import check_folder, follow_folder, read_rows


def picture(file: Path, age: float) -> Path:
    """A file with a picture's name that was changed so many seconds ago."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x")
    os.utime(file, (time.time() - age,) * 2)
    return file


def test_pictures_come_oldest_first_in_batches(tmp_path: Path) -> None:
    files = [picture(tmp_path / f"{n % 3}" / f"{n}.png", 1000 - n) for n in range(130)]
    (tmp_path / "notes.txt").write_text("no picture")
    batches = list(follow_folder(tmp_path, lambda path: True, every=None))
    assert [len(batch) for batch in batches] == [128, 2]
    assert [file for batch in batches for file in batch] == files


def test_known_pictures_and_those_of_the_watch_itself_are_left_out(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 3)
    new = picture(tmp_path / "b.png", 2)
    picture(tmp_path / "watch" / "figures" / "c.png", 1)
    known = str(tmp_path / "a.png")
    found = follow_folder(tmp_path, lambda p: p != known, every=None, leave_out=tmp_path / "watch")
    assert list(found) == [[new]]


def test_a_folder_is_searched_again_and_fresh_files_wait(tmp_path: Path) -> None:
    seen: set[str] = set()

    def is_new(path: str) -> bool:
        return path not in seen

    first = picture(tmp_path / "1.png", 5)
    picture(tmp_path / "2.png", 0)  # may still be written
    batches = follow_folder(tmp_path, is_new, every=0.01)
    assert next(batches) == [first]
    seen.add(str(first))
    assert next(batches) == []
    second = picture(tmp_path / "2.png", 5)
    assert next(batch for batch in batches if batch) == [second]


def test_pictures_dated_in_the_future_wait_until_they_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    file = picture(tmp_path / "1.png", -7200)
    batches = follow_folder(tmp_path, lambda path: True, every=0.0)
    assert next(batches) == []
    clock[0] += 0.5
    picture(tmp_path / "1.png", -7300)  # still being written
    assert next(batches) == []
    clock[0] += 0.9
    assert next(batches) == []
    clock[0] += 0.1
    assert next(batches) == [file]


def test_a_link_to_itself_is_given_out_for_its_error(tmp_path: Path) -> None:
    file = picture(tmp_path / "1.png", 5)
    (tmp_path / "2.png").symlink_to("2.png")
    (tmp_path / "3.png").symlink_to("nowhere.png")
    for every in (None, 0.0):
        found = next(follow_folder(tmp_path, lambda p: True, every=every, leave_out=tmp_path / "w"))
        assert found == [tmp_path / "2.png", file]


def test_without_a_folder_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        check_folder(tmp_path / "none")


def test_a_folder_within_that_of_the_watch_is_refused(tmp_path: Path) -> None:
    (tmp_path / "camera" / "watch").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "camera")
    check_folder(tmp_path / "camera", tmp_path / "camera" / "watch")
    check_folder(tmp_path / "camera", tmp_path / "cam")
    for beside in (tmp_path, tmp_path / "camera", tmp_path / "link"):
        with pytest.raises(UsageError, match="lies within"):
            check_folder(tmp_path / "camera", beside)


class Stream(io.RawIOBase):
    """What comes through a pipe, a part at a time."""

    def __init__(self, parts: Iterable[bytes]) -> None:
        self.parts = iter(parts)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:
        part = next(self.parts, b"")
        buffer[: len(part)] = part
        return len(part)


def rows_of(*parts: bytes) -> Iterator[list[JsonObject]]:
    return read_rows(io.BufferedReader(Stream(parts)))


def test_rows_come_in_batches_without_empty_lines() -> None:
    text = b"".join(b'{"n": %d}\n\n' % n for n in range(300)).rstrip()
    for cut in (1, 7, 1000, len(text)):  # anywhere, also within a row
        parts = [text[start : start + cut] for start in range(0, len(text), cut)]
        batches = list(rows_of(*parts))
        assert [row["n"] for batch in batches for row in batch] == list(range(300))
        assert all(0 < len(batch) <= 128 for batch in batches)


def test_a_row_is_given_out_before_the_next_one_comes() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stream:
        batches = read_rows(stream)
        os.write(writing, b'{"n": 1}\n{"n"')
        assert next(batches) == [{"n": 1}]
        os.write(writing, b": 2}\n")
        os.close(writing)
        assert list(batches) == [[{"n": 2}]]


def test_a_long_stream_is_not_read_ahead() -> None:
    taken = count()
    batches = read_rows(io.BufferedReader(Stream(b'{"n": %d}\n' % n for n in taken)))
    for _ in range(3):
        next(batches)
    assert next(taken) == 3


def test_a_stream_that_breaks_ends_in_a_sentence() -> None:
    def parts() -> Iterator[bytes]:
        yield b'{"n": 1}\n'
        raise OSError("the disk has gone")

    batches = read_rows(io.BufferedReader(Stream(parts())))
    assert next(batches) == [{"n": 1}]
    with pytest.raises(UsageError, match="rows cannot be read: the disk has gone"):
        next(batches)


@pytest.mark.parametrize("bad", [b"[1]", b"{", b"path,label", b"[" * 100_000, b'"\xff"'])
def test_a_line_that_is_no_row_is_named_after_those_before_it(bad: bytes) -> None:
    batches = read_rows(io.BytesIO(b'{"n": 1}\n' + bad + b"\n"))
    found = []
    with pytest.raises(UsageError, match="Line 2 is not a row of goen score"):
        for batch in batches:
            found += batch
    assert found == [{"n": 1}]


def test_arrays_are_followed_where_they_are_asked_for(tmp_path: Path) -> None:
    tile, photo = picture(tmp_path / "tile.npy", 3), picture(tmp_path / "photo.png", 2)
    assert list(follow_folder(tmp_path, lambda path: True, every=None)) == [[photo]]
    both = follow_folder(tmp_path, lambda path: True, every=None, arrays=True)
    assert list(both) == [[tile, photo]]
