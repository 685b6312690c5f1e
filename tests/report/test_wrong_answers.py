"""Wrong answers in studies and on pages: numbers of the results, curves, the promise of a gate."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import goen
from goen.cli.main import main
from goen.io.results import read_scores
from goen.metrics import selective_metrics
from goen.report.comparison import Comparison
from goen.report.figures.bench import Scored, risk_by_kind
from goen.report.run_folder import RunFolder, read_run
from goen.report.wrong_answers import risk_sections, wrong_answers_tables
from goen.studies.rows import WRONG
from tests.gate.test_error_rate import make_gate, rows
from tests.report.reading import page_text, values_by_key

pytestmark = pytest.mark.xdist_group("report")
METHODS = ("max_softmax", "knn")


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A benchmark of features, and the evaluation of a gate with an error rate."""
    place = tmp_path_factory.mktemp("wrong-answers")
    for name, count, seed in (("train", 400, 0), ("val", 600, 1), ("test", 1500, 2)):
        features, labels = rows(count, seed)
        np.savez(place / f"{name}.npz", labels=labels, **features)
    other = np.random.default_rng(9).normal(0, 3, (100, 8)).astype(np.float32)
    np.savez(place / "ood.npz", z=other, logits=other[:, :3])
    make_gate().with_error_rate(0.03).save(place / "gate")
    files = {role: str(place / f"{role}.npz") for role in ("train", "val", "test", "ood")}
    bench = ["--features", files["train"], "--held-out", files["val"], "--test", files["test"]]
    given = ["--ood", files["ood"]]
    command = ["bench", *bench, *given, "--methods", *METHODS, "--out", str(place / "bench")]
    assert main(command) == 0
    evaluation = ["evaluate", str(place / "gate"), "--id", files["test"], *given]
    assert main([*evaluation, "--out", str(place / "evaluate")]) == 0
    return place


def errors_of(study: Path, method: str) -> np.ndarray:
    return read_scores(study / "scores.safetensors")[WRONG][method].astype(bool)


def test_every_method_has_the_metrics_of_its_scores(studies: Path) -> None:
    values = values_by_key(studies / "bench")
    scores = read_scores(studies / "bench" / "scores.safetensors")
    features, labels = rows(1500, 2)
    wrong = features["logits"].argmax(axis=1) != labels
    for method in METHODS:
        assert np.array_equal(errors_of(studies / "bench", method), wrong)
        m = selective_metrics(scores["test"][method], wrong)
        for metric in ("aurc", "e_aurc", "error_auroc", "accuracy_at_50", "accuracy_at_95"):
            assert values[method, "test", metric] == getattr(m, metric)
        assert (method, "test", "num_wrong") not in values
    run = read_run(studies / "bench")
    r = run.by_key["knn", "test", "error_auroc"]
    m = selective_metrics(scores["test"]["knn"], wrong)
    assert (r.low, r.high) == (m.error_auroc_low, m.error_auroc_high)


def test_the_table_names_the_best_for_each_purpose(studies: Path) -> None:
    run = read_run(studies / "bench")
    comparison = Comparison(run.results, run.summary)
    (table,) = wrong_answers_tables(comparison)
    values = values_by_key(studies / "bench")
    for method, row in zip(comparison.methods, table.rows, strict=True):
        expected = [values[method, "ood", "auroc"]]
        expected += [values[method, "test", m] for m in ("error_auroc", "aurc", "e_aurc")]
        assert [cell.value for cell in row.cells[:4]] == expected
    aurc = [row.cells[2] for row in table.rows]
    assert [cell.mark for cell in aurc].count("best") == 1
    assert min(aurc, key=lambda cell: cell.value or 0).mark == "best"
    (purposes,) = [note for note in table.notes if note.startswith("For OOD images")]
    best = {}
    for metric, dataset in (("auroc", "ood"), ("error_auroc", "test")):
        best[metric] = max(METHODS, key=lambda m: values[m, dataset, metric])
    titles = {key: title for key, (title, _) in run.titles.items()}
    assert f"(mean over ood): {titles[best['auroc']]} (" in purposes
    assert f"wrong answers: {titles[best['error_auroc']]} (" in purposes
    none = [r for r in run.results if "aurc" not in r.metric and "error" not in r.metric]
    assert wrong_answers_tables(Comparison(none, run.summary)) == []


