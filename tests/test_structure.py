"""Limits on the source: sizes, types, where output goes, and where its tests lie."""

import ast
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import goen

ROOT = Path(goen.__file__).parent
TESTS = Path(__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))
Function = ast.FunctionDef | ast.AsyncFunctionDef

MOST_LINES = 60
MOST_PARAMETERS = 8
every_module = pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))


def functions(source: str) -> Iterator[tuple[str, Function]]:
    """Every function of a module, also of classes and within functions, by its dotted name."""

    def within(node: ast.AST, above: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            name = above
            if isinstance(child, Function | ast.ClassDef):
                name = f"{above}.{child.name}" if above else child.name
            if isinstance(child, Function):
                yield name, child
            yield from within(child, name)

    return within(ast.parse(source), "")


def parameters(function: Function) -> list[ast.arg]:
    """All but ``self`` and ``cls``; ``*args`` and ``**kwargs`` count."""
    a = function.args
    named = [*a.posonlyargs, *a.args, a.vararg, *a.kwonlyargs, a.kwarg]
    return [arg for arg in named if arg is not None and arg.arg not in ("self", "cls")]


# -- sizes -----------------------------------------------------------------------------------

# Their parameters are the options of a program or of the one call a user makes, each with a line
# in the documentation.
MAY_BE_LARGE = {
    ("extraction.py", "extract"),
    ("gate/gate.py", "Gate.fit"),
    ("gate/gate.py", "Gate.fit_outputs"),
}


def too_large(place: str, source: str) -> list[str]:
    found = []
    for name, function in functions(source):
        if (place, name) in MAY_BE_LARGE:
            continue
        if place.startswith("cli/") and name.endswith("_command"):
            continue
        lines = (function.end_lineno or 0) - function.lineno + 1
        if lines > MOST_LINES:
            found.append(f"{place}: {name} has {lines} lines, more than {MOST_LINES}")
        count = len(parameters(function))
        if count > MOST_PARAMETERS:
            found.append(f"{place}: {name} has {count} parameters, more than {MOST_PARAMETERS}")
    return found


@every_module
def test_functions_are_short_and_have_few_parameters(path: Path) -> None:
    assert not too_large(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))


def test_a_large_function_is_seen() -> None:
    body = "    pass\n" * 60
    assert too_large("a.py", f"class A:\n  def f(self):\n{body}") == [
        "a.py: A.f has 61 lines, more than 60"
    ]
    assert not too_large("a.py", "def f(a, b, c, *, d, e, f, g, h): pass")
    assert too_large("a.py", "def f(a, b, c, *, d, e, f, g, h, **i): pass")
    assert not too_large("cli/a.py", f"def a_command():\n{body}")
    assert too_large("a.py", f"def a_command():\n{body}")


# -- parameters ------------------------------------------------------------------------------

MAY_HAVE_NO_NAME = {
    ("report/texts.py", "text_of"): "its values may have any name",
    ("scoring/tar_stream.py", "Readable.read"): "files of any library have it",
}


def without_name(source: str) -> set[str]:
    """The functions that take an argument by its position alone."""
    return {name for name, function in functions(source) if function.args.posonlyargs}


def test_every_argument_can_be_given_by_name() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in MODULES
        for name in without_name(path.read_text("utf-8"))
    }
    assert found == MAY_HAVE_NO_NAME.keys()


def test_a_parameter_without_a_name_is_seen() -> None:
    assert without_name("def f(a, *, b): ...\ndef g(a, /, b): ...") == {"g"}


def wrongly_checked(source: str) -> list[str]:
    """Settings that are whole numbers and may be fractions when they are checked, or vice versa."""
    tree = ast.parse(source)
    types: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            types[node.arg] = types.get(node.arg, "") + " " + ast.unparse(node.annotation)
        if isinstance(node, ast.AnnAssign):
            name = ast.unparse(node.target)
            types[name] = types.get(name, "") + " " + ast.unparse(node.annotation)
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or ast.unparse(node.func) != "check_number":
            continue
        words = re.findall(
            r"\b(?:int|float)\b", types.get(ast.unparse(node.args[0]).strip("'"), "")
        )
        whole = any(ast.unparse(word) == "whole=True" for word in node.keywords)
        if words and whole == ("float" in words):
            found.append(f"line {node.lineno}: {ast.unparse(node)}")
    return found


@every_module
def test_whole_numbers_are_checked_to_be_whole(path: Path) -> None:
    assert not wrongly_checked(path.read_text("utf-8"))


