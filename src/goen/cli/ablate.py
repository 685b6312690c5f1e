"""``goen ablate``: which part of GOEN does what."""

from functools import partial
from typing import Annotated

import tyro

from goen.cli.study import Place, carry_out
from goen.studies import AblateConfig, ablate


def ablate_command(
    config: Annotated[AblateConfig, tyro.conf.arg(name="")] = AblateConfig(),  # noqa: B008
    place: Annotated[Place, tyro.conf.arg(name="")] = Place(),  # noqa: B008
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Train GOEN's variants and compare them: Table 2 of the paper, untangled.

    The paper's four are default (with CenterLoss), no_center_loss, single_scale and no_svhn. Its
    last two keep CenterLoss; each is run without it as well, and so is the concatenation of the
    paper's figure. On digits, noise alone calibrates the no_svhn variants.

    For example: goen ablate                                         (digits, two minutes)
                 goen ablate --variants no_center_loss single_scale_no_center_loss
                 goen ablate --data cifar10                          (hours on two cores)

    Args:
        config: which variants.
        place: on which images, and where.
        json_: print the results as JSON lines instead of tables.
    """
    return carry_out(place, "ablate", partial(ablate, config), as_json=json_)
