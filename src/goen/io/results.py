"""Numbers with their provenance, in JSON lines, and the scores behind them."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from goen.errors import ArtifactError, quoted
from goen.io.files import whole_file
from goen.io.json_files import json_rows
from goen.io.manifest import Manifest
from goen.io.tensors import read_tensors

_SCORES = (torch.float64, torch.float32, torch.int64, torch.bool)
Group = Literal["id", "near", "far", "noise", "ood"]
# Fields of the metrics' dataclasses that get no row of their own: settings, counts of images that
# are known by other means, and the ends of intervals (NAME_low and NAME_high), which are the
# columns low and high of the row of NAME.
_NOT_METRICS = frozenset({"level", "threshold", "num_id", "num_ood", "num_images", "num_wrong"})
_ENDS = ("_low", "_high")


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
        """One result per metric among the numbers, an interval in the row of its metric.

        Args:
            dataset: what was measured on.
            group: how far away it is.
            numbers: metrics by name, such as a metrics dataclass as a dict.
            seen: whether images of this set's kind calibrated.
        """
        return [
            Result(
                **vars(self),
                dataset=dataset,
                group=group,
                metric=metric,
                value=float(value),
                low=numbers.get(f"{metric}_low"),
                high=numbers.get(f"{metric}_high"),
                seen_in_calibration=seen,
            )
            for metric, value in numbers.items()
            if metric not in _NOT_METRICS and not metric.endswith(_ENDS)
        ]


def write_results(path: Path, results: Iterable[Result], *, overwrite: bool = False) -> None:
    """The results as JSON lines, whole or not at all."""
    with whole_file(path, overwrite=overwrite) as temporary:
        lines = (json.dumps(asdict(r), ensure_ascii=False, allow_nan=False) for r in results)
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def read_results(path: Path) -> list[Result]:
    """The results in a file, in order.

    Raises:
        ArtifactError: no such file, or a line that is not a result; the message names it.
    """
    with _reading(path):
        return json_rows(path, _result)


def _result(row: Manifest) -> Result:
    """The result in a row; a ``ValueError`` that names a field of another type."""
    row.check_names([field.name for field in fields(Result)])
    return Result(**{field.name: _READERS[field.type](row, field.name) for field in fields(Result)})


def _group(row: Manifest, name: str) -> str:
    group = row.text(name)
    if group not in get_args(Group):
        raise ValueError(f"its group should be one of {', '.join(get_args(Group))}, got {group!r}")
    return group


def _optional(row: Manifest, name: str) -> float | None:
    return row.number(name) if row.content.get(name, 0) is not None else None


# By the types of the fields of a result.
_READERS: Mapping[Any, Callable[[Manifest, str], Any]] = {
    str: Manifest.text,
    int: Manifest.integer,
    float: Manifest.number,
    bool: Manifest.flag,
    tuple[str, ...]: Manifest.texts,
    float | None: _optional,
    Group: _group,
}


def write_scores(path: Path, scores: Mapping[str, Mapping[str, NDArray[Any]]]) -> None:
    """Arrays by set and name as one safetensors file, under ``SET/NAME``."""
    arrays = {
        f"{dataset}/{name}": np.ascontiguousarray(values)
        for dataset, named in scores.items()
        for name, values in named.items()
    }
    with whole_file(path) as temporary:
        save_file(arrays, temporary)


@dataclass(frozen=True)
class Mistakes:
    """Images of one set that a gate decides wrongly, the most confident errors first.

    Attributes:
        rows: ``(n,)``: which images of the set.
        images: ``(n, 3, H, W)``.
    """

    rows: NDArray[np.int64]
    images: NDArray[np.uint8 | np.uint16]


def write_mistakes(path: Path, mistakes: Mapping[str, Mistakes]) -> None:
    """The mistakes by set as one safetensors file, under ``rows/SET`` and ``images/SET``."""
    rows = {f"rows/{name}": found.rows for name, found in mistakes.items()}
    images = {f"images/{name}": found.images for name, found in mistakes.items()}
    with whole_file(path) as temporary:
        save_file({**rows, **images}, temporary)


def read_mistakes(path: Path) -> dict[str, Mistakes]:
    """What ``write_mistakes`` wrote, by set.

    Raises:
        ArtifactError: no such file, or a damaged one.
    """
    mistakes = {}
    with _reading(path):
        tensors = read_tensors(path)
        names = [key.removeprefix("rows/") for key in tensors if key.startswith("rows/")]
        tensors.check_names([f"{part}/{name}" for name in names for part in ("rows", "images")])
        for name in names:
            count = tensors[f"rows/{name}"].numel()
            rows = tensors.integers(f"rows/{name}", (count,), low=0)
            images = tensors.of_shape(f"images/{name}", (count, 3, "height", "width"), torch.uint8)
            mistakes[name] = Mistakes(rows.numpy(), images.numpy())
    return mistakes


def read_scores(path: Path) -> dict[str, dict[str, NDArray[Any]]]:
    """What ``write_scores`` wrote, by set and name.

    Raises:
        ArtifactError: no such file, or a damaged one.
    """
    scores: dict[str, dict[str, NDArray[Any]]] = {}
    with _reading(path):
        for key, values in read_tensors(path).items():
            dataset, _, name = key.rpartition("/")
            if not dataset or values.dtype not in _SCORES or values.ndim not in (1, 2):
                raise ValueError(
                    f"its tensor {quoted(key)} should be called SET/METHOD and hold one number or "
                    f"one row per image, got {values.dtype} {tuple(values.shape)}"
                )
            scores.setdefault(dataset, {})[name] = values.numpy()
    return scores


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Read a file of results in this block: what is wrong with it is one error."""
    if not path.is_file():
        raise ArtifactError(f"{path} is not there. Has the run finished?")
    try:
        yield
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} is damaged: {error}.") from error
