"""How goen recognises its earlier output: by content, since any program may use the same names."""

from pathlib import Path

from goen.files import Own
from goen.runs.json_files import json_object, parse_object
from goen.runs.limits import ROW_BYTES
from goen.runs.manifest import JsonObject, Manifest
from goen.runs.tensors import tensor_header

REPORT_MARK = '<meta name="generator" content="goen report">'


def first_row(path: Path) -> JsonObject:
    """The first object of a file of JSON lines; empty if the file is.

    Raises:
        ValueError: it is not one.
    """
    with path.open("rb") as file:
        line = file.readline(ROW_BYTES)
    return parse_object(line) if line else {}


def tensor_names(path: Path) -> tuple[set[str], dict[str, str]]:
    """The names of the tensors in a safetensors file, and its metadata, without reading a tensor.

    Raises:
        ValueError: it is no such file.
    """
    header = tensor_header(path)
    metadata = Manifest({"__metadata__": {}, **header}).part("__metadata__").content
    return {*header} - {"__metadata__"}, {name: str(value) for name, value in metadata.items()}


def _is_summary(path: Path) -> bool:
    found = json_object(path)
    return "goen" in Manifest(found).part("versions") and bool({"study", "data"} & found.keys())


def _is_results(path: Path) -> bool:
    named = {"method", "dataset", "group", "metric", "value", "seen_in_calibration", "fitted_on"}
    return named <= first_row(path).keys() or not path.stat().st_size


def _is_scores(path: Path) -> bool:
    names, _ = tensor_names(path)
    return all("/" in name for name in names) and any(name.startswith("test/") for name in names)


def _is_map(path: Path) -> bool:
    names, _ = tensor_names(path)
    points = names - {"classes", "share"}
    return len(names) == len(points) + 2 and all(name.endswith("/points") for name in points)


def _is_mistakes(path: Path) -> bool:
    names, _ = tensor_names(path)
    return all(name.startswith(("images/", "rows/")) for name in names)


def _is_epochs(path: Path) -> bool:
    row = first_row(path)
    return ("epoch" in row and bool({"gap", "loss"} & row.keys())) or not path.stat().st_size


def _is_report(path: Path) -> bool:
    with path.open("rb") as file:
        return REPORT_MARK.encode() in file.read(1000)


RESULTS = Own("results of a goen study", _is_results)
SUMMARY = Own("the summary of a goen study", _is_summary)
SCORES = Own("scores of a goen study", _is_scores)
MAP = Own("the map of a goen run", _is_map)
MISTAKES = Own("the errors of a goen run", _is_mistakes)
EPOCHS = Own("the epochs of a goen training", _is_epochs)
REPORT = Own("a report of goen", _is_report)

RUN_FILES = {
    "run.json": SUMMARY,
    "report.html": REPORT,
    "results.jsonl": RESULTS,
    "scores.safetensors": SCORES,
    "map.safetensors": MAP,
    "mistakes.safetensors": MISTAKES,
    "training.jsonl": EPOCHS,
    "head.jsonl": EPOCHS,
}
"""The files of a study's folder, by name."""
