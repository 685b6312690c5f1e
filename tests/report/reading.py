"""Read a page as a reader does: its tables by name, row and column."""

import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from goen.io.results import Result, read_results


@dataclass
class Shown:
    """One cell: the number as written, its interval, whether it is bold."""

    text: str = ""
    interval: str = ""
    bold: bool = False


@dataclass
class ShownTable:
    columns: list[str] = field(default_factory=list)
    rows: list[tuple[str, str, list[Shown]]] = field(default_factory=list)

    def cells(self) -> dict[tuple[str, str, str], Shown]:
        """By section, row and column."""
        return {
            (section, label, column): cell
            for section, label, cells in self.rows
            for column, cell in zip(self.columns, cells, strict=True)
        }


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, ShownTable] = {}
        self._table: ShownTable | None = None
        self._section = ""
        self._in: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag == "table" and known.get("class") == "numbers":
            self._table = self.tables[str(known["id"])] = ShownTable()
            self._section = ""
        if self._table is None:
            return
        if tag == "th":
            tag = f"th:{known.get('scope', 'part')}"
            if tag == "th:col":
                self._table.columns.append("")
            elif tag == "th:row":
                self._table.rows.append((self._section, "", []))
            elif "colspan" in known:
                self._section = ""
        elif tag == "td":
            self._table.rows[-1][2].append(Shown())
        self._in.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._table is None:
            return
        self._in.pop()
        if tag == "table":
            self._table = None

    def handle_data(self, data: str) -> None:
        if self._table is None or not self._in or not data.strip():
            return
        place = self._in[-1]
        if place == "th:col":
            self._table.columns[-1] += data
        elif place == "th:part":
            self._section += data
        elif place == "th:row":
            section, label, cells = self._table.rows[-1]
            self._table.rows[-1] = (section, label + data, cells)
        elif "td" in self._in:
            cell = self._table.rows[-1][2][-1]
            if place == "small":
                cell.interval += data
            else:
                cell.text += data
                cell.bold |= place == "b"


def tables(page: Path) -> dict[str, ShownTable]:
    """The tables of results on a page, by the names of their files."""
    reader = _Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return {name.removeprefix("table-"): table for name, table in reader.tables.items()}


def plain(text: str) -> str:
    """The number without its marks."""
    return text.replace("≈", "").replace("†", "").replace("‡", "").strip()


def page_text(folder: Path) -> str:
    """The HTML of a study's report."""
    return (folder / "report.html").read_text(encoding="utf-8")


def results_by_key(folder: Path) -> dict[tuple[str, str, str], Result]:
    """The results of a study by method, dataset and metric."""
    return {(r.method, r.dataset, r.metric): r for r in read_results(folder / "results.jsonl")}


def values_by_key(folder: Path) -> dict[tuple[str, str, str], float]:
    """The values of the results by method, dataset and metric."""
    return {key: r.value for key, r in results_by_key(folder).items()}


def methods_by_title(folder: Path) -> dict[tuple[str, str], str]:
    """The methods of a study by section and title."""
    titles = json.loads((folder / "run.json").read_text())["titles"]
    return {(section, title): method for method, (title, section) in titles.items()}