def test_a_fraction_in_place_of_a_whole_number_is_seen() -> None:
    assert len(wrongly_checked("def f(a: int | None): check_number('a', a, at_least=1)")) == 1
    assert len(wrongly_checked("def f(a: float): check_number('a', a, whole=True)")) == 1
    assert not wrongly_checked("def f(a: int): check_number('a', a, whole=True)")
    assert not wrongly_checked("class A:\n  b: float\n  def f(s): check_number('b', s.b, above=0)")


# -- types -----------------------------------------------------------------------------------

# Settings as JSON has them. JSON that is read field by field is a goen.io.manifest.Manifest.
MAY_HOLD_ANYTHING = {
    ("models/backbone.py", "NetworkConfig.to_json"): "a dataclass as a dict, for JSON",
    ("models/backbone.py", "NetworkConfig.from_json"): "back into the dataclass, which checks it",
}
_ANYTHING = re.compile(r"\b(dict|Mapping|MutableMapping)\[str, Any\]")


def mappings_of_anything(source: str) -> set[str]:
    """The functions that take or return mappings whose values have no type."""
    found = set()
    for name, function in functions(source):
        annotations = [arg.annotation for arg in parameters(function)] + [function.returns]
        if any(_ANYTHING.search(ast.unparse(a)) for a in annotations if a is not None):
            found.add(name)
    return found


def test_signatures_say_what_a_mapping_holds() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in MODULES
        for name in mappings_of_anything(path.read_text("utf-8"))
    }
    assert found == MAY_HOLD_ANYTHING.keys()


def test_a_mapping_of_anything_is_seen() -> None:
    assert mappings_of_anything("def f(a: list[dict[str, Any]]): pass") == {"f"}
    assert mappings_of_anything("class A:\n def f(self) -> Mapping[str, Any] | None: pass") == {
        "A.f"
    }
    assert not mappings_of_anything("def f(a: dict[str, int], **b: Any) -> Any: pass")


# -- values ----------------------------------------------------------------------------------

# Whoever is handed a value may keep it. These are not values but what is counted or filled.
MAY_CHANGE = {
    ("data/sets/sources.py", "Search"): "collects where it looked",
    ("gate/adapters.py", "GateEstimator"): "fitted in place, as in scikit-learn",
    ("report/paper_tables.py", "_Number"): "filled table by table",
    ("scoring/pipeline.py", "ScoreSummary"): "counts as the rows go by",
    ("scoring/sources.py", "Sources"): "remembers what it has passed on",
    ("training/checkpoint.py", "Checkpoint"): "grows with every epoch",
    ("training/forecast.py", "Forecast"): "counts the steps",
}


def changeable(source: str) -> set[str]:
    """The dataclasses that are not frozen."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            text = ast.unparse(decorator)
            if text.startswith("dataclass") and "frozen=True" not in text:
                found.add(node.name)
    return found


def test_values_are_frozen() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in MODULES
        for name in changeable(path.read_text("utf-8"))
    }
    assert found == MAY_CHANGE.keys()


def test_a_dataclass_that_is_not_frozen_is_seen() -> None:
    assert changeable("@dataclass\nclass A: ...\n@dataclass(frozen=True)\nclass B: ...") == {"A"}
    assert changeable("@final\n@dataclass(eq=False, frozen=False)\nclass A: ...") == {"A"}


# -- what comes from outside ------------------------------------------------------------------

# What each library does with a file of a stranger unless it is told not to.
SAFE = {
    "allow_pickle": False,
    "weights_only": True,
    "trust_remote_code": False,
    "use_safetensors": True,
    "local_files_only": True,
    "allow_nan": False,
}
_LOADS = {"np.load": "allow_pickle", "numpy.load": "allow_pickle", "torch.load": "weights_only"}


def unsafe(source: str) -> list[str]:
    """Settings that let a file run code or reach the network, and loads that do not forbid it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            called, given = ast.unparse(node.func), {word.arg for word in node.keywords}
            if called in _LOADS and _LOADS[called] not in given:
                found.append(f"line {node.lineno}: {called} without {_LOADS[called]}")
        pairs: list[tuple[str | None, ast.expr]] = []
        if isinstance(node, ast.Call):
            pairs = [(word.arg, word.value) for word in node.keywords]
        elif isinstance(node, ast.Dict):
            keys = (getattr(key, "value", None) for key in node.keys)
            pairs = [*zip(keys, node.values, strict=True)]
        for name, value in pairs:
            if name in SAFE and getattr(value, "value", None) is not SAFE[name]:
                found.append(f"line {node.lineno}: {name}={ast.unparse(value)}")
    return found


