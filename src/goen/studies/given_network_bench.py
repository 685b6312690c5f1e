"""``goen.bench``: which detector is the best for your model and your data?"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from logging import getLogger
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Unpack

from torch import nn

from goen.data.protocol import Protocol
from goen.detectors import DETECTORS, Detector
from goen.detectors.tuned import SEARCHED, TUNED
from goen.errors import ExtraMissing, describe_left_out, warn
from goen.extraction import BATCH_SIZE
from goen.features.loaded_model import LoadedModel
from goen.gate.threshold import is_near_chance, near_chance
from goen.io.results import Result
from goen.io.stages import Stages, alone_in
from goen.metrics import Ranking
from goen.notebook import html_table
from goen.studies.compare import Asked, Compared, compare
from goen.studies.given_network import (
    WITH_OOD,
    GivenExperiment,
    GivenNetwork,
    ModelSettings,
    detector_methods,
    has_logits,
    open_network,
    own_networks,
)

if TYPE_CHECKING:
    import pandas

_log = getLogger(__name__)
_NUMBERS = ("fpr95_ood_positive", "fpr95_id_positive")
_CAUTION = (
    "Mean AUROC over the OOD sets{but}; ≈: within chance of the best (paired test over images, "
    "Holm's correction, 5 %). FPR95: the share of OOD images passed where 95 % of ID images are, "
    "mean."
)
_LEFT_OUT = " but {kinds} (†: other images of this kind fitted the detector)"


@dataclass(frozen=True, eq=False)
class BenchTable:
    """Detectors compared on one network and the same images; prints as a table.

    Attributes:
        results: every number with its origin.
        ranking: the detectors by mean AUROC over the OOD sets, with the p-value of each one's
            difference from the best.
        titles: of the detectors, by key.
        skipped: detectors left out, with the reason.
    """

    results: Sequence[Result]
    ranking: Ranking | None
    titles: Mapping[str, str]
    skipped: Mapping[str, str]

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, str], Result]:
        return {(r.method, r.dataset, r.metric): r for r in self.results}

    @cached_property
    def sets(self) -> dict[str, str]:
        """The OOD sets with their groups."""
        return {r.dataset: r.group for r in self.results if r.group != "id"}

    @property
    def _over(self) -> list[str]:
        """The OOD sets that means are over: all but those of a kind that fitted a detector."""
        return [*self.sets] if self.ranking is None else [*self.ranking.sets]

    @property
    def best(self) -> str:
        """The key of the best detector, such as a name for ``Gate.fit(detector=...)``."""
        return "" if self.ranking is None else self.ranking.best

    def auroc(self, method: str, sets: Sequence[str] = ()) -> float:
        """The mean AUROC of a detector over these OOD sets; over those of the ranking if none."""
        over = sets or self._over
        return fmean(self._by_key[method, name, "auroc"].value for name in over)

    @property
    def rows(self) -> list[dict[str, str | float]]:
        """A row per detector, the best first: its AUROCs, FPR95s, p-value and cost."""
        order = list(self.ranking.means) if self.ranking is not None else []
        keys = [*order, *(key for key in self.titles if key not in order)]
        return [self._row(key) for key in keys]

    def _row(self, key: str) -> dict[str, str | float]:
        measured = [name for name in self.sets if (key, name, "auroc") in self._by_key]
        row: dict[str, str | float] = {"method": key, "title": self.titles[key]}
        if self.ranking is None or key in self.ranking.means:
            row["mean_auroc"] = self.auroc(key, [] if self.ranking else measured)
        for group in ("near", "far"):
            members = [n for n in measured if self.sets[n] == group and n in self._over]
            if members and len(members) < len(self._over):
                row[f"{group}_auroc"] = self.auroc(key, members)
        for name in measured:
            found = self._by_key[key, name, "auroc"]
            row[f"{name}/auroc"] = found.value
            row |= {
                f"{name}/auroc_{end}": value
                for end, value in (("low", found.low), ("high", found.high))
                if value is not None
            }
            row |= {f"{name}/{n}": self._by_key[key, name, n].value for n in _NUMBERS}
        if self.ranking is not None and key in self.ranking.means:
            row["p_value"] = self.ranking.p_values.get(key, 1.0)  # the best differs from no other
        for metric in ("accuracy", "fit_seconds", "score_ms_per_image", "network_ms_per_image"):
            row[metric] = self._by_key[key, "test", metric].value
        return row

    def to_pandas(self) -> "pandas.DataFrame":
        """The rows as a table of pandas, indexed by the detectors' keys.

        Raises:
            ExtraMissing: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ExtraMissing("A table needs pandas: pip install pandas.") from error
        return pandas.DataFrame(self.rows).set_index("method")

    @property
    def next_step(self) -> str:
        """How the best detector becomes a gate."""
        return fit_command("goen fit")(self.best) or f"Gate.fit(..., detector={self.best})"

    @property
    def verdict(self) -> str:
        """The best, what is within chance of it, and how to make it a gate."""
        if self.ranking is None:
            return "No detector was measured on every OOD set."
        return f"{self.ranking.describe(self.titles)}; make it a gate with: {self.next_step}"

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        groups = [g for g in ("near", "far") if any(f"{g}_auroc" in row for row in self.rows)]
        columns = ["", "mean", *groups, *self.sets, "FPR95", "ms/image"]
        chance = self.ranking.within_chance if self.ranking is not None else []
        lines = []
        for row in self.rows:
            mean = "n/a"
            if "mean_auroc" in row:
                mean = f"{'≈' if row['method'] in chance else ''}{row['mean_auroc']:.4f}"
            numbers = [row.get(f"{group}_auroc") for group in groups]
            numbers += [row.get(f"{name}/auroc") for name in self.sets]
            rates = [row[f"{n}/{_NUMBERS[1]}"] for n in self._over if f"{n}/{_NUMBERS[1]}" in row]
            cells = ["n/a" if value is None else f"{value:.4f}" for value in numbers]
            for place, name in enumerate(self.sets, len(groups)):
                found = self._by_key.get((str(row["method"]), name, "auroc"))
                if found is not None and found.seen_in_calibration:
                    cells[place] += "†"
            cost = f"{row['score_ms_per_image']:.3f}"
            rate = f"{fmean(float(value) for value in rates):.3f}" if rates else "n/a"
            lines.append([str(row["title"]), mean, *cells, rate, cost])
        return columns, lines

    def __str__(self) -> str:
        columns, lines = self._cells()
        widths = [max(len(line[i]) for line in (columns, *lines)) for i in range(len(columns))]
        text = [
            "  ".join(
                cell.ljust(width) if not i else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in (columns, *lines)
        ]
        missing = describe_left_out(self.skipped)
        return "\n".join([*text, "", self._caution, *missing, own_networks(), self.verdict])

    __repr__ = __str__

    @property
    def _caution(self) -> str:
        kinds = ", ".join(name for name in self.sets if name not in self._over)
        return _CAUTION.format(but=_LEFT_OUT.format(kinds=kinds) if kinds else "")

    def _repr_html_(self) -> str:
        columns, lines = self._cells()
        note = f"{self._caution} {self.verdict}"
        return html_table("Detectors", columns, lines, note=note, right=columns[1:])


def compare_given(
    network: GivenNetwork,
    protocol: Protocol,
    detectors: Sequence[str | Detector],
    out: Path,
    stages: Stages | None = None,
    *,
    tune: bool = False,
    command: str = "goen fit",
    batch_size: int = BATCH_SIZE,
) -> Compared:
    """The same as ``bench`` for a network that is open, in a folder.

    Args:
        network: of ``open_network``.
        protocol: its images.
        detectors: names or detectors; all if none is given.
        out: the folder of the study.
        stages: finished work, shared between studies; ``stages/`` beside out if not given.
        tune: see ``bench``.
        command: that fits a gate for this model, without its detector.
        batch_size: images per forward pass.
    """
    methods, skipped = detector_methods(network.network, detectors, tune=tune)
    named = [m.key for m in methods if detectors or m.section == "tuned"]
    store = stages or Stages.beside(out)
    if not any(m.uses_ood for m in methods if m.key in named):
        protocol = replace(protocol, calibration_ood={})  # no set is of a kind that calibrates
    if not detectors:
        _log.info(own_networks())
    with alone_in(out):
        experiment = GivenExperiment(network, protocol, store, batch_size)
        methods = [m for m in methods if m.key in named or experiment.is_default(m)]
        asked = Asked({"methods": named}, named, skipped, True, fit_command(command))
        compared = compare(experiment, methods, out, asked)
    _warn_of_accuracy(network, protocol, compared)
    return compared


def _warn_of_accuracy(network: GivenNetwork, protocol: Protocol, compared: Compared) -> None:
    """Warn if the network hardly classifies: no detector says anything of it then."""
    count, classes = len(protocol.test), len(protocol.test.classes)
    found = next((r.value for r in compared.results if r.metric == "accuracy"), None)
    if found is not None and has_logits(network.network) and is_near_chance(found, count, classes):
        warn(near_chance(found, classes, "test"))


def fit_command(command: str) -> Callable[[str], str]:
    """Of a detector's key, the command that makes a gate of it; what has no name has none."""

    def of(key: str) -> str:
        if key in DETECTORS:
            return f"{command} --detector {key}"
        name = key.removesuffix(WITH_OOD)
        tuned = name.removesuffix(TUNED) in SEARCHED
        known = name in DETECTORS or tuned
        return f"{command} --detector {name} --ood OTHER_OOD" if known else ""

    return of


def bench(
    model: nn.Module | LoadedModel | None,
    protocol: Protocol,
    detectors: Sequence[str | Detector] = (),
    *,
    out: Path | str | None = None,
    tune: bool = False,
    batch_size: int = BATCH_SIZE,
    **settings: Unpack[ModelSettings],
) -> BenchTable:
    """Detectors compared on one pass of your model over your images; the model is not changed.

    Every detector is fitted on the training images, those that calibrate on three fifths of the
    held-out images as well, and evaluated on the test images and the OOD sets. No detector sees an
    OOD image, except those that are named with ``_ood`` behind their name, such as ``goen_m_ood``:
    they are fitted with the protocol's ``calibration_ood``.

    Args:
        model: any classifier, as for ``Gate.fit``; ``None`` if the sets hold features.
        protocol: the images, ``goen.Protocol.from_sets(train, held_out, test, ood=...)``. The
            classes are in the order of the model's logits.
        detectors: names, as of ``Gate.fit(detector=...)``, or detectors. By default all that need
            no network of their own; one that cannot be fitted is then left out with the reason.
        out: a folder for results, scores and, with ``goen report``, a page; another call with it
            adds its detectors to those that are there. None is needed.
        tune: compare detectors with parameters, such as ``knn``, also with those that the
            protocol's ``calibration_ood`` choose, in rows of their own (``knn_tuned``).
        batch_size: images per forward pass.
        settings: ``layers``, ``logits``, ``preprocess``, ``tokens`` and ``layout``, as for
            ``goen.extract``.

    Raises:
        UsageError: an unsuitable model or detector, or a folder with another comparison.

    Example:
        >>> import torch, goen
        >>> digits = goen.data.load_set("digits").take(range(300))
        >>> parts = digits.split({"train": 100, "held-out": 100, "test": 100}, 0).values()
        >>> far = {"photographs": goen.data.load_set("photographs").take(range(100))}
        >>> protocol = goen.Protocol.from_sets(*parts, ood=far, calibration_ood={})
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(192, 10))
        >>> goen.bench(model, protocol, ["knn", "energy"]).best
        'knn'
    """
    if out is None:
        with tempfile.TemporaryDirectory() as folder:
            return bench(
                model,
                protocol,
                detectors,
                out=Path(folder) / "bench",
                tune=tune,
                batch_size=batch_size,
                **settings,
            )
    network = open_network(model, protocol, settings)
    found = compare_given(network, protocol, detectors, Path(out), tune=tune, batch_size=batch_size)
    titles = {key: title for key, (title, _) in found.titles.items()}
    return BenchTable(found.results, found.ranking, titles, found.skipped)
