"""The page of ``goen report --paper``: Tables 1 to 3 of the paper, with its numbers above ours."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from goen.report.blocks import FactTable, Page, PageBlock, Paragraph, Section
from goen.report.summary import Study
from goen.report.table import Row, Table
from goen.report.texts import named, text_of

# The command that fills each table.
_COMMANDS: Mapping[str, str] = {
    "paper-table-1": "bench",
    "paper-table-2": "ablate",
    "paper-table-3": "seeds",
}


def paper_page(tables: Sequence[Table], studies: Sequence[Study]) -> Page:
    """A section for each table, and the studies they were made from.

    Args:
        tables: of ``paper_tables``.
        studies: that they were made from.
    """
    commands = [study.summary.study for study in studies]
    counts = [
        f"{number} {'study' if number == 1 else 'studies'} of goen {command}"
        for command, number in Counter(commands).items()
    ]
    lead = Paragraph(text_of("paper.html", "lead", counts=counts), "lead")
    sections = [_section(table, commands) for table in tables]
    summary: list[PageBlock] = [lead, *tables[0].notes]
    last = studies_section(studies, text_of("paper.html", "studies"))
    return Page("The tables of the paper", summary, [*sections, last])


def _section(table: Table, commands: Sequence[str]) -> Section:
    title, _, about = table.title.partition(": ")
    command = _COMMANDS[table.name]
    blocks: list[PageBlock] = []
    if command not in commands:
        text = text_of("paper.html", "alone", table=title, command=command)
        blocks.append(Paragraph(text, "warn"))
    plain = replace(table, title=about[:1].upper() + about[1:], notes=())
    blocks += _turned(plain) if command == "bench" else [plain]
    return Section(title, blocks)


def _turned(table: Table) -> list[Table]:
    """A row per method, in a table of ID metrics and one of AUROC: twelve columns are too wide."""
    lines = dict.fromkeys(row.label for row in table.rows)
    parts = {True: "ID metrics", False: "AUROC of OOD detection"}
    turned = []
    for in_distribution, part in parts.items():
        chosen = [line for line in lines if line.startswith("ID ") == in_distribution]
        rows = [
            Row(method, tuple(cells), section)
            for section, of_section in table.sections()
            for method, *cells in zip(
                table.columns, *(r.cells for r in of_section if r.label in chosen), strict=True
            )
        ]
        title = f"{table.title}: {part}"
        turned.append(replace(table, title=title, columns=tuple(chosen), rows=tuple(rows)))
    return turned


def studies_section(studies: Sequence[Study], text: str) -> Section:
    """What was run, with which software and on which machine, after a text."""
    rows = [
        (
            f"goen {study.summary.study}",
            str(study.summary.config.get("preset", "not recorded")),
            str(study.summary.config.get("budget", "not recorded")),
            ", ".join(dict.fromkeys(str(result.seed) for result in study.results)),
            named(study.summary.versions) or "not recorded",
            named(study.summary.hardware, ": ") or "not recorded",
        )
        for study in studies
    ]
    columns = ("study", "preset", "budget", "seeds", "versions", "hardware")
    return Section("Studies", [text, FactTable(columns, rows)])
