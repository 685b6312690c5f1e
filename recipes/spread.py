"""How far single trainings of the demo are apart.

    python recipes/spread.py                    (seven minutes on two cores)

`goen run` on the embedded digits with the paper's five seeds, each with one thread, with two, and
with one thread and the instructions of an older processor (AVX2): fifteen trainings. Writes their
numbers to src/goen/report/recorded/digits.json; the report of such a run shows their range.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import tyro

from goen.data import protocol
from goen.io.manifest import JsonObject, Manifest
from goen.io.provenance import hardware, versions
from goen.io.results import read_results
from goen.report.spread import RECORDED, run_settings
from goen.studies import SEEDS, RunConfig, run

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
MACHINES: list[tuple[int, dict[str, str]]] = [(1, {}), (2, {}), (1, AVX2)]


def one(seed: int, threads: int) -> None:
    """Train once, and print the numbers and the settings as JSON."""
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        gate = run(RunConfig(seed=seed), protocol("digits"), Path(folder) / "run")
        results = read_results(Path(folder) / "run" / "results.jsonl")
    shares = ("false_alarm_rate", "flagged")
    flagged = {r.dataset: r.value for r in results if r.metric in shares}
    auroc = {r.dataset: r.value for r in results if (r.method, r.metric) == ("goen", "auroc")}
    training = {
        "seed": seed,
        "threads": threads,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "flagged": {name: round(value, 4) for name, value in flagged.items()},
        "goen_auroc": {name: round(value, 4) for name, value in auroc.items()},
    }
    facts = json.loads(json.dumps(dict(gate.metadata)))  # as the manifest of a saved gate has them
    print(json.dumps({"training": training, "settings": run_settings(Manifest(facts))}))


def every(seeds: tuple[int, ...]) -> JsonObject:
    """All trainings, each in a process of its own: torch chooses its instructions at its start."""
    trainings, settings = [], []
    for threads, changes in MACHINES:
        for seed in seeds:
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **changes}
            command = [sys.executable, __file__, "--seeds", str(seed), "--threads", str(threads)]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
            found = json.loads(done.stdout)
            trainings.append(found["training"])
            settings.append(found["settings"])
            print(json.dumps(found["training"]), file=sys.stderr, flush=True)
    assert all(other == settings[0] for other in settings)
    return {
        "recipe": "recipes/spread.py",
        "settings": settings[0],
        "versions": versions(),
        "hardware": hardware(),
        "trainings": trainings,
    }


def main(seeds: tuple[int, ...] = SEEDS, threads: int = 0) -> None:
    """Record the trainings.

    Args:
        seeds: of the trainings.
        threads: train the first seed alone with so many, and print its numbers.
    """
    if threads:
        one(seeds[0], threads)
        return
    text = json.dumps(every(seeds), indent=1)
    RECORDED.mkdir(exist_ok=True)
    (RECORDED / "digits.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
