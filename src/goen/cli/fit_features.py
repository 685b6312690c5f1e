"""``goen fit --features``: a gate for features in files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from goen.cli.terminal import note
from goen.data.feature_files import FeatureFile, read_features
from goen.errors import UsageError
from goen.escaping import visible
from goen.files import whole_file
from goen.gate import Gate
from goen.gate.summary import fit_summary


def fit_features(
    features: Path,
    held_out: str,
    ood: Mapping[str, str],
    out: Path,
    *,
    false_alarm_rate: float,
    classes: Sequence[str],
) -> None:
    """Fit a gate to the features of a file, save it, and print its summary."""
    train, holding = read_features(features), read_features(Path(held_out))
    names = class_names_in(train, classes)
    unlike = {kind: dict(read_features(Path(file)).arrays) for kind, file in ood.items()}
    gate = Gate.fit_outputs(
        train.arrays,
        class_numbers(train, names, features),
        holding.arrays,
        held_out_labels=class_numbers(holding, names, Path(held_out)),
        ood=unlike or None,
        false_alarm_rate=false_alarm_rate,
        classes=names or None,
    )
    gate.save(out)
    page = fit_summary(gate, {})
    with whole_file(out / "report.txt") as temporary:
        temporary.write_text(page + "\n", encoding="utf-8")
    print(visible(page))
    if gate.classes == ("known",):
        note("no labels and no logits: this gate is a novelty detector, with one class")
    note(f"gate: {out}   next: goen score FEATURES --gate {out}")


def class_names_in(train: FeatureFile, given: Sequence[str]) -> tuple[str, ...]:
    """The names given, or those that the labels are, in alphabetical order."""
    if given or train.labels is None or train.labels.dtype.kind not in "US":
        return tuple(given)
    return tuple(map(str, np.unique(train.labels.astype(str))))


def class_numbers(rows: FeatureFile, names: Sequence[str], file: Path) -> NDArray[Any] | None:
    """Labels as class numbers."""
    if rows.labels is None or rows.labels.dtype.kind not in "US":
        return rows.labels
    places = {name: number for number, name in enumerate(names)}
    texts = rows.labels.astype(str)
    unknown = sorted({text for text in texts if text not in places})
    if unknown:
        raise UsageError(
            f"{file} has labels that are no class: {', '.join(unknown[:5])}. The classes are "
            f"{', '.join([*names][:10]) or 'numbers'}."
        )
    return np.array([places[text] for text in texts], np.int64)
