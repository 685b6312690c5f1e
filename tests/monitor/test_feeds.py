import io
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from goen.errors import UsageError
from goen.monitor.feeds import follow_folder, read_rows


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


def test_without_a_folder_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        next(follow_folder(tmp_path / "none", lambda path: True, every=None))


def test_rows_come_in_batches_without_empty_lines() -> None:
    text = "".join(f'{{"n": {n}}}\n\n' for n in range(300))
    rows = [row for batch in read_rows(io.StringIO(text)) for row in batch]
    assert [row["n"] for row in rows] == list(range(300))
    assert all(0 < len(batch) <= 128 for batch in read_rows(io.StringIO(text)))


def test_a_row_is_given_out_before_the_next_one_comes() -> None:
    more = threading.Event()

    class Slow(io.StringIO):
        def __iter__(self) -> Iterator[str]:  # type: ignore[override]
            yield '{"n": 1}\n'
            more.wait(60)
            yield '{"n": 2}\n'

    batches = read_rows(Slow())
    assert next(batches) == [{"n": 1}]
    more.set()
    assert list(batches) == [[{"n": 2}]]


@pytest.mark.parametrize("bad", ["[1]", "{", "path,label"])
def test_a_line_that_is_no_row_is_named_after_those_before_it(bad: str) -> None:
    batches = read_rows(io.StringIO(f'{{"n": 1}}\n{bad}\n'))
    found = []
    with pytest.raises(UsageError, match="Line 2 is not a row of goen score"):
        for batch in batches:
            found += batch
    assert found == [{"n": 1}]
