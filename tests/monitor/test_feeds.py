import io
import os
import time
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path

import pytest

from goen.errors import UsageError
from goen.io.manifest import JsonObject
from goen.monitor.feeds import FollowedFolder, check_folder, read_rows


def picture(file: Path, age: float) -> Path:
    """A file with a picture's name that was changed so many seconds ago."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x")
    os.utime(file, (time.time() - age,) * 2)
    return file


def test_pictures_come_oldest_first_in_batches(tmp_path: Path) -> None:
    files = [picture(tmp_path / f"{n % 3}" / f"{n}.png", 1000 - n) for n in range(130)]
    (tmp_path / "notes.txt").write_text("no picture")
    batches = list(FollowedFolder(tmp_path, lambda path: True, every=None))
    assert [len(batch) for batch in batches] == [128, 2]
    assert [file for batch in batches for file in batch] == files


def test_known_pictures_and_those_of_the_watch_itself_are_left_out(tmp_path: Path) -> None:
    picture(tmp_path / "a.png", 3)
    new = picture(tmp_path / "b.png", 2)
    picture(tmp_path / "watch" / "figures" / "c.png", 1)
    known = str(tmp_path / "a.png")
    found = FollowedFolder(tmp_path, lambda p: p != known, every=None, leave_out=tmp_path / "watch")
    assert list(found) == [[new]]


def test_a_folder_is_searched_again_and_fresh_files_wait(tmp_path: Path) -> None:
    seen: set[str] = set()

    def is_new(path: str) -> bool:
        return path not in seen

    first = picture(tmp_path / "1.png", 5)
    picture(tmp_path / "2.png", 0)  # may still be written
    batches = iter(FollowedFolder(tmp_path, is_new, every=0.01))
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
    batches = iter(FollowedFolder(tmp_path, lambda path: True, every=0.0))
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
        beside = tmp_path / "w"
        found = next(iter(FollowedFolder(tmp_path, lambda p: True, every=every, leave_out=beside)))
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


def test_a_line_without_end_is_not_held() -> None:
    taken = iter(range(1000))
    batches = read_rows(io.BufferedReader(Stream(b" " * 4096 for _ in taken)))
    with pytest.raises(UsageError, match=r"Line 1 is not a row .* longer than 1,048,576 bytes"):
        next(batches)
    assert next(taken) < 300


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
    assert list(FollowedFolder(tmp_path, lambda path: True, every=None)) == [[photo]]
    both = FollowedFolder(tmp_path, lambda path: True, every=None, arrays=True)
    assert list(both) == [[tile, photo]]


# -- files that cannot be read yet, and folders that cannot --------------------------------------


class Camera:
    """A folder that is followed, by a clock of its own; ``read`` says what came of each search."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.now = folder, 1000.0
        self.counted: list[str] = []
        self.unreadable: list[str] = []
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("time.time", lambda: self.now)
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        self.followed = FollowedFolder(folder, self.is_new, every=1.0)
        self._batches = iter(self.followed)

    def is_new(self, path: str) -> bool:
        return Path(path).name not in self.counted

    def put(self, name: str, content: bytes) -> None:
        file = self.folder / name
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(content)
        os.utime(file, (self.now, self.now))

    def watch(self, seconds: float) -> None:
        """Search every second for so long, as ``goen watch`` does; b"whole" is an image."""
        end = self.now + seconds
        while self.now < end:
            while files := next(self._batches):
                for file in files:
                    if b"whole" in file.read_bytes():
                        self.counted.append(file.name)
                    elif self.followed.gives_up(file):
                        self.unreadable.append(file.name)
            self.now += 1.0


@pytest.fixture
def camera(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Camera:
    return Camera(tmp_path, monkeypatch)


def test_half_a_file_is_read_when_the_rest_has_come(camera: Camera) -> None:
    camera.put("pause.png", b"who")
    camera.put("empty.png", b"")
    camera.watch(5)
    camera.put("pause.png", b"whole")
    camera.watch(40)
    camera.put("empty.png", b"wh")
    camera.watch(59)  # a minute after the last change, not after the first
    camera.put("empty.png", b"whole")
    camera.watch(4)
    assert (camera.counted, camera.unreadable) == (["pause.png", "empty.png"], [])


def test_a_file_that_stays_unreadable_is_given_up_after_a_minute_and_read_if_it_changes(
    camera: Camera, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[float] = []
    gives_up = camera.followed.gives_up

    def note(file: Path) -> bool:
        reads.append(camera.now)
        return gives_up(file)

    monkeypatch.setattr(camera.followed, "gives_up", note)
    camera.put("broken.png", b"x")
    camera.watch(55)
    assert camera.unreadable == []
    camera.watch(300)
    assert camera.unreadable == ["broken.png"]
    assert 5 <= len(reads) <= 9  # ever more rarely
    camera.put("broken.png", b"whole")
    camera.watch(4)
    assert camera.counted == ["broken.png"]


def test_a_file_that_is_closed_for_a_moment_is_read_without_a_change(
    camera: Camera, monkeypatch: pytest.MonkeyPatch
) -> None:
    camera.put("closed.png", b"whole")
    until = camera.now + 6
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda p: b"" if camera.now < until else read(p))
    camera.watch(20)
    assert (camera.counted, camera.unreadable) == (["closed.png"], [])


def test_with_once_a_file_that_cannot_be_read_is_given_up(tmp_path: Path) -> None:
    file = picture(tmp_path / "1.png", 5)
    followed = FollowedFolder(tmp_path, lambda path: True, every=None)
    assert list(followed) == [[file]]
    assert followed.gives_up(file)


@pytest.mark.parametrize("end", [".part", ".PART", ".crdownload", ".tmp", "~", ".filepart"])
def test_an_upload_counts_once_under_its_last_name(end: str, camera: Camera) -> None:
    from PIL import Image

    Image.new("RGB", (2, 2)).save(camera.folder / "x", "PNG")
    content = (camera.folder / "x").read_bytes() + b"whole"
    (camera.folder / "x").unlink()
    camera.put(f"upload.png{end}", content)
    camera.watch(5)
    assert camera.counted == []
    (camera.folder / f"upload.png{end}").rename(camera.folder / "upload.png")
    camera.watch(5)
    assert (camera.counted, camera.unreadable) == (["upload.png"], [])


def test_folders_that_cannot_be_read_are_passed_over_with_one_warning(
    camera: Camera, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    closed = camera.folder / "lost+found"
    closed.mkdir()
    listed = os.scandir
    gone = [False]

    def scandir(path: str) -> object:
        if str(path) == str(closed):
            raise PermissionError(13, "Permission denied", str(path))
        if gone[0] and str(path) == str(camera.folder):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    camera.put("a.png", b"whole")
    camera.watch(5)
    gone[0] = True
    camera.watch(5)
    gone[0] = False
    camera.put("b/b.png", b"whole")
    camera.watch(5)
    assert camera.counted == ["a.png", "b.png"]
    assert [str(w.message) for w in recwarn] == [
        f"{closed} cannot be read (Permission denied) and is passed over while it is so.",
        f"{camera.folder} cannot be read (No such file or directory) and is passed over while it "
        "is so.",
    ]
