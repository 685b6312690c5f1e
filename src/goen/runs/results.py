"""Numbers with their provenance, in JSON lines; runs as folders whose stages are done once."""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from logging import getLogger
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from goen.errors import ArtifactError, UsageError
from goen.files import (
    LOCK,
    check_free,
    make_folder,
    remove_own,
    storage_errors,
    whole_file,
    whole_folder,
)
from goen.runs.artifacts import hardware, versions
from goen.runs.recognise import RESULTS, RUN_FILES, SCORES, SUMMARY

_log = getLogger(__name__)

Group = Literal["id", "near", "far", "noise"]
# What metrics carry beside the metrics; an AUROC's interval stands in the row of the AUROC.
_NOT_METRICS = frozenset(
    {"auroc_low", "auroc_high", "level", "threshold", "num_id", "num_ood", "num_images"}
)


@dataclass(frozen=True)
class Result:
    """One number, and everything needed to know what it means.

    ``fitted_on`` and ``calibrated_on`` name every split that fitted, calibrated or chose something,
    as ``name:fingerprint``. ``low`` and ``high`` bound the value with 95 % confidence where an
    interval is known. ``seen_in_calibration`` says that images of this set's kind calibrated.
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


@contextmanager
def summarised(out: Path, summary: Mapping[str, Any]) -> Iterator[None]:
    """Write a study's results in this block; ``run.json`` appears when it ends well.

    To the summary it adds the versions and the machine that the results were made with.

    Only now does an earlier run in the folder lose its files, so that a study that fails before it
    has results leaves the earlier one whole, and nothing of two is ever mixed. A gate stays until
    there is another.
    """
    check_run_folder(out)  # all of them, before the first is removed
    for name, ours in RUN_FILES.items():
        remove_own(out / name, ours)
    yield
    with whole_file(out / "run.json", SUMMARY) as temporary:
        whole = {**summary, "versions": versions(), "hardware": hardware()}
        text = json.dumps(whole, indent=2, ensure_ascii=False)
        temporary.write_text(text + "\n", encoding="utf-8")


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


@dataclass(frozen=True)
class Stages:
    """A folder of finished pieces of work, each named after the content of what went into it.

    A stage that is there is never done again, whichever study asks for it. One that was interrupted
    goes on from whatever it left in its ``work`` folder. Two studies that want the same stage at
    the same time do it once: the second waits.
    """

    folder: Path

    def run(
        self,
        name: str,
        inputs: Mapping[str, Any],
        make: Callable[[Path, Path], None],
        *,
        about: str = "",
    ) -> Path:
        """The folder of the finished stage; made by ``make(result, work)`` if it is not there.

        Args:
            name: of the stage, for people.
            inputs: all that the result depends on, as JSON: configurations and fingerprints, and
                a revision of the code that makes it where that has changed its results.
            make: fills the first folder, which appears when it returns. It may keep what it needs
                to resume in the second, which is removed afterwards.
            about: which one, where there are many alike, such as the name of a set.
        """
        text = json.dumps(inputs, sort_keys=True, ensure_ascii=False)
        key = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        done = self.folder / f"{name}-{key}"
        work = self.folder / "work" / f"{name}-{key}"
        title = f"{name} of {about}" if about else name
        make_folder(work)
        with storage_errors(work), _turn(work.with_name(f".{work.name}.lock"), title):
            if done.is_dir():
                _check_stage(done)
                if not about:  # of many alike, only what is being done is worth a line
                    _log.info(f"{title}: done before ({done})")
            else:
                _log.info(f"{title}: working")
                with whole_folder(done) as temporary:
                    (temporary / "inputs.json").write_text(text + "\n", encoding="utf-8")
                    make(temporary, work)
            _clear(work)  # left as well if the process was killed just after the stage appeared
        return done


def _check_stage(folder: Path) -> None:
    if not (folder / "inputs.json").is_file():
        raise UsageError(
            f"{folder} exists and is not a stage that goen made. Choose another folder for stages."
        )


@contextmanager
def _turn(lock: Path, title: str) -> Iterator[None]:
    """Hold the lock; when another process has it, say so and wait."""
    check_free(lock, LOCK)
    held = FileLock(lock)
    try:
        held.acquire(timeout=0)
    except Timeout:
        _log.info(f"{title}: another process is computing it; waiting")
        held.acquire()
    try:
        yield
    finally:
        held.release()


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def check_run_folder(folder: Path) -> None:
    """Raise a UsageError if a study in this folder would lose anything but an earlier study.

    Other files may be in the folder; they stay.
    """
    if folder.exists() and not folder.is_dir():
        check_free(folder)
    check_free(folder / ".lock", LOCK)
    for name, ours in RUN_FILES.items():
        check_free(folder / name, ours)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Work in a run's folder, and nobody else with us.

    Raises:
        UsageError: another process is at work in it, or files that a study would replace and that
            goen did not write are in it.
    """
    check_run_folder(folder)
    make_folder(folder)
    try:
        # One lock for each folder: who holds it may ask again, for the report of the run.
        with storage_errors(folder), FileLock(folder / ".lock", timeout=0, is_singleton=True):
            yield
    except Timeout as error:
        raise UsageError(
            f"Another goen is at work in {folder}. Wait for it, or choose another with --out."
        ) from error
