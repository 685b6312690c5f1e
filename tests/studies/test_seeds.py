"""One configuration over seeds."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from goen.errors import UsageError
from goen.io.results import read_results
from goen.report.pages.seeds import seeds_tables
from goen.report.summary import read_summary
from goen.studies import PRESETS, RunConfig, seeds
from tests.tiny import FAST, tiny_protocol

METRIC = ("goen", "auroc")


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "fast", FAST)  # type: ignore[arg-type]


def test_every_seed_is_a_run_and_the_table_is_their_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    protocol = replace(tiny_protocol(), calibration_ood={})
    config = RunConfig(preset="fast")
    results = seeds(config, protocol, tmp_path / "s", seeds=(1, 2, 3))
    assert read_results(tmp_path / "s" / "results.jsonl") == results
    assert {r.seed for r in results} == {1, 2, 3}
    assert len({r.network for r in results}) == 3
    values = [
        r.value
        for r in results
        if (r.method, r.dataset, r.metric) == ("goen_distance", "noise", "auroc")
    ]
    auroc, accuracy, each = seeds_tables(results, read_summary(tmp_path / "s"))
    row = next(row for row in auroc.rows if "distance" in row.label)
    noise = auroc.columns.index("noise")
    mean, least, most = row.cells[noise : noise + 3]
    assert mean.value == pytest.approx(np.mean(values))
    assert mean.spread == pytest.approx(np.std(values, ddof=1))
    assert (least.value, most.value) == (min(values), max(values))
    assert len(each.rows) == 2 * 3
    assert accuracy.rows[0].cells[0].spread is not None

    monkeypatch.setattr("goen.studies.networks.train_backbone", None)
    assert seeds(config, protocol, tmp_path / "t", seeds=(2, 3))[0].seed == 2


def test_the_epochs_of_every_seeds_head_end_in_its_results(tmp_path: Path) -> None:
    results = seeds(RunConfig(preset="fast"), tiny_protocol(), tmp_path / "s", seeds=(1, 2))
    lines = (tmp_path / "s" / "head.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert {row["variant"] for row in rows} == {"1", "2"}
    found = {(r.seed, r.dataset): r.value for r in results if (r.method, r.metric) == METRIC}
    for seed in (1, 2):
        mine = [row for row in rows if row["variant"] == str(seed)]
        assert [row["epoch"] for row in mine] == list(range(len(mine)))
        kept = max(mine, key=lambda row: row["gap"])  # the first of the widest
        for name in tiny_protocol().evaluation:
            assert kept[f"auroc/{name}"] == found[seed, name]
        own = (tmp_path / "s" / "seeds" / str(seed) / "head.jsonl").read_text().splitlines()
        assert [{**json.loads(line), "variant": str(seed)} for line in own] == mine


def test_a_spread_needs_two_seeds(tmp_path: Path) -> None:
    for few, got in (((1,), "1"), ((1, 1), "1 1"), ((), "none")):
        with pytest.raises(UsageError, match=rf"at least two different seeds, got {got}\."):
            seeds(RunConfig(), tiny_protocol(), tmp_path, seeds=few)


def test_the_folder_may_be_a_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Unknown preset 'none'"):  # after the folder was made
        seeds(RunConfig(preset="none"), tiny_protocol(), str(tmp_path / "out"))
    assert (tmp_path / "out").is_dir()
