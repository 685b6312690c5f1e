"""Hostile names of files, classes, sets and methods: in scores, tables and report pages."""

import csv
import io
import json
import os
import random
import re
import shutil
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from goen.cli.main import main
from goen.cli.output.table import print_table
from goen.gate import Gate
from goen.io.files import claim_folder
from goen.io.results import Origin, write_results
from goen.io.stages import RUN
from goen.report.table import Cell, Row, Table, as_csv, latex, markdown
from tests.fuzz.case import Broken, Fuzzer
from tests.fuzz.gates import tiny_gate

_PIECES = (
    *(
        "cat",
        "a b",
        "é",
        "日本",
        "🐈\u200d⬛",
        "Ａ",
        "İ",
        "ß",
        "e\u0301",
        "",
        " ",
        "  ",
        "0",
        "1e5",
        "NaN",
    ),
    *(
        "\x1b[31m",
        "\x1b]0;title\x07",
        "\x9b2J",
        "\x90q",
        "\x85",
        "\x07",
        "\x08\x08",
        "\r",
        "\n",
        "\t",
    ),
    *("\x7f", "\x0b", "\x0c", "\x01", "\u2028", "\u2029", "\u202e", "\u2066", "\u200e", "\ufeff"),
    *("=1+1", "+1", "-1", "@SUM(A1)", "'=1", "'", '"', '""', ",", ";", "\\", "\\u001b", "\\x1b"),
    *("<script>alert(1)</script>", "</title>", "<img src=x onerror=x>", "&amp;", "&#27;", "]]>"),
    *(
        "$x$",
        "$\\frac{",
        "\\input{x}",
        "%",
        "{",
        "}",
        "_",
        "^",
        "|",
        "*",
        "`",
        "[red]",
        "[/]",
        "{0}",
    ),
    *(
        "..",
        "../../x",
        "a/b",
        "/etc",
        "C:\\x",
        "~",
        "-rf",
        "--out",
        "%s",
        "%n",
        "a" * 3000,
        "é" * 400,
    ),
)
_BYTES = (b"\xff", b"\x80\x81", b"\xc3", b"\xed\xa0\x80", b"\xf5", b"\xc0\xaf")
# What a terminal would obey, but for the ends of lines.
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def hostile_text(draw: random.Random, longest: int = 4000) -> str:
    """A text of a few pieces that something may take for more than text."""
    return "".join(draw.choice(_PIECES) for _ in range(draw.randint(1, 4)))[:longest]


def hostile_file_name(draw: random.Random) -> bytes:
    """The name of a PNG file, of bytes that a file system takes."""
    pieces = [
        draw.choice(_BYTES) if draw.random() < 0.1 else hostile_text(draw, 200).encode("utf-8")
        for _ in range(draw.randint(1, 2))
    ]
    name = b"".join(pieces).replace(b"/", b"").replace(b"\0", b"")[:200]
    name = name.lstrip(b".")  # a dot would hide it, and hidden files are not scored
    return (name or b"x") + b".png"


class NameFuzzer(Fuzzer):
    """Scores pictures with hostile names by a gate with hostile class names; now and then the
    report of a study with such names."""

    name = "names"
    seconds = 20.0
    megabytes = 500.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            self._gate = tiny_gate()

    def run(self, draw: random.Random) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of fonts without a glyph
            kind = draw.random()
            if kind < 0.55:
                return self._scores(draw)
            return self._tables(draw) if kind < 0.95 else self._report(draw)

    def _scores(self, draw: random.Random) -> str:
        classes = tuple(hostile_text(draw) for _ in self._gate.classes)
        names = sorted({hostile_file_name(draw) for _ in range(draw.randint(1, 3))})
        self.what = f"classes {classes}, files {names}"
        folder = self.folder / "case"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "pictures").mkdir(parents=True)
        paths = [os.path.join(os.fsencode(folder / "pictures"), name) for name in names]  # noqa: PTH118
        pixels = np.random.default_rng(len(names)).integers(0, 256, (6, 7, 3), dtype=np.uint8)
        for path in paths:
            with open(path, "wb") as file:  # noqa: PTH123  (bytes are no Path)
                if draw.random() < 0.8:
                    Image.fromarray(pixels).save(file, "PNG")
        _save(self._gate, classes, folder / "gate")
        given = [os.fsdecode(path) for path in paths]
        given = given if draw.random() < 0.5 else [str(folder / "pictures")]
        scored = [*given, "--gate", str(folder / "gate")]
        shown = _run(["score", *scored], (0, 1))
        rows = [json.loads(line) for line in shown.split("\n") if line]
        _check_rows(rows, paths, classes)
        if len(shown.splitlines()) != len(rows):
            raise Broken("a name ends a line of JSON")
        _run(["score", *scored, "--format", "table"], (0, 1))
        _run(["score", *scored, "--out", str(folder / "s.csv")], (0, 1))
        with (folder / "s.csv").open(newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(file))
        texts = [row[name] for row in table for name in ("path", "label", "error")]
        _check_cells(texts)
        plain = [{k: v.removeprefix("'") or None for k, v in row.items()} for row in table]
        _check_rows(plain, paths, classes)
        return "scored"

    def _tables(self, draw: random.Random) -> str:
        columns = tuple(hostile_text(draw, 300) for _ in range(draw.randint(1, 3)))
        labels = [hostile_text(draw, 300) for _ in range(3)]
        self.what = f"columns {columns}, labels {labels}"
        cells = tuple(Cell(0.5, low=0.25, high=0.75) for _ in columns)
        rows = tuple(Row(label, cells, hostile_text(draw, 300)) for label in labels)
        table = Table("t", hostile_text(draw, 300), columns, rows, (hostile_text(draw, 300),))
        _capture(lambda: print_table(table))
        found = list(csv.reader(io.StringIO(as_csv(table))))
        _check_cells([cell for line in found for cell in line])
        if [line[1].removeprefix("'") for line in found[1:]] != labels:
            raise Broken("the labels of the CSV file are others")
        for line in _table_lines(markdown(table)):
            if len(re.findall(r"(?<!\\)\|", line)) != len(columns) + 2:
                raise Broken(f"a row of Markdown has other columns: {line[:200]!r}")
        if re.search(r"<[a-z/!]", markdown(table)):
            raise Broken("a name is a tag in Markdown")
        latex(table).encode("utf-8")
        return "written"

    def _report(self, draw: random.Random) -> str:
        methods = [hostile_text(draw, 300) for _ in range(2)]
        sets = [hostile_text(draw, 300) for _ in range(2)]
        self.what = f"methods {methods}, sets {sets}"
        folder = self.folder / "study"
        shutil.rmtree(folder, ignore_errors=True)
        claim_folder(folder, RUN)
        results = []
        for method in {"goen": 0, **dict.fromkeys(methods)}:
            origin = Origin(method, "full", 42, "net", (hostile_text(draw, 100),), (), 0.5)
            right = {"accuracy": 0.9, "ece": 0.02, "nll": 0.3, "brier": 0.1}
            results += origin.rows("test", "id", {**right, "training_seconds": 60.0})
            for name in dict.fromkeys(sets):
                numbers = {"auroc": 0.9, "auroc_low": 0.8, "auroc_high": 0.95, "aupr_out": 0.4}
                numbers |= {"fpr95_ood_positive": 0.3, "fpr95_id_positive": 0.2}
                results += origin.rows(name, "far", numbers)
        write_results(folder / "results.jsonl", results)
        summary = {
            "study": "bench",
            "data": hostile_text(draw, 300),
            "config": {"methods": methods, "seed": 42},
            "titles": {"goen": ["GOEN", "goen"]}
            | {m: [m, hostile_text(draw, 50)] for m in methods},
            "missing": {hostile_text(draw, 300): hostile_text(draw, 300)},
            "versions": {"goen": hostile_text(draw, 50)},
        }
        (folder / "run.json").write_text(json.dumps(summary))
        _run(["report", str(folder)], (0,))
        page = (folder / "report.html").read_text(encoding="utf-8")
        _check_page(page)
        for file in (folder / "figures").glob("*.svg"):
            _check_svg(file.read_text(encoding="utf-8"))
        return "reported"


