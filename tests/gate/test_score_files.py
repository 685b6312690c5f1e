"""Rows for files, in three formats; ``goen score`` itself is tested in tests/cli/test_score.py."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from goen.errors import UsageError
from goen.gate import Gate
from goen.gate.score_files import (
    FileCounts,
    ScoreRow,
    check_not_scored,
    find_files,
    open_writer,
    score_columns,
    score_files,
)

from ..own_model import LAYERS, digits, ood, preprocess, trained
from .test_gate import make_gate

ROWS: list[ScoreRow] = [
    {"path": "ä.png", "label": "a", "score": 0.5, "is_ood": False, "error": None},
    {"path": "b.png", "label": None, "score": None, "is_ood": None, "error": "damaged"},
]


@pytest.fixture(scope="module")
def gate() -> Gate:
    p = digits()
    return Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for i, pixels in enumerate(digits().test.read(range(130))):
        Image.fromarray(pixels.transpose(1, 2, 0)).save(tmp_path / f"{i:03}.png")
    (tmp_path / "077.png").write_bytes(b"no picture")
    return tmp_path


def test_each_file_gets_the_row_of_its_prediction(gate: Gate, folder: Path) -> None:
    rows: list[ScoreRow] = []
    files = find_files([folder])
    counts = score_files(gate, files, rows.append)  # more files than one batch
    expected = gate.predict(np.delete(digits().test.read(range(130)), 77, axis=0))
    assert counts == FileCounts(129, int(expected.is_ood.sum()), 1)
    assert [row["path"] for row in rows] == [str(file) for file in files]
    assert [row["path"] for row in rows if row["error"]] == [str(folder / "077.png")]
    read = [row for row in rows if not row["error"]]
    assert np.allclose([float(row["score"] or 0) for row in read], expected.score, atol=1e-4)
    assert [row["is_ood"] for row in read] == expected.is_ood.tolist()
    assert [row["label"] for row in read] == [expected.classes[i] for i in expected.label]
    for row in rows:
        assert list(row) == ["path", *score_columns(gate), "error"]


def test_columns_depend_on_what_the_detector_provides(gate: Gate) -> None:
    fixed = ["label", "confidence", "score", "p_value", "is_ood"]
    cues = ["cue_early", "cue_late", "cue_entropy"]
    p_values = ["p_early", "p_late", "p_entropy"]
    assert score_columns(gate) == [*fixed, *cues, *p_values]
    with_ood, _ = gate.update(ood=ood())
    assert score_columns(with_ood) == [
        *fixed[:4], "probability", "is_ood", *cues, *p_values,
    ]  # fmt: skip
    assert score_columns(make_gate(with_head=False)) == [
        *fixed, "cue_log_distance", "cue_similarity", "cue_entropy",
    ]  # fmt: skip


def test_files_come_as_given_and_folders_sorted(folder: Path) -> None:
    found = find_files([folder / "100.png", folder])
    assert found == [folder / "100.png", *sorted(folder.iterdir())]
    assert find_files([Path("nowhere")]) == [Path("nowhere")]  # its row has the error


@pytest.mark.parametrize("suffix", [".jsonl", ".NDJSON", ".csv", ".parquet", None])
def test_every_format_holds_the_same_rows(suffix: str | None, tmp_path: Path) -> None:
    out = None if suffix is None else tmp_path / f"scores{suffix}"
    stdout = io.StringIO()
    with open_writer(out, stdout, list(ROWS[0])) as write:
        for row in ROWS:
            write(row)
        assert out is None or not out.exists()  # it appears when it is complete
    if out is None:
        assert [json.loads(line) for line in stdout.getvalue().splitlines()] == ROWS
        return
    assert stdout.getvalue() == ""
    if suffix == ".csv":
        with out.open(newline="", encoding="utf-8") as file:
            found = [{k: v or None for k, v in row.items()} for row in csv.DictReader(file)]
        as_text = [{k: None if v is None else str(v) for k, v in row.items()} for row in ROWS]
        assert found == as_text
    elif suffix == ".parquet":
        assert pq.read_table(out).to_pylist() == ROWS
    else:
        lines = out.read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == ROWS


def test_other_suffixes_and_files_to_score_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"\.xls should end in \.jsonl.*suffix selects the format"):
        open_writer(Path("scores.xls"), io.StringIO(), [])
    (folder / "link.csv").symlink_to(folder / "003.png")
    with pytest.raises(UsageError, match="one of the files to score"):
        check_not_scored(folder / "link.csv", find_files([folder]))
    check_not_scored(folder / "new.csv", find_files([folder]))
