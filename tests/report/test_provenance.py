"""Where the numbers of a page come from."""

import html
import json
from pathlib import Path

import pytest

from goen.report.provenance import command
from goen.report.run_folder import read_run
from tests.report.by_hand import bench
from tests.report.reading import page_text

pytestmark = pytest.mark.xdist_group("report")


def test_the_provenance_is_there(folder: Path) -> None:
    text = html.unescape(page_text(folder))
    summary = json.loads((folder / "run.json").read_text())
    assert "goen run --data digits --preset tiny --budget full" in text
    for split in summary["metadata"]["splits"].values():
        assert split["fingerprint"] in text
    for fact in summary["metadata"]["hardware"].values():
        assert str(fact) in text
    manifest = json.loads((folder / "gate" / "manifest.json").read_text())
    assert manifest["tensors_sha256"] in text
    assert f"torch {manifest['versions']['torch']}" in text


def test_the_command_names_the_further_sets(tmp_path: Path) -> None:
    folder = bench(tmp_path / "b")
    rows = folder / "results.jsonl"
    rows.write_text(rows.read_text().replace("far-set", "textures"))
    assert "--data digits --extra textures --" in command(read_run(folder))


def test_the_command_leaves_out_options_that_are_not_set(tmp_path: Path) -> None:
    folder = bench(tmp_path / "b")
    file = folder / "run.json"
    summary = json.loads(file.read_text())
    summary["config"] = {"methods": [], "preset": "", "device": None, "seed": 7}
    file.write_text(json.dumps(summary))
    told = command(read_run(folder))
    assert told.endswith("--seed 7")
    assert not any(name in told for name in ("methods", "preset", "device"))


def test_the_command_has_flags_and_no_folders_of_others(tmp_path: Path) -> None:
    folder = bench(tmp_path / "b")
    file = folder / "run.json"
    summary = json.loads(file.read_text())
    summary |= {"data": "my photos", "config": {"from_scratch": True, "other": False, "seed": 7}}
    file.write_text(json.dumps(summary))
    assert command(read_run(folder)) == "goen bench --data ... --from-scratch --seed 7"
