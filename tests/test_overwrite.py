"""Every output of goen follows one rule: it replaces nothing unless asked to; see goen.io.files."""

import ast
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
from PIL import Image

import goen
from goen.data.images.contact_sheet import save_png
from goen.data.sets.catalogue import Official
from goen.data.sets.fetch import download
from goen.data.sets.readers import Chunks, Reading, Source
from goen.data.sets.store import prepare_set, prepared
from goen.errors import DataCorrupt, UsageError
from goen.gate import Gate
from goen.io.results import Origin, write_results
from goen.monitor import Monitor
from goen.report.blocks import Page
from goen.report.page import write_single_page
from goen.report.table import Cell, Row, Table, write_tables
from goen.scoring.sinks import format_of, open_writer
from goen.studies import published
from tests.own_model import LAYERS, digits, preprocess, trained

ROOT = Path(goen.__file__).parent


class Write(Protocol):
    def __call__(self, path: Path, *, overwrite: bool) -> None: ...


@cache
def small_gate() -> Gate:
    """Of a small model: a file of it is written in seconds."""
    images = digits().train.take(range(100)), digits().validation.take(range(100))
    return Gate.fit(trained(), *images, layers=LAYERS, preprocess=preprocess)


def score_rows(path: Path, *, overwrite: bool) -> None:
    names = ["path", "label", "confidence", "score", "p_value", "is_ood", "cue_a", "p_a", "error"]
    with open_writer(path, format_of(path), names, overwrite=overwrite) as write:
        write({**dict.fromkeys(names), "path": "a.png", "score": 1.0})


def results(path: Path, *, overwrite: bool) -> None:
    origin = Origin("knn", "full", 42, "backbone-1", ("train:ab",))
    write_results(path, origin.rows("test", "id", {"accuracy": 0.9}), overwrite=overwrite)


WRITERS: dict[str, Write] = {
    "gate.onnx": lambda path, overwrite: small_gate().export(path, overwrite=overwrite),
    "monitor": lambda path, overwrite: Monitor(small_gate()).save(path, overwrite=overwrite),
    "scores.csv": score_rows,
    "scores.jsonl": score_rows,
    "scores.parquet": score_rows,
    "results.jsonl": results,
    "page.html": lambda path, overwrite: write_single_page(
        Page("a page", []), path, overwrite=overwrite
    ),
    "sheet.png": lambda path, overwrite: save_png(
        Image.new("RGB", (8, 8)), path, overwrite=overwrite
    ),
}


