"""What a page is made of: sections of paragraphs, figures, images and tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.figure import Figure

from goen.report.gallery import Gallery
from goen.report.table import Table
from goen.report.texts import slug


@dataclass(frozen=True)
class Paragraph:
    """A paragraph that stands out; any other is a plain text."""

    text: str
    style: Literal["lead", "warn"]


@dataclass(frozen=True)
class Drawing:
    """A figure of the page.

    Attributes:
        name: of its files in ``figures/``.
        figure: itself.
        alt: the alternative text: what it shows.
        caption: below it.
        wide: takes the page's whole width; a phone scrolls it in its box.
    """

    name: str
    figure: Figure
    alt: str
    caption: str = ""
    wide: bool = False


@dataclass(frozen=True)
class FactTable:
    """A table of names, versions and hashes rather than results."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Details:
    """Text that is shown on request."""

    title: str
    text: str


# Figures in a list are side by side where there is room. Notes that the table before has too are
# not repeated.
PageBlock = str | Paragraph | list[Drawing] | Gallery | Table | FactTable | Details


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    title: str
    blocks: Sequence[PageBlock]

    @property
    def anchor(self) -> str:
        """The target of links to the section."""
        return slug(self.title)


@dataclass(frozen=True)
class Page:
    """A report: its title, its summary, its sections, and what is missing, with the reason."""

    title: str
    summary: Sequence[PageBlock]
    sections: Sequence[Section] = ()
    left_out: Sequence[str] = ()

    def blocks(self) -> list[PageBlock]:
        """All blocks, those of the summary first."""
        return [*self.summary, *(block for section in self.sections for block in section.blocks)]

    def drawings(self) -> list[Drawing]:
        """All figures."""
        return [d for block in self.blocks() if isinstance(block, list) for d in block]
