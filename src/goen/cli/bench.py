"""``goen bench``: compare OOD detection methods."""

import shlex
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated

import tyro

from goen.cli.options.openood import OpenOodOptions
from goen.cli.options.own_data import OwnDataOptions, open_given
from goen.cli.options.own_model import NetworkOptions
from goen.cli.options.study import StudyOptions, TableOptions, print_report, print_study
from goen.cli.options.types import SomeNames, several
from goen.data.protocols.opening import LARGEST_SIDE, PRETRAINED_SIDE
from goen.data.transforms.covariate_shift import full_spectrum
from goen.errors import UsageError
from goen.io.files import check_free
from goen.io.stages import RUN
from goen.studies import BenchConfig, bench
from goen.studies.bench import of_sets
from goen.studies.given_network_bench import compare_given


@dataclass(frozen=True)
class BenchOptions(BenchConfig):
    """``BenchConfig`` as ``--help`` shows it."""

    methods: SomeNames = ()
    sets: SomeNames = ()
    tune: tyro.conf.Suppress[bool] = False


@dataclass(frozen=True)
class BenchTableOptions(TableOptions):
    """``TableOptions`` with the images that choose parameters.

    Attributes:
        tune_on: OOD datasets that choose the parameters of methods such as knn, react or vim, as
            the OpenOOD board does: each such method has a second row (knn_tuned). They may not be
            among those that are evaluated on. In place of --calibration-ood.
    """

    tune_on: Annotated[tuple[str, ...], several("DATASET")] = ()


def bench_command(
    config: Annotated[BenchOptions, tyro.conf.arg(name="")] = BenchOptions(),  # noqa: B008  (frozen)
    options: Annotated[BenchTableOptions, tyro.conf.arg(name="")] = BenchTableOptions(),  # noqa: B008
    own: Annotated[OwnDataOptions, tyro.conf.arg(name="")] = OwnDataOptions(),  # noqa: B008
    reading: Annotated[NetworkOptions, tyro.conf.arg(name="")] = NetworkOptions(),  # noqa: B008
    openood: Annotated[OpenOodOptions, tyro.conf.arg(name="")] = OpenOodOptions(),  # noqa: B008
) -> int:
    """Compare OOD detection methods, on your model and your data or on networks that goen trains.

    With --model every detector of goen scores the same outputs of your model: one pass over each
    dataset, no training. Without it goen trains the networks that the methods need. Finished steps
    are cached: the same command again takes seconds, and another into the same folder adds its
    methods. The folder of the run holds the tables as Markdown, LaTeX and CSV, and results.jsonl
    with every number and its provenance.

    For example: goen bench --model my_nets:resnet20 --weights resnet20.safetensors
                 --train photos/train --held-out photos/val --test photos/test
                 --ood photos/other textures --size 224
                 goen bench --model my_nets:resnet20 --data photos.toml
                 goen bench --features train.npz --held-out val.npz --test test.npz --ood ood.npz
                 goen bench                                          (digits, a few minutes)
                 goen bench --methods max_softmax energy knn goen
                 goen bench --data photos.toml --model my_nets:resnet20 --tune-on memes
                 goen bench --data photos.toml --model my_nets:resnet20 --full-spectrum
                 goen bench --data cifar10 --budget paper            (hours on two cores)
                 goen bench --methods knn pytorch_ood.KNN            (needs goen[bridge])
                 goen bench --openood OpenOOD/data --benchmark cifar10 --weights best.ckpt

    Args:
        config: methods, datasets and training.
        options: datasets and folders.
        own: a model of your own and its data.
        reading: how the model takes its inputs.
        openood: a benchmark of OpenOOD.
    """
    if options.tune_on:
        if options.calibration_ood:
            raise UsageError("Give --tune-on or --calibration-ood: they are the same images.")
        config = replace(config, tune=True)
        options = replace(options, calibration_ood=options.tune_on)
    if openood.openood is not None:
        if config.tune:
            raise UsageError(
                "--openood has its own images for tuning: name the methods with _tuned, such as "
                "--methods knn knn_tuned, in place of --tune-on."
            )
        own.require_no_training(config, BenchConfig())
        if own.features is not None or any(own.sets.values()):
            raise UsageError("--openood has its own images: leave out --train and the other sets.")
        return openood.bench(
            config.methods, config.sets, options, own.model, reading, config.device
        )
    if not own.given:
        if openood.full_spectrum:
            raise UsageError("--full-spectrum goes with --openood, or with a model of your own.")
        if any(own.sets.values()):
            raise UsageError(
                "--train, --held-out and --test are sets of a model of your own: give --model as "
                "well; or --data, a folder of images, for networks that goen trains."
            )
        largest = PRETRAINED_SIDE if config.may_be_pretrained else LARGEST_SIDE
        study = partial(bench, config, command=_run_command(options))
        return print_study(options, "bench", study, largest)
    own.require_no_training(config, BenchConfig())
    folder = own.run_folder(options, "bench")
    check_free(folder, RUN, overwrite=True)
    network, data = open_given(options, own, reading, config.device)
    data = of_sets(data, config.sets)
    data = full_spectrum(data) if openood.full_spectrum else data
    compare_given(
        network,
        data,
        config.methods,
        folder,
        options.shared_stages(folder),
        tune=config.tune,
        command=_fit_command(own, reading, options),
        batch_size=reading.batch_size,
    )
    from goen.report.page import write_page  # Matplotlib, not before there is a result

    return print_report(write_page(folder), as_json=options.json_)


def _run_command(options: StudyOptions) -> str:
    """The command that makes a gate of the same images, without its detector."""
    words = ["goen", "run", "--data", options.data]
    words += ["--ood", *options.ood] if options.ood else []
    words += ["--size", str(options.size)] if options.size else []
    return shlex.join([*words, *([] if options.flip else ["--no-flip"])])


def _fit_command(own: OwnDataOptions, reading: NetworkOptions, options: StudyOptions) -> str:
    """The command that fits a gate for the same model and images, without its detector."""
    given: dict[str, object] = {
        "model": own.model,
        "train": own.train,
        "features": own.features,
        "held-out": own.held_out,
        "data": None if any(own.sets.values()) else options.data,
        "size": options.size or None,
    }
    given |= {
        field.name.replace("_", "-"): getattr(reading, field.name)
        for field in fields(NetworkOptions)
        if getattr(reading, field.name) != field.default
    }
    words = ["goen", "fit"]
    for name, value in given.items():
        if value is not None:
            words += [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join([*words, "--out", "gate"])
