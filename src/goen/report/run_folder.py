"""A finished run of any study, as the report reads it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from goen.errors import ArtifactError
from goen.io.json_files import json_object, json_rows
from goen.io.manifest import Manifest
from goen.io.results import Result, read_results, read_scores
from goen.report.summary import Summary, read_summary

_HASHED = ("results.jsonl", "scores.safetensors", "map.safetensors")


@dataclass(frozen=True)
class Epoch:
    """One epoch of a training.

    Attributes:
        number: counted from 1.
        values: what was measured, by name.
        variant: of the network, where the study trains several.
    """

    number: int
    values: Mapping[str, float]
    variant: str = ""


@dataclass(frozen=True)
class RunFolder:
    """What a run's folder holds.

    Attributes:
        path: the folder.
        summary: run.json.
        results: results.jsonl, in order.
        scores: by dataset and method; empty where the study keeps none.
        epochs: training.jsonl; empty where the study keeps none.
        head_epochs: head.jsonl, of the calibration head; empty where there is none.
        gate: the gate's manifest, where the study makes a gate.
        beside: further studies, for the figure with five panels.
    """

    path: Path
    summary: Summary
    results: list[Result]
    scores: Mapping[str, Mapping[str, NDArray[Any]]]
    epochs: list[Epoch]
    head_epochs: list[Epoch]
    gate: Manifest | None
    beside: tuple["RunFolder", ...] = ()

    @cached_property
    def by_key(self) -> dict[tuple[str, str, str], Result]:
        """The results by method, dataset and metric; of several seeds, the last."""
        return {(r.method, r.dataset, r.metric): r for r in self.results}

    def number(self, method: str, dataset: str, metric: str) -> float:
        """One number, for the text of a page."""
        return self.by_key[method, dataset, metric].value

    @property
    def titles(self) -> Mapping[str, tuple[str, str]]:
        """The title and the section of each method, in the order of the tables."""
        return self.summary.titles

    def label(self, method: str) -> str:
        """The method's title, with its section where two have the same title."""
        title, section = self.titles.get(method, (method, ""))
        twins = [t for t, _ in self.titles.values() if t == title]
        return f"{title} ({section})" if len(twins) > 1 else title

    @cached_property
    def sets(self) -> dict[str, str]:
        """The OOD datasets with their groups: unseen ones first, else in the order of the file."""
        return self.summary.unseen_first(self.results)[0]

    @cached_property
    def seen(self) -> frozenset[str]:
        """The OOD datasets of a kind that calibrates methods."""
        return self.summary.unseen_first(self.results)[1]

    def hashes(self) -> dict[str, str]:
        """SHA-256 of the files the report is made from."""
        found = {}
        for name in _HASHED:
            if (self.path / name).is_file():
                with (self.path / name).open("rb") as file:
                    found[name] = file_digest(file, "sha256").hexdigest()
        return found


def read_run(folder: Path, beside: Sequence[Path] = ()) -> RunFolder:
    """The run in this folder.

    Args:
        folder: of a finished study.
        beside: folders of further studies.

    Raises:
        ArtifactError: a folder does not hold a finished run.
    """
    results = read_results(folder / "results.jsonl")
    summary = read_summary(folder)
    if not results:
        raise ArtifactError(f"{folder} does not hold a finished run: it has no results.")
    try:
        gate = _read_manifest(folder / "gate") if summary.study == "run" else None
        epochs, head_epochs = (_read_epochs(folder / f"{n}.jsonl") for n in ("training", "head"))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder} does not hold a finished run: {error}.") from error
    path = folder / "scores.safetensors"
    scores = read_scores(path) if path.is_file() else {}
    others = tuple(map(read_run, beside))
    return RunFolder(folder, summary, results, scores, epochs, head_epochs, gate, others)


def _read_manifest(folder: Path) -> Manifest:
    return Manifest(json_object(folder / "manifest.json"))


def _read_epochs(path: Path) -> list[Epoch]:
    if not path.is_file():
        return []
    return json_rows(path, _epoch)


def _epoch(row: Manifest) -> Epoch:
    measured = {k: v for k, v in row.content.items() if k != "epoch" and isinstance(v, int | float)}
    return Epoch(
        number=int(row.number("epoch")) + 1,
        values={name: float(value) for name, value in measured.items()},  # a diverged loss is NaN
        variant=row.text("variant") if "variant" in row else "",
    )
