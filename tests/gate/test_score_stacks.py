from pathlib import Path

import numpy as np
import pytest

from goen.gate import Gate
from goen.gate.score_files import ScoredBatch, ScoredFile
from goen.gate.score_stacks import is_stack, score_stack_files

from ..own_model import LAYERS, digits, preprocess, trained


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate.fit(
        trained(), digits().train, digits().validation, layers=LAYERS, preprocess=preprocess
    )


def test_each_image_of_a_stack_has_its_row(gate: Gate, tmp_path: Path) -> None:
    images = digits().test.read(range(30))
    np.savez_compressed(tmp_path / "new.npz", images=images, labels=np.zeros(30, int))
    np.save(tmp_path / "last.npy", images[:3].transpose(0, 2, 3, 1))
    np.save(tmp_path / "grey.npy", images[:, :1])
    rows: list[ScoredFile] = []
    seen: list[ScoredBatch] = []
    files = [tmp_path / name for name in ("new.npz", "last.npy", "grey.npy")]
    counts = score_stack_files(gate, files, rows.append, seen.append, batch_size=8)
    expected = gate.predict(images)
    assert (counts.scored, counts.unreadable) == (33, 1)
    assert counts.flagged == expected.is_ood.sum() + expected.is_ood[:3].sum()
    paths = [one.row["path"] for one in rows]
    assert paths[:2] == [f"{tmp_path / 'new.npz'}#0", f"{tmp_path / 'new.npz'}#1"]
    assert paths[30] == f"{tmp_path / 'last.npy'}#0"
    scores = [float(one.row["score"] or 0) for one in rows[:33]]
    assert np.allclose(scores[:30], expected.score, atol=1e-4)
    assert np.allclose(scores[30:], expected.score[:3], atol=1e-4)
    assert rows[33].row["label"] is None
    assert "images of 3 channels are needed" in str(rows[33].row["error"])
    assert [len(batch.images) for batch in seen] == [8, 8, 8, 6, 3]
    assert seen[0].files[7] == Path(f"{tmp_path / 'new.npz'}#7")


def test_what_a_stack_is(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.zeros((3, 4, 4), np.uint8))
    np.save(tmp_path / "many.npy", np.zeros((2, 3, 4, 4), np.uint8))
    (tmp_path / "broken.npz").write_bytes(b"PK")
    names = ("one.npy", "many.npy", "broken.npz", "missing.npy", "photo.png")
    assert [is_stack(tmp_path / name) for name in names] == [False, True, False, False, False]
