"""Imports point down the design's layers, never up, never sideways and never in a circle."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
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


# -- circles -------------------------------------------------------------------------------------


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def modules_imported(source: str, known: set[str]) -> set[str]:
    """The modules that imports lead to, in functions and under ``if TYPE_CHECKING`` as well."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in known:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else str(node.module) for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & known
    return found - {"goen"}


def test_no_modules_import_each_other() -> None:
    names = {module_name(path): path for path in MODULES}
    known = {*names, "goen"}
    graph = {name: modules_imported(path.read_text(), known) for name, path in names.items()}
    assert sum(map(len, graph.values())) > len(graph)
    TopologicalSorter(graph).prepare()  # a CycleError names the circle


def test_a_circle_is_seen() -> None:
    known = {"goen.a", "goen.b"}
    lazily = "def f():\n    from goen.b import g"
    graph = {"goen.a": modules_imported(lazily, known)}
    graph["goen.b"] = modules_imported("from goen import a", known | {"goen"})
    with pytest.raises(CycleError, match=r"goen\.a.*goen\.b"):
        TopologicalSorter(graph).prepare()


def test_a_gate_is_loaded_and_used_without_what_made_it() -> None:
    script = """
import sys, numpy, goen, goen.monitor, goen.scoring, goen.serve.app
gate = goen.load("cifar10-w16")
goen.Monitor(gate).update(gate.predict(numpy.zeros((1, 3, 32, 32), numpy.uint8)))
unused = ("goen.studies", "goen.training", "goen.report", "matplotlib")
print([name for name in sys.modules if name.startswith(unused)])
"""
    run = [sys.executable, "-c", script]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == "[]\n"
