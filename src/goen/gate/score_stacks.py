"""Score stacks of images in NPY and NPZ files with a gate, one row per image."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from goen.data.array_files import is_array_file, read_array_header, read_stack
from goen.data.pictures import MAX_PIXELS, resize_image
from goen.errors import DataError
from goen.files import printable_path
from goen.gate.gate import Gate
from goen.gate.score_files import (
    DEFAULT_BATCH_SIZE,
    FileCounts,
    ScoredBatch,
    ScoredFile,
    prediction_rows,
    score_images,
    unreadable,
)
from goen.progress import bar


def is_stack(file: Path) -> bool:
    """Whether a file holds a stack of images; not if it cannot be read."""
    try:
        return is_array_file(file) and read_array_header(file, str(file), MAX_PIXELS).is_stack
    except DataError:
        return False


def score_stack_files(
    gate: Gate,
    files: Sequence[Path],
    write: Callable[[ScoredFile], None],
    watch: Callable[[ScoredBatch], None] | None = None,
    *,
    batch_size: int = DEFAULT_BATCH_SIZE,
) -> FileCounts:
    """Score each image of each file and pass its row to ``write``: its path is ``FILE#NUMBER``.

    Images are numbered from 0. What cannot be read of a file is one row with its error.

    Args:
        gate: scores.
        files: with stacks of images ``(N, C, H, W)`` or ``(N, H, W, C)``.
        write: takes each row.
        watch: takes each batch, before its rows are written.
    """
    scored = flagged = unread = 0
    with bar() as progress:
        task = progress.add_task("scoring", total=None, status="images")
        for file in files:
            number = 0
            try:
                stack = read_stack(file, gate.picture_form, str(file), MAX_PIXELS, batch_size)
                for images in stack:
                    own_size = np.stack(
                        [resize_image(image, gate.image_size, str(file)) for image in images]
                    )
                    names = [Path(f"{file}#{number + i}") for i in range(len(images))]
                    batch = score_images(gate, names, own_size)
                    if watch is not None:
                        watch(batch)
                    for name, row in zip(names, prediction_rows(batch.prediction), strict=True):
                        write(ScoredFile(file, {"path": printable_path(name), **row}))
                        flagged += bool(row["is_ood"])
                    number += len(images)
                    progress.advance(task, len(images))
            except DataError as error:
                write(unreadable(gate, file, error))
                unread += 1
            scored += number
    return FileCounts(scored, flagged, unread)
