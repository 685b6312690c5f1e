"""Tars with damage in every place: a row for each picture before it, and one row for the rest."""

import io
import random
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from goen.data.images.pixel_format import COLOUR
from goen.errors import DataCorrupt
from goen.scoring import pipeline
from goen.scoring.pipeline import NumberedShard, ScoreSettings, ShardScorer
from goen.scoring.shards import TarShard
from tests.gate.test_gate import make_gate
from tests.image_sources import encoded

BLOCK = 512


def tar_of(members: dict[str, bytes], mode: str = "w", **pax: str) -> bytes:
    """A tar; the PAX headers are those of the second member."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=tarfile.PAX_FORMAT) as tar:
        for number, (name, content) in enumerate(members.items()):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.pax_headers = pax if number == 1 else {}
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def rows(content: bytes, folder: Path) -> list[str]:
    """For each row ``read``, or why not."""
    (folder / "a.tar").write_bytes(content)
    found = []
    for picture in TarShard(str(folder / "a.tar")).items():
        try:
            picture.read((8, 8), COLOUR)
            found.append("read")
        except DataCorrupt as error:
            found.append(str(error))
    return found


PICTURES = {f"{n}.png": content for n, content in enumerate(encoded(5, broken=9))}
SPAN = BLOCK + -(-len(PICTURES["0.png"]) // BLOCK) * BLOCK


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_whole_tar_is_read_to_its_end(mode: str, tmp_path: Path) -> None:
    assert rows(tar_of(PICTURES, mode), tmp_path) == ["read"] * 5
    assert rows(tar_of({}, mode), tmp_path) == []


def test_a_damaged_header_does_not_hide_what_follows(tmp_path: Path) -> None:
    whole = tar_of(PICTURES)
    flipped = bytearray(whole)
    flipped[SPAN + 5] ^= 1
    zeroed = bytearray(whole)
    zeroed[SPAN : SPAN + BLOCK] = bytes(BLOCK)
    for damaged, why in (
        (flipped, "a damaged header"),
        (zeroed, "there is more after the end of the archive"),
        (whole[: SPAN + 100], "a damaged header: truncated header"),
        (whole[:SPAN], "the archive ends without its end mark"),
        (whole[: SPAN + BLOCK + 10], "unexpected end of data"),
        (whole + whole, "there is more after the end"),
        (whole + bytes(1 << 26) + whole, "zeros follow the end of the archive"),
    ):
        first, *_, last = rows(bytes(damaged), tmp_path)
        assert first == "read"
        assert "what follows cannot be read" in last
        assert why in last


def test_no_cut_loses_a_picture_without_a_word(tmp_path: Path) -> None:
    for mode in ("w", "w:gz"):
        whole = tar_of(PICTURES, mode)
        for cut in random.Random(0).sample(range(len(whole) - 1024), 40):
            found = rows(whole[:cut], tmp_path)
            assert found.count("read") == 5 or "cannot be read" in found[-1]


@pytest.mark.parametrize("size", ["1000000000000000000", "9" * 30, "-5"])
def test_a_member_that_claims_another_length_ends_the_file(size: str, tmp_path: Path) -> None:
    for name in ("note.txt", "b.png"):
        members = {"0.png": PICTURES["0.png"], name: b"abc", "c.png": PICTURES["1.png"]}
        found = rows(tar_of(members, size=size), tmp_path)
        assert found[0] == "read"
        assert len(found) in (2, 3)
        assert "cannot be read" in found[-1]


@pytest.mark.parametrize(
    "pax",
    [
        {"GNU.sparse.map": "a,b"},
        {"GNU.sparse.size": "x"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "z"},
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"},
    ],
)
def test_headers_that_cannot_be_parsed_end_the_file(pax: dict[str, str], tmp_path: Path) -> None:
    found = rows(tar_of(PICTURES, **pax), tmp_path)
    assert found[0] == "read"
    assert found.count("read") == 5 or "cannot be read" in found[-1]


def test_flipped_bytes_end_in_rows(tmp_path: Path) -> None:
    rng = random.Random(1)
    for mode in ("w", "w:gz", "w:xz", "w:bz2"):
        whole = tar_of(PICTURES, mode)
        for _ in range(40):
            damaged = bytearray(whole)
            for _ in range(3):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            found = rows(bytes(damaged), tmp_path)
            assert len(found) == 5 or "cannot be read" in found[-1]


@pytest.mark.parametrize(
    ("start", "most"), [(b"", 1), (b"II*\0\x08\0\0\0", 2), (PICTURES["0.png"], 2)]
)
def test_large_members_of_small_tars_are_held_once_and_one_at_a_time(
    start: bytes, most: int, tmp_path: Path
) -> None:
    large = 1 << 23
    members = {f"{n}.tif": start + bytes(large) for n in range(4)}
    (tmp_path / "a.tar.gz").write_bytes(tar_of(members, "w:gz"))
    scorer = ShardScorer(make_gate(), ScoreSettings(batch_size=8))
    shard = TarShard(str(tmp_path / "a.tar.gz"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "_BYTES_AT_ONCE", large // 2)
        tracemalloc.start()
        found = [row for rows in scorer.rows(NumberedShard(0, shard)) for row in rows]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert len(found) == 4
    assert peak < most * large
