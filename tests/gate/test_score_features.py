"""Rows of files of features."""

import os
from pathlib import Path

import numpy as np
import pytest

from goen.gate import Gate
from goen.gate.score_features import score_feature_files
from goen.gate.score_files import NOT_FINITE, FileCounts, ScoredFile, score_columns
from goen.gate.score_writers import RowFormat, open_writer


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


def test_a_row_that_is_not_finite_is_flagged_with_its_reason(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    gate = Gate.fit_outputs(rng.normal(3, 1, (200, 4)), None, rng.normal(3, 1, (200, 4)))
    values = rng.normal(3, 1, (3, 4))
    values[1, 2] = np.nan
    np.save(tmp_path / "rows.npy", values)
    found: list[ScoredFile] = []
    score_feature_files(gate, [tmp_path / "rows.npy"], found.append)
    assert [one.row["error"] for one in found] == [None, NOT_FINITE, None]
    assert found[1].row["is_ood"] is True


@pytest.mark.parametrize("form", ["csv", "parquet", "jsonl"])
def test_a_file_name_of_any_bytes_becomes_a_row(form: RowFormat, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    gate = Gate.fit_outputs(rng.normal(3, 1, (200, 4)), None, rng.normal(3, 1, (200, 4)))
    odd = tmp_path / os.fsdecode(b"caf\xe9.npz")
    odd.write_bytes(b"garbage")
    out = tmp_path / f"rows.{form}"
    with open_writer(out, form, ["path", *score_columns(gate), "error"]) as write:
        score_feature_files(gate, [odd], lambda scored: write(scored.row))
    assert out.stat().st_size
