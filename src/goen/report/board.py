"""Every method on every network: mean rank, near and far AUROC, cost and needs, side by side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from goen.io.results import Result
from goen.metrics import over_seeds
from goen.report.openood_board import HALVES, published, published_alone
from goen.report.summary import Study
from goen.report.table import Cell, Row, Table, marked
from goen.studies.methods import METHODS

_GROUPS = ("near", "far", "ood")
# Rows of other names that are the same method on another network.
_SAME = {"goen_m_plain": "goen_m", "knn_multi_scale": "knn"}
_KINDS = {
    "standard": "ordinary network (preset {preset})",
    "goen": "GOEN's network (preset {preset})",
    "preset": "network of preset {preset}",
    "given": "{name}",
}
_OWN = "networks trained for one method (preset {preset})"
_FEWEST_PARTS = 3
# A rank among fewer methods says nothing beside the others.
_FEWEST_METHODS = 6
_MOST_NAMED = 8
BOARD_COLUMNS = ("OpenOOD board: near", "OpenOOD board: far")

_RANK = (
    "Mean rank: 1 is best, among so many methods on the same network, over {sets} of a kind that "
    "calibrates no method, as far as the network has them. Where networks of several seeds were "
    "measured, over the seeds that have every method."
)
_OVERVIEW = (
    "Mean rank of each method on each network, and among how many methods; networks with fewer "
    f"than {_FEWEST_METHODS} methods are left out. Relative rank: 0 is the first of all methods, 1 "
    "the last, mean over the networks that have the method. Methods that few networks have stand "
    "apart: they met fewer others."
)
_INTERVALS = (
    "95 % intervals: over seeds (Student's t) where a row has several; else over images, of a mean "
    "the mean of its sets' ends, which is too wide rather than too narrow{tasks}."
)
_TASKS = "; over sets (Student's t) where no interval over images is known"
_MARKS = (
    "†: other images of this kind calibrated the method. ‡: below 0.5, the method ranks ID above "
    "OOD images here. Bold: the best of its network and column; ≈: several share it."
)
_COST = (
    "Fit and score: seconds for all images of the network's study, without its own pass; compare "
    "within one network alone. Needs: what the method reads beside training images (README of the "
    "methods); OOD images: it is fitted or tuned with such; own training: it scores a network that "
    "was trained for it."
)
_PUBLISHED = (
    "OpenOOD board: not ours. Published figures of OpenOOD 1.5 as of 2025-07-19, for a ResNet-18 "
    "of width 64 after 100 epochs (95.1 % accurate), three trainings, on the board's own lists of "
    "images; parameters of many methods were chosen there with OOD images. They are not comparable "
    "with our networks, which are smaller; the order of methods may be compared."
)


@dataclass(frozen=True, eq=False)
class Entry:
    """One method on one network.

    Attributes:
        key: of the method, the same on every network.
        title: of the method.
        needs: beside training images.
        by_seed: the AUROC on each set, by the seed of the network.
        seconds: of fit and score, if they were recorded.
    """

    key: str
    title: str
    needs: tuple[str, ...]
    by_seed: Mapping[int, Mapping[str, Result]]
    seconds: float | None

    def cell(self, parts: Sequence[Sequence[str]]) -> Cell:
        """The mean AUROC over the parts, each the mean of its sets; empty if one is missing."""
        needed = {name for part in parts for name in part}
        seeds = [found for found in self.by_seed.values() if needed <= found.keys()]
        if not needed or not seeds:
            return Cell()
        seen = any(found[name].seen_in_calibration for found in seeds for name in needed)
        values = [fmean(_over(found, parts, "value")) for found in seeds]
        low, high = self._interval(seeds, parts, values)
        value = fmean(values)
        return Cell(value, low=low, high=high, seen=seen, inverted=value < 0.5)

    @staticmethod
    def _interval(
        seeds: Sequence[Mapping[str, Result]],
        parts: Sequence[Sequence[str]],
        values: Sequence[float],
    ) -> tuple[float | None, float | None]:
        """Over seeds; of one seed over images; without such an interval over the parts."""
        if len(values) > 1:
            found = over_seeds(values)
            return found.low, found.high
        (of_seed,) = seeds
        if all(of_seed[name].low is not None for part in parts for name in part):
            low, high = (fmean(_over(of_seed, parts, end)) for end in ("low", "high"))
            return low, high
        if len(parts) >= _FEWEST_PARTS:
            found = over_seeds(_over(of_seed, parts, "value"))
            return found.low, found.high
        return None, None


def _over(found: Mapping[str, Result], parts: Sequence[Sequence[str]], field: str) -> list[float]:
    """This field of the results, for each part its mean over sets."""
    return [fmean(getattr(found[name], field) for name in part) for part in parts]


@dataclass(frozen=True, eq=False)
class NetworkBoard:
    """The methods that were measured on one kind of network.

    Attributes:
        title: of the network.
        data: the name of the protocol.
        entries: one for each method.
        groups: of the OOD sets, by name.
    """

    title: str
    data: str
    entries: Sequence[Entry]
    groups: Mapping[str, str]

    @cached_property
    def common(self) -> list[str]:
        """The OOD sets that every method was measured on, with every seed."""
        every = [found.keys() for entry in self.entries for found in entry.by_seed.values()]
        return [name for name in self.groups if all(name in found for found in every)]

    def parts(self, group: str) -> list[list[str]]:
        """The common sets of a group; the two halves of CIFAR-100 are one part."""
        names = [name for name in self.common if self.groups[name] == group]
        halves = [name for name in names if name in HALVES]
        alone = [[name] for name in names if name not in HALVES]
        return [halves, *alone] if len(halves) > 1 else [[name] for name in names]

    def ranks(self, seen: Iterable[str]) -> dict[str, float]:
        """The mean rank of each method over the common sets that are not seen."""
        from scipy.stats import rankdata  # slow to import

        names = [name for name in self.common if name not in {*seen}]
        shared = set.intersection(*({*entry.by_seed} for entry in self.entries))
        found = [
            rankdata([-entry.by_seed[seed][name].value for entry in self.entries])
            for seed in sorted(shared)
            for name in names
        ]
        if not found or len(self.entries) < 2:
            return {}
        means = [fmean(float(one[place]) for one in found) for place in range(len(self.entries))]
        return dict(zip((entry.key for entry in self.entries), means, strict=True))


def networks(studies: Mapping[str, Study]) -> list[NetworkBoard]:
    """The studies of goen bench by network; the seeds of a kind of network are together.

    Args:
        studies: by a name, which is that of a given network. Of a method that two of them measured
            with the same network and seed, the numbers of the later one are taken.
    """
    boards: dict[tuple[str, str], dict[str, list[tuple[Study, str]]]] = {}
    for name, study in studies.items():
        for method in study.titles:
            key = (study.summary.data, _network(study, method, name))
            boards.setdefault(key, {}).setdefault(_key(study, method), []).append((study, method))
    return [_board(data, title, methods) for (data, title), methods in boards.items()]


def _network(study: Study, method: str, name: str) -> str:
    """The title of the network that a method of a study scores."""
    known = METHODS.get(method)
    kind = study.summary.networks.get(method) or (known.network if known else "given")
    preset = str(study.summary.config.get("preset", ""))
    # What auto stands for on a machine without an accelerator.
    return _KINDS.get(kind, _OWN).format(name=name, preset="cpu" if preset == "auto" else preset)


def _key(study: Study, method: str) -> str:
    """The same key for the same method on any network."""
    if method == "goen" and method not in study.summary.uses_ood:
        return "goen_distance"
    return _SAME.get(method, method)


def _board(
    data: str, title: str, methods: Mapping[str, Sequence[tuple[Study, str]]]
) -> NetworkBoard:
    entries: list[Entry] = []
    groups: dict[str, str] = {}
    for key, measured in methods.items():
        by_seed: dict[int, dict[str, Result]] = {}
        for study, method in measured:
            for r in study.results:
                if (r.method, r.metric) == (method, "auroc"):
                    by_seed.setdefault(r.seed, {})[r.dataset] = r
                    groups.setdefault(r.dataset, r.group)
        last, method = measured[-1]
        seconds = next((r.seconds for r in last.results if r.method == method), None)
        known = METHODS.get(key)
        needs = known.needs if known else ()
        if method in last.summary.uses_ood and "OOD images" not in needs:
            needs = (*needs, "OOD images")
        of_study = last.titles[method][0]
        entries.append(Entry(key, known.title if known else of_study, needs, by_seed, seconds))
    return NetworkBoard(title, data, entries, groups)


def seen_sets(boards: Iterable[NetworkBoard]) -> set[str]:
    """The OOD sets of a kind that calibrates one of the methods."""
    return {
        r.dataset
        for board in boards
        for entry in board.entries
        for found in entry.by_seed.values()
        for r in found.values()
        if r.seen_in_calibration
    }


# -- tables --------------------------------------------------------------------------------------


def board_tables(boards: Sequence[NetworkBoard], *, whole: bool = True) -> list[Table]:
    """The overview, and for each protocol the methods by network.

    Args:
        boards: of ``networks``.
        whole: with a column for every OOD set, and for the name of the network.
    """
    by_data: dict[str, list[NetworkBoard]] = {}
    for board in boards:
        by_data.setdefault(board.data, []).append(board)
    parts = [_data_table(data, found, whole=whole) for data, found in by_data.items()]
    return [overview(boards), *parts]


def overview(boards: Sequence[NetworkBoard]) -> Table:
    """The mean rank of each method on each network."""
    ranks = {
        board: board.ranks(seen_sets(b for b in boards if b.data == board.data))
        for board in boards
        if len(board.entries) >= _FEWEST_METHODS
    }
    ranked = [board for board, found in ranks.items() if found]
    entries = {e.key: e for board in ranked for e in board.entries}
    rows = [_overview_row(entry, [ranks[board] for board in ranked]) for entry in entries.values()]
    rows.sort(key=lambda row: (row.section, row.cells[0].value))
    titles = [f"{board.title}, of {len(ranks[board])}" for board in ranked]
    columns = ("relative rank", "networks", *titles, "needs")
    return Table(
        "board", "Mean rank by network", columns, tuple(rows), (_OVERVIEW,), filters=("needs",)
    )


def _overview_row(entry: Entry, ranks: Sequence[Mapping[str, float]]) -> Row:
    measured = [found for found in ranks if entry.key in found]
    relative = fmean((found[entry.key] - 1) / (len(found) - 1) for found in measured)
    cells = (
        Cell(relative, ".2f"),
        Cell(len(measured), ".0f"),
        *(Cell(found.get(entry.key), ".1f") for found in ranks),
        Cell(text=", ".join(entry.needs)),
    )
    few = 2 * len(measured) < len(ranks)
    half = f"{'fewer than' if few else 'at least'} half of the networks"
    return Row(entry.title, cells, f"measured on {half}")


def _data_table(data: str, boards: Sequence[NetworkBoard], *, whole: bool) -> Table:
    seen = seen_sets(boards)
    groups = [g for g in _GROUPS if any(board.parts(g) for board in boards)]
    sets = _sets(boards) if whole else []
    beside = published() if data == "cifar10" else {}
    rows = [row for b in boards for row in _rows(b, groups, sets, seen, beside, whole=whole)]
    width = len(rows[0].cells)
    if beside:
        empty = (Cell(),) * (width - len(BOARD_COLUMNS))
        theirs = "OpenOOD board alone: not measured here"
        rows += [Row(title, (*empty, *cells), theirs) for title, cells in published_alone().items()]
    columns = [
        *(["network"] if whole else []), "mean rank", "among", *groups, *sets, "seeds",
        "fit and score s", "needs", *(BOARD_COLUMNS if beside else ()),
    ]  # fmt: skip
    ranked = [
        name
        for name in _sets(boards)
        if name not in seen and any(name in board.common for board in boards)
    ]
    many = len(ranked) > _MOST_NAMED
    over = f"{len(ranked)} sets" if many else f"{', '.join(ranked)}: sets"
    without = any(
        r.low is None
        for board in boards
        for entry in board.entries
        for found in entry.by_seed.values()
        for r in found.values()
    )
    notes = (
        _RANK.format(sets=over),
        _INTERVALS.format(tasks=_TASKS if without else ""),
        _MARKS,
        _COST,
        *([_PUBLISHED] if beside else []),
    )
    return Table(
        f"board-{data}".replace(" ", "-"), f"Methods by network: {data}", tuple(columns),
        tuple(rows), notes, apart=width - len(BOARD_COLUMNS) if beside else None,
        filters=("network", "needs") if whole else (),
    )  # fmt: skip


def _sets(boards: Iterable[NetworkBoard]) -> list[str]:
    """All OOD sets, near ones first, the halves of CIFAR-100 together."""
    groups = {name: group for board in boards for name, group in board.groups.items()}
    order = [*_GROUPS, "noise"]
    return sorted(groups, key=lambda name: (order.index(groups[name]), name not in HALVES))


def _rows(
    board: NetworkBoard,
    groups: Sequence[str],
    sets: Sequence[str],
    seen: Iterable[str],
    beside: Mapping[str, tuple[Cell, ...]],
    *,
    whole: bool,
) -> list[Row]:
    """A row for each method, the best mean rank first."""
    ranks = board.ranks(seen)
    entries = sorted(board.entries, key=lambda entry: ranks.get(entry.key, 0))
    numbers = [
        marked([entry.cell(board.parts(group)) for entry in entries], higher_is_better=True)
        for group in groups
    ]
    numbers += [marked([e.cell([[name]]) for e in entries], higher_is_better=True) for name in sets]
    ranked = marked([Cell(ranks.get(e.key), ".1f") for e in entries], higher_is_better=False)
    among, rows = Cell(len(ranks) or None, ".0f"), []
    for entry, rank, *measured in zip(entries, ranked, *numbers, strict=True):
        cells = [
            *([Cell(text=board.title)] if whole else []), rank, among, *measured,
            Cell(text=", ".join(map(str, entry.by_seed))), Cell(entry.seconds, ".2f"),
            Cell(text=", ".join(entry.needs)),
        ]  # fmt: skip
        none = (Cell(),) * len(BOARD_COLUMNS)
        cells += beside.get(entry.key, none) if beside else ()
        rows.append(Row(entry.title, tuple(cells), board.title))
    return rows
