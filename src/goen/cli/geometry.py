"""``goen geometry``: the shape of the features."""

from functools import partial
from typing import Annotated

import tyro

from goen.cli.study import Place, carry_out
from goen.studies import AblateConfig, geometry


def geometry_command(
    config: Annotated[AblateConfig, tyro.conf.arg(name="")] = AblateConfig(),  # noqa: B008
    place: Annotated[Place, tyro.conf.arg(name="")] = Place(),  # noqa: B008
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Measure the features of GOEN's variants: does CenterLoss compress, and what does it cost?

    Distance between classes over spread within, the first principal component's share, condition
    numbers with and without normalisation, neural collapse; on training and test images, and by
    epoch. The networks are those of goen ablate and are not trained again.

    For example: goen geometry
                 goen geometry --variants default no_center_loss

    Args:
        config: which variants.
        place: on which images, and where.
        json_: print the results as JSON lines instead of tables.
    """
    return carry_out(place, "geometry", partial(geometry, config), as_json=json_)
