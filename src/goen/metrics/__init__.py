"""Score arrays in, frozen dataclasses out. A score is higher for what is more OOD.

Every metric names its convention; docs/metrics.md has the formulas.
"""

from goen.metrics._accumulated import OODMetrics
from goen.metrics._calibration import (
    OODCalibration,
    ReliabilityBin,
    ood_calibration,
    reliability_curve,
)
from goen.metrics._id import IDMetrics, id_metrics
from goen.metrics._ood import OODResult, ood_metrics
from goen.metrics._ranking import Ranking, rank_methods
from goen.metrics._selective import SelectiveResult, risk_coverage_curve, selective_metrics
from goen.metrics._uncertainty import (
    BootstrapIntervals,
    Interval,
    OverSeeds,
    PairedTest,
    bootstrap,
    holm,
    over_seeds,
    paired_auroc_test,
    paired_mean_auroc_test,
)

__all__ = [
    "BootstrapIntervals",
    "IDMetrics",
    "Interval",
    "OODCalibration",
    "OODMetrics",
    "OODResult",
    "OverSeeds",
    "PairedTest",
    "Ranking",
    "ReliabilityBin",
    "SelectiveResult",
    "bootstrap",
    "holm",
    "id_metrics",
    "ood_calibration",
    "ood_metrics",
    "over_seeds",
    "paired_auroc_test",
    "paired_mean_auroc_test",
    "rank_methods",
    "reliability_curve",
    "risk_coverage_curve",
    "selective_metrics",
]
