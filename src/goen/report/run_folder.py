"""A finished run of any study, as the report reads it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import file_digest
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from goen.errors import ArtifactError
from goen.report.table import Table
from goen.report.tables import RUN_TITLES, study_tables
from goen.runs.results import Result, read_results, read_scores

_TITLES = {**RUN_TITLES, "gate": ["the gate", ""], "classifier": ["the classifier", ""]}
_HASHED = ("results.jsonl", "scores.safetensors", "map.safetensors")


@dataclass(frozen=True)
class RunFolder:
    """What lies in a run's folder.

    Attributes:
        path: the folder.
        summary: run.json.
        results: results.jsonl, in order.
        scores: by set and method; empty where the study keeps none.
        story: training.jsonl; empty where the study keeps none.
        head_story: head.jsonl; empty where there is none.
        manifest: of the gate; empty where the study makes none.
    """

    path: Path
    summary: Mapping[str, Any]
    results: list[Result]
    scores: Mapping[str, Mapping[str, NDArray[Any]]]
    story: list[dict[str, Any]]
    head_story: list[dict[str, Any]]
    manifest: Mapping[str, Any]

    @property
    def study(self) -> str:
        """Which study it was; runs from before there were several do not say."""
        return str(self.summary.get("study", "run"))

    @cached_property
    def by_key(self) -> dict[tuple[str, str, str], Result]:
        """The results by method, dataset and metric; of several seeds, the last."""
        return {(r.method, r.dataset, r.metric): r for r in self.results}

    def number(self, method: str, dataset: str, metric: str) -> float:
        """One number, for the words of a page."""
        return self.by_key[method, dataset, metric].value

    @cached_property
    def titles(self) -> dict[str, tuple[str, str]]:
        """The title and the section of each method, in the order of the tables."""
        known = self.summary.get("titles", _TITLES)
        return {key: (str(title), str(section)) for key, (title, section) in known.items()}

    def label(self, method: str) -> str:
        """The method's title, with its section where two have the same title."""
        title, section = self.titles.get(method, (method, ""))
        twins = [t for t, _ in self.titles.values() if t == title]
        return f"{title} ({section})" if len(twins) > 1 else title

    @cached_property
    def sets(self) -> dict[str, str]:
        """The OOD sets in the order of the file, each with its group."""
        return {r.dataset: r.group for r in self.results if r.group != "id"}

    @cached_property
    def seen(self) -> set[str]:
        """The sets of a kind that calibrated some method."""
        return {r.dataset for r in self.results if r.seen_in_calibration}

    @property
    def left_out(self) -> dict[str, str]:
        """What is missing, and why."""
        return {**self.summary.get("missing", {}), **self.summary.get("skipped", {})}

    def tables(self) -> list[Table]:
        """The tables of this study."""
        return study_tables(self.results, {**self.summary, "study": self.study})

    def hashes(self) -> dict[str, str]:
        """SHA-256 of the files the report is made from."""
        found = {}
        for name in _HASHED:
            if (self.path / name).is_file():
                with (self.path / name).open("rb") as file:
                    found[name] = file_digest(file, "sha256").hexdigest()
        return found


def read_run(folder: Path) -> RunFolder:
    """The run in this folder.

    Raises:
        ArtifactError: the folder does not hold a finished run.
    """
    results = read_results(folder / "results.jsonl")
    try:
        summary = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        if not isinstance(summary, dict):
            raise ValueError("run.json is not a summary")
        manifest = {}
        if summary.get("study", "run") == "run":
            manifest = json.loads((folder / "gate" / "manifest.json").read_text(encoding="utf-8"))
        story, head_story = (_lines(folder / f"{name}.jsonl") for name in ("training", "head"))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder} does not hold a finished run: {error}.") from error
    if not results:
        raise ArtifactError(f"{folder} does not hold a finished run: it has no results.")
    path = folder / "scores.safetensors"
    scores = read_scores(path) if path.is_file() else {}
    return RunFolder(folder, summary, results, scores, story, head_story, manifest)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
