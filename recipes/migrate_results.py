"""Rename methods, columns and options in results of earlier versions.

    python recipes/migrate_results.py             (results/)
    python recipes/migrate_results.py runs        (folders of studies, with their scores)

Rewrites every ``*.jsonl``, ``*.json`` and ``scores.safetensors`` below the folder that uses a name
of an earlier version, and renames files called ``mirrored-*``. No number changes: the script
compares the numbers of each file before and after. A second run changes nothing.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tyro
from safetensors.numpy import load_file, save_file

from goen.studies import METHODS

RESULTS = Path(__file__).parents[1] / "results"
KEYS = {"softmax": "max_softmax", "mahalanobis_z": "goen_distance"}
OPTIONS = {"head": "representation", "calibration": "calibration_ood", "protocol": "budget"}
RUN_METHODS = ("max_softmax", "goen_distance", "goen")
WORDS = {
    ", mirrored": ", flip-averaged",
    "goen-m, calibrated": "goen-m, fitted with OOD",
    "noise alone calibrates": "calibrated with noise alone",
    "monotone network shown: ": "monotone network fitted with: ",
    "all that is made": "all synthetic images",
    "every reported set but the one judged": "every reported set but the evaluated one",
}


def method(key: str) -> str:
    """The key of a method."""
    return KEYS.get(key, key).replace("_mirrored", "_flip_averaged")


def title(text: str) -> str:
    """The title of a method, a variant or a candidate."""
    for old, new in WORDS.items():
        text = text.replace(old, new)
    return "Max softmax" if text == "Softmax" else text


def row(old: dict[str, Any]) -> dict[str, Any]:
    """A line of results, or of a table of comparisons or candidates."""
    new = {"budget" if name == "protocol" else name: value for name, value in old.items()}
    for name, rename in (("method", method), ("against", method), ("candidate", title)):
        if name in new:
            new[name] = rename(new[name])
    return new


def summary(old: dict[str, Any]) -> dict[str, Any]:
    """The summary of a study."""
    new = dict(old)
    config = {OPTIONS.get(name, name): value for name, value in old["config"].items()}
    if "methods" in config:
        config["methods"] = [method(key) for key in config["methods"]]
    new["config"] = config
    if old["study"] in ("run", "seeds") and "titles" not in old:
        new["titles"] = {key: [METHODS[key].title, ""] for key in RUN_METHODS}
        new["uses_ood"] = ["goen"]
    if "titles" in old:
        new["titles"] = {
            method(k): [title(t), section] for k, (t, section) in old["titles"].items()
        }
    if "uses_ood" in old:
        new["uses_ood"] = [method(key) for key in old["uses_ood"]]
    return new


def numbers(content: Any) -> Iterator[str]:
    """Every number of a JSON value, to its last digit."""
    if isinstance(content, dict | list):
        for part in content.values() if isinstance(content, dict) else content:
            yield from numbers(part)
    elif isinstance(content, int | float):
        yield repr(content)


def checked(
    old: dict[str, Any], rename: Callable[[dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """The object with its new names, and the same numbers."""
    new = rename(old)
    if Counter(numbers(new)) != Counter(numbers(old)):
        raise SystemExit(f"A number would change: {old}")
    return new


def migrate_lines(path: Path) -> None:
    """Results, comparisons or candidates: one JSON object in a line."""
    text = path.read_text(encoding="utf-8")
    old = [json.loads(line) for line in text.splitlines()]
    new = [checked(line, row) for line in old]
    if new != old:
        lines = [json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in new]
        path.write_text("".join(lines), encoding="utf-8")


def migrate_summary(path: Path) -> None:
    """The JSON object of a study."""
    old = json.loads(path.read_text(encoding="utf-8"))
    new = checked(old, summary) if "study" in old else old
    if new != old:
        text = json.dumps(new, indent=2, ensure_ascii=False) + "\n"
        path.write_text(text, encoding="utf-8")


def migrate_scores(path: Path) -> None:
    """Arrays under ``SET/METHOD``."""
    old = load_file(path)
    parts = {name: name.rpartition("/") for name in old}
    new = {f"{head}{slash}{method(key)}": old[name] for name, (head, slash, key) in parts.items()}
    if len(new) != len(old):
        raise SystemExit(f"Two arrays of {path} would have the same name.")
    if new.keys() != old.keys():
        save_file(new, path)


def main(folder: tyro.conf.Positional[Path] = RESULTS) -> None:
    """Rename everything below a folder.

    Args:
        folder: of results, or of studies.
    """
    for path in sorted(folder.rglob("*.jsonl")):
        migrate_lines(path)
    for path in sorted(folder.rglob("*.json")):
        migrate_summary(path)
    for path in sorted(folder.rglob("scores.safetensors")):
        migrate_scores(path)
    for path in sorted(folder.rglob("mirrored-*.json*")):
        path.rename(path.with_name(path.name.replace("mirrored-", "flip-averaged-")))


if __name__ == "__main__":
    tyro.cli(main)
