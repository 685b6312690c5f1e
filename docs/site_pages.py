"""Pages of the site that are made from the code: methods, API reference, layers, formulas.

They are written to docs/generated, which git ignores. ``conf.py`` calls ``write_pages``.
"""

import ast
import inspect
import re
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from types import ModuleType

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

import goen
from goen.detectors import DETECTORS, Detector, make_detector
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
MODULES = {"data", "detectors", "metrics", "models", "errors"}


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


def needs(detector: Detector) -> str:
    """What the detector is fitted on and reads, in words."""
    reads = getattr(detector, "feature", ()) is None or detector.needs_classifier
    parts = [
        "training images" if detector.needs_fit else "",
        "ID images to calibrate" if detector.calibrates(with_ood=False) else "",
        "OOD images, optional" if detector.uses_ood else "",
        "features" if reads or hasattr(detector, "feature") else "",
        "the linear classifier" if detector.needs_classifier else "",
        "gradients of the network" if detector.needs_gradient else "",
    ]
    return ", ".join(filter(None, parts)) or "logits alone"


def paper_of(detector: Detector) -> str:
    """The paper that its docstring names."""
    doc = inspect.getdoc(type(detector)) or ""
    found = re.search(r"^Paper: (.+?)(?:\n\n|\nDeparts|\Z)", doc, re.MULTILINE | re.DOTALL)
    return " ".join(found.group(1).split()) if found else ""


def summary_of(detector: Detector) -> str:
    """The first line of its docstring."""
    return (inspect.getdoc(type(detector)) or "").partition("\n")[0]


def method_pages() -> dict[str, str]:
    """A table of all detectors, and a page for each."""
    rows = ["| method | name | score | needs | parameters |", "|---|---|---|---|---|"]
    pages: dict[str, str] = {}
    for key in DETECTORS:
        detector = make_detector(key)
        what = re.sub(r":math:`([^`]*)`", r"\1", summary_of(detector).replace("|", "\\|"))
        settings = ", ".join(f"`{n}={v!r}`" for n, v in detector.settings().items()) or "none"
        title = f"[{TITLES.get(key, type(detector).__name__)}](methods/{key}.md)"
        rows.append(f"| {title} | `{key}` | {what} | {needs(detector)} | {settings} |")
        pages[f"methods/{key}.md"] = _method_page(key, detector, settings)
    table = "\n".join(rows)
    toc = "\n".join(f"methods/{key}" for key in DETECTORS)
    pages["methods.md"] = f"""# All methods

Every detector can be in a gate (`goen fit --detector NAME`) and in a comparison (`goen bench`). A
score is higher for more OOD. [Adding a method](../methods/adding.md) shows how to write another.

{table}

```{{toctree}}
:hidden:

{toc}
```
"""
    return pages


def _method_page(key: str, detector: Detector, settings: str) -> str:
    kind = type(detector)
    rows = {m.key: m.title for m in METHODS.values() if key in (m.key, _detector_of(m))}
    in_bench = ", ".join(f"`{name}` ({title})" for name, title in rows.items())
    return f"""# {TITLES.get(key, kind.__name__)}

| | |
|---|---|
| Python | `goen.detectors.{kind.__name__}` |
| command line | `goen fit --detector {key}` |
| rows of `goen bench` | {in_bench or "none"} |
| needs | {needs(detector)} |
| parameters | {settings} |
| paper | {paper_of(detector) or "see below"} |
| further training images | {"can be added with `update`" if detector.can_update else "fit again"} |
| ONNX | {"no: it takes gradients" if detector.needs_gradient else "yes"} |

```{{eval-rst}}
.. autoclass:: goen.detectors.{kind.__name__}
   :no-members:
   :no-index:
```
"""


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
        module = getattr(goen, name)
        listed = getattr(module, "__all__", None) or [
            n for n, value in vars(module).items() if isinstance(value, type) and n[0].isupper()
        ]
        pages[f"api/{name}.md"] = _api_page(f"goen.{name}", module, listed)
    pages["api.md"] = "# API reference\n\n" + _toctree(p.removesuffix(".md") for p in pages)
    return pages


def _api_page(title: str, module: ModuleType, names: Iterable[str]) -> str:
    blocks = [f"# {title}\n"]
    for name in names:
        value = getattr(module, name)
        if inspect.isclass(value):
            if issubclass(value, Detector) and value is not Detector:
                continue  # it has a page among the methods
            kind = "autoexception" if issubclass(value, Exception) else "autoclass"
        elif inspect.isroutine(value):
            kind = "autofunction"
        else:
            continue  # a table, such as DETECTORS: its entries have their own places
        # Nobody calls the constructor of a gate or a prediction; what they inherit is public.
        made = "()\n   :inherited-members: object" if value in (goen.Gate, goen.Prediction) else ""
        blocks.append(f"```{{eval-rst}}\n.. {kind}:: {module.__name__}.{name}{made}\n```\n")
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


def link_outside(app: object, name: str, source: list[str]) -> None:
    """Links to files outside of docs/ lead to their pages here, or become plain text."""
    page = Path(__file__).parent / f"{name}.md"

    def replaced(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = (page.parent / target.partition("#")[0]).resolve()
        for known, file in OUTSIDE.items():
            if path == file:
                return f"[{text}](/generated/{known}.md)"
        return match[0] if path.is_relative_to(Path(__file__).parent) else text

    source[0] = _LINK.sub(replaced, source[0])


# -- formulas ------------------------------------------------------------------------------------


def visit_formula(writer: object, node: object) -> None:
    """A formula as MathML, which browsers draw without a script or a download."""
    block = type(node).__name__ == "math_block"
    writer.body.append(tex2mathml(node.astext(), as_block=block))  # type: ignore[attr-defined]
    raise SkipNode
