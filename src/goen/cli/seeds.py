"""``goen seeds``: one configuration over several seeds."""

from functools import partial
from typing import Annotated

import tyro

from goen.cli.study import Place, carry_out
from goen.studies import SEEDS, RunConfig
from goen.studies.seeds import seeds as run_seeds


def seeds_command(
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = RunConfig(),  # noqa: B008
    place: Annotated[Place, tyro.conf.arg(name="")] = Place(),  # noqa: B008
    seeds: tuple[int, ...] = SEEDS,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Run one configuration with several seeds: mean, standard deviation, range, every seed.

    Images and splits stay the same; only training and calibration change with the seed.

    For example: goen seeds                                          (digits, the paper's five)
                 goen seeds --seeds 1 2 3 --center-loss 0.01
                 goen seeds --data cifar10 --calibration-ood none      (hours on two cores)

    Args:
        config: the configuration; its own seed is not used.
        place: on which images, and where.
        seeds: at least two.
        json_: print the results as JSON lines instead of tables.
    """
    return carry_out(place, "seeds", partial(run_seeds, config, seeds=seeds), as_json=json_)
