"""Tables and page of ``goen robust``."""

from pathlib import Path
from statistics import fmean

import pytest

from .reading import tables, values_by_key

pytestmark = pytest.mark.xdist_group("report")


def test_robustness_shows_means_over_corruptions(reports: dict[str, Path]) -> None:
    folder = reports["robust"]
    values = values_by_key(folder)
    by_label = {"Max softmax": "max_softmax", "KNN": "knn"}
    found = tables(folder / "report.html")
    for metric in ("accuracy", "ece", "nll", "brier", "mean_score", "flagged"):
        for (_, label, column), cell in found[metric].cells().items():
            severity = column.removeprefix("severity ")
            sets = (
                ["clean"]
                if column == "clean"
                else [f"{c}-{severity}" for c in ("fog", "gaussian_noise", "snow")]
            )
            mean = fmean(values[by_label[label], name, metric] for name in sets)
            assert cell.text == f"{mean:.4f}"
