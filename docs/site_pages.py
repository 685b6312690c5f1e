"""Pages of the site that are made from the code: methods, API reference, layers, formulas.

They are written to docs/generated, which git ignores. ``conf.py`` calls ``write_pages``.
"""

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Mapping
from html import escape
from importlib import import_module
from pathlib import Path
from types import ModuleType

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

import goen
import goen.report
from goen.detectors import DETECTORS, make_detector
from goen.studies import METHODS

SOURCE = Path(goen.__file__).parent
PARTS = {
    "gates": ("Gate", "load", "Prediction", "Monitor", "Scorer"),
    "networks": (
        "extract",
        "Outputs",
        "LinearClassifier",
        "FeatureExtractor",
        "Preprocess",
        "list_layers",
        "load_model",
        "read_image",
    ),
}
# Detectors that have no row of their own name in goen bench.
TITLES = {
    **{m.key: m.title for m in METHODS.values()},
    "goen_m": "goen-m",
    "uncertainty": "Uncertainty",
}
MODULES = {"data", "detectors", "metrics", "models", "training", "errors"}


def write_pages(docs: Path) -> None:
    """Write docs/generated anew; a page that has not changed keeps its date."""
    pages = {**method_pages(), **api_pages(), **outside_pages()}
    folder = docs / "generated"
    for old in folder.rglob("*.md"):
        if str(old.relative_to(folder)) not in pages:
            old.unlink()
    for name, text in pages.items():
        page = folder / name
        page.parent.mkdir(parents=True, exist_ok=True)
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


# -- methods -------------------------------------------------------------------------------------


def method_pages() -> dict[str, str]:
    """A page for each detector; docs/methods/README.md has the table of all."""
    rows = method_rows()
    pages = {f"methods/{key}.md": _method_page(key, rows.get(key, {})) for key in DETECTORS}
    toc = _toctree(f"methods/{key}" for key in DETECTORS)
    pages["methods.md"] = f"# Each method\n\n{toc}"
    return pages


def method_rows() -> dict[str, dict[str, str]]:
    """The rows of the table in docs/methods/README.md, by the name of the detector."""
    text = (Path(__file__).parent / "methods" / "README.md").read_text(encoding="utf-8")
    return _rows(text[text.index("| name |") :])


def _method_page(key: str, row: Mapping[str, str]) -> str:
    detector = make_detector(key)
    kind = type(detector)
    settings = ", ".join(f"`{n}={v!r}`" for n, v in detector.settings().items()) or "none"
    keys = {m.key: m.title for m in METHODS.values() if key in (m.key, m.detector)}
    in_bench = ", ".join(f"`{name}` ({title})" for name, title in keys.items())
    exported = "no: it takes gradients" if detector.needs_gradient else "yes"
    paper = row.get("paper", "").replace("](", "](/methods/")
    return f"""# {TITLES.get(key, kind.__name__)}

| | |
|---|---|
| Python | `goen.detectors.{kind.__name__}` |
| command line | `goen fit --detector {key}` |
| rows of `goen bench` | {in_bench or "none"} |
| needs | {row.get("needs", "")} |
| parameters | {settings} |
| paper | {paper} |
| where it fails | {row.get("where it fails", "")} |
| AUROC that we measured | {measured(key)} |
| further training images | {"can be added with `update`" if detector.can_update else "fit again"} |
| ONNX | {exported if detector.saved else "no"} |

```{{eval-rst}}
.. autoclass:: goen.detectors.{kind.__name__}
   :no-members:
   :no-index:
```
"""


def measured(key: str) -> str:
    """The numbers of a detector in the two comparisons of many methods, with links to them."""
    found = []
    ordinary = table_of("results", "baselines")
    row = ordinary.get("goen-m, ordinary network" if key == "goen_m" else TITLES.get(key, ""))
    if row:
        network = "GOEN's network" if key == "goen" else "an ordinary network"
        place = "/results.md#other-methods-on-an-ordinary-network"
        found.append(f"{row['unseen']} on [unseen sets of CIFAR-10]({place}), {network}")
    named = {"goen_m": "goen_m: middle and last layer", "goen_m_last": "goen_m: last layer"}
    small = table_of("pretrained", "small-tasks")
    row = small.get(named.get(key, key))
    if row:
        place = "/pretrained.md#which-layers-which-detector-seven-small-tasks"
        found.append(
            f"{row['near-OOD']} near and {row['far-OOD']} far on [small tasks]({place}), "
            f"pretrained networks, mean rank {row['mean rank']} of {len(small)}"
        )
    return "; ".join(found).replace("**", "") or "on [the board](/methods/board.md) alone"


