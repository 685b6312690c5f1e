"""What a page is made of: sections of paragraphs, figures, images and tables."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from markupsafe import Markup
from matplotlib.figure import Figure

from goen.report.gallery import Gallery
from goen.report.table import Table

# Names of files have at most 255 bytes, and two of these may be in one.
_LONGEST_SLUG = 80


@dataclass(frozen=True)
class Paragraph:
    """A paragraph in one of the page's styles."""

    text: Markup | str
    style: Literal["lead", "soft", "warn"] = "soft"
    block: ClassVar[str] = "paragraph"


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
    caption: Markup | str = ""
    wide: bool = False


@dataclass(frozen=True)
class FigureRow:
    """Figures side by side where there is room."""

    drawings: tuple[Drawing, ...]
    block: ClassVar[str] = "figures"

    @staticmethod
    def of(*drawings: Drawing) -> "FigureRow":
        """A row of these figures."""
        return FigureRow(drawings)


@dataclass(frozen=True)
class ResultTable:
    """A table of results.

    Attributes:
        table: itself.
        has_notes: whether its notes are below it; where tables have the same, one needs them.
    """

    table: Table
    has_notes: bool = True
    block: ClassVar[str] = "results"


@dataclass(frozen=True)
class FactTable:
    """A table of names, versions and hashes rather than results."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    block: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Details:
    """Text that is shown on request."""

    title: str
    text: str
    block: ClassVar[str] = "details"


PageBlock = Paragraph | FigureRow | Gallery | ResultTable | FactTable | Details


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
    """A report: its title, its summary, its sections."""

    title: str
    summary: Sequence[PageBlock]
    sections: Sequence[Section] = field(default_factory=tuple)

    def tables(self) -> list[Table]:
        """All tables of results."""
        return [block.table for block in self.blocks() if isinstance(block, ResultTable)]

    def blocks(self) -> list[PageBlock]:
        """All blocks, those of the summary first."""
        return [*self.summary, *(block for section in self.sections for block in section.blocks)]


def slug(text: str) -> str:
    """A name for a file or an anchor; with a hash where too little of the text is left in it.

    Example:
        >>> slug("ROC: tiny ImageNet"), slug("日本")
        ('roc-tiny-imagenet', 'ce47dfba')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    lost = any(c.isalnum() and not c.isascii() for c in text)
    if not lost and 0 < len(plain) <= _LONGEST_SLUG:
        return plain
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{plain[:_LONGEST_SLUG]}-{digest}".lstrip("-")


def bold(value: float, form: str = ".4f") -> Markup:
    """The formatted number, in bold."""
    return Markup("<b>{}</b>").format(format(value, form))


def listed(parts: Sequence[Markup | str]) -> Markup:
    """The parts as an English list.

    Example:
        >>> str(listed(["one", "two", "three"]))
        'one, two and three'
    """
    if len(parts) < 2:
        return Markup("").join(parts)
    return Markup("{} and {}").format(Markup(", ").join(parts[:-1]), parts[-1])


def number_of(number: int, noun: str) -> str:
    """The number with its noun.

    Example:
        >>> number_of(1, "variant"), number_of(15, "corruption")
        ('1 variant', '15 corruptions')
    """
    return f"{number} {noun}{'s' * (number != 1)}"