def test_the_page_draws_risk_by_coverage(studies: Path) -> None:
    run = read_run(studies / "bench")
    text = page_text(studies / "bench")
    assert "Risk by coverage" in text
    assert f"AURC {run.number('knn', 'test', 'aurc'):.4f}" in text
    scores = dict(run.scores["test"])
    assert len(risk_sections(run, scores, ["knn"])) == 1
    without = {name: of for name, of in run.scores.items() if name != WRONG}
    older = replace(run, scores=without)
    assert isinstance(older, RunFolder)
    assert risk_sections(older, scores, ["knn"]) == []


def test_the_curve_ends_at_the_error_rate() -> None:
    rng = np.random.default_rng(0)
    one = Scored("a", 0, rng.normal(size=90), rng.normal(1, size=10), legend="a: AURC 0.1")
    figure = risk_by_kind([one, replace(one, label="b", legend="")])
    assert isinstance(figure, Figure)
    best, coloured, _, grey = figure.axes[0].lines
    for line in (best, coloured, grey):
        assert line.get_ydata()[-1] == pytest.approx(0.1)
        assert line.get_xdata()[-1] == 1
    assert best.get_ydata()[:80].max() == 0
    assert (coloured.get_ydata() >= best.get_ydata() - 1e-12).all()


# -- goen evaluate ---------------------------------------------------------------------------------


def test_an_evaluation_compares_the_errors_with_the_promise(studies: Path) -> None:
    folder = studies / "evaluate"
    values = values_by_key(folder)
    gate = goen.load(studies / "gate")
    features, labels = rows(1500, 2)
    prediction = gate.predict_outputs(features)
    wrong = prediction.label != labels
    assert prediction.accepted is not None
    assert values["gate", "test", "accepted"] == prediction.accepted.mean()
    errors = wrong[prediction.accepted]
    assert values["gate", "test", "error_rate"] == errors.mean()
    # A sum of binomial terms, from the number of errors up.
    from scipy.stats import binom

    tail = binom.pmf(np.arange(errors.sum(), len(errors) + 1), len(errors), 0.03).sum()
    assert values["gate", "test", "p_error_rate"] == pytest.approx(tail, rel=1e-9)
    conclusion = json.loads((folder / "run.json").read_text())["conclusion"]
    assert f"{prediction.accepted.mean():.1%} of the ID images are accepted" in conclusion
    assert "promised: at most 0.03 with 0.95 probability" in conclusion
    assert "more than the promise" not in conclusion
    assert "Accepted, neither flagged nor doubtful" in page_text(folder)
    m = selective_metrics(1 - prediction.confidence, wrong)
    assert values["classifier", "test", "aurc"] == pytest.approx(m.aurc, abs=1e-12)
    assert values["knn", "test", "aurc"] == pytest.approx(
        selective_metrics(prediction.score, wrong).aurc, abs=1e-6
    )


def test_more_errors_than_promised_are_named(studies: Path, tmp_path: Path) -> None:
    features, labels = rows(600, 4)
    mixed = np.where(np.random.default_rng(0).random(600) < 0.3, (labels + 1) % 3, labels)
    np.savez(tmp_path / "mixed.npz", labels=mixed, **features)
    out = tmp_path / "out"
    given = ["--id", str(tmp_path / "mixed.npz"), "--ood", str(studies / "ood.npz")]
    assert main(["evaluate", str(studies / "gate"), *given, "--out", str(out)]) == 0
    assert (
        "that is more than the promise" in json.loads((out / "run.json").read_text())["conclusion"]
    )
    assert "These are more errors than that" in page_text(out)


def test_the_commands_take_an_error_rate(
    studies: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gate"
    given = ["--features", str(studies / "train.npz"), "--held-out", str(studies / "val.npz")]
    fit = ["fit", *given, "--detector", "knn", "--error-rate", "0.08", "--error-confidence", "0.9"]
    assert main([*fit, "--out", str(out)]) == 0
    wanted = goen.load(out).error_rate
    assert wanted is not None
    assert (wanted.rate, wanted.confidence, wanted.by) == (0.08, 0.9, "confidence")
    assert "at most 0.08 of accepted ID images" in (out / "report.txt").read_text()
    capsys.readouterr()
    score = ["score", str(studies / "test.npz"), "--gate", str(out), "--format", "jsonl"]
    assert main([*score, "--error-rate", "0.1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    other = goen.load(out).with_error_rate(0.1, confidence=0.9)  # the gate's confidence stays
    expected = other.predict_outputs(rows(1500, 2)[0]).accepted
    assert [line["accepted"] for line in lines] == expected.tolist()
    assert main([*score[:-1], "table"]) == 0
    assert "accepted" in capsys.readouterr().out