def table_of(page: str, name: str) -> dict[str, dict[str, str]]:
    """The rows of a table that a recipe wrote into a page, by their first cell."""
    text = (Path(__file__).parent / f"{page}.md").read_text(encoding="utf-8")
    block = text.partition(f"<!-- begin {name} -->")[2].partition(f"<!-- end {name} -->")[0]
    return _rows(block[block.index("| |") :])


def _rows(text: str) -> dict[str, dict[str, str]]:
    """The rows of the Markdown table that the text begins with, by their first cell."""
    lines = text.partition("\n\n")[0].splitlines()
    columns, _, *rows = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    return {row[0].strip("`"): dict(zip(columns, row, strict=True)) for row in rows}


def _detector_of(method: object) -> str:
    """The name of the detector of a row of the benchmark."""
    arguments = getattr(getattr(method, "fit", None), "args", ())
    return arguments[0] if arguments and isinstance(arguments[0], str) else ""


# -- API -----------------------------------------------------------------------------------------


def api_pages() -> dict[str, str]:
    """A page for the main names, and one for each public module."""
    pages = {
        f"api/{part}.md": _api_page(part.capitalize(), goen, names) for part, names in PARTS.items()
    }
    placed = {name for names in PARTS.values() for name in names} | MODULES
    others = tuple(n for n in goen.__all__ if n not in placed and not n.startswith("_"))
    if others:
        pages["api/studies.md"] = _api_page("Studies", goen, others)
    for name in sorted(MODULES):
        module = import_module(f"goen.{name}")
        own = [n for n in public_names(module) if n not in goen.__all__]
        pages[f"api/{name}.md"] = _api_page(f"goen.{name}", module, own)
    pages["api.md"] = "# API reference\n\n" + _toctree(p.removesuffix(".md") for p in pages)
    return pages


def public_names(module: ModuleType) -> dict[str, object]:
    """What a module offers: what it lists, or the classes that it defines."""
    if hasattr(module, "__all__"):
        return {name: getattr(module, name) for name in module.__all__}
    found = {n: v for n, v in vars(module).items() if isinstance(v, type)}
    return {n: v for n, v in found.items() if v.__module__ == module.__name__}


def _api_page(title: str, module: ModuleType, names: Iterable[str]) -> str:
    blocks = [f"# {title}\n"]
    paged = {type(make_detector(key)): key for key in sorted(DETECTORS, key=len, reverse=True)}
    own_page: list[str] = []
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value):
            if value in paged:
                own_page.append(f"[{name}](/generated/methods/{paged[value]}.md)")
                continue
            kind = "autoexception" if issubclass(value, Exception) else "autoclass"
        elif inspect.isroutine(value):
            kind = "autofunction"
        else:
            continue  # a table, such as DETECTORS: its entries have their own places
        # Nobody calls the constructor of a gate or a prediction; what they inherit is public.
        made = "()\n   :inherited-members: object" if value in (goen.Gate, goen.Prediction) else ""
        blocks.append(f"```{{eval-rst}}\n.. {kind}:: {module.__name__}.{name}{made}\n```\n")
    if own_page:
        blocks.insert(1, f"With a page of their own: {', '.join(own_page)}.\n")
    return "\n".join(blocks)


def _toctree(entries: Iterable[str]) -> str:
    return "```{toctree}\n" + "\n".join(entries) + "\n```\n"


# -- pictures ------------------------------------------------------------------------------------


def imports_between_packages() -> Mapping[str, set[str]]:
    """Which packages each package imports, read from the source."""
    found: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        package = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("goen."):
                found.setdefault(package, set()).add(str(node.module).split(".")[1])
    return {name: used - {name} for name, used in found.items() if (SOURCE / name).is_dir()}


