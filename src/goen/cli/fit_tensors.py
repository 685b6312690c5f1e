"""``goen fit --model`` with inputs in files: tokens, sound, anything that a model takes."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from goen.cli.fit_features import class_names_in, class_numbers
from goen.cli.terminal import note
from goen.data.array_files import is_array_file, read_array_header
from goen.data.feature_files import SUFFIXES, read_tensor_file
from goen.errors import DataCorrupt, UsageError
from goen.escaping import visible
from goen.files import whole_file
from goen.gate import Gate
from goen.gate.summary import fit_summary

# What a file with several arrays calls a stack of images.
_IMAGES = "images"


def is_tensor_file(name: str) -> bool:
    """Whether a dataset is a file of a model's inputs, and no stack of images, folder or set."""
    file = Path(name)
    if file.suffix not in SUFFIXES or not file.is_file():
        return False
    if not is_array_file(file):
        return True
    try:
        return not read_array_header(file, name, sys.maxsize).is_stack
    except DataCorrupt:  # several arrays, or one that cannot be images, or a damaged file
        return _holds_other_arrays(file)


def _holds_other_arrays(file: Path) -> bool:
    try:
        return _IMAGES not in read_tensor_file(file).arrays
    except DataCorrupt:
        return False


def fit_tensors(
    fit: Callable[..., Gate],
    train: str,
    held_out: str,
    ood: Mapping[str, str],
    out: Path,
    classes: Sequence[str],
    model: str,
) -> None:
    """Fit a gate to inputs in files, save it, and print its summary.

    Args:
        fit: ``Gate.fit`` with the model and its settings.
        train: a file of the model's inputs by name, with labels.
        held_out: such a file of held-out inputs.
        ood: such files by the names of their kinds.
        out: the folder of the gate.
        classes: their names, if they are known.
        model: its name, for the next command.
    """
    training, holding = read_tensor_file(Path(train)), read_tensor_file(Path(held_out))
    names = class_names_in(training, classes)
    labels = class_numbers(training, names, Path(train))
    if labels is None:
        raise UsageError(f"{train} has no labels: add an array labels, of class numbers or names.")
    held_out_labels = class_numbers(holding, names, Path(held_out))
    held = holding.inputs()
    gate = fit(
        (training.inputs(), labels),
        held if held_out_labels is None else (held, held_out_labels),
        ood={kind: read_tensor_file(Path(file)).inputs() for kind, file in ood.items()} or None,
        classes=names or None,
    )
    gate = replace(gate, facts={**gate.facts, "factory": model})
    gate.save(out)
    page = fit_summary(gate, {})
    with whole_file(out / "report.txt") as temporary:
        temporary.write_text(page + "\n", encoding="utf-8")
    print(visible(page))
    note(f"gate: {out}   next: goen score FILE --gate {out} --model {model}")
