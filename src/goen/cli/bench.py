"""``goen bench``: compare OOD detection methods."""

import shlex
from dataclasses import dataclass, fields
from functools import partial
from typing import Annotated

import tyro

from goen.cli.options.openood import OpenOodOptions
from goen.cli.options.own_data import OwnDataOptions, open_given
from goen.cli.options.own_model import NetworkOptions
from goen.cli.options.study import TableOptions, print_report, print_study
from goen.cli.options.types import SomeNames
from goen.errors import UsageError
from goen.io.files import check_free
from goen.io.stages import RUN
from goen.studies import BenchConfig, bench
from goen.studies.bench import of_sets
from goen.studies.own import compare_given


@dataclass(frozen=True)
class BenchOptions(BenchConfig):
    """``BenchConfig`` as ``--help`` shows it."""

    methods: SomeNames = ()
    sets: SomeNames = ()


def bench_command(
    config: Annotated[BenchOptions, tyro.conf.arg(name="")] = BenchOptions(),  # noqa: B008  (frozen)
    options: Annotated[TableOptions, tyro.conf.arg(name="")] = TableOptions(),  # noqa: B008
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
    if openood.openood is not None:
        own.require_no_training(config, BenchConfig())
        if own.features is not None or any(own.sets.values()):
            raise UsageError("--openood has its own images: leave out --train and the other sets.")
        return openood.bench(
            config.methods, config.sets, options, own.model, reading, config.device
        )
    if not own.given:
        if any(own.sets.values()):
            raise UsageError(
                "--train, --held-out and --test are sets of a model of your own: give --model as "
                "well; or --data, a folder of images, for networks that goen trains."
            )
        return print_study(options, "bench", partial(bench, config))
    own.require_no_training(config, BenchConfig())
    folder = own.run_folder(options, "bench")
    check_free(folder, RUN, overwrite=True)
    network, data = open_given(options, own, reading, config.device)
    data = of_sets(data, config.sets)
    compare_given(
        network,
        data,
        config.methods,
        folder,
        options.shared_stages(folder),
        command=_fit_command(own, reading, options.size),
        batch_size=reading.batch_size,
    )
    from goen.report.page import write_page  # Matplotlib, not before there is a result

    return print_report(write_page(folder), as_json=options.json_)


def _fit_command(own: OwnDataOptions, options: NetworkOptions, size: int) -> str:
    """The command that fits a gate for the same model and images, without its detector."""
    given: dict[str, object] = {
        "model": own.model,
        "train": own.train or (None if own.features else "TRAIN"),
        "features": own.features,
        "held-out": own.held_out or "HELD_OUT",
        "size": size or None,
    }
    given |= {
        field.name.replace("_", "-"): getattr(options, field.name)
        for field in fields(NetworkOptions)
        if getattr(options, field.name) != field.default
    }
    words = ["goen", "fit"]
    for name, value in given.items():
        if value is not None:
            words += [f"--{name}", *map(str, value if isinstance(value, tuple) else (value,))]
    return shlex.join([*words, "--out", "gate"])
