"""What a study records about itself in ``run.json``, read with its types."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from goen.errors import ArtifactError
from goen.io.json_files import json_object
from goen.io.manifest import JsonObject, Manifest
from goen.io.results import Result, read_results
from goen.metrics import Ranking

# The budget of a network that was trained elsewhere.
_GIVEN = "given"


@dataclass(frozen=True)
class Split:
    """A set of images that a run used, by its content."""

    name: str
    images: int
    fingerprint: str


@dataclass(frozen=True)
class Summary:
    """The content of ``run.json``; what a study does not record is empty.

    Attributes:
        study: its command: run, bench, ablate, seeds, robust, geometry or evaluate.
        data: the name of the protocol.
        config: the options of the command.
        titles: the title and the table section of each method, in the order of the tables.
        uses_ood: the methods fitted with OOD images.
        calibration_ood: the OOD sets of which other images may calibrate a method, whether or not
            a method of this study was; the averages of every study keep them apart.
        with_center_loss: by row without CenterLoss, the same row with it (ablate).
        networks: the kind of network that each method scores (bench); empty where it is one.
        ranking: of the methods, over the unseen sets (bench).
        next_step: the command that makes a gate of the best one (bench).
        sentence: what follows from the numbers (evaluate).
        gate: its classes, its rate and where that lies (evaluate).
        seeds: of the trainings (seeds).
        threshold: of the gate (run).
        left_out: datasets and methods that are missing, with the reason.
        recipe: the settings of network, training and calibration head.
        splits: the images used for each role (run).
        versions: of the software.
        hardware: the machine.
    """

    study: str
    data: str
    config: JsonObject
    titles: Mapping[str, tuple[str, str]]
    uses_ood: frozenset[str]
    calibration_ood: frozenset[str]
    with_center_loss: Mapping[str, str]
    networks: Mapping[str, str]
    ranking: Ranking | None
    next_step: str
    sentence: str
    gate: Manifest
    seeds: tuple[int, ...]
    threshold: float | None
    left_out: Mapping[str, str]
    recipe: JsonObject
    splits: Mapping[str, Split]
    versions: JsonObject
    hardware: JsonObject

    def unseen_first(self, results: Iterable[Result]) -> tuple[dict[str, str], frozenset[str]]:
        """The OOD sets of these results with their groups, and those of a kind that may calibrate.

        Sets of a kind that calibrates no method come first: they measure detection of unseen data.
        """
        ood = [r for r in results if r.group != "id"]
        calibrated = self.calibration_ood | {r.dataset for r in ood if r.seen_in_calibration}
        groups: dict[str, str] = {r.dataset: r.group for r in ood}
        ordered = sorted(groups, key=lambda name: name in calibrated)
        return {name: groups[name] for name in ordered}, calibrated & groups.keys()

    @property
    def conclusion(self) -> str:
        """What follows from the numbers: of a comparison the best, and the command for its gate."""
        if self.ranking is None:
            return self.sentence
        titles = {key: title for key, (title, _) in self.titles.items()}
        following = f"; make it a gate with: {self.next_step}" if self.next_step else ""
        return self.ranking.describe(titles) + following

    @classmethod
    def from_json(cls, content: JsonObject) -> "Summary":
        """The summary of a study.

        Raises:
            ValueError: a field is missing or has another type; the message names it.
        """
        run = Manifest(content)
        metadata = _part(run, "metadata")
        splits = _part(metadata, "splits")
        titles = _part(run, "titles")
        return cls(
            study=run.text("study"),
            data=run.text("data"),
            config=run.part("config").content,
            titles={method: _title(titles, method) for method in titles.content},
            uses_ood=_names(run, "uses_ood"),
            calibration_ood=_names(run, "calibration_ood"),
            with_center_loss=_texts(run, "with_center_loss"),
            networks=_texts(run, "networks"),
            ranking=Ranking.from_json(run.part("ranking").content)
            if _has(run, "ranking")
            else None,
            next_step=run.text("next_step") if "next_step" in run else "",
            sentence=run.text("conclusion") if "conclusion" in run else "",
            gate=_part(run, "gate"),
            seeds=tuple(map(int, run.numbers("seeds"))) if "seeds" in run else (),
            threshold=run.number("threshold") if _has(run, "threshold") else None,
            left_out={**_texts(run, "missing"), **_texts(run, "skipped")},
            recipe=_part(metadata if "recipe" in metadata else run, "recipe").content,
            splits={role: _split(splits.part(role)) for role in splits.content},
            versions=_part(run, "versions").content,
            hardware=_part(run, "hardware").content,
        )


@dataclass(frozen=True)
class Study:
    """The results of a study, in order, with what it records about itself."""

    results: Sequence[Result]
    summary: Summary

    @cached_property
    def by_key(self) -> dict[tuple[str, str, str], Result]:
        """The results by method, dataset and metric; of several seeds, the last."""
        return {(r.method, r.dataset, r.metric): r for r in self.results}

    def number(self, method: str, dataset: str, metric: str) -> float:
        """One number, for the text of a page."""
        return self.by_key[method, dataset, metric].value

    @property
    def titles(self) -> Mapping[str, tuple[str, str]]:
        """The title and the section of each method, in the order of the tables."""
        return self.summary.titles

    def label(self, method: str) -> str:
        """The method's title, with its section where two have the same title."""
        title, section = self.titles.get(method, (method, ""))
        twins = [t for t, _ in self.titles.values() if t == title]
        return f"{title} ({section})" if len(twins) > 1 else title

    @property
    def where(self) -> str:
        """Data, budget and seed, for the titles of tables."""
        first = self.results[0]
        if first.budget == _GIVEN:
            return f"{self.summary.data}, given network"
        return f"{self.summary.data}, budget {first.budget}, seed {first.seed}"

    @cached_property
    def sets(self) -> dict[str, str]:
        """The OOD datasets with their groups: unseen ones first, else in the order of the file."""
        return self.summary.unseen_first(self.results)[0]

    @cached_property
    def seen(self) -> frozenset[str]:
        """The OOD datasets of a kind that may calibrate methods."""
        return self.summary.unseen_first(self.results)[1]

    @property
    def unseen(self) -> list[str]:
        """The others."""
        return [name for name in self.sets if name not in self.seen]

    def mean_auroc(self, method: str, sets: Iterable[str] = ()) -> float | None:
        """Of a method over these sets, if it has them all.

        Args:
            method: its key.
            sets: by default the unseen ones, or all where there is no unseen one.
        """
        averaged = sets or self.unseen or self.sets
        found = [self.by_key.get((method, s, "auroc")) for s in averaged]
        values = [r.value for r in found if r is not None]
        return sum(values) / len(values) if len(values) == len(found) else None


