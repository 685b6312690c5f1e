"""A user's own model and sets on the command line of a study."""

from pathlib import Path

import numpy as np
import pytest

from goen.cli.main import main
from goen.io.results import read_results
from goen.metrics import ood_metrics
from tests.cli.test_evaluate import write
from tests.own_model import DigitNet, digits, trained

MODEL = ["--model", "tests.cli.options.test_own_data:made"]
READ = ["--preprocess", "tests.own_model:preprocess", "--layers", "early", "late"]


def made() -> DigitNet:
    return trained()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("own") / "numbers"
    p = digits()
    write(p.train.take(range(140)), root / "train")
    write(p.validation.take(range(80)), root / "val")
    write(p.test.take(range(60)), root / "test")
    write(p.evaluation["noise"].images.take(range(30)), root.parent / "noise", by_class=False)
    unseen = p.evaluation["unseen-digits"].images
    write(unseen.take(range(30)), root.parent / "unseen", by_class=False)
    return root


def sets(root: Path) -> list[str]:
    named = {"--train": "train", "--held-out": "val", "--test": "test"}
    return [word for flag, name in named.items() for word in (flag, str(root / name))]


def test_bench_ends_with_the_best_and_the_command_of_its_gate(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    ood = ["--ood", str(folders.parent / "noise"), "--near-ood", str(folders.parent / "unseen")]
    words = ["bench", *MODEL, *READ, *sets(folders), *ood, "--out", str(out)]
    assert main([*words, "--methods", "knn", "energy"]) == 0
    printed = capsys.readouterr().out
    last = printed.splitlines()[-1]
    assert last.startswith("best: ")
    assert "make it a gate with: goen fit --model tests.cli.options.test_own_data:made" in last
    assert "(near)" in printed
    assert "milliseconds per image" in " ".join(printed.split())
    before = {(r.method, r.dataset, r.metric): r.value for r in read_results(out / "results.jsonl")}
    assert main([*words, "--methods", "vim"]) == 0  # its row is added
    after = {(r.method, r.dataset, r.metric): r.value for r in read_results(out / "results.jsonl")}
    kept = {key for key in before if key[2] != "p_against_best"}
    assert all(after[key] == before[key] for key in kept)
    assert {key[0] for key in after} == {"knn", "energy", "vim"}
    page = (out / "report.html").read_text()
    assert "one given network" in page


def test_bench_on_a_folder_with_its_parts(folders: Path, tmp_path: Path) -> None:
    words = ["bench", *MODEL, *READ, "--data", str(folders), "--size", "32", "--out"]
    ood = ["--ood", str(folders.parent / "noise"), "--methods", "knn"]
    assert main([*words, str(tmp_path / "out"), *ood]) == 0
    named = [r for r in read_results(tmp_path / "out" / "results.jsonl") if r.metric == "auroc"]
    assert {(r.method, r.dataset) for r in named} == {("knn", "noise")}


def test_bench_on_files_of_features(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {}
    for name, count in (("train", 200), ("held", 60), ("test", 80), ("far", 50)):
        labels = np.arange(count) % 2
        z = (rng.normal(size=(count, 4)) + 3 * labels[:, None]).astype(np.float32)
        parts[name] = z + 6 * (name == "far")
        arrays = {"z": parts[name], "logits": np.stack([-z.sum(1), z.sum(1)], 1)}
        np.savez(tmp_path / f"{name}.npz", labels=labels, **arrays)  # type: ignore[arg-type]
    files = {"--features": "train", "--held-out": "held", "--test": "test", "--ood": "far"}
    words = [w for flag, name in files.items() for w in (flag, str(tmp_path / f"{name}.npz"))]
    out = tmp_path / "out"
    assert main(["bench", *words, "--methods", "knn", "goen_m", "--out", str(out)]) == 0
    found = {r.method: r.value for r in read_results(out / "results.jsonl") if r.metric == "auroc"}
    unit = {name: z / np.linalg.norm(z, axis=1, keepdims=True) for name, z in parts.items()}

    def kth(rows: np.ndarray, k: int = 11) -> np.ndarray:  # a ninth of 100
        return np.sort(1 - rows @ unit["train"].T, axis=1)[:, k - 1]

    expected = ood_metrics(kth(unit["test"]), kth(unit["far"])).auroc
    assert found["knn"] == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train", "x"], "sets of a model of your own: give --model"),
        ([*MODEL, "--train", "x"], "needs --held-out, --test, --ood as well"),
        ([*MODEL, "--preset", "fast"], "A given model is not trained: leave out --preset"),
        (["--features", "x.npz", "--train", "y"], "Give --features, or --model and --train"),
        ([*MODEL, "--data", "nowhere"], "neither a folder, nor a protocol file"),
    ],
)
def test_what_is_missing_is_one_sentence(
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_robust_of_a_model_and_of_a_gate(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--corruptions", "fog", "--severities", "5"]
    out = tmp_path / "model"
    words = ["robust", *MODEL, *READ, *sets(folders), "--ood", str(folders.parent / "noise")]
    assert main([*words, *few, "--methods", "knn", "energy", "--out", str(out)]) == 0
    rows = read_results(out / "results.jsonl")
    assert {(r.method, r.dataset) for r in rows} == {
        (method, dataset) for method in ("knn", "energy") for dataset in ("clean", "fog-5")
    }
    fit = ["fit", *MODEL, *READ, *sets(folders)[:4], "--detector", "knn"]
    assert main([*fit, "--out", str(tmp_path / "gate")]) == 0
    gate = ["robust", "--gate", str(tmp_path / "gate"), *MODEL, *READ[:2], *few]
    assert main([*gate, "--test", str(folders / "test"), "--out", str(tmp_path / "of-gate")]) == 0
    own = {(r.dataset, r.metric): r.value for r in read_results(tmp_path / "of-gate/results.jsonl")}
    others = {(r.dataset, r.metric): r.value for r in rows if r.method == "knn"}
    assert own["fog-5", "accuracy"] == others["fog-5", "accuracy"]
    assert own["clean", "mean_score"] == pytest.approx(others["clean", "mean_score"], rel=1e-4)
    capsys.readouterr()
    assert main([*gate, "--test", str(folders / "val"), "--out", str(tmp_path / "leak")]) == 2
    assert "the gate's held_out images" in capsys.readouterr().err
    assert main(["robust", "--gate", str(tmp_path / "gate")]) == 2
    assert "--gate goes with --test" in capsys.readouterr().err
