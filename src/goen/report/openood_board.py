"""Near and far as the OpenOOD 1.5 board counts them, with the board's own figures beside ours."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from statistics import fmean, pstdev

from goen.data.protocols.openood import find_benchmark
from goen.detectors.tuned import TUNED
from goen.report.comparison import Comparison
from goen.report.openood_csv import OpenOodRows
from goen.report.table import Cell, Row, Table, marked

_NEAR = ("cifar100", "tiny-imagenet")
_FAR = ("mnist", "svhn", "textures", "places")
HALVES = ("cifar100", "cifar100-rest")
"""Of CIFAR-100: the paper's fifty classes, and those that it leaves out; the board has them all."""
_NearFar = tuple[float, float]
_TRAINED = "board, trained without outlier images"
_POST_HOC = "board, post-hoc on a standard network"
# Near and far AUROC in per cent as of 2025-07-19, of CIFAR-10 (ResNet-18, 100 epochs, 95.1 %
# accurate where the training is the standard one) and of ImageNet-1K (torchvision's first
# ResNet-50). The last column is the detector of goen.
_BOARD: Sequence[tuple[str, str, _NearFar, _NearFar | None, str]] = (
    (_TRAINED, "RotPred + PixMix", (94.86, 98.18), None, ""),
    (_TRAINED, "LogitNorm + PixMix", (94.25, 97.90), None, ""),
    (_TRAINED, "PixMix, KNN", (93.10, 95.94), None, ""),
    (_TRAINED, "T2FNorm", (92.79, 96.98), None, ""),
    (_POST_HOC, "CombOOD", (91.13, 94.65), None, ""),
    (_POST_HOC, "NAC-UE", (90.93, 94.60), (74.43, 95.29), ""),
    (_POST_HOC, "KNN", (90.64, 92.96), (71.10, 90.18), "knn"),
    (_POST_HOC, "fDBD", (90.42, 93.16), (76.63, 92.77), "fdbd"),
    (_POST_HOC, "RMDS (relative Mahalanobis)", (89.80, 92.20), (76.99, 86.38),
     "relative_mahalanobis"),
    (_POST_HOC, "Relation", (89.77, 92.21), None, "relation"),
    (_POST_HOC, "NCI", (88.86, 91.27), (78.69, 95.53), "nci"),
    (_POST_HOC, "ViM", (88.68, 93.48), (72.08, 92.68), "vim"),
    (_POST_HOC, "GEN", (88.20, 91.35), (76.85, 89.76), "gen"),
    (_POST_HOC, "Temperature scaling", (88.09, 90.97), (77.14, 87.56), "temperature_scaling"),
    (_POST_HOC, "MSP (max softmax)", (88.03, 90.73), (76.02, 85.23), "max_softmax"),
    (_POST_HOC, "i-ODIN", (87.92, 90.99), (76.53, 89.64), "i_odin"),
    (_POST_HOC, "OpenMax", (87.62, 89.62), (74.77, 89.26), "openmax"),
    (_POST_HOC, "Energy", (87.58, 91.21), (75.89, 89.47), "energy"),
    (_POST_HOC, "MLS (max logit)", (87.52, 91.10), (76.46, 89.57), "max_logit"),
    (_POST_HOC, "ReAct", (87.11, 90.42), (77.38, 93.67), "react"),
    (_POST_HOC, "MDS (Mahalanobis)", (84.20, 89.72), (55.44, 74.25), "mahalanobis"),
    (_POST_HOC, "AdaSCALE-A", (83.92, 88.00), (84.42, 97.27), "adascale"),
    (_POST_HOC, "ODIN", (82.87, 87.96), (74.75, 89.47), "odin"),
    (_POST_HOC, "SCALE", (82.55, 86.39), (81.36, 96.53), "scale"),
    (_POST_HOC, "SHE", (81.54, 85.32), (73.78, 90.92), "she"),
    (_POST_HOC, "KLM (KL matching)", (79.19, 82.68), (76.64, 87.60), "kl_matching"),
    (_POST_HOC, "DICE", (78.34, 84.23), (73.07, 90.95), "dice"),
    (_POST_HOC, "ASH-B", (75.27, 78.49), (78.17, 95.74), "ash_b"),
    (_POST_HOC, "AdaSCALE-L", (74.99, 79.02), (84.27, 97.28), "adascale_l"),
    (_POST_HOC, "GradNorm", (54.90, 57.55), (72.96, 90.25), "gradnorm"),
)  # fmt: skip
_DIFFERENT = (
    "Near: CIFAR-100 and Tiny ImageNet; far: MNIST, SVHN, Textures and Places; each the mean over "
    "sets. Board: OpenOOD 1.5, CIFAR-10, as of 2025-07-19 (ResNet-18, 100 epochs on a GPU, mean of "
    "three trainings). Our sets are not the board's to the image: sizes and classes are those of "
    "the local files (`goen data list`), resized to 32 pixels as stated there, and Places is not "
    "filtered for objects of CIFAR-10."
)
_AS_OF = {
    "cifar10": "a ResNet-18, mean of three trainings",
    "imagenet": "torchvision's first ResNet-50",
}
_TUNED = (
    "Board: as of 2025-07-19, of {network}; the parameters of many of its methods were chosen with "
    "OOD images. n/a: not on it, or over other sets."
)
_FULL_SPECTRUM = (
    "Full-spectrum: ID images under a covariate shift are among the ID test images. The board's "
    "figures without them are not comparable and not shown."
)
_FITTED = "†: fitted with {tuning}, other images of which are among those evaluated on."
_HALF = "CIFAR-100 is here the paper's fifty classes; the other fifty are the set cifar100-rest."
_WHOLE = "CIFAR-100 is the mean of its two halves, of which goen-m was selected with one."