def everything(folder: Path) -> dict[str, bytes | None]:
    found = sorted(folder.rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in found}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_replaced_with_overwrite_alone(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("years of work")
    with pytest.raises(UsageError, match=r"exists.*overwrite=True"):
        WRITERS[name](path, overwrite=False)
    assert everything(tmp_path) == {name: b"years of work"}
    WRITERS[name](path, overwrite=True)
    assert path.read_bytes()[:13] != b"years of work"
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_gate_replaces_gates_alone_and_only_with_overwrite(tmp_path: Path) -> None:
    small_gate().save(tmp_path / "gate")
    with pytest.raises(UsageError, match=r"exists.*overwrite=True"):
        small_gate().save(str(tmp_path / "gate"))
    (tmp_path / "gate" / "report.txt").touch()
    small_gate().save(tmp_path / "gate", overwrite=True)
    assert not (tmp_path / "gate" / "report.txt").exists()
    (tmp_path / "folder").mkdir()
    for thesis in (tmp_path / "thesis.txt", tmp_path / "folder" / "thesis.txt"):
        thesis.write_text("years of work")
    for place in ("thesis.txt", "folder"):
        with pytest.raises(UsageError, match="goen leaves it as it is"):
            small_gate().save(tmp_path / place, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"
    assert (tmp_path / "folder" / "thesis.txt").read_text() == "years of work"


def test_tables_and_published_numbers_are_renewed_in_a_folder_of_goen(tmp_path: Path) -> None:
    def table(name: str) -> Table:
        return Table(name, "AUROC", ("far",), (Row("KNN", (Cell(0.9, ".3f"),)),))

    folder = tmp_path / "tables"
    for name in ("a", "b"):
        write_tables([table(name)], folder)
    assert {p.name for p in folder.iterdir()} == {".goen", "b.md", "b.tex", "b.csv"}
    (folder / ".goen").unlink()
    with pytest.raises(UsageError, match="goen leaves it as it is"):
        write_tables([table("c")], folder)
    for value in (0.8, 0.9):
        published.publish([published.Measured("test", 10, "ab", "accuracy", value)], tmp_path)
    assert published.read_published(tmp_path)[0].value == 0.9


def test_a_file_where_a_prepared_set_goes_is_kept() -> None:
    def read() -> Reading:
        pytest.fail("it was read before the place was looked at")

    place = prepared("abc")
    place.parent.mkdir(parents=True)
    place.write_text("years of work")
    with pytest.raises(UsageError, match="a file of 13 bytes"):
        prepare_set(Source("abc", "here", read), "a set")
    assert place.read_text() == "years of work"


def test_a_download_of_another_content_is_kept(tmp_path: Path) -> None:
    (tmp_path / "set.bin").write_text("years of work")
    with pytest.raises(DataCorrupt, match=r"set\.bin does not have the checksum.*Move it away"):
        download(Official("http://127.0.0.1:9/set.bin", "0" * 64, 1), tmp_path)
    assert (tmp_path / "set.bin").read_text() == "years of work"
    (tmp_path / "other.bin.lock").write_text("years of work")
    with pytest.raises(UsageError, match="should be a lock of goen"):
        download(Official("http://127.0.0.1:9/other.bin", "0" * 64, 1), tmp_path)
    assert (tmp_path / "other.bin.lock").read_text() == "years of work"


def test_of_two_processes_that_prepare_a_set_both_read_it() -> None:
    images = np.zeros((2, 3, 8, 8), np.uint8)

    def read(other: Callable[[], object]) -> Callable[[], Reading]:
        def chunks() -> Chunks:
            other()
            yield images, np.zeros(2, np.int64)

        return lambda: Reading(2, (8, 8), ("a",), chunks)

    first = Source("abc", "here", read(lambda: None))
    second = Source("abc", "here", read(lambda: prepare_set(first, "a set")))
    assert len(prepare_set(second, "a set")) == 2


# -- no writer goes another way ------------------------------------------------------------------

# Methods and functions that write, move or delete.
_WRITING = frozenset(
    "write_text write_bytes unlink rename rmtree rmdir move copyfile save_file savefig touch "
    "symlink_to hardlink_to truncate save ParquetWriter".split()
)
_SAFELY = frozenset({"whole_file", "whole_folder"})
_ALLOWED = {
    ("cli/main.py", "entry"): "the null device",
    ("data/transforms/corruptions.py", "_jpeg_compression"): "into memory",
    ("data/sets/fetch.py", "_resume"): "the .part file of a download",
    ("data/sets/fetch.py", "download"): "the same, which gets its name where nothing was",
    ("data/sets/store.py", "_write"): "into the folder of whole_folder",
    ("detectors/odin.py", "forward"): "moves pixels",
    ("gate/storage/pickling.py", "read_contents"): "into a temporary folder",
    (
        "scoring/score_folder.py",
        "finished",
    ): "the manifest of its own folder, which is not whole any more",
    ("scoring/score_folder.py", "write"): "a line at the end of the list of its own folder",
    ("scoring/flagged_copies.py", "__init__"): "copies of an earlier call, in a folder of goen's",
    ("scoring/flagged_copies.py", "png_content"): "into memory",
    ("scoring/shards.py", "_copy"): "into a temporary folder",
    ("scoring/sinks.py", "_parquet"): "into an open file",
    ("monitor/journal.py", "begin"): "rows without a state, in the monitor's own folder",
    ("monitor/journal.py", "_append"): "at the end of the journal's own file",
    ("monitor/journal.py", "_cut"): "rows of the journal's own file that were not counted",
    ("report/figures/style.py", "drawn"): "into memory",
    ("data/images/data_urls.py", "image_url"): "into memory",
    ("monitor/keeping.py", "_record"): "asks the monitor to save itself",
    ("monitor/saving.py", "monitor_bytes"): "into memory",
    ("scoring/score_folder.py", "_empty"): "of goen's own folder, by its marker",
    ("serve/service.py", "save"): "asks the monitor to save itself",
    ("serve/service.py", "_save"): "asks the monitors to save themselves",
    ("studies/networks.py", "_write_network"): "into the folder of a stage",
    ("studies/networks.py", "outputs"): "into the folder of a stage",
    ("studies/pretrained.py", "_stage"): "into the folder of a stage",
}


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def _writes(node: ast.AST) -> bool:
    name = _called(node)
    if name == "open":
        texts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
        return any(isinstance(t, str) and len(t) <= 3 and set(t) & set("wax+") for t in texts)
    # Path.replace has one argument, str.replace two; dataclasses.replace is no method.
    moves = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return name in _WRITING or (name == "replace" and moves and len(node.args) == 1)


def unsafe_writers(source: str) -> set[str]:
    """The functions that write without the functions of goen.io.files."""
    tree = ast.parse(source)
    bodies = [tree.body, *(n.body for n in tree.body if isinstance(n, ast.ClassDef))]
    functions = [n for body in bodies for n in body if isinstance(n, ast.FunctionDef)]
    return {
        function.name
        for function in functions
        if any(map(_writes, ast.walk(function)))
        and not any(_called(node) in _SAFELY for node in ast.walk(function))
    }


def test_every_writer_goes_through_goen_files() -> None:
    found = {
        (str(path.relative_to(ROOT)), name)
        for path in ROOT.rglob("*.py")
        if path != ROOT / "io" / "files.py"
        for name in unsafe_writers(path.read_text())
    }
    assert found == _ALLOWED.keys()


def test_a_writer_that_goes_another_way_is_seen() -> None:
    assert unsafe_writers("def f(p):\n    p.write_text('x')") == {"f"}
    assert unsafe_writers("def f(p):\n    p.open('ab' if x else 'wb')") == {"f"}
    assert unsafe_writers("def f(p):\n    with whole_file(p) as t:\n        t.touch()") == set()
