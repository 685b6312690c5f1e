"""Copies of flagged pictures: none leaves the folder, and none overwrites another."""

from pathlib import Path

import numpy as np
import pytest

from goen.data.images.decoding import read_image
from goen.errors import UsageError
from goen.io.files import MARKER
from goen.scoring.flagged_copies import FlaggedCopies
from goen.scoring.shards import FileShard, ParquetShard, StackShard, TarShard
from tests.image_sources import encoded, write_parquet, write_tar
from tests.own_model import digits


def make(folder: Path, *names: str) -> list[Path]:
    """Files whose content is their path."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return [folder / name for name in names]


def copy_flagged(files: list[Path], folder: Path) -> int:
    """Copy them all, with others between them that are not flagged."""
    copying = FlaggedCopies(folder)
    places = [place for file in files for place in (str(file), "not-flagged.png")]
    copying.add(FileShard(tuple(places)), [True, False] * len(files))
    return copying.copied


def copies(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.iterdir() if p.name != MARKER}


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


def test_earlier_copies_are_removed_and_other_folders_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    files = make(tmp_path, "a.png", "b.png", "c.png", "d/a.png")
    assert copy_flagged(files[:2], out) == 2
    assert copies(out) == {"a.png": "a.png", "b.png": "b.png"}
    assert copy_flagged(files[1:], out) == 3
    assert copies(out) == {"b.png": "b.png", "c.png": "c.png", "a.png": "d/a.png"}
    assert copy_flagged([], out) == 0
    assert copies(out) == {}
    (mine,) = make(tmp_path / "mine", "b.png")
    with pytest.raises(UsageError, match="not a flagged images folder that goen made"):
        copy_flagged(files, tmp_path / "mine")
    assert mine.exists()


@pytest.mark.parametrize(
    ("name", "copied"),
    [
        ("a\nnote.txt", "a_note.txt"),
        ("a\\..\\..\\b.png", "a_.._.._b.png"),
        (".goen", "_goen"),
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
    for _ in range(2):  # the second call finds the copy of the first
        assert copy_flagged([source / name], out) == 1
        assert copies(out) == {copied: "pixels"}
    assert copy_flagged([source / name] * 2, out) == 2
    assert len(copies(out)) == 2
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
            FlaggedCopies(inside, [str(photos)])
    with pytest.raises(UsageError, match=r"deep holds .*b\.png, which is scored"):
        FlaggedCopies(photos / "deep", [*map(str, files)])
    assert not (photos / "flagged").exists()
    (tmp_path / "link").symlink_to(photos)
    with pytest.raises(UsageError, match="lies within"):
        FlaggedCopies(tmp_path / "link" / "out", [str(photos)])
    FlaggedCopies(tmp_path / "out", [str(photos), "s3://bucket"])
    assert (tmp_path / "out").is_dir()
    with pytest.raises(UsageError, match="not a flagged images folder that goen made"):
        FlaggedCopies(files[0])


def test_images_within_other_files_are_copied_as_files(tmp_path: Path) -> None:
    contents = encoded(3)  # digits; the content is that of PNG files
    tar = write_tar(tmp_path / "a.tar", {"d/0.png": contents[0], "d/1.jpg": contents[1]})
    parquet = write_parquet(tmp_path / "a.parquet", contents)
    stack = digits().test.read(range(3))
    np.save(tmp_path / "s.npy", stack)
    copying = FlaggedCopies(tmp_path / "out")
    copying.add(TarShard(str(tar)), [False, True])
    copying.add(ParquetShard(str(parquet), "image", 0, 3, 3), [True, False, True])
    copying.add(StackShard(str(tmp_path / "s.npy"), 3, 8), [False, True, False])
    copying.add(FileShard((f"file://{tmp_path / 'x.png'}",)), [False])
    names = {"1.jpg", "a.parquet#0.png", "a.parquet#2.png", "s.npy#1.png"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*names, ".goen"}
    assert (tmp_path / "out" / "1.jpg").read_bytes() == contents[1]
    assert (read_image(tmp_path / "out" / "s.npy#1.png") == stack[1]).all()
    assert copying.copied == 4