def board_table(comparison: Comparison) -> Table | None:
    """Each method's near and far AUROC beside the board's; ``None`` where a set is missing."""
    if comparison.summary.data != "cifar10" or not {*_NEAR, *_FAR} <= {*comparison.sets}:
        return None
    # Both halves of CIFAR-100 are one part of the mean.
    halves = [name for name in HALVES if name in comparison.sets]
    near, far = (
        marked([_mean(comparison, m, parts) for m in comparison.methods], higher_is_better=True)
        for parts in ([halves, ["tiny-imagenet"]], [[name] for name in _FAR])
    )
    ours = [
        Row(comparison.titles[method][0], cells, "measured here")
        for method, cells in zip(comparison.methods, zip(near, far, strict=True), strict=True)
    ]
    theirs = [Row(title, _cells(cifar10), section) for section, title, cifar10, _, _ in _BOARD]
    which = _WHOLE if len(halves) > 1 else _HALF
    notes = (_DIFFERENT, which, "†: other images of a set calibrated the method.")
    title = f"AUROC as the OpenOOD board counts: {comparison.where}"
    return Table("openood", title, ("near", "far"), (*ours, *theirs), notes)


def published() -> dict[str, tuple[Cell, Cell]]:
    """The board's near and far AUROC of CIFAR-10 for each detector that it has."""
    return {key: _cells(cifar10) for _, _, cifar10, _, key in _BOARD if key}


def published_alone() -> dict[str, tuple[Cell, Cell]]:
    """Those of the methods that are no detector here, by title."""
    return {title: _cells(cifar10) for _, title, cifar10, _, key in _BOARD if not key}


def _cells(per_cent: _NearFar) -> tuple[Cell, Cell]:
    near, far = per_cent
    return Cell(near / 100), Cell(far / 100)


def openood_table(
    methods: Mapping[str, Sequence[OpenOodRows]],
    titles: Mapping[str, str],
    benchmark: str,
    seen: Collection[str] = (),
    *,
    full_spectrum: bool = False,
) -> Table:
    """Near and far of each method on OpenOOD's own images, with the board's figures beside them.

    The board's figure stands beside a mean over all sets of the group alone, and beside that of a
    method whose parameters OOD images chose, as the board's did.

    Args:
        methods: the rows of each run, by method.
        titles: of the methods.
        benchmark: of OpenOOD.
        seen: the methods that were fitted with the benchmark's OOD validation images.
        full_spectrum: ID images under a covariate shift are among the test images.
    """
    board = {key: (c10, imagenet) for _, _, c10, imagenet, key in _BOARD if key}
    measured_with = None if full_spectrum else _AS_OF.get(benchmark)
    sets = find_benchmark(benchmark)
    group_of_tuning = "nearood" if sets.tuning in sets.near else "farood"
    rows = []
    for method, runs in methods.items():
        cells = [
            replace(
                _over_runs([run[group][column] for run in runs if group in run]),
                seen=method in seen and group == group_of_tuning,
            )
            for column in ("AUROC", "FPR@95")
            for group in ("nearood", "farood")
        ]
        theirs: list[Cell] = []
        if measured_with is not None:
            found = board.get(method.removesuffix(TUNED), (None, None))[benchmark == "imagenet"]
            theirs = [
                Cell(value if {*members} <= {*runs[0]} else None, ".2f")
                for value, members in zip(found or (None, None), (sets.near, sets.far), strict=True)
            ]
        rows.append(Row(titles[method], (*cells, *theirs)))
    ours = ("near AUROC", "far AUROC", "near FPR@95", "far FPR@95")
    columns = (*ours, *(("board: near AUROC", "board: far AUROC") if measured_with else ()))
    count = max((len(found) for found in methods.values()), default=0)
    spread = f"mean ± population standard deviation over {count} runs" if count > 1 else "one run"
    notes = [f"Per cent, {spread}."]
    notes += [_TUNED.format(network=measured_with)] if measured_with else []
    notes += [_FULL_SPECTRUM] if full_spectrum else []
    notes += [_FITTED.format(tuning=sets.tuning)] if seen else []
    title = f"OpenOOD 1.5, {benchmark}" + ", full-spectrum" * full_spectrum
    return Table("openood", title, columns, tuple(rows), tuple(notes))


def _over_runs(values: Sequence[float]) -> Cell:
    if not values:
        return Cell()
    return Cell(fmean(values), ".2f", pstdev(values) if len(values) > 1 else None)


def _mean(comparison: Comparison, method: str, parts: Sequence[Sequence[str]]) -> Cell:
    """The mean over the parts, each the mean of its sets; nothing where a set is missing."""
    cells = [comparison.cell(method, part, "auroc") for part in parts]
    values = [cell.value for cell in cells if cell.value is not None]
    if len(values) < len(cells):
        return Cell()
    return Cell(fmean(values), seen=any(cell.seen for cell in cells))
