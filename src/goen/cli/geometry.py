"""``goen geometry``: the geometry of the features."""

from functools import partial
from typing import Annotated

import tyro

from goen.cli.ablate import VariantOptions
from goen.cli.options.study import TableOptions, print_study
from goen.studies import geometry


def geometry_command(
    config: Annotated[VariantOptions, tyro.conf.arg(name="")] = VariantOptions(),  # noqa: B008
    options: Annotated[TableOptions, tyro.conf.arg(name="")] = TableOptions(),  # noqa: B008
) -> int:
    """Measure the feature geometry of GOEN's variants, such as the effect of center loss.

    Ratio of the distances between classes to those within, share of the first principal component,
    condition numbers with and without normalisation, and neural collapse; on training and test
    images, and by epoch. The networks of goen ablate are reused.

    For example: goen geometry
                 goen geometry --variants no_center_loss

    Args:
        config: variants and training.
        options: datasets and folders.
    """
    return print_study(options, "geometry", partial(geometry, config))
