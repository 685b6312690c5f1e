"""The page of ``goen report --board``: every method on every network."""

from collections.abc import Sequence
from dataclasses import replace

from goen.report.blocks import Page, Paragraph, Section
from goen.report.board import NetworkBoard
from goen.report.pages.paper import studies_section
from goen.report.summary import Study
from goen.report.table import Table
from goen.report.texts import number_of, text_of

_ROWS = "One row per method"


def board_page(
    tables: Sequence[Table], boards: Sequence[NetworkBoard], studies: Sequence[Study]
) -> Page:
    """The overview, a section for each protocol, and the studies the numbers come from.

    Args:
        tables: of ``board_tables``.
        boards: that they show.
        studies: of goen bench, which the boards were made from.
    """
    methods = {entry.key for board in boards for entry in board.entries}
    lead = text_of(
        "board.html",
        "lead",
        methods=number_of(len(methods), "method"),
        networks=number_of(len(boards), "kind") + " of networks",
        protocols=[board.data for board in boards],
    )
    how = text_of("board.html", "how")
    sections = [Section(table.title, [replace(table, title=_ROWS)]) for table in tables]
    last = studies_section(studies, text_of("board.html", "studies"))
    return Page("The methods side by side", [Paragraph(lead, "lead"), how], [*sections, last])
