"""``goen robust``: methods on corrupted images."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro

from goen.cli.options.model import GateOptions
from goen.cli.options.own_data import OwnDataOptions, open_given
from goen.cli.options.own_model import NetworkOptions
from goen.cli.options.study import TableOptions, print_report, print_study
from goen.cli.options.types import OptionalName, OptionalPath, SomeNames
from goen.data.sets.folders import open_part
from goen.data.transforms.corruptions import SEVERITIES
from goen.errors import UsageError
from goen.io.files import check_free
from goen.io.stages import RUN
from goen.models.placement import find_device
from goen.studies import RobustConfig, robust
from goen.studies.robust import robust_gate, robust_given

# Those of RobustConfig that are detectors of any network.
_DETECTORS = ("max_softmax", "temperature_scaling", "knn", "goen_m")


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
    own: Annotated[OwnDataOptions, tyro.conf.arg(name="")] = OwnDataOptions(),  # noqa: B008
    reading: Annotated[NetworkOptions, tyro.conf.arg(name="")] = NetworkOptions(),  # noqa: B008
    gate: OptionalName = None,
) -> int:
    """Evaluate methods on test images under fifteen corruptions at five severities.

    Reports accuracy, ECE, NLL, Brier score, mean OOD score and the share flagged at the false-alarm
    rate: of networks that goen trains, those of goen bench; with --model of detectors on your
    model; with --gate of a gate, at its own threshold.

    For example: goen robust                                         (digits, about a minute)
                 goen robust --methods max_softmax deep_ensemble goen --corruptions fog frost snow
                 goen robust --data cifar10 --images 2000
                 goen robust --gate my-gate --model my_nets:resnet20 --test photos/test
                 goen robust --model my_nets:resnet20 --data photos --methods knn energy

    Args:
        config: methods, corruptions and severities.
        options: datasets and folders.
        own: a model of your own and its data.
        reading: how the model takes its inputs.
        gate: the folder of a gate, with --test, labelled ID images that it was not fitted with, and
            --model where the gate needs one.
    """
    if gate is None and not own.given:
        return print_study(options, "robust", partial(robust, config))
    own.require_no_training(config, RobustConfig())
    if gate is None:
        folder = own.run_folder(options, "robust")
        check_free(folder, RUN, overwrite=True)
        network, data = open_given(options, own, reading, config.device)
        if config.methods == RobustConfig.methods:
            config = replace(config, methods=_DETECTORS)
        robust_given(config, network, data, folder, options.shared_stages(folder))
    else:
        if own.test is None:
            raise UsageError("--gate goes with --test, ID images that it was not fitted with.")
        folder = options.out or Path("runs") / f"{Path(gate).name}-robust"
        check_free(folder, RUN, overwrite=True)
        opened = GateOptions(own.model, reading.preprocess).open(gate)
        opened.network.to(find_device(config.device))
        test = open_part(own.test, opened.image_size, opened.classes, opened.pixel_format)
        robust_gate(config, opened, test, folder, batch_size=reading.batch_size)
    from goen.report.page import write_page  # Matplotlib, not before there is a result

    return print_report(write_page(folder), as_json=options.json_)
