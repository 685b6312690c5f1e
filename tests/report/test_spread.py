"""The recorded trainings of a run, and when they are shown."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from goen.data import protocol
from goen.io.manifest import Manifest
from goen.report import write_report
from goen.report.spread import RECORDED, recorded_spread, run_settings
from goen.studies import SEEDS, RunConfig
from tests.report.reading import page_text

pytestmark = pytest.mark.xdist_group("report")


def metadata_of(folder: Path) -> Manifest:
    return Manifest(json.loads((folder / "gate" / "manifest.json").read_text())).part("metadata")


def record(folder: Path, metadata: Manifest, **flagged: list[float]) -> None:
    """Two trainings with these shares."""
    trainings = [
        {"seed": 7 + i, "flagged": {name: values[i] for name, values in flagged.items()}}
        for i in range(2)
    ]
    content = {
        "recipe": "recipes/some.py",
        "settings": run_settings(metadata),
        "versions": {"goen": "1.2", "torch": "3.4"},
        "trainings": trainings,
    }
    (folder / "some.json").write_text(json.dumps(content))


def test_the_recorded_trainings_are_those_of_the_demo() -> None:
    (path,) = RECORDED.glob("*.json")
    recorded = Manifest(json.loads(path.read_text()))
    p = protocol("digits")
    recipe = RunConfig().preset_for(p).to_json()
    settings = recorded.part("settings")
    without_seeds = json.dumps(recipe).replace(', "seed": 42', "")
    assert settings.content["recipe"] == json.loads(without_seeds)
    assert settings.part("images").text("train") == p.train.fingerprint
    assert Path(__file__).parents[2].joinpath(recorded.text("recipe")).is_file()
    trainings = recorded.parts("trainings")
    combinations = {
        (t.count("seed"), t.count("threads"), t.text("instructions")) for t in trainings
    }
    assert len(combinations) == len(trainings) == 15
    assert {seed for seed, _, _ in combinations} == {*SEEDS}
    names = ["test", *p.evaluation]
    for training in trainings:
        shares = training.part("flagged")
        assert list(shares.content) == names
        assert all(0 <= shares.number(name) <= 1 for name in names)
        assert shares.number("test") < 0.15


def test_a_run_without_options_has_the_spread() -> None:
    p = protocol("digits")
    used = {"train": p.train, "calibration": p.calibration_id, "held_out": p.held_out}
    used |= {f"ood {name}": images for name, images in p.calibration_ood.items()}
    metadata = {
        "recipe": RunConfig().preset_for(p).to_json(),
        "run": asdict(RunConfig()),
        "splits": {role: images.to_json() for role, images in used.items()},
    }
    spread = recorded_spread(Manifest(json.loads(json.dumps(metadata))))
    assert spread is not None
    assert spread.trainings == 15


def test_only_the_same_run_with_other_seeds_has_the_spread(
    reports: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metadata = metadata_of(reports["run"])
    assert recorded_spread(metadata) is None  # a tiny run is not the demo
    monkeypatch.setattr("goen.report.spread.RECORDED", tmp_path)
    record(tmp_path, metadata, test=[0.03, 0.05], noise=[1.0, 0.9])
    spread = recorded_spread(metadata)
    assert spread is not None
    assert (spread.seeds, spread.trainings) == (2, 2)
    assert spread.flagged == {"test": (0.03, 0.05), "noise": (0.9, 1.0)}
    assert (spread.versions, spread.recipe) == ("goen 1.2, torch 3.4", "recipes/some.py")

    def changed(*path: str, value: object) -> Manifest:
        content = json.loads(json.dumps(metadata.content))
        place = content
        for name in path[:-1]:
            place = place[name]
        place[path[-1]] = value
        return Manifest(content)

    for path in (
        ("run", "seed"),
        ("run", "preset"),
        ("run", "representation"),
        ("recipe", "training", "seed"),
    ):
        assert recorded_spread(changed(*path, value=3)) == spread
    for path in (("recipe", "training", "epochs"), ("run", "false_alarm_rate"),
                 ("splits", "train", "fingerprint")):  # fmt: skip
        assert recorded_spread(changed(*path, value="other")) is None
    assert recorded_spread(metadata_of(reports["no_head"])) is None


def test_the_page_says_that_a_single_training_is_luck(
    reports: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "partly luck" not in page_text(reports["run"])
    folder = shutil.copytree(reports["run"], tmp_path / "run")
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    monkeypatch.setattr("goen.report.spread.RECORDED", tmp_path)
    record(tmp_path, metadata_of(folder), test=[0.031, 0.05], photographs=[0.95, 0.5], noise=[1, 1])
    write_report(folder)
    text = page_text(folder)
    assert (
        "A single training on so few images is partly luck: 2 recorded trainings of this run, "
        "with 2 seeds, gave gates that flagged 3.1% to 5.0% of test (ID), 50.0% to 95.0% of "
        "photographs and 100.0% of noise (goen 1.2, torch 3.4; recipes/some.py)." in text
    )
    drawn = (folder / "figures" / "flagged.svg").read_text("utf-8")
    assert "grey: from the least to the most of other trainings" in drawn
