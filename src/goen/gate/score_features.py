"""Score files of features with a gate that was fitted on features, one row per row."""

from collections.abc import Callable, Sequence
from pathlib import Path

from goen.data.feature_files import read_features
from goen.errors import DataError, UsageError
from goen.files import printable_path
from goen.gate.gate import Gate
from goen.gate.score_files import FileCounts, ScoredFile, prediction_rows, score_columns
from goen.progress import bar

_BATCH_SIZE = 4096


def score_feature_files(
    gate: Gate, files: Sequence[Path], write: Callable[[ScoredFile], None]
) -> FileCounts:
    """Score each row of each file and pass it to ``write``: its path is ``FILE#NUMBER``, from 0.

    A file that cannot be read, or holds other features, is one row with its error.
    """
    scored = flagged = unread = 0
    with bar() as progress:
        task = progress.add_task("scoring", total=None, status="rows")
        for file in files:
            number = 0
            try:
                content = read_features(file)
                for start in range(0, len(content), _BATCH_SIZE):
                    rows = slice(start, start + _BATCH_SIZE)
                    part = {name: array[rows] for name, array in content.arrays.items()}
                    for row in prediction_rows(gate.predict_outputs(part)):
                        path = f"{printable_path(file)}#{number}"
                        write(ScoredFile(file, {"path": path, **row, "error": None}))
                        number += 1
                        flagged += bool(row["is_ood"])
                    progress.advance(task, _BATCH_SIZE)
            except (DataError, UsageError) as error:
                row = dict.fromkeys(score_columns(gate))
                write(ScoredFile(file, {"path": printable_path(file), **row, "error": str(error)}))
                unread += 1
            scored += number
    return FileCounts(scored, flagged, unread)
