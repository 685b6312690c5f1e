import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from goen.data.images.decoding import read_image
from goen.data.images.finding import describe_skipped, find_images
from goen.errors import DataCorrupt, UsageError
from tests.data.encoded import COLOUR, encoded


def test_images_are_found_through_links_but_not_in_hidden_folders(tmp_path: Path) -> None:
    (tmp_path / "set" / ".ipynb_checkpoints").mkdir(parents=True)
    (tmp_path / "far").mkdir()
    (tmp_path / "set" / "link").symlink_to(tmp_path / "far")
    (tmp_path / "far" / "loop").symlink_to(tmp_path / "set")
    for name in ("set/b.png", "set/a.JPG", "set/note.txt", "set/.ipynb_checkpoints/c.png",
                 "far/d.png"):  # fmt: skip
        (tmp_path / name).touch()
    found = [str(p.relative_to(tmp_path)) for p in find_images(tmp_path / "set")]
    assert found == ["set/a.JPG", "set/b.png", "set/link/d.png"]


def test_a_folder_that_goes_away_meanwhile_does_not_end_the_search(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").touch()
    found = []
    for file in find_images(tmp_path):
        found.append(file)
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
    assert found == [tmp_path / "a" / "1.png", tmp_path / "c" / "1.png"]
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        list(find_images(tmp_path / "b"))


def test_in_a_folder_the_content_decides_where_the_ending_does_not(tmp_path: Path) -> None:
    image = Image.fromarray(COLOUR)
    for form, name in (("PNG", "no_ending"), ("JPEG", "photo.jpe"), ("TIFF", "scan.2024")):
        (tmp_path / name).write_bytes(encoded(image, form))
    (tmp_path / "huge.dat").write_bytes(b"P5 99999 99999 255\n")  # refused when it is read
    damaged = encoded(image)[:60]
    (tmp_path / "damaged.PNG").write_bytes(damaged)
    (tmp_path / "empty.png").touch()
    (tmp_path / "icon.ico").write_bytes(encoded(image, "ICO"))
    for name in ("notes.txt", "more.TXT", "Makefile", ".hidden.png", "data.csv"):
        (tmp_path / name).write_text("no image")
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for ever
    skipped = Counter[str]()
    found = list(find_images(tmp_path, skipped))
    assert [path.name for path in found] == [
        "damaged.PNG", "empty.png", "huge.dat", "no_ending", "photo.jpe", "scan.2024",
    ]  # fmt: skip
    assert skipped == {".txt": 2, ".ico": 1, ".csv": 1, "no ending": 2, "hidden": 1}
    # What is skipped in a folder is refused by name: the rule is the same.
    for path in tmp_path.iterdir():
        if path not in found and path.is_file() and not path.name.startswith("."):
            with pytest.raises(DataCorrupt, match="is not an image that goen reads"):
                read_image(path, None)
    for name in ("no_ending", "photo.jpe", "scan.2024"):
        assert read_image(tmp_path / name, None).shape == (3, 12, 20)


def test_what_several_calls_pass_over_is_shared(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    for name in ("a.png", "deep/b.png", "deep/c.txt"):
        (tmp_path / name).touch()
    skipped, passed = Counter[str](), {str(tmp_path / "a.png")}
    first = list(find_images(tmp_path / "deep", skipped, passed))
    assert first == [tmp_path / "deep" / "b.png"]
    assert list(find_images(tmp_path, skipped, passed)) == []
    assert skipped == {".txt": 1}


def test_what_was_skipped_is_described_by_its_commonest_endings() -> None:
    assert describe_skipped(Counter({".txt": 1})).startswith("1 file skipped")
    many = Counter({f".{letter}": 1000 + number for number, letter in enumerate("abcdef")})
    assert describe_skipped(many) == (
        "6,015 files skipped, not in a format that goen reads "
        "(1,005 .f, 1,004 .e, 1,003 .d, 1,002 .c, 1,001 .b, ...)"
    )


def test_arrays_are_found_only_where_they_are_asked_for(tmp_path: Path) -> None:
    for name in ("a.npy", "b.NPZ", "c.png", "d.txt"):
        (tmp_path / name).touch()
    assert [p.name for p in find_images(tmp_path)] == ["c.png"]
    assert [p.name for p in find_images(tmp_path, arrays=True)] == ["a.npy", "b.NPZ", "c.png"]
