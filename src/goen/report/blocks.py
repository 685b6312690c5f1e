"""What a page is made of: sections of paragraphs, figures, images and tables."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from goen.report.gallery import Gallery
from goen.report.table import Table

# Names of files have at most 255 bytes, and two of these may be in one.
_LONGEST_SLUG = 80


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
    """A report: its title, its summary, its sections."""

    title: str
    summary: Sequence[PageBlock]
    sections: Sequence[Section] = ()

    def blocks(self) -> list[PageBlock]:
        """All blocks, those of the summary first."""
        return [*self.summary, *(block for section in self.sections for block in section.blocks)]

    def drawings(self) -> list[Drawing]:
        """All figures."""
        return [d for block in self.blocks() if isinstance(block, list) for d in block]


@cache
def environment() -> jinja2.Environment:
    """The templates of the pages and of their texts."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("goen.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"form": format, "listed": listed, "number_of": number_of}
    made.tests["of_type"] = lambda block, name: type(block).__name__ == name
    return made


def text_of(template: str, name: str, /, **values: object) -> Markup:
    """A text of a page: this macro of the template with these values, in one line."""
    macro = getattr(environment().get_template(template).module, name)
    return Markup(re.sub(r"\s*\n\s*", " ", macro(**values)).strip())


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
