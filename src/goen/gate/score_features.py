"""Score files of features, or of other inputs that are no pictures, one row per row."""

from collections.abc import Callable, Sequence
from pathlib import Path

from goen.data.feature_files import FeatureFile, read_features, read_tensor_file
from goen.data.inputs import check_batch_size
from goen.data.kinds import ImageInputs
from goen.errors import DataError, UsageError
from goen.files import printable_path
from goen.gate.gate import Gate
from goen.gate.prediction import Prediction
from goen.gate.score_files import FileCounts, ScoredFile, prediction_rows, unreadable
from goen.models.precomputed import Precomputed
from goen.progress import bar

_BATCH_SIZE = 4096


def takes_rows(gate: Gate) -> bool:
    """Whether the gate takes features or other tensors, which are rows of files, and no images."""
    return not isinstance(gate.inputs, ImageInputs)


def score_feature_files(
    gate: Gate,
    files: Sequence[Path],
    write: Callable[[ScoredFile], None],
    *,
    batch_size: int = _BATCH_SIZE,
) -> FileCounts:
    """Score each row of each file and pass it to ``write``: its path is ``FILE#NUMBER``, from 0.

    A gate with a model takes the model's inputs by name, another one features.

    A file that cannot be read, or holds other features, is one row with its error.
    """
    check_batch_size(batch_size)
    of_features = isinstance(gate.network, Precomputed)
    read = read_features if of_features else read_tensor_file
    scored = flagged = unread = 0
    with bar() as progress:
        task = progress.add_task("scoring", total=None, status="rows")
        for file in files:
            number = 0
            try:
                content = read(file)
                for start in range(0, len(content), batch_size):
                    rows = slice(start, start + batch_size)
                    for row in prediction_rows(_predicted(gate, content, rows)):
                        path = f"{printable_path(file)}#{number}"
                        write(ScoredFile(file, {"path": path, **row}))
                        number += 1
                        flagged += bool(row["is_ood"])
                    progress.advance(task, batch_size)
            except (DataError, UsageError) as error:
                write(unreadable(gate, file, error))
                unread += 1
            scored += number
    return FileCounts(scored, flagged, unread)


def _predicted(gate: Gate, content: FeatureFile, rows: slice) -> Prediction:
    if isinstance(gate.network, Precomputed):
        part = {name: array[rows] for name, array in content.arrays.items()}
        return gate.predict_outputs(part)
    return gate.predict(content.inputs(rows))
