import csv
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from goen.cli.main import main
from goen.io.results import read_results
from tests.data.openood_folder import write_openood
from tests.features.test_openood import write_checkpoint

ROWS = ["cifar100", "tin", "nearood", "svhn", "farood"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder of OpenOOD's shape, and the checkpoints of two runs."""
    folder = tmp_path_factory.mktemp("openood")
    write_openood(folder / "data", each=1)
    for seed in range(2):
        write_checkpoint(folder / "results" / f"s{seed}" / "best.ckpt", seed)
    return folder


def test_its_rows_over_its_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["bench", "--openood", str(place / "data"), "--benchmark", "cifar10"]
    command += ["--weights", str(place / "results"), "--methods", "energy", "max_softmax"]
    command += ["--sets", "svhn", "tin", "cifar100", "--out", str(place / "out")]
    (place / "out").mkdir()
    (place / "out" / "openood.csv").write_text("of an earlier call")
    assert main(command) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "87.58 n/a" in text  # Energy on the board: here all near sets, and one far set
    assert "mean ± population standard deviation over 2 runs" in text
    with (place / "out" / "openood.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["dataset"] for row in rows] == [*ROWS, *ROWS]
    runs = [read_results(place / "out" / f"s{seed}" / "results.jsonl") for seed in range(2)]
    values = [
        100 * r.value
        for results in runs
        for r in results
        if (r.method, r.dataset, r.metric) == ("energy", "svhn", "auroc")
    ]
    expected = f"{fmean(values):.2f} ± {pstdev(values):.2f}"
    by_name = {(row["method"], row["dataset"]): row for row in rows}
    assert by_name["energy", "svhn"]["AUROC"] == expected
    assert (place / "out" / "s0" / "report.html").is_file()


def test_one_checkpoint_with_shifted_images(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["bench", "--openood", str(place / "data"), "--full-spectrum", "--methods", "energy"]
    command += [
        "--weights",
        str(place / "results" / "s0" / "best.ckpt"),
        "--out",
        str(place / "fs"),
    ]
    assert main(command) == 0
    shown = capsys.readouterr()
    text = " ".join(shown.out.split())
    assert "OpenOOD 1.5, cifar10, full-spectrum" in text
    assert "87.58" not in text  # the board's, without shifted images
    assert f"report: {place / 'fs' / 'report.html'}" in shown.err.replace("\n", "")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--openood needs --weights"),
        (["--weights", "results", "--benchmark", "cifar"], "Did you mean 'cifar10'?"),
        (["--weights", "data"], "data has no checkpoints s*/best.ckpt"),
        (["--weights", "results", "--data", "cifar10"], "leave out --data, --ood"),
        (["--weights", "results", "--train", "x"], "leave out --train and the other sets"),
        (["--weights", "results", "--tune-on", "tin"], "name the methods with _tuned"),
        (["--weights", "results", "--seed", "3"], "A given model is not trained"),
        (["--weights", "results", "--benchmark", "cifar100"], "train_cifar100.txt is not there"),
    ],
)
def test_wrong_calls(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(place)
    assert main(["bench", "--openood", "data", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
