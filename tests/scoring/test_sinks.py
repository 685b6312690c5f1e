"""Rows in three formats, in files and streams."""

import csv
import io
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from goen.errors import ExtraMissing, UsageError
from goen.gate.prediction import ScoreRow
from goen.scoring.sinks import RowFormat, format_of, open_writer, stream_writer

FORMATS: list[RowFormat] = ["jsonl", "csv", "parquet"]
COLUMNS = ["path", "label", "confidence", "score", "p_value", "is_ood", "error"]
ROWS: list[ScoreRow] = [
    dict(zip(COLUMNS, ("ä.png", "a", 0.9, 0.5, 0.25, False, None), strict=True)),
    dict.fromkeys(COLUMNS) | {"path": "b.png", "error": "damaged"},
]


def decoded(content: bytes, form: RowFormat) -> list[ScoreRow]:
    if form == "parquet":
        found: list[ScoreRow] = pq.read_table(io.BytesIO(content)).to_pylist()
        return found
    text = content.decode("utf-8")
    if form == "jsonl":
        return [json.loads(line) for line in text.splitlines()]
    numbers = ("confidence", "score", "p_value")
    kinds = dict.fromkeys(numbers, float) | {"is_ood": {"True": True, "False": False}.__getitem__}
    return [
        {name: kinds.get(name, str)(cell) if cell else None for name, cell in row.items()}
        for row in csv.DictReader(io.StringIO(text))
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_a_file_holds_the_rows_and_appears_when_it_is_complete(
    form: RowFormat, tmp_path: Path
) -> None:
    out = tmp_path / "scores"
    with open_writer(out, form, COLUMNS) as write:
        for row in ROWS:
            write(row)
        assert not out.exists()
    assert decoded(out.read_bytes(), form) == ROWS
    with pytest.raises(UsageError, match="exists"), open_writer(out, form, COLUMNS):
        pass
    again = open_writer(out, form, COLUMNS, overwrite=True)
    with pytest.raises(ValueError, match="stopped"), again:
        raise ValueError("stopped")
    assert decoded(out.read_bytes(), form) == ROWS
    assert [path.name for path in tmp_path.iterdir()] == ["scores"]


@pytest.mark.parametrize("form", FORMATS)
def test_a_stream_holds_the_same(form: RowFormat) -> None:
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding="utf-8", newline="")
    with stream_writer(stream, form, COLUMNS) as write:
        for row in ROWS:
            write(row)
    stream.flush()
    assert decoded(content.getvalue(), form) == ROWS
    if form != "parquet":
        assert b"\r" not in content.getvalue()


def test_the_header_of_csv_is_written_for_no_rows_and_not_before_an_error() -> None:
    stream = io.StringIO()
    with stream_writer(stream, "csv", ["path", "label"]):
        pass
    assert stream.getvalue() == "path,label\n"
    stream = io.StringIO()
    with (
        pytest.raises(ValueError, match="no images"),
        stream_writer(stream, "csv", ["path", "label"]),
    ):
        raise ValueError("no images")
    assert stream.getvalue() == ""


def test_rows_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    with stream_writer(stream, "jsonl", COLUMNS) as write:
        write(ROWS[0])
        assert json.loads(stream.getvalue()) == ROWS[0]
    monkeypatch.setattr("goen.scoring.sinks._PARQUET_ROWS", 3)
    content = io.BytesIO()
    output = io.TextIOWrapper(content)
    with stream_writer(output, "parquet", COLUMNS) as write:
        for _ in range(7):
            write(ROWS[0])
    groups = pq.ParquetFile(io.BytesIO(content.getvalue())).metadata
    assert [groups.row_group(i).num_rows for i in range(groups.num_row_groups)] == [3, 3, 1]


def test_json_is_plain_where_the_stream_is_not_unicode() -> None:
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding="latin-1")
    with stream_writer(stream, "jsonl", COLUMNS) as write:
        write({**ROWS[0], "path": "中.png"})
    stream.flush()
    assert json.loads(content.getvalue().decode("ascii"))["path"] == "中.png"


def test_control_characters_and_formulas_are_harmless() -> None:
    stream = io.StringIO()
    with stream_writer(stream, "jsonl", ["path"]) as write:
        write({"path": "\x1b[2J\x9b.png"})
    assert not {"\x1b", "\x9b"} & set(stream.getvalue())
    stream = io.StringIO()
    with stream_writer(stream, "csv", ["path"]) as write:
        write({"path": "=1+1.png"})
        write({"path": "'a.png"})
    assert stream.getvalue() == "path\n'=1+1.png\n''a.png\n"


def test_the_format_is_that_asked_for_or_that_of_the_suffix() -> None:
    assert format_of(Path("a.jsonl")) == format_of(Path("a.NDJSON")) == "jsonl"
    assert format_of(Path("a.csv"), "csv") == format_of(Path("a.CSV")) == "csv"
    assert format_of(Path("a.txt"), "parquet") == format_of(Path("a.parquet")) == "parquet"
    with pytest.raises(UsageError, match=r"\.xls should end in \.jsonl.*suffix selects the format"):
        format_of(Path("scores.xls"))
    with pytest.raises(UsageError, match=r"a\.csv would hold jsonl, but its suffix stands for csv"):
        format_of(Path("a.csv"), "jsonl")


def test_parquet_without_pyarrow_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for opened in (
        open_writer(tmp_path / "a.parquet", "parquet", []),
        stream_writer(io.TextIOWrapper(io.BytesIO()), "parquet", []),
    ):
        with pytest.raises(ExtraMissing, match=r"pip install 'goen\[parquet\]'"), opened:
            pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_names_end_no_line_and_are_no_formula(form: RowFormat) -> None:
    names = ["path", "label", "error"]
    paths = ["=1+1", "a\rb", "a\nb", "a\u2028b\x85", "'a", "\x1b]0;x\x07", "\u202egnp"]
    stream = io.StringIO()
    with stream_writer(stream, form, names) as write:
        for path in paths:
            write({"path": path, "label": "-1", "error": None})
    text = stream.getvalue()
    if form == "jsonl":
        assert len(text.splitlines()) == len(paths)
        assert not set("\x1b\x07\x85\u202e\u2028") & set(text)
        assert [json.loads(line)["path"] for line in text.splitlines()] == paths
    else:
        rows = list(csv.reader(io.StringIO(text, newline="")))
        assert [row[0].removeprefix("'") for row in rows[1:]] == paths
        assert {row[1] for row in rows[1:]} == {"'-1"}


def test_an_unknown_format_is_an_error(tmp_path: Path) -> None:
    """It would be written as CSV without a header."""
    wrong = open_writer(tmp_path / "scores", "json", COLUMNS)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"Unknown format 'json'\. Did you mean 'jsonl'"), wrong:
        pass
    with pytest.raises(UsageError, match=r"Unknown format 'json'\. Did you mean 'jsonl'"):
        stream_writer(io.StringIO(), "json", COLUMNS)  # type: ignore[arg-type]
