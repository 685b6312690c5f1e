"""The options --report and --training-images of ``goen score``."""

from pathlib import Path
from typing import TYPE_CHECKING

from goen.data.folders import picture_files
from goen.errors import UsageError
from goen.files import check_free, check_writable
from goen.gate import Gate
from goen.gate.training_images import open_training_images
from goen.runs.recognise import REPORT

if TYPE_CHECKING:
    from goen.report.score import ScoreReport


def open_report(
    path: Path | None, gate: Gate, gate_name: str, training: str | None
) -> "ScoreReport | None":
    """The report to write, or none; what would make it fail is an error before any scoring.

    Args:
        path: of the page.
        gate: that scores.
        gate_name: as the user named it.
        training: the dataset that the gate was fitted on.

    Raises:
        UsageError: something else is at the path, or another dataset was named.
    """
    if path is None:
        if training is not None:
            raise UsageError("--training-images goes with --report PAGE.html.")
        return None
    from goen.report.score import ScoreReport  # it imports Matplotlib, which takes a second

    check_free(path, REPORT)
    check_writable(path)
    if training is None:
        return ScoreReport(gate, gate_name)
    images = open_training_images(gate, training)
    return ScoreReport(gate, gate_name, images, picture_files(training, images))
