"""Numbers with their provenance, in JSON lines, and the scores behind them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from logging import getLogger
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from goen.errors import ArtifactError
from goen.files import (
    whole_file,
)
from goen.runs.recognise import RESULTS, SCORES

_log = getLogger(__name__)

Group = Literal["id", "near", "far", "noise"]
# Fields of the metrics' dataclasses that get no row of their own: settings, counts, and the ends of
# the AUROC's interval, which are the columns low and high of the AUROC's row.
_NOT_METRICS = frozenset(
    {"auroc_low", "auroc_high", "level", "threshold", "num_id", "num_ood", "num_images"}
)


@dataclass(frozen=True)
class Result:
    """One number, and everything needed to know what it means.

    ``fitted_on`` and ``calibrated_on`` name every split that fitted, calibrated or chose something,
    as ``name:fingerprint``. ``low`` and ``high`` bound the value with 95 % confidence where an
    interval is known. ``seen_in_calibration`` is true where images of this set's kind calibrated
    the method.
    """

    method: str
    budget: str
    seed: int
    dataset: str
    group: Group
    metric: str
    value: float
    low: float | None
    high: float | None
    seen_in_calibration: bool
    fitted_on: tuple[str, ...]
    calibrated_on: tuple[str, ...]
    network: str
    seconds: float | None


@dataclass(frozen=True)
class Origin:
    """What the numbers of one method by one network have in common; see ``Result``."""

    method: str
    budget: str
    seed: int
    network: str
    fitted_on: tuple[str, ...]
    calibrated_on: tuple[str, ...] = ()
    seconds: float | None = None

    def rows(
        self, dataset: str, group: Group, numbers: Mapping[str, float], *, seen: bool = False
    ) -> list[Result]:
        """One result per metric among the numbers, the AUROC's interval in its own row.

        Args:
            dataset: what was measured on.
            group: how far away it is.
            numbers: metrics by name, such as a metrics dataclass as a dict.
            seen: whether images of this set's kind calibrated.
        """
        interval = (numbers.get("auroc_low"), numbers.get("auroc_high"))
        return [
            Result(
                method=self.method,
                budget=self.budget,
                seed=self.seed,
                dataset=dataset,
                group=group,
                metric=metric,
                value=float(value),
                low=interval[0] if metric == "auroc" else None,
                high=interval[1] if metric == "auroc" else None,
                seen_in_calibration=seen,
                fitted_on=self.fitted_on,
                calibrated_on=self.calibrated_on,
                network=self.network,
                seconds=self.seconds,
            )
            for metric, value in numbers.items()
            if metric not in _NOT_METRICS
        ]


def write_results(path: Path, results: Iterable[Result]) -> None:
    """The results as JSON lines, whole or not at all."""
    with whole_file(path, RESULTS) as temporary:
        lines = (json.dumps(asdict(r), ensure_ascii=False, allow_nan=False) for r in results)
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_results(path: Path) -> list[Result]:
    """The results in a file, in order.

    Raises:
        ArtifactError: no such file, or a line that is not a result; the message names it.
    """
    if not path.is_file():
        raise ArtifactError(f"{path} is not there. Has the run finished?")
    names = {f.name for f in fields(Result)}
    results = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # names may hold other line ends
    except ValueError as error:
        raise ArtifactError(f"{path} is damaged: {error}.") from error
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            if set(row) != names:
                odd = sorted(set(row) ^ names)
                raise ValueError(f"missing or unknown fields {', '.join(odd)}")
            for name in ("fitted_on", "calibrated_on"):
                row[name] = tuple(row[name])
        except (ValueError, TypeError) as error:
            raise ArtifactError(f"{path}, line {number}, is not a result: {error}.") from error
        results.append(Result(**row))
    return results


def write_scores(path: Path, scores: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
    """Arrays by set and name as one safetensors file, under ``SET/NAME``."""
    arrays = {
        f"{dataset}/{name}": np.ascontiguousarray(values)
        for dataset, named in scores.items()
        for name, values in named.items()
    }
    with whole_file(path, SCORES) as temporary:
        save_file(arrays, temporary)


def read_scores(path: Path) -> dict[str, dict[str, NDArray[Any]]]:
    """What ``write_scores`` wrote, by set and name.

    Raises:
        ArtifactError: no such file, or a damaged one.
    """
    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}. Has the run finished?") from error
    scores: dict[str, dict[str, NDArray[Any]]] = {}
    for key, values in arrays.items():
        dataset, name = key.rsplit("/", 1)
        scores.setdefault(dataset, {})[name] = values
    return scores