def read_summary(folder: Path) -> Summary:
    """The summary of the finished study in this folder.

    Raises:
        ArtifactError: there is none, or it is damaged.
    """
    try:
        return Summary.from_json(json_object(folder / "run.json"))
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{folder} does not hold a finished run: {error}.") from error


def read_study(path: Path) -> Study:
    """The study in a run's folder, or in a file ``NAME.jsonl`` that has ``NAME.json`` beside it.

    Raises:
        ArtifactError: there is none, or it is damaged.
    """
    names = (path / "results.jsonl", path / "run.json")
    results, summary = names if path.is_dir() else (path, path.with_suffix(".json"))
    for file in (results, summary):
        if not file.is_file():
            raise ArtifactError(
                f"{file} is not there. Expected the folder of a finished goen bench, ablate or "
                "seeds, or kept results: NAME.jsonl with NAME.json beside it, which are the "
                "results.jsonl and run.json of such a folder. Check the name, or run the study to "
                "its end."
            )
    try:
        return Study(read_results(results), Summary.from_json(json_object(summary)))
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"{path} does not hold a finished study: {error}. Run its command again."
        ) from error


def dataset_title(name: str, group: str) -> str:
    """The dataset with its group.

    Example:
        >>> dataset_title("svhn", "far"), dataset_title("noise", "noise"), dataset_title("a", "ood")
        ('svhn (far)', 'noise', 'a')
    """
    return name if group in (name, "ood") else f"{name} ({group})"


def _has(manifest: Manifest, name: str) -> bool:
    return manifest.content.get(name) is not None


def _part(manifest: Manifest, name: str) -> Manifest:
    return manifest.part(name) if name in manifest else Manifest({})


def _names(manifest: Manifest, name: str) -> frozenset[str]:
    return frozenset(manifest.texts(name) if name in manifest else ())


def _texts(manifest: Manifest, name: str) -> dict[str, str]:
    part = _part(manifest, name)
    return {key: part.text(key) for key in part.content}


def _title(titles: Manifest, method: str) -> tuple[str, str]:
    texts = titles.texts(method)
    if len(texts) != 2:
        raise ValueError(f"the title of {method} should be a title and a section, got {texts}")
    return texts[0], texts[1]


def _split(split: Manifest) -> Split:
    return Split(split.text("name"), int(split.number("images")), split.text("fingerprint"))