@every_module
def test_files_of_strangers_run_no_code_and_reach_no_network(path: Path) -> None:
    assert not unsafe(path.read_text("utf-8"))


def test_an_unsafe_load_is_seen() -> None:
    assert unsafe("np.load(f)") == ["line 1: np.load without allow_pickle"]
    assert unsafe("torch.load(f, weights_only=False)") == ["line 1: weights_only=False"]
    assert unsafe("a = {'trust_remote_code': True}") == ["line 1: trust_remote_code=True"]
    assert not unsafe("torch.load(f, weights_only=True)\nnp.load(f, allow_pickle=False)")


# -- output ----------------------------------------------------------------------------------


def writes_to_the_terminal(source: str) -> list[str]:
    """Uses of ``print`` without a file, of the standard streams, and of consoles."""
    found = []
    for node in ast.walk(ast.parse(source)):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called == "print" and not any(word.arg == "file" for word in node.keywords):
            found.append(f"line {node.lineno}: print")
        if called.endswith(("Console", "basicConfig", "StreamHandler")):
            found.append(f"line {node.lineno}: {called}")
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("sys.stdout", "sys.stderr"):
            found.append(f"line {node.lineno}: sys.{node.attr}")
        if isinstance(node, ast.ImportFrom) and node.module == "sys":
            found += [f"line {node.lineno}: from sys" for a in node.names if "std" in a.name]
    return found


@every_module
def test_only_the_command_line_and_progress_bars_write_to_the_terminal(path: Path) -> None:
    place = path.relative_to(ROOT)
    if place.parts[0] not in ("cli", "progress.py"):
        assert not writes_to_the_terminal(path.read_text("utf-8"))


def test_a_print_is_seen() -> None:
    assert writes_to_the_terminal("def f():\n    print('x')") == ["line 2: print"]
    assert writes_to_the_terminal("import sys\nprint('x', file=sys.stderr)") == [
        "line 2: sys.stderr"
    ]
    assert writes_to_the_terminal("from sys import stdout") == ["line 1: from sys"]
    assert not writes_to_the_terminal("print('x', file=stream)")


def test_messages_of_the_library_are_silent_until_asked_for() -> None:
    handlers = logging.getLogger("goen").handlers
    assert any(isinstance(handler, logging.NullHandler) for handler in handlers)
    script = "import logging, goen; logging.getLogger('goen.data').warning('loud')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# -- tests -----------------------------------------------------------------------------------

# Tests of more than one file of the source, and of what is not in it.
OF_MANY_FILES = {
    "detectors/test_common.py": "what all detectors have in common",
    "gate/test_not_finite.py": "NaN and infinity in gates, exported gates and goen score",
    "report/test_browser.py": "the pages, in a browser",
    "serve/test_hostile.py": "the whole service, and tests/serve/hostile.py",
    "serve/test_page.py": "serve/templates/, in a browser",
    "test_board_page.py": "docs/methods/board.md",
    "test_defaults.py": "the defaults of public calls, commands and settings",
    "test_docs.py": "docs/",
    "test_extras.py": "tests/extras.py",
    "test_fuzz.py": "whatever reads files from outside, and tests/fuzz/",
    "test_layers.py": "imports between all files",
    "test_main_module.py": "__main__.py",
    "test_methods_page.py": "docs/methods/README.md",
    "test_mutants.py": "tests/mutants.py",
    "test_paper_page.py": "docs/paper.md",
    "test_processor.py": "tests/processor.py",
    "test_process_state.py": "the state of the process around every public call",
    "test_overwrite.py": "every function that writes",
    "test_public.py": "the public names",
    "test_recipes.py": "recipes/",
    "test_results_page.py": "docs/results.md",
    "test_site.py": "docs/conf.py, docs/site_pages.py and files of a release",
    "test_structure.py": "all files",
    "test_theory.py": "docs/theory.md",
    "test_wheel.py": "the wheel and the sdist",
}


def test_tests_lie_where_their_source_does() -> None:
    """``a/b.py``, ``a/_b.py`` and the package ``a/b/`` are tested in ``tests/a/test_b.py``."""
    without = set()
    for test in TESTS.rglob("test_*.py"):
        place = test.relative_to(TESTS)
        name = place.stem.removeprefix("test_")
        folder = ROOT / place.parent
        if not any((folder / found).exists() for found in (f"{name}.py", f"_{name}.py", name)):
            without.add(place.as_posix())
    assert without == OF_MANY_FILES.keys()