def _save(gate: Gate, classes: tuple[str, ...], folder: Path) -> None:
    replace(gate, classes=classes).save(folder)


class _Stream(io.TextIOWrapper):
    """A stream that refuses what is not UTF-8, as a pipe does."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def text(self) -> str:
        held = self.buffer
        assert isinstance(held, io.BytesIO)
        return held.getvalue().decode("utf-8")


def _capture(act: object) -> str:
    """What the function printed, checked to be harmless on a terminal."""
    assert callable(act)
    out, errors = _Stream(), _Stream()
    with redirect_stdout(out), redirect_stderr(errors):
        act()
    for text in (out.text(), errors.text()):
        found = _OBEYED.search(text)
        if found:
            raise Broken(f"{found[0]!r} reaches the terminal")
    return out.text()


def _run(argv: Sequence[str], codes: Sequence[int]) -> str:
    """What a command printed on standard output; its exit code must be one of these."""
    found = []
    shown = _capture(lambda: found.append(main(argv)))
    if found[0] not in codes:
        raise Broken(f"goen {argv[0]} ended with code {found[0]}")
    return shown


def _check_rows(
    rows: Sequence[dict[str, object]], paths: Sequence[bytes], classes: Sequence[str]
) -> None:
    expected = sorted(path.decode("utf-8", "backslashreplace") for path in paths)
    if sorted(str(row["path"]) for row in rows) != expected:
        raise Broken(f"the paths are {[row['path'] for row in rows]}")
    for row in rows:
        if (row["label"] or None) is None and not row["error"] and "" not in classes:
            raise Broken("a row has neither a label nor an error")
        if row["label"] and row["label"] not in classes:
            raise Broken(f"the label is {row['label']!r}")


def _check_cells(cells: Sequence[str]) -> None:
    for cell in cells:
        number = re.fullmatch(r"[-+]?[0-9.e+-]+", cell)
        if cell.startswith(("=", "+", "-", "@", "\t", "\r")) and not number:
            raise Broken(f"{cell[:80]!r} is a formula in a spreadsheet")


def _table_lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.startswith("|")]


class _Tags(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        if tag in ("iframe", "object", "embed", "form", "svg", "base"):
            self.bad.append(tag)
        for name, value in attrs:
            outside = name in ("src", "href") and not (value or "").startswith(("data:", "#"))
            if name.startswith("on") or outside:
                self.bad.append(f"{tag} {name}={value}")


def _check_page(page: str) -> None:
    tags = _Tags()
    tags.feed(page)
    if tags.bad or tags.scripts > 1:  # one is goen's own; it sorts tables
        raise Broken(f"the page holds {tags.scripts} scripts and {tags.bad[:3]}")
    if re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", page):
        raise Broken("the page holds control characters")


def _check_svg(text: str) -> None:
    import xml.etree.ElementTree as ElementTree

    for element in ElementTree.fromstring(text).iter():
        if element.tag.rpartition("}")[2] in ("script", "foreignObject"):
            raise Broken(f"a figure holds {element.tag}")
