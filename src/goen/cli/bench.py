"""``goen bench``: every method, one table."""

from functools import partial
from typing import Annotated

import tyro

from goen.cli.study import Place, carry_out
from goen.studies import BenchConfig, bench


def bench_command(
    config: Annotated[BenchConfig, tyro.conf.arg(name="")] = BenchConfig(),  # noqa: B008  (frozen)
    place: Annotated[Place, tyro.conf.arg(name="")] = Place(),  # noqa: B008
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Train every network, score every set with every method, and print the tables.

    Each network passes over each set once, whatever the number of methods. The same command again
    trains nothing and takes seconds. The tables lie in the run's folder as Markdown, LaTeX and
    CSV; every number, with its origin, is a line of results.jsonl.

    For example: goen bench                                          (digits, a few minutes)
                 goen bench --methods max_softmax energy knn goen
                 goen bench --data cifar10 --budget paper          (hours on two cores)
                 goen bench --methods knn pytorch_ood.KNN            (needs goen[bridge])

    Args:
        config: what to compare.
        place: on which images, and where.
        json_: print the results as JSON lines instead of tables.
    """
    return carry_out(place, "bench", partial(bench, config), as_json=json_)
