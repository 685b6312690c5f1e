"""The public names are exactly these: adding or losing one is a decision."""

import inspect
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mypy import api as mypy

import goen


def test_public_names() -> None:
    assert sorted(goen.__all__) == [
        "FeatureExtractor",
        "Gate",
        "LinearClassifier",
        "Monitor",
        "Outputs",
        "Prediction",
        "Preprocess",
        "Protocol",
        "Scorer",
        "__version__",
        "bench",
        "data",
        "detectors",
        "errors",
        "extract",
        "list_layers",
        "load",
        "load_model",
        "metrics",
        "models",
        "read_image",
    ]
    assert sorted(goen.data.__all__) == [
        "ImageSet",
        "OodSet",
        "Protocol",
        "load_set",
        "names",
        "open_folder",
        "protocol",
        "require_disjoint",
    ]
    for name in goen.__all__:
        assert hasattr(goen, name)
    assert dir(goen) == sorted(goen.__all__)


def test_no_module_takes_a_public_names_place() -> None:
    script = (
        "import goen, pkgutil, importlib\n"
        "for m in pkgutil.walk_packages(goen.__path__, 'goen.'):\n"
        "    if m.name != 'goen.__main__': importlib.import_module(m.name)\n"
        "from types import ModuleType\n"
        "modules = {n for n in goen.__all__ if isinstance(getattr(goen, n), ModuleType)}\n"
        "assert modules == {'data', 'detectors', 'errors', 'metrics', 'models'}, modules\n"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_importing_goen_does_not_wait_for_torch() -> None:
    script = "import sys, goen.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'goen' has no attribute 'gates'"):
        goen.gates  # noqa: B018


def test_a_type_checker_knows_the_names_that_exist_and_no_others(tmp_path: Path) -> None:
    uses = [f"goen.{name}" for name in (*goen.__all__, "nope", "gates")]
    script = tmp_path / "script.py"
    script.write_text("\n".join(["import goen", *uses]) + "\n")
    # Of goen itself only this file is read; the whole of it takes mypy a minute.
    options = ["--strict", "--follow-imports=skip", f"--cache-dir={tmp_path / 'cache'}"]
    out, errors, code = mypy.run([*options, str(Path(goen.__file__)), str(script)])
    lines = [line for line in out.splitlines() if "script.py" in line]
    assert (len(lines), code, errors) == (2, 1, ""), out
    assert all("[attr-defined]" in line for line in lines)
    assert '"nope"' in lines[0]
    assert '"gates"' in lines[1]


def public_calls() -> list[tuple[str, Callable[..., object]]]:
    found: list[tuple[str, Callable[..., object]]] = []
    for module in (goen, goen.data, goen.detectors, goen.metrics, goen.models):
        for name in module.__all__:
            value = getattr(module, name)
            owned = (
                [(f"{name}.{part}", getattr(value, part)) for part in vars(value)]
                if isinstance(value, type)
                else []
            )
            found += [(name, value)] if callable(value) else []
            found += [(part, call) for part, call in owned if inspect.isroutine(call)]
    return [(name, call) for name, call in found if not name.split(".")[-1].startswith("_")]


# Public names without an example in their docstring, and why.
WITHOUT_EXAMPLE = {
    "a record that another public call returns or takes": {
        *("OodSet", "NearestImages", "Interval", "IDMetrics", "OODCalibration", "OODResult"),
        *("OverSeeds", "PairedTest", "ReliabilityBin", "SelectiveResult", "NetworkConfig", "Scale"),
    },
    "names that an argument may have": {"Architecture", "ClassifierKind", "Representation"},
    "abstract: its subclasses have examples": {"Backbone", "Classifier"},
    "needs files or a package; docs/libraries.md and docs/own-model.md run it": {
        *("load_model", "PytorchOod"),
    },
    "scores outputs of a prepared network; ODIN's example shows how": {"AdaSCALE"},
    "named as a string, 'best'; docs/compare.md runs it": {"Best"},
    "reads what a gate saves; called by goen.load": {"load_detector"},
    "made by bootstrap, whose example shows it": {"BootstrapIntervals"},
}


def test_every_public_name_has_an_example_or_a_reason() -> None:
    without = set()
    for module in (goen, goen.data, goen.detectors, goen.metrics, goen.models):
        for name in module.__all__:
            value = getattr(module, name)
            if not callable(value) or inspect.ismodule(value):
                continue
            own = vars(value).values() if isinstance(value, type) else ()
            made = (classmethod, staticmethod, property)
            parts = [value, *(p for p in own if inspect.isroutine(p) or isinstance(p, made))]
            if not any(">>>" in (part.__doc__ or "") for part in parts):
                without.add(name)
    assert without == set().union(*WITHOUT_EXAMPLE.values())


def test_signatures_name_their_types() -> None:
    """``help`` shows them: an alias that is written out has thousands of characters."""
    calls = public_calls()
    assert len(calls) > 100
    long = {}
    for name, call in calls:
        try:
            length = len(str(inspect.signature(call)))
        except (TypeError, ValueError):  # not written in Python
            continue
        if length > 700:
            long[name] = length
    assert not long


def test_the_help_of_a_fit_fits_on_a_screen() -> None:
    text = pydoc.plaintext.document(goen.Gate.fit)
    assert len(text.splitlines()) <= 50
