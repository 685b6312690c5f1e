"""What a page is made of: sections of words, tables, pictures and facts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from markupsafe import Markup
from matplotlib.figure import Figure

from goen.report.table import Table


@dataclass(frozen=True)
class Words:
    """A paragraph; ``kind`` says how loud: lead, soft or warn."""

    text: Markup | str
    kind: str = "soft"
    block: ClassVar[str] = "words"


@dataclass(frozen=True)
class Drawing:
    """A figure of the page.

    Attributes:
        name: of its files in ``figures/``.
        figure: itself.
        alt: what it shows, in words, for those who do not see it.
        caption: below it.
        wide: takes the page's whole width; a phone scrolls it in its box.
    """

    name: str
    figure: Figure
    alt: str
    caption: Markup | str = ""
    wide: bool = False


@dataclass(frozen=True)
class Gallery:
    """Drawings beside one another where there is room."""

    drawings: tuple[Drawing, ...]
    block: ClassVar[str] = "gallery"

    @staticmethod
    def of(*drawings: Drawing) -> "Gallery":
        return Gallery(drawings)


@dataclass(frozen=True)
class Photographs:
    """PNG files that the run left, each with its alternative text."""

    files: tuple[tuple[Path, str], ...]
    block: ClassVar[str] = "photographs"


@dataclass(frozen=True)
class Numbers:
    """A table of results."""

    table: Table
    block: ClassVar[str] = "numbers"


@dataclass(frozen=True)
class Facts:
    """A table of what is not a result: names, versions, hashes."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    block: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Details:
    """Text that opens when asked."""

    title: str
    text: str
    block: ClassVar[str] = "details"


Block = Words | Gallery | Photographs | Numbers | Facts | Details


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: Sequence[Block]

    @property
    def anchor(self) -> str:
        return slug(self.title)


@dataclass(frozen=True)
class Page:
    """A report: its title, its summary in words, its sections."""

    title: str
    summary: Sequence[Block]
    sections: Sequence[Section] = field(default_factory=tuple)

    def tables(self) -> list[Table]:
        """All tables of results."""
        blocks = [block for section in self.sections for block in section.blocks]
        return [block.table for block in blocks if isinstance(block, Numbers)]


def slug(text: str) -> str:
    """A name for a file or an anchor.

    Example:
        >>> slug("ROC: tiny ImageNet")
        'roc-tiny-imagenet'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def bold(value: float, form: str = ".4f") -> Markup:
    """The number as written, in bold."""
    return Markup("<b>{}</b>").format(format(value, form))


def listed(parts: Sequence[Markup | str]) -> Markup:
    """One, two and three.

    Example:
        >>> str(listed(["one", "two", "three"]))
        'one, two and three'
    """
    if len(parts) < 2:
        return Markup("").join(parts)
    return Markup("{} and {}").format(Markup(", ").join(parts[:-1]), parts[-1])
