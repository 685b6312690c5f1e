"""``goen check``: reproduce the published numbers of a gate."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import tyro

from goen.cli.options.model import GateOptions
from goen.cli.options.types import AsJson, OptionalPath
from goen.cli.output.console import note
from goen.cli.output.table import print_table
from goen.data.protocol import EXTRA_SETS, protocol
from goen.gate import DEFAULT_GATE, gate_folder
from goen.report.table import Cell, Row, Table
from goen.studies.published import Compared, compare, measure_gate, read_published

_METRICS = {"auroc": "AUROC", "fpr95_ood_positive": "FPR95"}


def check_command(
    gate: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[GATE]")] = DEFAULT_GATE,
    data_dir: OptionalPath = None,
    options: Annotated[GateOptions, tyro.conf.arg(name="")] = GateOptions(),  # noqa: B008
    json_: AsJson = False,
) -> int:
    """Evaluate a gate for CIFAR-10 on this machine and compare with its published numbers.

    Missing datasets are downloaded where possible, otherwise skipped with a warning. Exit code 0 if
    every number that could be compared agrees, 1 if one differs, 2 if none could be compared.

    For example: goen check                            (the bundled gate)
                 goen check cifar10-w16 --data-dir ~/data        (the smaller one)

    Args:
        gate: the name of a bundled gate, or the folder of a gate with a published.json.
        data_dir: a folder of datasets (default: the environment variable GOEN_DATA).
        options: the gate's own model.
        json_: print the comparison as JSON lines instead of a table.
    """
    loaded = options.open(gate)
    published = read_published(gate_folder(gate))
    wanted = {row.dataset for row in published}
    extra = tuple(name for name in EXTRA_SETS if name in wanted)
    sets = protocol("cifar10", data_dir=data_dir, download=True, extra=extra)
    count = len(sets.test) + sum(len(ood.images) for ood in sets.evaluation.values())
    note(f"evaluating {gate} on {1 + len(sets.evaluation)} datasets, {count:,} images")
    rows = compare(published, measure_gate(loaded, sets))
    code, sentence = _conclusion(rows)
    if json_:
        for row in rows:
            sys.stdout.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
        note(sentence)
    else:
        print_table(_table(gate, rows))
        print(sentence)
    return code


def _table(gate: str, rows: Sequence[Compared]) -> Table:
    """The comparison, by dataset."""
    return Table(
        "check",
        f"{gate}: published and measured here",
        ("published", "here", "difference", "verdict"),
        tuple(
            Row(
                _METRICS.get(row.metric, row.metric),
                (
                    _number(row.published),
                    _number(row.here),
                    _number(row.difference, "+.4f"),
                    Cell(text=row.verdict),
                ),
                section=f"{row.dataset} ({row.images:,} images)",
            )
            for row in rows
        ),
        (
            "AUROC: test images against OOD images. FPR95: share of test images flagged when 95 % "
            "of the OOD images are. flagged: share flagged at the gate's false-alarm rate.",
        ),
    )


def _number(value: float | None, form: str = ".4f") -> Cell:
    return Cell(text="-") if value is None else Cell(value, form)


def _conclusion(rows: Sequence[Compared]) -> tuple[int, str]:
    """The exit code, and one sentence that explains it."""
    differing = [row for row in rows if row.verdict == "differs"]
    agreeing = [row for row in rows if row.verdict.startswith("agrees")]
    compared = len(differing) + len(agreeing)
    absent = dict.fromkeys(row.dataset for row in rows if row.verdict == "not here")
    left_out = f" Not here: {', '.join(absent)}." if absent else ""
    if not compared:
        return 2, f"Nothing could be compared.{left_out}"
    if differing:
        named = ", ".join(f"{r.dataset} {_METRICS.get(r.metric, r.metric)}" for r in differing)
        return 1, f"{len(differing)} of {compared} numbers differ: {named}.{left_out}"
    return 0, f"All {compared} numbers that could be compared agree.{left_out}"
