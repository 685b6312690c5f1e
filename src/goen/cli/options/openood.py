"""``goen bench --openood``: the benchmarks of OpenOOD with its own checkpoints."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import tyro

from goen.cli.options.own_model import NetworkOptions, ReadingOptions
from goen.cli.options.study import TableOptions, print_report
from goen.cli.options.types import OptionalPath
from goen.cli.output.console import note
from goen.cli.output.table import print_table
from goen.data.protocol import Protocol
from goen.data.protocols.openood import find_benchmark
from goen.errors import UsageError
from goen.features.loaded_model import LoadedModel
from goen.features.openood import load_openood_checkpoint
from goen.features.preprocess import Preprocess
from goen.io.files import check_free, whole_file
from goen.io.results import Result
from goen.io.stages import RUN
from goen.models.placement import find_device
from goen.studies.given_network import ModelSettings, open_network
from goen.studies.given_network_bench import compare_given

_CHECKPOINTS = "s*/best.ckpt"
# Of the protocol; the benchmark says what they are.
_NOT_HERE = ("data", "ood", "size", "extra", "calibration_ood")


@dataclass(frozen=True)
class OpenOodOptions:
    """A benchmark of OpenOOD, in place of --data.

    Attributes:
        openood: the data folder of OpenOOD, with benchmark_imglist, images_classic and
            images_largescale. --weights is then one of its checkpoints for CIFAR (best.ckpt), or
            the folder of its three runs (s0/best.ckpt, ...); for other networks give --model too.
        benchmark: of OpenOOD: cifar10, cifar100, imagenet200 or imagenet.
        full_spectrum: count images under a covariate shift as ID test images: those of OpenOOD's
            lists, or with --model half of the test images, which goen corrupts.
    """

    openood: OptionalPath = None
    benchmark: Annotated[str, tyro.conf.arg(metavar="NAME")] = "cifar10"
    full_spectrum: bool = False

    def bench(
        self,
        methods: tuple[str, ...],
        sets: tuple[str, ...],
        options: TableOptions,
        model: str | None,
        reading: NetworkOptions,
        device: str,
    ) -> int:
        """Compare detectors on each checkpoint, and write OpenOOD's rows to ``openood.csv``."""
        from goen.report.openood_board import openood_table  # Matplotlib
        from goen.report.openood_csv import openood_csv, openood_rows
        from goen.report.page import write_page

        if any(getattr(options, name) != getattr(TableOptions, name) for name in _NOT_HERE):
            given = ", ".join(f"--{name.replace('_', '-')}" for name in _NOT_HERE)
            raise UsageError(f"--openood has its own images: leave out {given}.")
        assert self.openood is not None, "the command asks first"
        runs = _checkpoints(reading.weights)
        protocol = Protocol.from_openood(
            self.openood, self.benchmark, full_spectrum=self.full_spectrum, sets=sets
        )
        folder = options.out or Path("runs") / f"{protocol.name}-bench"
        rows: dict[str, list[dict[str, dict[str, float]]]] = {}
        titles: dict[str, str] = {}
        seen: set[str] = set()
        for name, checkpoint in runs.items():
            place = folder / name if len(runs) > 1 else folder
            check_free(place, RUN, overwrite=True)
            loaded, settings = self._load(checkpoint, model, reading, device)
            note(f"checkpoint: {checkpoint}")
            network = open_network(loaded, protocol, settings)
            stages = options.shared_stages(folder)
            found = compare_given(
                network, protocol, methods, place, stages, batch_size=reading.batch_size
            )
            report = write_page(place)
            if options.json_:
                print_report(report, as_json=True)
            for method, (title, _) in found.titles.items():
                measured = openood_rows(found.results, method, self.benchmark, sets)
                rows.setdefault(method, []).append(measured)
                titles[method] = title
                seen |= {method} if any(_is_seen(r, method) for r in found.results) else set()
        with whole_file(folder / "openood.csv", overwrite=True) as temporary:
            temporary.write_text(openood_csv(rows), encoding="utf-8")
        if not options.json_:
            shown = openood_table(
                rows, titles, self.benchmark, seen, full_spectrum=self.full_spectrum
            )
            print_table(shown)
        pages = ", ".join(str(folder / name / "report.html") for name in runs)
        note(f"a report of each run: {pages}" if len(runs) > 1 else f"report: {pages}")
        note(f"rows as OpenOOD writes them: {folder / 'openood.csv'}")
        return 0

    def _load(
        self, checkpoint: Path, model: str | None, reading: NetworkOptions, device: str
    ) -> tuple[LoadedModel, ModelSettings]:
        """The network of a checkpoint, and how it is read."""
        if model is None:
            network = load_openood_checkpoint(checkpoint, self.benchmark).to(find_device(device))
            return LoadedModel(network, str(checkpoint)), {}
        settings = {field.name: getattr(reading, field.name) for field in fields(reading)}
        own = ReadingOptions(**(settings | {"weights": checkpoint})).load_on(device, model)
        benchmark = find_benchmark(self.benchmark)
        extraction = own.extraction(images=True)
        # The images are resized and cropped already.
        normalise = Preprocess(reading.mean or benchmark.mean, reading.std or benchmark.std)
        return own.loaded, {
            "layers": extraction["layers"],
            "logits": extraction["logits"],
            "preprocess": own.function or normalise,
            "tokens": extraction["tokens"],
            "layout": extraction["layout"],
        }


def _is_seen(result: Result, method: str) -> bool:
    return result.method == method and result.seen_in_calibration


def _checkpoints(weights: Path | None) -> dict[str, Path]:
    """The checkpoint of each run by the name of its folder."""
    if weights is None:
        raise UsageError(
            "--openood needs --weights: a checkpoint, or the folder with those of three runs "
            f"({_CHECKPOINTS})."
        )
    return dict(_found(weights))


def _found(weights: Path) -> Iterator[tuple[str, Path]]:
    if not weights.is_dir():
        yield "", weights
        return
    found = sorted(weights.glob(_CHECKPOINTS))
    if not found:
        raise UsageError(f"{weights} has no checkpoints {_CHECKPOINTS}.")
    for file in found:
        yield file.parent.name, file
