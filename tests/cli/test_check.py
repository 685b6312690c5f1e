"""``goen check`` as a person would type it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from goen.cli.main import main
from goen.data import Protocol
from goen.studies.published import Measured, measure_gate, publish
from tests.gate.test_bundled import bundle, stand_in
from tests.tiny import tiny_protocol


@pytest.fixture(scope="module")
def sets() -> Protocol:
    return tiny_protocol()


@pytest.fixture(scope="module")
def rows(sets: Protocol) -> list[Measured]:
    return measure_gate(stand_in(), sets)


@pytest.fixture
def bundled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: list[Measured], sets: Protocol
) -> Path:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("goen.cli.check.protocol", lambda *_, **__: sets)
    folder = bundle(tmp_path / "gates", monkeypatch)
    publish(rows, folder)
    return folder


def alter(folder: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    path = folder / "published.json"
    content = json.loads(path.read_text())
    change(content["rows"])
    path.write_text(json.dumps(content))


def test_a_gate_that_does_what_was_published_is_code_zero(
    bundled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check"]) == 0
    out = capsys.readouterr().out
    assert out.strip().splitlines()[-1] == "All 11 numbers that could be compared agree."
    assert max(map(len, out.splitlines())) <= 80
    for word in ("unseen-digits (50 images)", "AUROC", "FPR95", "accuracy", "flagged", "+0.0000"):
        assert word in out
    assert main(["check", str(bundled)]) == 0


def test_one_altered_number_is_code_one(bundled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def falsify(rows: list[dict[str, Any]]) -> None:
        (row,) = (r for r in rows if (r["dataset"], r["metric"]) == ("noise", "auroc"))
        row["value"] -= 0.001

    alter(bundled, falsify)
    assert main(["check"]) == 1
    out = capsys.readouterr().out
    assert out.strip().splitlines()[-1] == "1 of 11 numbers differ: noise AUROC."
    assert "+0.0010" in out
    assert main(["check", "--json"]) == 1
    printed = capsys.readouterr()
    found = [json.loads(line) for line in printed.out.splitlines()]
    assert [r["verdict"] for r in found].count("differs") == 1
    assert "noise AUROC" in printed.err


def test_a_set_that_is_not_here_is_left_out_and_reported(
    bundled: Path,
    sets: Protocol,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fewer = replace(sets, evaluation={"noise": sets.evaluation["noise"]})
    monkeypatch.setattr("goen.cli.check.protocol", lambda *_, **__: fewer)
    assert main(["check"]) == 0
    out = capsys.readouterr().out
    assert "not here" in out
    assert "5 numbers that could be compared agree. Not here: unseen-digits, photographs." in out
    alter(
        bundled, lambda rows: rows.__setitem__(slice(None), [r for r in rows if r["images"] == 50])
    )
    alter(bundled, lambda rows: rows.__delitem__(slice(6, None)))
    assert main(["check"]) == 2
    assert "Nothing could be compared. Not here: unseen-" in capsys.readouterr().out


def test_what_cannot_be_compared_is_code_two(
    bundled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bundled / "published.json").write_text("{")
    assert main(["check"]) == 2
    assert "published.json is damaged" in capsys.readouterr().err
    (bundled / "published.json").unlink()
    assert main(["check"]) == 2
    assert "has no published.json, so there is nothing to compare" in capsys.readouterr().err
    assert main(["check", "cifar10-w61"]) == 2
    assert "name a bundled gate: cifar10, cifar10-w16" in capsys.readouterr().err


def test_it_asks_for_the_papers_sets_and_the_extra_ones_that_were_published(
    bundled: Path, sets: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def protocol(name: str, **settings: object) -> Protocol:
        asked.append((name, settings["extra"], settings["data_dir"], settings["download"]))
        return sets

    monkeypatch.setattr("goen.cli.check.protocol", protocol)
    alter(
        bundled, lambda rows: rows.extend({**rows[-1], "dataset": n} for n in ("places", "mnist"))
    )
    assert main(["check", bundled.name, "--data-dir", "somewhere"]) == 0
    assert asked == [("cifar10", ("mnist", "places"), Path("somewhere"), True)]
