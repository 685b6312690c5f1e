"""Imports point down the design's layers, never up and never sideways."""

import ast
from pathlib import Path

import pytest

import goen

LAYERS = [
    {"batch", "checks", "errors", "escaping", "notebook", "outputs", "progress"},
    {"functional", "io"},
    {"data", "metrics", "models"},
    {"features"},
    {"detectors"},
    {"extraction"},
    {"training"},
    {"gate"},
    {"scoring"},
    {"monitor", "studies"},
    {"report"},
    {"serve"},
    {"cli"},
    {"__main__"},
]
RANK = {room: rank for rank, rooms in enumerate(LAYERS) for room in rooms}
ROOT = Path(goen.__file__).parent
MODULES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


def rooms_imported(source: str) -> set[str]:
    """The rooms of goen that a module's imports lead to, wherever in the file they stand."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module == "goen":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("goen."):
            found.add(str(node.module).split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("goen.")}
    return found - {"__version__"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_down(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert room in RANK, f"{room} has no layer: add it to LAYERS and to the design"
    for other in rooms_imported(path.read_text()) - {room}:
        below = RANK[other] < RANK[room] or RANK[room] == RANK[other] == 0
        assert below, f"{path.name} ({room}) imports {other}, which is not below it"


def test_every_layer_exists() -> None:
    rooms = {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in MODULES}
    assert RANK.keys() == rooms


def test_an_upward_import_is_seen() -> None:
    assert rooms_imported("from goen.cli.main import main") == {"cli"}
    assert rooms_imported("def f():\n    import goen.server.app") == {"server"}
    assert rooms_imported("from goen import metrics, __version__") == {"metrics"}
