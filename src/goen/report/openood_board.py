"""Near and far as the OpenOOD 1.5 board counts them, with the board's own figures beside ours."""

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

from goen.report.comparison import Comparison
from goen.report.openood_csv import OpenOodRows
from goen.report.table import Cell, Row, Table, marked

_NEAR = ("cifar100", "tiny-imagenet")
_FAR = ("mnist", "svhn", "textures", "places")
# The fifty classes of CIFAR-100 that the paper's protocol leaves out; the board has all hundred.
_OTHER_HALF = "cifar100-rest"
_TRAINED = "board, trained without outlier images"
_POST_HOC = "board, post-hoc on a standard network"
# Results for CIFAR-10 as of 2025-07-19, near and far AUROC in per cent; ResNet-18, 100 epochs,
# 95.1 % accurate where the training is the standard one.
_BOARD: Sequence[tuple[str, str, float, float]] = (
    (_TRAINED, "RotPred + PixMix", 94.86, 98.18),
    (_TRAINED, "LogitNorm + PixMix", 94.25, 97.90),
    (_TRAINED, "PixMix, KNN", 93.10, 95.94),
    (_TRAINED, "T2FNorm", 92.79, 96.98),
    (_POST_HOC, "CombOOD", 91.13, 94.65),
    (_POST_HOC, "NAC-UE", 90.93, 94.60),
    (_POST_HOC, "KNN", 90.64, 92.96),
    (_POST_HOC, "fDBD", 90.42, 93.16),
    (_POST_HOC, "ViM", 88.68, 93.48),
    (_POST_HOC, "GEN", 88.20, 91.35),
    (_POST_HOC, "MSP (max softmax)", 88.03, 90.73),
    (_POST_HOC, "Energy", 87.58, 91.21),
    (_POST_HOC, "MDS (Mahalanobis)", 84.20, 89.72),
)
_DIFFERENT = (
    "Near: CIFAR-100 and Tiny ImageNet; far: MNIST, SVHN, Textures and Places; each the mean over "
    "sets. Board: OpenOOD 1.5, CIFAR-10, as of 2025-07-19 (ResNet-18, 100 epochs on a GPU, mean of "
    "three trainings). Our sets are not the board's to the image: sizes and classes are those of "
    "the local files (`goen data list`), resized to 32 pixels as stated there, and Places is not "
    "filtered for objects of CIFAR-10."
)
_AS_OF = "Board: as of 2025-07-19, mean of three trainings of a ResNet-18."
# The rows of the board that are a detector of goen, by its key.
_ON_THE_BOARD = {
    "knn": "KNN",
    "fdbd": "fDBD",
    "vim": "ViM",
    "gen": "GEN",
    "max_softmax": "MSP (max softmax)",
    "energy": "Energy",
    "mahalanobis": "MDS (Mahalanobis)",
}
_HALF = "CIFAR-100 is here the paper's fifty classes; the other fifty are the set cifar100-rest."
_WHOLE = "CIFAR-100 is the mean of its two halves, of which goen-m was selected with one."


def board_table(comparison: Comparison) -> Table | None:
    """Each method's near and far AUROC beside the board's; ``None`` where a set is missing."""
    if comparison.summary.data != "cifar10" or not {*_NEAR, *_FAR} <= {*comparison.sets}:
        return None
    # Both halves of CIFAR-100 are one part of the mean.
    halves = [name for name in ("cifar100", _OTHER_HALF) if name in comparison.sets]
    near, far = (
        marked([_mean(comparison, m, parts) for m in comparison.methods], higher_is_better=True)
        for parts in ([halves, ["tiny-imagenet"]], [[name] for name in _FAR])
    )
    ours = [
        Row(comparison.titles[method][0], cells, "measured here")
        for method, cells in zip(comparison.methods, zip(near, far, strict=True), strict=True)
    ]
    theirs = [
        Row(title, (Cell(near / 100), Cell(far / 100)), section)
        for section, title, near, far in _BOARD
    ]
    which = _WHOLE if len(halves) > 1 else _HALF
    notes = (_DIFFERENT, which, "†: other images of a set calibrated the method.")
    title = f"AUROC as the OpenOOD board counts: {comparison.where}"
    return Table("openood", title, ("near", "far"), (*ours, *theirs), notes)


def openood_table(
    methods: Mapping[str, Sequence[OpenOodRows]],
    titles: Mapping[str, str],
    benchmark: str,
) -> Table:
    """Near and far of each method on OpenOOD's own images, with the board's figures beside them.

    Args:
        methods: the rows of each run, by method.
        titles: of the methods.
        benchmark: of OpenOOD.
    """
    board = {title: (near, far) for _, title, near, far in _BOARD} if benchmark == "cifar10" else {}
    rows = []
    for method, runs in methods.items():
        near, far = board.get(_ON_THE_BOARD.get(method, ""), (None, None))
        cells = [
            _over_runs([run[group][column] for run in runs if group in run])
            for column in ("AUROC", "FPR@95")
            for group in ("nearood", "farood")
        ]
        theirs = [Cell(near, ".2f"), Cell(far, ".2f")] if board else []
        rows.append(Row(titles[method], (*cells, *theirs)))
    ours = ("near AUROC", "far AUROC", "near FPR@95", "far FPR@95")
    columns = (*ours, *(("board: near AUROC", "board: far AUROC") if board else ()))
    count = max((len(found) for found in methods.values()), default=0)
    spread = f"mean ± population standard deviation over {count} runs" if count > 1 else "one run"
    notes = (f"Per cent, {spread}.", *((_AS_OF,) if board else ()))
    return Table("openood", f"OpenOOD 1.5, {benchmark}", columns, tuple(rows), notes)


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
