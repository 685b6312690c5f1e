"""``goen robust``: methods on corrupted images."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import tyro

from goen.cli.options.study import TableOptions, print_study
from goen.cli.options.types import OptionalPath, SomeNames
from goen.data.transforms.corruptions import SEVERITIES
from goen.studies import RobustConfig, robust


@dataclass(frozen=True)
class RobustOptions(RobustConfig):
    """``RobustConfig`` as ``--help`` shows it."""

    methods: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = RobustConfig.methods
    corruptions: SomeNames = ()
    severities: Annotated[tuple[int, ...], tyro.conf.arg(metavar="INT ...")] = SEVERITIES
    cifar10c: OptionalPath = None


def robust_command(
    config: Annotated[RobustOptions, tyro.conf.arg(name="")] = RobustOptions(),  # noqa: B008
    options: Annotated[TableOptions, tyro.conf.arg(name="")] = TableOptions(),  # noqa: B008
) -> int:
    """Evaluate methods on test images under fifteen corruptions at five severities.

    Reports accuracy, ECE, NLL, Brier score, mean OOD score and the share flagged at the false-alarm
    rate. The networks of goen bench are reused.

    For example: goen robust                                         (digits, about a minute)
                 goen robust --methods max_softmax deep_ensemble goen --corruptions fog frost snow
                 goen robust --data cifar10 --images 2000

    Args:
        config: methods, corruptions and severities.
        options: datasets and folders.
    """
    return print_study(options, "robust", partial(robust, config))