def layers_of(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """The packages by layer: each above all that it imports; the lowest layer first."""
    rank: dict[str, int] = {}
    while len(rank) < len(imports):
        for name, used in imports.items():
            below = used & imports.keys()
            if below <= rank.keys():
                rank[name] = 1 + max((rank[other] for other in below), default=-1)
    return [
        sorted(n for n in rank if rank[n] == height) for height in range(max(rank.values()) + 1)
    ]


def layers_svg() -> str:
    """A picture of the packages by layer, from the imports in the source."""
    layers = layers_of(imports_between_packages())[::-1]
    boxes = []
    for row, names in enumerate(layers):
        for column, name in enumerate(names):
            x, y = 20 + 150 * column, 14 + 46 * row
            boxes.append(
                f'<rect x="{x}" y="{y}" width="130" height="32" rx="6" fill="none" '
                f'stroke="currentColor"/><text x="{x + 65}" y="{y + 21}" text-anchor="middle" '
                f'fill="currentColor">{escape(name)}</text>'
            )
    width, height = 20 + 150 * max(map(len, layers)), 14 + 46 * len(layers)
    return (
        f'<figure class="layers"><svg viewBox="0 0 {width} {height}" width="{width}" role="img" '
        f'aria-label="packages by layer" font-size="14">{"".join(boxes)}</svg></figure>'
    )


# -- files beside the documentation --------------------------------------------------------------

ROOT = Path(__file__).parents[1]
OUTSIDE = {"recipes": ROOT / "recipes" / "README.md", "log": ROOT / "results" / "log.md"}
_LINK = re.compile(r"\[([^\]]*)\]\(((?!https?:|#)[^)\s]+)\)")


def outside_pages() -> dict[str, str]:
    """The list of recipes and the log, whose own links to files become plain text."""
    return {
        f"{name}.md": _LINK.sub(r"\1", path.read_text(encoding="utf-8"))
        for name, path in OUTSIDE.items()
    }


def write_board(folder: Path) -> Path:
    """Write the page of all methods, which sorts and filters; the path of it."""
    recipes = str(ROOT / "recipes")
    if recipes not in sys.path:
        sys.path.append(recipes)
    import board_page

    return goen.report.write_board(board_page.studies(), folder)


def link_outside(app: object, name: str, source: list[str]) -> None:
    """Links to files outside of docs/ lead to their pages here, or become plain text."""
    docs = Path(__file__).parent
    folder = (docs / name).parent

    def replaced(match: re.Match[str]) -> str:
        text, target = match.groups()
        file = target.partition("#")[0]
        path = (docs / file[1:] if file[0] == "/" else folder / file).resolve()
        for known, outside in OUTSIDE.items():
            if path == outside:
                return f"[{text}](/generated/{known}.md)"
        return match[0] if path.is_relative_to(docs) else text

    source[0] = _LINK.sub(replaced, source[0])
    if name == "methods/board":
        page_of_all = '<a href="../board.html">sorts and filters</a>'
        source[0] = source[0].replace("sorts and filters", page_of_all, 1)
    if name == "methods/README":
        source[0] = re.sub(r"(?m)^\| `(\w+)` \|", r"| [\1](/generated/methods/\1.md) |", source[0])


# -- docstrings ----------------------------------------------------------------------------------


def set_apart(*event: object) -> None:
    """In a docstring, what departs from the paper is a paragraph; pages of docs/ are links."""
    lines = event[-1]
    assert isinstance(lines, list)
    text = re.sub(r"(?m)^(Paper:)", r"**\1**", "\n".join(lines))
    text = re.sub(r"\s*(Departs from the paper:)", r"\n\n**\1**", text)
    lines[:] = re.sub(r"``docs/([\w/-]+)\.md``", r":doc:`/\1`", text).split("\n")


# -- formulas ------------------------------------------------------------------------------------


def visit_formula(writer: object, node: object) -> None:
    """A formula as MathML, which browsers draw without a script or a download."""
    block = type(node).__name__ == "math_block"
    writer.body.append(tex2mathml(node.astext(), as_block=block))  # type: ignore[attr-defined]
    raise SkipNode
