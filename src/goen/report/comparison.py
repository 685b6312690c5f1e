"""Methods compared on the same images: the tables that studies share."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from goen.errors import describe_left_out
from goen.io.results import Result
from goen.metrics._ranking import SIGNIFICANCE
from goen.report.summary import Study, Summary, dataset_title
from goen.report.table import Cell, Mark, Row, Table, marked


@dataclass(frozen=True)
class Metric:
    """A metric on the page: its name in titles, its meaning, and its direction."""

    title: str
    meaning: str
    higher_is_better: bool


METRICS: Mapping[str, Metric] = {
    "auroc": Metric(
        "AUROC",
        "The probability that an OOD image has a higher score than an ID image; 0.5 is a random "
        "score. Higher is better.",
        higher_is_better=True,
    ),
    "fpr95_ood_positive": Metric(
        "FPR95, OOD positive",
        "The share of ID images flagged where 95 % of the OOD images are flagged. Lower is better.",
        higher_is_better=False,
    ),
    "fpr95_id_positive": Metric(
        "FPR95, ID positive",
        "The share of OOD images passed where 95 % of the ID images are passed. Lower is better.",
        higher_is_better=False,
    ),
    "aupr_out": Metric(
        "AUPR, OOD positive",
        "Average precision with the OOD images as the positive class. Higher is better. A random "
        "score has the share of OOD images in each set, so numbers of different sets cannot be "
        "compared or averaged.",
        higher_is_better=True,
    ),
    "aupr_in": Metric(
        "AUPR, ID positive",
        "Average precision with the ID images as the positive class. Higher is better. A random "
        "score has the share of ID images in each set, so numbers of different sets cannot be "
        "compared or averaged.",
        higher_is_better=True,
    ),
    "detection_accuracy": Metric(
        "Detection accuracy",
        "The share of all images decided rightly at the Youden point, the threshold where the "
        "shares of flagged OOD and ID images differ most. Higher is better. It depends on the "
        "share of OOD images in each set, so numbers of different sets cannot be compared or "
        "averaged.",
        higher_is_better=True,
    ),
}
"""By name in the results."""
_BY_PREVALENCE = ("aupr_out", "aupr_in", "detection_accuracy")
CLASSIFIER = {
    "accuracy": ("accuracy", True),
    "ece": ("ECE", False),
    "nll": ("NLL", False),
    "brier": ("Brier score", False),
}
"""Metrics of classifiers: their titles, and whether higher is better."""
_NETWORKS = (
    "Network: methods score the network named beside them, each trained on the same images; a "
    "difference between rows of two networks is one of the networks, too (Classifiers)."
)
PAPER_SETS = ("svhn", "cifar100", "noise")
_BOLD = (
    "Bold: the best of its column, if one row alone has it. ≈: several rows have the best number"
)
_WHERE = "docs/methods/README.md says for every method for which networks it is made."
_INVERTED = f"‡: below 0.5, the method ranks ID images above OOD images here. {_WHERE}"
_BASELINE = "max_softmax"
_FAR = 0.05


def left_out_notes(summary: Summary) -> tuple[str, ...]:
    """A table note for each reason for which datasets or methods are missing."""
    return tuple(describe_left_out(summary.left_out))


_SEEN = (
    "†: they were, for this one. Such a number is not comparable with those of the other rows and "
    "is never bold."
)
_ONE_SEEN = (
    "†: they were, for the row or for the one that is subtracted. Where they were for one of the "
    "two alone, the difference is not comparable with the others."
)


def apart_notes(study: Study, dagger: str = _SEEN) -> tuple[str, ...]:
    """A table note on the datasets that are set apart, if any; ``dagger`` is what † means."""
    if not study.seen:
        return ()
    kinds = ", ".join(name for name in study.sets if name in study.seen)
    return (
        f"Set apart at the right, the calibration kinds: {kinds}, of which other images may be "
        f"used to fit a method (outlier exposure). {dagger}",
    )


class Comparison(Study):
    """Tables with a row per method and a column per OOD dataset.

    The datasets are in two parts, the same for every row and for every choice of methods: the
    unseen ones lead, and those of a kind that may calibrate a method are set apart.
    """

    @property
    def methods(self) -> list[str]:
        """The rows."""
        return list(self.titles)

    def table(
        self,
        name: str,
        title: str,
        columns: Mapping[str, Sequence[Cell]],
        *notes: str,
        apart: int | None = None,
    ) -> Table:
        """A table of these columns, a row per method."""
        kinds = {self.summary.networks.get(method, "") for method in self.methods}
        if len(kinds) > 1:  # said at each number: not all are of the same features
            names = [Cell(text=self.summary.networks.get(m, "")) for m in self.methods]
            columns = {"network": names, **columns}
            apart = None if apart is None else apart + 1
            notes = (*notes, _NETWORKS)
        lines = zip(*columns.values(), strict=True)
        rows = [
            Row(label, cells, section)
            for (label, section), cells in zip(self.titles.values(), lines, strict=True)
        ]
        every = (*notes, *left_out_notes(self.summary))
        return Table(name, f"{title}: {self.where}", tuple(columns), tuple(rows), every, apart)

    def auroc(self) -> Table:
        """AUROC by method and dataset, and whether OOD images were used."""
        tied = f"{_BOLD}."
        if any(metric == "p_against_best" for _, _, metric in self.by_key):
            tied = (
                f"{_BOLD}, or the row is not significantly worse than the best on the same images "
                f"(paired DeLong test, Holm's correction, {SIGNIFICANCE:.0%})."
            )
        used = [Cell(text="yes" if m in self.summary.uses_ood else "no") for m in self.methods]
        notes = (tied, "Intervals: 95 %, over images, not over seeds.", *self._far_below_baseline())
        return self._of_metric("auroc", notes, {"OOD data": used})

    def _far_below_baseline(self) -> list[str]:
        """A note on the methods whose mean AUROC is far below that of max softmax, if any."""
        names = self.unseen or list(self.sets)
        means = {m: self.cell(m, names, "auroc").value for m in self.methods}
        baseline = means.get(_BASELINE)
        if baseline is None:
            return []
        below = [m for m, mean in means.items() if mean is not None and mean < baseline - _FAR]
        if not below:
            return []
        titles = "; ".join(self.titles[m][0] for m in below)
        return [
            f"More than {_FAR} below max softmax on average over {', '.join(names)}: {titles}. "
            f"{_WHERE}"
        ]

    def others(self) -> list[Table]:
        """Both FPR95s, both AUPRs and the detection accuracy by method and dataset."""
        measured = {metric for _, _, metric in self.by_key} - {"auroc"}
        return [self._of_metric(name, (f"{_BOLD}.",)) for name in METRICS if name in measured]

    def classifiers(self) -> Table:
        """Accuracy and calibration, a row for all methods that share a classifier."""
        sharing: dict[tuple[object, ...], list[str]] = {}
        for method in self.methods:
            found = [self.by_key.get((method, "test", metric)) for metric in CLASSIFIER]
            key = tuple((r.network, r.value) if r else None for r in found)
            sharing.setdefault(key, []).append(method)
        columns = [
            marked(
                [self.cell(methods[0], ["test"], metric) for methods in sharing.values()],
                higher_is_better=higher,
            )
            for metric, (_, higher) in CLASSIFIER.items()
        ]
        labels = [[self.titles[m][0] for m in methods] for methods in sharing.values()]
        rows = [
            Row(first_of(titles), cells)
            for titles, cells in zip(labels, zip(*columns, strict=True), strict=True)
        ]
        shared = [
            f"{first_of(titles)}: {'; '.join(titles[1:])}." for titles in labels if len(titles) > 1
        ]
        titles = tuple(title for title, _ in CLASSIFIER.values())
        notes = ("Methods that share a network share its classifier.", *shared, f"{_BOLD}.")
        return Table("classifiers", f"Classifiers: {self.where}", titles, tuple(rows), notes)

    def differences(
        self, name: str, title: str, test: str, reference: Callable[[str], str]
    ) -> Table:
        """AUROC minus that of a reference row, ≈ where the paired test finds no difference.

        A † marks a difference for which either row was calibrated with images of this kind.

        Args:
            name: of the table's files.
            title: of the table.
            test: the metric with the p-value of the difference; methods without it have no row.
            reference: the row that a method is compared with.
        """
        tested = [m for m in self.methods if any((m, s, test) in self.by_key for s in self.sets)]

        def cell(method: str, dataset: str) -> Cell:
            own = self.by_key[method, dataset, "auroc"]
            base = self.by_key[reference(method), dataset, "auroc"]
            p = self.by_key[method, dataset, test].value
            return Cell(
                own.value - base.value,
                "+.4f",
                mark="tied" if p > SIGNIFICANCE else "",
                seen=own.seen_in_calibration or base.seen_in_calibration,
            )

        rows = [
            Row(self.titles[m][0], tuple(cell(m, s) for s in self.sets), self.titles[m][1])
            for m in tested
        ]
        note = (
            "≈: no significant difference on the same images (paired DeLong test, "
            f"{SIGNIFICANCE:.0%}). One seed: `goen seeds` measures the spread over trainings."
        )
        notes = (note, *apart_notes(self, _ONE_SEEN), *left_out_notes(self.summary))
        columns = tuple(dataset_title(*named) for named in self.sets.items())
        apart = len(self.unseen) if self.unseen and self.seen else None
        return Table(name, f"{title}: {self.where}", columns, tuple(rows), notes, apart)

    def _of_metric(
        self, metric: str, notes: Sequence[str], last: Mapping[str, Sequence[Cell]] | None = None
    ) -> Table:
        """A column per dataset, and the averages: unseen first, the others set apart."""
        averaged = metric not in _BY_PREVALENCE
        leading: dict[str, Sequence[str]] = {}
        if averaged and len(self.unseen) > 1:
            leading["mean unseen"] = self.unseen
            notes = (*notes, f"Mean unseen: over {', '.join(self.unseen)}, for every row.")
        columns = {name: dataset_title(name, group) for name, group in self.sets.items()}
        leading |= {columns[name]: [name] for name in self.unseen}
        for group in ("near", "far"):
            members = [name for name in self.unseen if self.sets[name] == group]
            if averaged and 1 < len(members) < len(self.unseen):
                leading[f"mean {group}"] = members
        kinds = [name for name in self.sets if name in self.seen]
        apart: dict[str, Sequence[str]] = {columns[name]: [name] for name in kinds}
        if "mean unseen" in leading and len(apart) > 1:  # never the only mean of a table
            apart["mean calibration kinds"] = kinds
        if averaged and set(PAPER_SETS) <= set(self.sets):
            apart["mean paper's three"] = PAPER_SETS
        about = METRICS[metric]
        cells = {
            title: marked(
                [self.cell(method, names, metric) for method in self.methods],
                higher_is_better=about.higher_is_better,
            )
            for title, names in (leading | apart).items()
        }
        if any(cell.inverted for column in cells.values() for cell in column):
            notes = (*notes, _INVERTED)
        return self.table(
            metric,
            about.title,
            {**cells, **(last or {})},
            about.meaning,
            *notes,
            *apart_notes(self),
            apart=len(leading) if leading and apart else None,
        )

    def cell(self, method: str, names: Sequence[str], metric: str) -> Cell:
        """The number on the one dataset, or the mean over several.

        A method that lacks one has no mean that could be compared.
        """
        found = [self.by_key.get((method, name, metric)) for name in names]
        there = [r for r in found if r is not None]
        if len(there) < len(found):
            return Cell()
        if len(there) == 1:
            [r] = there
            number = Cell(r.value, low=r.low, high=r.high, mark=self._tied(r))
        else:
            number = Cell(fmean(r.value for r in there))
        seen = any(r.seen_in_calibration for r in there)
        inverted = metric == "auroc" and number.value is not None and number.value < 0.5
        return replace(number, seen=seen, inverted=inverted)

    def _tied(self, result: Result) -> Mark:
        test = self.by_key.get((result.method, result.dataset, "p_against_best"))
        if result.metric != "auroc" or test is None:
            return ""
        return "tied" if test.value > SIGNIFICANCE else ""


def first_of(titles: Sequence[str]) -> str:
    """The first title, and how many others there are.

    Example:
        >>> first_of(["KNN"]), first_of(["KNN", "ViM", "GEN"])
        ('KNN', 'KNN and 2 others')
    """
    others = len(titles) - 1
    return titles[0] + (f" and {others} other{'s' * (others > 1)}" if others else "")
