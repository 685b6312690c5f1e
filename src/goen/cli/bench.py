"""``goen bench``: compare OOD detection methods."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import tyro

from goen.cli.options.study import TableOptions, print_study
from goen.cli.options.types import SomeNames
from goen.studies import BenchConfig, bench


@dataclass(frozen=True)
class BenchOptions(BenchConfig):
    """``BenchConfig`` as ``--help`` shows it."""

    methods: SomeNames = ()
    sets: SomeNames = ()


def bench_command(
    config: Annotated[BenchOptions, tyro.conf.arg(name="")] = BenchOptions(),  # noqa: B008  (frozen)
    options: Annotated[TableOptions, tyro.conf.arg(name="")] = TableOptions(),  # noqa: B008
) -> int:
    """Compare OOD detection methods: train the networks, score all datasets, print the tables.

    Each network computes its outputs for each dataset once, for all methods. Finished steps are
    cached: the same command again takes seconds. The folder of the run holds the tables as
    Markdown, LaTeX and CSV, and results.jsonl with every number and its provenance.

    For example: goen bench                                          (digits, a few minutes)
                 goen bench --methods max_softmax energy knn goen
                 goen bench --data cifar10 --budget paper            (hours on two cores)
                 goen bench --methods knn pytorch_ood.KNN            (needs goen[bridge])

    Args:
        config: methods, datasets and training.
        options: datasets and folders.
    """
    return print_study(options, "bench", partial(bench, config))
