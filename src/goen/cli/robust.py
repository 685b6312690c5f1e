"""``goen robust``: corruption by severity."""

from functools import partial
from typing import Annotated

import tyro

from goen.cli.study import Place, carry_out
from goen.studies import RobustConfig, robust


def robust_command(
    config: Annotated[RobustConfig, tyro.conf.arg(name="")] = RobustConfig(),  # noqa: B008
    place: Annotated[Place, tyro.conf.arg(name="")] = Place(),  # noqa: B008
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Measure chosen methods on test images under fifteen corruptions at five severities.

    Accuracy, ECE, NLL, Brier score, mean score and the share flagged at the false-alarm rate. The
    networks are those of goen bench and are not trained again.

    For example: goen robust                                         (digits, a minute)
                 goen robust --methods max_softmax deep_ensemble goen --corruptions fog frost snow
                 goen robust --data cifar10 --images 2000

    Args:
        config: which methods, corruptions and severities.
        place: on which images, and where.
        json_: print the results as JSON lines instead of tables.
    """
    return carry_out(place, "robust", partial(robust, config), as_json=json_)
