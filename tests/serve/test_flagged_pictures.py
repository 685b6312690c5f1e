"""Kept pictures: names of our own, a cap, and nothing of others is touched."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from goen.serve.flagged_pictures import FlaggedPictures
from goen.serve.uploads import Upload

from .running import encoded

IMAGE = np.random.default_rng(0).integers(0, 256, (3, 8, 6), dtype=np.uint8)


def test_pictures_are_kept_as_they_came(tmp_path: Path) -> None:
    kept = FlaggedPictures(tmp_path / "new" / "folder", 10)
    data = encoded(IMAGE, "WEBP")
    name = kept.keep(Upload(data, "../../evil.py"))
    assert name.endswith(".webp")
    assert (tmp_path / "new" / "folder" / name).read_bytes() == data
    name = kept.keep_image(IMAGE)
    content = (tmp_path / "new" / "folder" / name).read_bytes()
    with Image.open(io.BytesIO(content)) as picture:
        assert np.array_equal(np.asarray(picture).transpose(2, 0, 1), IMAGE)


def test_the_oldest_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    (tmp_path / "mine.png").write_bytes(b"mine")
    (tmp_path / "flagged-mine.png").write_bytes(b"mine")
    kept = FlaggedPictures(tmp_path, 2)
    names = [kept.keep_image(IMAGE) for _ in range(3)]
    again = FlaggedPictures(tmp_path, 2)  # those of an earlier service count
    names += [again.keep_image(IMAGE)]
    left = sorted(file.name for file in tmp_path.iterdir())
    assert left == sorted([*names[2:], "mine.png", "flagged-mine.png"])
