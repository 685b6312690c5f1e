"""``goen seeds``: one configuration over several seeds."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import tyro

from goen.cli.options.study import TableOptions, print_study
from goen.studies import SEEDS, RunConfig
from goen.studies.seeds import seeds as run_seeds


@dataclass(frozen=True)
class RepeatedRunOptions(RunConfig):
    """``RunConfig`` without ``--seed``."""

    seed: tyro.conf.Suppress[int] = RunConfig.seed


def seeds_command(
    config: Annotated[RepeatedRunOptions, tyro.conf.arg(name="")] = RepeatedRunOptions(),  # noqa: B008
    options: Annotated[TableOptions, tyro.conf.arg(name="")] = TableOptions(),  # noqa: B008
    seeds: Annotated[
        tuple[int, ...], tyro.conf.arg(aliases=("--seed",), metavar="INT ...")
    ] = SEEDS,
) -> int:
    """Repeat goen run with several seeds: mean, standard deviation, range, and each seed.

    Images and splits stay the same; only training and calibration depend on the seed.

    For example: goen seeds                                          (digits, five seeds)
                 goen seeds --seeds 1 2 3 --center-loss 0.01
                 goen seeds --data cifar10 --calibration-ood none    (hours on two cores)

    Args:
        config: as for goen run.
        options: datasets and folders.
        seeds: random seeds of training and calibration, at least two; --seed is the same option.
    """
    return print_study(options, "seeds", partial(run_seeds, config, seeds=seeds))
