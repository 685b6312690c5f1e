"""JSON from anyone: bounded, without what readers disagree on, and every refusal has a sentence."""

import json
from pathlib import Path

import pytest

from goen.io import json_files
from goen.io.json_files import json_object, json_rows, parse_object
from goen.io.limits import JSON_BYTES, JSON_DEPTH, ROW_BYTES, ROWS_BYTES
from goen.io.manifest import Manifest


def nested(depth: int) -> bytes:
    """An object with lists in it, so many levels in all."""
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "Expecting value"),
        (b"[]", "it is not a JSON object"),
        (b'"text"', "it is not a JSON object"),
        (b'{"a": 1}{}', "Extra data"),
        (b"\xff{}", "can't decode"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": 1, "b": {"c": 1, "c": 1}}', "it has the field 'c' twice"),
        (b'{"a": "\\ud800"}', "half of a surrogate pair"),
        (b'{"a\\udfff": 1}', "half of a surrogate pair"),
        (b'{"a": ' + b"9" * 5000 + b"}", "4300 digits"),
        (nested(JSON_DEPTH + 1), f"nested more than {JSON_DEPTH} deep"),
        (nested(900), f"nested more than {JSON_DEPTH} deep"),
        (b'{"a":' * 100_000, f"nested more than {JSON_DEPTH} deep"),
    ],
)
def test_what_is_not_plain_json_has_its_sentence(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_object(data)


def test_plain_json_is_read() -> None:
    content = {"a": [1, 2.5, None, True], "grün \U0001f408": {"b": {"b": "\x1b"}}}
    assert parse_object(json.dumps(content).encode()) == content  # a pair of surrogates is text
    assert parse_object(json.dumps(content, ensure_ascii=False).encode()) == content
    assert parse_object(nested(JSON_DEPTH))


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    path.write_bytes(b"{" + b" " * (JSON_BYTES - 2) + b"}")
    assert json_object(path) == {}
    with path.open("ab") as file:
        file.truncate(1 << 40)  # a terabyte that takes no room on the disk
    with pytest.raises(ValueError, match="it is larger than 8,388,608 bytes"):
        json_object(path)
    path.write_bytes(b"{" + b" " * (JSON_BYTES - 1) + b"}")
    with pytest.raises(ValueError, match="it is larger than 8,388,608 bytes"):
        json_object(path)


def test_rows_and_files_as_large_as_they_may_be_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    row = b'{"a": "' + b"x" * (ROW_BYTES - 9) + b'"}'
    path.write_bytes(row)
    assert json_rows(path, lambda row: len(row.text("a"))) == [ROW_BYTES - 9]
    monkeypatch.setattr(json_files, "ROWS_BYTES", ROW_BYTES)
    assert len(json_rows(path, lambda row: row)) == 1
    path.write_bytes(row[:-2] + b'x"}')
    with pytest.raises(ValueError, match="it is larger than 1,048,576 bytes"):
        json_rows(path, lambda row: row)


def test_rows_are_read_one_by_one_and_a_bad_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"a": 1}\n\n{"a": "x\u2028y"}\r\n{"a": 3}'.encode())

    def read(row: Manifest) -> object:
        return row.content["a"]

    assert json_rows(path, read) == [1, "x\u2028y", 3]
    with pytest.raises(ValueError, match="line 3: its a should be a whole number, got 'x"):
        json_rows(path, lambda row: row.integer("a"))
    path.write_bytes(b'{"a": 1}\n{"a": 1\n')
    with pytest.raises(ValueError, match="line 2: "):
        json_rows(path, read)
    path.write_bytes(b'{"a": "' + b"x" * ROW_BYTES + b'"}')
    with pytest.raises(ValueError, match="line 1: it is longer than 1,048,576 bytes"):
        json_rows(path, read)
    with path.open("wb") as file:
        file.truncate(ROWS_BYTES + 1)
    with pytest.raises(ValueError, match="it is larger than 268,435,456 bytes"):
        json_rows(path, read)
