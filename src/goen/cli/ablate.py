"""``goen ablate``: an ablation of GOEN."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import tyro

from goen.cli.options.study import TableOptions, print_study
from goen.cli.options.types import SomeNames
from goen.studies import AblateConfig, ablate


@dataclass(frozen=True)
class VariantOptions(AblateConfig):
    """``AblateConfig`` as ``--help`` shows it."""

    variants: SomeNames = ()


def ablate_command(
    config: Annotated[VariantOptions, tyro.conf.arg(name="")] = VariantOptions(),  # noqa: B008
    options: Annotated[TableOptions, tyro.conf.arg(name="")] = TableOptions(),  # noqa: B008
) -> int:
    """Train variants of GOEN and compare them: the ablation of the paper's Table 2, extended.

    The paper's variants are default (with center loss), no_center_loss, single_scale and no_svhn.
    Its last two keep the center loss; here each is also run without it, as is a variant that
    concatenates the scales. On digits, the no_svhn variants are calibrated on noise alone.

    For example: goen ablate                                         (digits, about two minutes)
                 goen ablate --variants no_center_loss single_scale_no_center_loss
                 goen ablate --data cifar10                          (hours on two cores)

    Args:
        config: variants and training.
        options: datasets and folders.
    """
    return print_study(options, "ablate", partial(ablate, config))
