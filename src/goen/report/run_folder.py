"""A finished run of any study, as the report reads it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from goen.errors import ArtifactError
from goen.io.json_files import json_object, json_rows
from goen.io.manifest import Manifest
from goen.io.results import read_results, read_scores
from goen.report.summary import Study, read_summary


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
class RunFolder(Study):
    """What a run's folder holds.

    Attributes:
        path: the folder.
        scores: by dataset and method; empty where the study keeps none.
        epochs: training.jsonl; empty where the study keeps none.
        head_epochs: head.jsonl, of the calibration head; empty where there is none.
        gate: the gate's manifest, where the study makes a gate.
        beside: further studies, for the figure with five panels.
    """

    path: Path
    scores: Mapping[str, Mapping[str, NDArray[Any]]]
    epochs: list[Epoch]
    head_epochs: list[Epoch]
    gate: Manifest | None
    beside: tuple["RunFolder", ...] = ()


def file_hashes(folder: Path, names: Sequence[str]) -> list[tuple[str, str]]:
    """SHA-256 of those of the files that are there, for a table of provenance."""
    rows = []
    for name in names:
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                rows.append((f"{name}, SHA-256", file_digest(file, "sha256").hexdigest()))
    return rows


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
        gate = None
        if summary.study == "run":
            gate = Manifest(json_object(folder / "gate" / "manifest.json"))
        epochs, head_epochs = (_read_epochs(folder / f"{n}.jsonl") for n in ("training", "head"))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder} does not hold a finished run: {error}.") from error
    path = folder / "scores.safetensors"
    scores = read_scores(path) if path.is_file() else {}
    others = tuple(map(read_run, beside))
    return RunFolder(results, summary, folder, scores, epochs, head_epochs, gate, others)


def _read_epochs(path: Path) -> list[Epoch]:
    return json_rows(path, _epoch) if path.is_file() else []


def _epoch(row: Manifest) -> Epoch:
    measured = {k: v for k, v in row.content.items() if k != "epoch" and isinstance(v, int | float)}
    return Epoch(
        number=int(row.number("epoch")) + 1,
        # The loss of a training that diverged is NaN; whole numbers may be of any length in JSON.
        values={k: row.number(k) if isinstance(v, int) else v for k, v in measured.items()},
        variant=row.text("variant") if "variant" in row else "",
    )
