"""The templates, and the words of pages: texts, lists, numbers with their nouns, names of files."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from markupsafe import Markup

from goen.escaping import visible

if TYPE_CHECKING:
    from jinja2 import Environment

# Names of files have at most 255 bytes, and two of these may be in one.
_LONGEST_SLUG = 80


def _markdown(text: str) -> str:
    """The text in one line of a cell, without a tag or the end of the cell."""
    plain = visible(" ".join(text.split())).replace("|", r"\|")
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", plain)


_LATEX = {character: f"\\{character}" for character in "&%_#${}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "≈": r"$\approx$",
    "†": r"$^\dagger$",
    "‡": r"$^\ddagger$",
    "±": r"$\pm$",
}


def _latex(text: str) -> str:
    plain = visible(" ".join(text.split()))  # an empty line would end the paragraph
    return "".join(_LATEX.get(character, character) for character in plain)


@cache
def environment() -> "Environment":
    """The templates of pages, of their texts and of tables."""
    import jinja2  # not before there is something to write

    made = jinja2.Environment(
        loader=jinja2.PackageLoader("goen.report"),
        autoescape=jinja2.select_autoescape(),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "form": format,
        "listed": listed,
        "number_of": number_of,
        "md": _markdown,
        "tex": _latex,
    }
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


def named(values: Mapping[str, object], between: str = " ") -> str:
    """Versions, or the parts of a machine, in one line.

    Example:
        >>> named({"python": "3.11", "torch": "2.13"})
        'python 3.11, torch 2.13'
    """
    return ", ".join(f"{name}{between}{value}" for name, value in values.items())
