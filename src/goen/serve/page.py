"""The files of the page: HTML, style and scripts, read once."""

from importlib import resources
from typing import NamedTuple

HTML = "text/html; charset=utf-8"
_JAVASCRIPT = "text/javascript; charset=utf-8"


class Asset(NamedTuple):
    """A file of the page, and its type."""

    content: bytes
    kind: str


def page_assets() -> dict[str, Asset]:
    """By the name in the page's addresses; the page itself is ``serve.html``."""

    def read(package: str, name: str, kind: str) -> Asset:
        return Asset(resources.files(package).joinpath("templates", name).read_bytes(), kind)

    return {
        "serve.html": read("goen.serve", "serve.html", HTML),
        "serve.css": read("goen.serve", "serve.css", "text/css; charset=utf-8"),
        "serve.js": read("goen.serve", "serve.js", _JAVASCRIPT),
        "rates.js": read("goen.report", "rates.js", _JAVASCRIPT),
    }
