"""Keep a finished study's numbers: python recipes/keep.py RUN NAME

Copies results.jsonl and run.json (versions, hardware, configuration) to results/cifar10/NAME.jsonl
and NAME.json. The scores of single images stay in the run's folder.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import tyro
from sets import EXTRA

from goen.data import protocol
from goen.io.stages import Stages
from goen.studies import BenchConfig, Method, bench

RESULTS = Path(__file__).parents[1] / "results" / "cifar10"


def keep(run: tyro.conf.Positional[Path], name: tyro.conf.Positional[str]) -> None:
    """Copy.

    Args:
        run: the study's folder.
        name: of the copy.
    """
    RESULTS.mkdir(parents=True, exist_ok=True)
    for source, end in (("results.jsonl", "jsonl"), ("run.json", "json")):
        text = (run / source).read_text(encoding="utf-8")
        for line in text.splitlines() if end == "jsonl" else [text]:
            json.loads(line)  # an error here if it is damaged
        (RESULTS / f"{name}.{end}").write_text(text, encoding="utf-8")


def bench_and_keep(
    name: str,
    config: BenchConfig,
    extra_methods: Sequence[Method],
    data_dir: Path | None,
    runs: Path,
) -> None:
    """Run a benchmark on every set, on one thread, print its main numbers and keep them."""
    torch.set_num_threads(1)  # as recipes/bench.sh: the number is part of the network's key
    p = protocol("cifar10", data_dir=data_dir, download=True, extra=EXTRA)
    out = runs / f"cifar10-{name}"
    for r in bench(config, p, out, Stages(runs / "stages"), extra_methods=extra_methods):
        if r.metric in ("auroc", "accuracy"):
            print(f"{r.method:28} {r.dataset:15} {r.metric:10} {r.value:.4f}")
    keep(out, name)


if __name__ == "__main__":
    tyro.cli(keep)
