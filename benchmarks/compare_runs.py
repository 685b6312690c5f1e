"""Compare the numbers of two folders of runs, such as those of two versions of goen.

    python benchmarks/compare_runs.py runs-before runs-after

Every ``results.jsonl`` below the first folder is compared with the one at the same place below the
second: each number by its method, set, metric, budget and seed, with the ends of its interval.
Equal means equal to the last digit. Beside the results: the thresholds in ``run.json``, and the
scores behind the results to a tolerance. Times are not compared. Prints what differs; the exit code
is 1 if anything does, or if nothing was found.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tyro
from safetensors.numpy import load_file

_TIMES = ("seconds", "training_seconds")
Numbers = dict[tuple[str, ...], float | None]


def main(
    before: tyro.conf.Positional[Path],
    after: tyro.conf.Positional[Path],
    tolerance: float = 1e-9,
    show: int = 20,
) -> None:
    """Compare two folders of runs.

    Args:
        before: a folder of runs.
        after: the same runs of another version.
        tolerance: of the scores, of those above 1 relative to them.
        show: how many differences to print of each file.
    """
    compared = differing = 0
    for file in sorted(before.rglob("results.jsonl")):
        folder = file.parent.relative_to(before)
        numbers, found = compare_folder(before / folder, after / folder, tolerance)
        print(f"{folder}: {numbers} numbers, {len(found)} differ")
        for line in found[:show]:
            print(f"  {line}")
        compared, differing = compared + numbers, differing + len(found)
    print(f"{compared} numbers were compared, {differing} differ.")
    sys.exit(differing > 0 or not compared)


def compare_folder(before: Path, after: Path, tolerance: float) -> tuple[int, list[str]]:
    """How many numbers of a run were compared, and a line for each that differs."""
    if not (after / "run.json").is_file():
        return 0, [f"{after} holds no finished run"]
    old, new = read_numbers(before), read_numbers(after)
    found = [
        f"{' '.join(key)}: {old.get(key, 'absent')} -> {new.get(key, 'absent')}"
        for key in old | new
        if key not in old or key not in new or old[key] != new[key]
    ]
    return len(old), [*found, *compare_scores(before, after, tolerance)]


def read_numbers(folder: Path) -> Numbers:
    """The numbers of a run by their identity."""
    numbers: Numbers = {}
    for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["metric"] not in _TIMES:
            key = tuple(str(row[k]) for k in ("method", "dataset", "metric", "budget", "seed"))
            for part in ("value", "low", "high"):
                if row[part] is not None:
                    numbers[*key, part] = row[part]
    threshold = json.loads((folder / "run.json").read_text(encoding="utf-8")).get("threshold")
    return numbers if threshold is None else {**numbers, ("threshold",): threshold}


def compare_scores(before: Path, after: Path, tolerance: float) -> Iterator[str]:
    """A line for each array of scores that differs."""
    old, new = (
        load_file(path) if (path := folder / "scores.safetensors").is_file() else {}
        for folder in (before, after)
    )
    for name in old | new:
        if name not in old or name not in new or old[name].shape != new[name].shape:
            yield f"scores {name}: absent in one, or of another shape"
            continue
        a, b = old[name].astype(np.float64), new[name].astype(np.float64)
        largest = float((np.abs(a - b) / np.maximum(1, np.abs(a))).max(initial=0))
        if not largest <= tolerance:
            yield f"scores {name}: differ by up to {largest:.2g}"


if __name__ == "__main__":
    tyro.cli(main)
