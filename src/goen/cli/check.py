"""``goen check``: a gate's published numbers, measured again here."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

import tyro

from goen.cli.model import open_gate
from goen.cli.options import OptionalFunction, OptionalPath
from goen.cli.print_table import print_table
from goen.cli.terminal import note
from goen.data.protocol import EXTRA_SETS, protocol
from goen.gate import DEFAULT_GATE, gate_folder
from goen.gate.published import Compared, compare, measure_gate, read_published
from goen.report.table import Cell, Row, Table

_METRICS = {"auroc": "AUROC", "fpr95_ood_positive": "FPR95"}


def check_command(
    gate: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="[GATE]")] = DEFAULT_GATE,
    data_dir: OptionalPath = None,
    model: OptionalFunction = None,
    preprocess: OptionalFunction = None,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Measure a gate for CIFAR-10 on the images that are here, and compare with what was published.

    Sets that are not here are fetched where they may be; what cannot be had is said and left out.
    Exit code 0 if every number that could be compared agrees, 1 if one differs, 2 if none could be
    compared.

    For example: goen check                            (the gate in the box)
                 goen check cifar10-w16 --data-dir ~/data

    Args:
        gate: the name of a gate that comes with goen, or a folder with a published.json in it.
        data_dir: a folder that holds image sets (else GOEN_DATA).
        model: module:function that returns the model, for a gate of goen fit.
        preprocess: module:function, if the gate was fitted with one.
        json_: print the comparison as JSON lines instead of a table.
    """
    judge = open_gate(gate, model, preprocess)
    published = read_published(gate_folder(gate))
    wanted = {row.dataset for row in published}
    extra = tuple(name for name in EXTRA_SETS if name in wanted)
    sets = protocol("cifar10", data_dir=data_dir, download=True, extra=extra)
    count = len(sets.test) + sum(len(ood.images) for ood in sets.evaluation.values())
    note(f"measuring {gate} on {1 + len(sets.evaluation)} sets, {count:,} images")
    rows = compare(published, measure_gate(judge, sets))
    code, sentence = conclusion(rows)
    if json_:
        for row in rows:
            sys.stdout.write(json.dumps(asdict(row), ensure_ascii=False) + "\n")
        note(sentence)
    else:
        print_table(table(gate, rows))
        print(sentence)
    return code


def table(gate: str, rows: Sequence[Compared]) -> Table:
    """The comparison, set by set."""
    return Table(
        "check",
        f"{gate}: as published, and measured here",
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
            "AUROC: test images against the set. FPR95: share of test images flagged where 95 % "
            "of the set are. flagged: share at the gate's false-alarm rate.",
        ),
    )


def _number(value: float | None, form: str = ".4f") -> Cell:
    return Cell(text="-") if value is None else Cell(value, form)


def conclusion(rows: Sequence[Compared]) -> tuple[int, str]:
    """The exit code, and one sentence for people."""
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
