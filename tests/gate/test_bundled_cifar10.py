"""The gate that ships: small, whole, made without OOD images, and it works."""

import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

import goen
from goen.cli.main import main
from goen.data import load_set
from goen.data.embedded import noise
from goen.gate import DEFAULT_GATE, Gate
from goen.gate.bundled import shipped, shipped_folder
from goen.gate.published import read_published
from goen.models.flip_averaging import Mirrored

FOLDER = shipped_folder(DEFAULT_GATE)
SETS = {"svhn", "cifar100", "noise", "tiny-imagenet", "mnist", "textures", "places"}


@pytest.fixture(scope="module")
def gate() -> Gate:
    return goen.load("cifar10-w16")


def test_it_is_there_with_its_card_and_its_table_and_small() -> None:
    assert shipped() == ("cifar10-w16",)
    assert FOLDER is not None
    files = {file.name: file.stat().st_size for file in FOLDER.iterdir()}
    assert set(files) == {"manifest.json", "tensors.safetensors", "published.json", "CARD.md"}
    assert sum(files.values()) <= 8_000_000


def test_no_ood_image_made_it(gate: Gate) -> None:
    splits = gate.facts["splits"]
    assert {role: split["images"] for role, split in splits.items()} == {
        "train": 45_000,
        "calibration": 3_000,
        "held-out": 2_000,
    }
    assert all(split["name"].startswith("cifar10/train") for split in splits.values())
    assert isinstance(gate.network, Mirrored)
    assert not gate.scorer.gives_probability
    assert gate.false_alarm_rate == 0.05
    assert len(gate.held_out_scores) == 2_000


def test_what_was_published_has_every_set_and_keeps_what_the_page_promises() -> None:
    assert FOLDER is not None
    rows = {(row.dataset, row.metric): row.value for row in read_published(FOLDER)}
    assert {name for name, metric in rows if metric == "auroc"} == SETS
    assert rows["test", "flagged"] < 0.06
    assert rows["noise", "auroc"] > 0.99


def test_strangers_that_need_no_download_are_flagged(gate: Gate) -> None:
    digits = load_set("digits").read(range(0, 1700, 50))
    assert gate.predict(digits).is_ood.mean() > 0.8
    assert gate.predict(noise(40, seed=3).read()).is_ood.all()
    flat = np.full((1, 3, 32, 32), 128, np.uint8)
    assert np.isfinite(gate.predict(flat).score).all()


def test_a_picture_is_scored_with_no_more_than_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "photo.jpg"
    picture.write_bytes((resources.files("sklearn.datasets.images") / "china.jpg").read_bytes())
    assert main(["score", str(picture)]) == 0
    row = json.loads(capsys.readouterr().out)
    assert row["label"] in goen.load("cifar10-w16").classes
    assert 0 < row["p_value"] <= 1
    assert {"p_layer2", "p_layer4", "p_entropy"} <= set(row)
