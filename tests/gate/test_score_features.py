"""Rows of files of features."""

from pathlib import Path

import numpy as np

from goen.gate import Gate
from goen.gate.score_features import score_feature_files
from goen.gate.score_files import FileCounts, ScoredFile


def test_each_row_is_that_of_the_gate(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    gate = Gate.fit_outputs(rng.normal(3, 1, (200, 4)), None, rng.normal(3, 1, (200, 4)))
    values = rng.normal(2, 2, (5000, 4))  # more than a batch
    np.save(tmp_path / "rows.npy", values)
    found: list[ScoredFile] = []
    missing = tmp_path / "none.npy"
    counts = score_feature_files(gate, [tmp_path / "rows.npy", missing], found.append)
    expected = gate.predict_outputs(values)
    assert counts == FileCounts(5000, int(expected.is_ood.sum()), 1)
    assert [one.row["score"] for one in found[:-1]] == expected.score.tolist()
    assert found[4999].row["path"] == f"{tmp_path / 'rows.npy'}#4999"
    assert found[-1].row["is_ood"] is None
    assert "does not exist" in str(found[-1].row["error"])
