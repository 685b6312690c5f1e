"""Copies of flagged pictures: none leaves the folder, and none overwrites another."""

from pathlib import Path

import pytest

from goen.errors import StorageError, UsageError
from goen.files import recorded_names
from goen.gate.flagged_copies import check_copy_folder, copy_flagged


def make(folder: Path, *names: str) -> list[Path]:
    """Files whose content is their path."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return [folder / name for name in names]


def copies(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.iterdir() if p.name != ".goen-wrote"}


def test_copies_have_the_names_of_their_files_and_equal_names_are_numbered(tmp_path: Path) -> None:
    files = make(tmp_path, "a.png", "x/a.png", "y/A.PNG", "x/a-2.png", "x/b", "y/b")
    assert copy_flagged(files, tmp_path / "out") == 6
    assert copies(tmp_path / "out") == {
        "a.png": "a.png",
        "a-2.png": "x/a.png",
        "A-3.PNG": "y/A.PNG",
        "a-2-2.png": "x/a-2.png",
        "b": "x/b",
        "b-2": "y/b",
    }


def test_earlier_copies_are_replaced_and_what_others_put_there_stays(tmp_path: Path) -> None:
    out = tmp_path / "out"
    files = make(tmp_path, "a.png", "b.png", "c.png", "d/a.png")
    (mine,) = make(out, "b.png")
    mine.write_text("mine")
    assert copy_flagged(files[:2], out) == 2
    assert copies(out) == {"a.png": "a.png", "b.png": "mine", "b-2.png": "b.png"}
    make(out, "note.txt")
    assert copy_flagged(files[1:], out) == 3
    assert copies(out) == {
        "b.png": "mine",
        "b-2.png": "b.png",
        "c.png": "c.png",
        "a.png": "d/a.png",
        "note.txt": "note.txt",
    }
    assert copy_flagged([], out) == 0
    assert copies(out) == {"b.png": "mine", "note.txt": "note.txt"}


@pytest.mark.parametrize(
    ("name", "copied"),
    [
        ("a\nnote.txt", "a_note.txt"),
        ("a\\..\\..\\b.png", "a_.._.._b.png"),
        (".goen-wrote", "_goen-wrote"),
        (".hidden.png", "_hidden.png"),
        ("\x1b]0;x\x07.png", "_]0;x_.png"),
        ("bad\udcff.png", "bad_xff.png"),
        ("ä" * 125 + ".png", "ä" * 98 + ".png"),
        ("x." + "y" * 250, "x." + "y" * 198),
        ("--help", "--help"),
    ],
)
def test_no_name_leads_out_of_the_folder_hides_or_is_too_long(
    name: str, copied: str, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    (source / name).write_bytes(b"pixels")
    out = tmp_path / "out"
    make(out, "note.txt")
    for _ in range(2):  # the second call finds the copy of the first
        assert copy_flagged([source / name], out) == 1
        assert copies(out) == {"note.txt": "note.txt", copied: "pixels"}
        assert recorded_names(out) == {copied}
    assert copy_flagged([source / name] * 2, out) == 2
    assert len(copies(out)) == 3
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}


def test_links_are_followed_and_what_is_gone_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (real,) = make(tmp_path, "real.png")
    (tmp_path / "link.png").symlink_to(real)
    files = [tmp_path / "gone.png", tmp_path / "link.png"]
    assert copy_flagged(files, tmp_path / "out") == 1
    assert not (tmp_path / "out" / "link.png").is_symlink()
    assert copies(tmp_path / "out") == {"link.png": "real.png"}
    (message,) = caplog.messages
    assert message == f"{tmp_path / 'gone.png'} is not copied: no such file or directory."


def test_the_folder_lies_elsewhere(tmp_path: Path) -> None:
    files = make(tmp_path, "photos/a.png", "photos/deep/b.png")
    photos = tmp_path / "photos"
    for inside in (photos, photos / "flagged", photos / "deep" / ".." / "new"):
        with pytest.raises(UsageError, match=r"lies within .*photos, which is scored"):
            check_copy_folder(inside, [photos], files)
    with pytest.raises(UsageError, match=r"deep holds .*b\.png, which is scored"):
        check_copy_folder(photos / "deep", files, files)
    assert not (photos / "flagged").exists()
    (tmp_path / "link").symlink_to(photos)
    with pytest.raises(UsageError, match="lies within"):
        check_copy_folder(tmp_path / "link" / "out", [photos], files)
    check_copy_folder(tmp_path / "out", [photos], files)
    assert (tmp_path / "out").is_dir()
    with pytest.raises(StorageError, match="A file stands where a folder is needed"):
        check_copy_folder(files[0], [], [])
