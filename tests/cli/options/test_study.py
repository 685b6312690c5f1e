"""What the commands of all studies share, and that each passes its options on."""

import json
import re
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from goen.cli.main import main
from goen.cli.options.study import StudyOptions, run_study
from goen.data import ImageSet
from goen.errors import UsageError
from goen.report.page import Report
from goen.studies import VARIANTS, AblateConfig, BenchConfig, RobustConfig, RunConfig
from tests.tiny import tiny_protocol


def test_folders_follow_from_the_datasets_and_the_study() -> None:
    assert StudyOptions().run_folder() == Path("runs/digits")
    assert StudyOptions(data="cifar10").run_folder("bench") == Path("runs/cifar10-bench")
    options = StudyOptions(out=Path("here/mine"))
    assert options.run_folder("bench") == Path("here/mine")
    assert options.shared_stages(Path("here/mine")).folder == Path("here/stages")
    assert StudyOptions(stages=Path("s")).shared_stages(Path("here/mine")).folder == Path("s")


def test_the_sets_that_calibrate_are_the_protocols_the_named_ones_or_none() -> None:
    assert list(StudyOptions().load_protocol().calibration_ood) == ["photographs", "noise"]
    assert not StudyOptions(calibration_ood=("none",)).load_protocol().calibration_ood
    named = StudyOptions(calibration_ood=("augmented", "photographs"))
    assert list(named.load_protocol().calibration_ood) == ["photographs", "augmented"]
    with pytest.raises(UsageError, match="Unknown set for calibration 'none'"):
        StudyOptions(calibration_ood=("none", "noise")).load_protocol()
    with pytest.raises(UsageError, match="Did you mean 'noise'"):
        StudyOptions(calibration_ood=("nois",)).load_protocol()


@pytest.mark.parametrize("rank", [0, 1])
def test_the_first_process_works_and_the_others_help_to_train(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    helped: list[ImageSet] = []
    sent: list[object] = []
    monkeypatch.setattr("goen.cli.options.study.join_processes", lambda: nullcontext(rank))
    monkeypatch.setattr("goen.cli.options.study.broadcast", lambda *given: sent.append(given))
    monkeypatch.setattr("goen.cli.options.study.help_training", helped.append)
    monkeypatch.setattr(StudyOptions, "load_protocol", lambda *_: tiny_protocol())
    folder = tmp_path / "run"
    worked: list[object] = []
    monkeypatch.setattr("goen.report.page.write_page", lambda folder: Report(folder, [], []))
    report = run_study(StudyOptions(out=folder), "x", lambda *given: worked.append(given[1]))
    if rank:
        assert report is None
        assert not worked
        assert [images.fingerprint for images in helped] == [tiny_protocol().train.fingerprint]
        assert sent == [()]  # it waits once
        assert not folder.exists()
    else:
        assert report is not None
        assert worked == [report.path] == [folder]
        assert not helped
        assert sent == [(True,), (None,)]  # the datasets are here; there is nothing left to train


STUDIES: dict[str, tuple[str, list[str], object, dict[str, object]]] = {
    "ablate": (
        "goen.cli.ablate.ablate",
        ["--variants", "default", "no_svhn", "--seed", "3"],
        AblateConfig(variants=("default", "no_svhn"), seed=3),
        {},
    ),
    "geometry": (
        "goen.cli.geometry.geometry",
        ["--budget", "paper", "--device", "cuda:1", "--precision", "bfloat16"],
        AblateConfig(budget="paper", device="cuda:1", precision="bfloat16"),
        {},
    ),
    "bench": (
        "goen.cli.bench.bench",
        ["--sets", "noise", "--precision", "float32"],
        BenchConfig(sets=("noise",), precision="float32"),
        {"command": "goen run --data cifar10"},
    ),
    "robust": (
        "goen.cli.robust.robust",
        ["--corruptions", "fog", "--severities", "1", "5", "--cifar10c", "folder"],
        RobustConfig(corruptions=("fog",), severities=(1, 5), cifar10c=Path("folder")),
        {},
    ),
    "seeds": (
        "goen.cli.seeds.run_seeds",
        ["--seeds", "1", "2", "--representation", "concat"],
        RunConfig(representation="concat"),
        {"seeds": (1, 2)},
    ),
}


@pytest.mark.parametrize("command", STUDIES)
def test_each_command_passes_its_options_to_its_study(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    target, words, config, more = STUDIES[command]
    calls: list[tuple[Any, ...]] = []

    def study(*arguments: object, **settings: object) -> list[object]:
        calls.append((*arguments, settings))
        return []

    asked: dict[str, object] = {}

    def protocol(name: str, **settings: object) -> object:
        asked.update(settings, name=name)
        return tiny_protocol()

    monkeypatch.setattr(target, study)
    monkeypatch.setattr("goen.cli.options.study.protocol", protocol)
    monkeypatch.setattr(
        "goen.report.page.write_page", lambda folder: Report(folder / "report.html", [], [])
    )
    out = tmp_path / "runs" / "x"
    places = ["--data", "cifar10", "--extra", "mnist", "--data-dir", "d", "--out", str(out)]
    places += ["--calibration-ood", "places", "noise"]
    assert main([command, *words, *places]) == 0
    ((given, sets, folder, stages, settings),) = calls
    assert (asdict(given), folder, settings) == (asdict(config), out, more)
    assert stages.folder == tmp_path / "runs" / "stages"
    assert sets.name == "digits"
    assert asked == {
        "name": "cifar10", "data_dir": Path("d"), "download": True, "extra": ("mnist",),
        "calibration": ("places", "noise"),
    }  # fmt: skip
    assert capsys.readouterr().out.splitlines()[-1] == f"report:  {out / 'report.html'}"
    assert main([command, *words, *places, "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == []


@pytest.mark.parametrize("command", ["ablate", "geometry"])
def test_the_help_lists_the_variants(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    listed = capsys.readouterr().out.partition("--variants [NAME ...]")[2].partition("--preset")[0]
    assert set(re.findall(r"[a-z]\w+", listed)) >= VARIANTS.keys()


def test_a_folder_of_other_files_is_refused_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "goen.cli.options.study.protocol", lambda *_, **__: pytest.fail("it has begun")
    )
    (tmp_path / "results.jsonl").write_text("years of work")
    for command in ("run", *STUDIES):
        assert main([command, "--out", str(tmp_path)]) == 2
        assert "results.jsonl" in capsys.readouterr().err
    assert (tmp_path / "results.jsonl").read_text() == "years of work"


@pytest.mark.parametrize("command", ["run", *STUDIES])
def test_a_device_that_is_not_here_is_one_sentence(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("goen.cli.options.study.protocol", lambda *_, **__: tiny_protocol())
    assert main([command, "--device", "gpu", "--out", str(tmp_path / "x")]) == 2
    assert "There is no device 'gpu' on this machine. Available: cpu" in capsys.readouterr().err


def test_seeds_may_also_be_called_seed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[tuple[int, ...]] = []

    def study(options: StudyOptions, name: str, run: Any) -> int:
        given.append(run.keywords["seeds"])
        return 0

    monkeypatch.setattr("goen.cli.seeds.print_study", study)
    for option in ("--seed", "--seeds"):
        assert main(["seeds", option, "7", "8"]) == 0
    assert given == [(7, 8), (7, 8)]
    monkeypatch.undo()
    monkeypatch.setattr("goen.cli.options.study.protocol", lambda *_, **__: tiny_protocol())
    assert main(["seeds", "--seed", "7"]) == 2
    assert "at least two different seeds, got 7." in capsys.readouterr().err
