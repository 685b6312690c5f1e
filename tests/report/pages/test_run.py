"""Tables and page of ``goen run``: the numbers of the results."""

import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from goen.data.images.data_urls import image_url
from goen.io.results import read_results, read_scores
from goen.report import write_report
from goen.report.pages import run
from goen.report.texts import text_of
from goen.studies import METHODS
from tests.report.reading import page_text, plain, results_by_key, tables
from tests.report.scored import galleries
from tests.tiny import tiny_protocol

pytestmark = pytest.mark.xdist_group("report")
BY_SET = (
    *("auroc", "fpr95_ood_positive", "fpr95_id_positive"),
    *("aupr_out", "aupr_in", "detection_accuracy"),
)
WRONG = {
    "AUROC of errors": "error_auroc",
    "AURC": "aurc",
    "E-AURC": "e_aurc",
    "accuracy at 95 %": "accuracy_at_95",
    "accuracy at 80 %": "accuracy_at_80",
}
SETS = ("unseen-digits", "photographs", "noise")


def test_every_number_of_every_table_is_that_of_the_results(folder: Path) -> None:
    found = tables(folder / "report.html")
    results = results_by_key(folder)
    methods = {method.title: key for key, method in METHODS.items()}
    compared = 0
    for metric in BY_SET:
        for (_, label, column), cell in found[metric].cells().items():
            dataset = column.partition(" (")[0]
            if dataset not in SETS:
                continue
            r = results[methods[label], dataset, metric]
            assert plain(cell.text) == f"{r.value:.4f}"
            if r.low is not None:
                assert cell.interval == f"{r.low:.4f}–{r.high:.4f}"
            assert cell.text.endswith("†") == r.seen_in_calibration
            compared += 1
    assert compared == len([r for r in results.values() if r.metric in BY_SET])
    for (_, _, column), cell in found["flagged"].cells().items():
        name = column.removesuffix(" (ID)")
        metric = "false_alarm_rate" if name == "test" else "flagged"
        r = results["gate", name, metric]
        assert cell.text == f"{r.value:.1%}{'†' * r.seen_in_calibration}"
    marked = any(cell.text.endswith("†") for cell in found["flagged"].cells().values())
    assert ("of this kind calibrated the gate" in page_text(folder)) == marked
    names = {"accuracy": "accuracy", "ECE (15 bins)": "ece", "NLL": "nll", "Brier score": "brier"}
    for (_, label, column), cell in found["classifier"].cells().items():
        assert cell.text == f"{results['classifier', label, names[column]].value:.4f}"
    has_head = any(r.method == "goen" for r in results.values())
    assert ("ood_probability" in found) == has_head
    if has_head:
        for (_, label, column), cell in found["ood_probability"].cells().items():
            metric = {
                "ECE (15 bins)": "ood_ece",
                "Brier score": "ood_brier",
                "share of OOD images": "ood_prevalence",
            }[column]
            r = results["goen", label.partition(" (")[0], metric]
            assert plain(cell.text) == f"{r.value:.4f}"
    seen = {r.dataset for r in results.values() if r.seen_in_calibration}
    for (_, label, column), cell in found["wrong_answers"].cells().items():
        if column in WRONG:
            value = results[methods[label], "test", WRONG[column]].value
        else:
            unseen = [name for name in SETS if name not in seen]
            value = np.mean([results[methods[label], name, "auroc"].value for name in unseen])
        assert plain(cell.text) == f"{value:.4f}"
    known = {*BY_SET, "flagged", "classifier", "ood_probability", "wrong_answers"}
    assert set(found) <= known, "a table that this test does not compare"


def test_the_text_has_the_numbers_of_the_results(folder: Path) -> None:
    text = page_text(folder)
    for r in read_results(folder / "results.jsonl"):
        if r.metric in ("false_alarm_rate", "flagged"):
            assert f"<b>{r.value:.1%}</b>" in text
    accuracy = results_by_key(folder)["classifier", "test", "accuracy"].value
    assert f"accuracy on the test images is <b>{accuracy:.1%}</b>" in text


def test_the_best_of_each_set_is_bold(folder: Path) -> None:
    results = [r for r in read_results(folder / "results.jsonl") if r.metric == "auroc"]
    checked = 0
    for (_, _, column), cell in tables(folder / "report.html")["auroc"].cells().items():
        here = [
            f"{r.value:.4f}"
            for r in results
            if column.partition(" (")[0] == r.dataset and not r.seen_in_calibration
        ]
        if here:
            alone = here.count(max(here)) == 1
            seen = cell.text.endswith("†")
            assert cell.bold == (alone and not seen and plain(cell.text) == max(here))
            checked += 1
    assert checked == len(results)


@pytest.mark.parametrize(
    ("used", "unseen", "text"),
    [
        (["a"], ["b"], "was calibrated with OOD images of the kind a; b is of an unseen kind"),
        (
            ["a", "b"],
            ["c", "d"],
            "was calibrated with OOD images of the kinds a and b; c and d are of unseen kinds",
        ),
        (["a"], [], "was calibrated with OOD images of the kind a"),
        ([], ["a"], "was fitted without OOD images: every OOD set here is of an unseen kind"),
    ],
)
def test_it_is_said_what_calibrated_the_gate(used: list[str], unseen: list[str], text: str) -> None:
    assert str(text_of("run.html", "calibrated_with", used=used, unseen=unseen)) == text


def test_few_held_out_images_more_of_which_would_flag_more() -> None:
    """Of 37 images the largest score is the threshold, 1 in 38; of 39 the second, 2 in 40."""
    assert run._with_more(37, 0.05) == (39, 0.05)
    assert run._with_more(19, 0.05) == (39, 0.05)
    assert run._with_more(7, 0.2) == (9, 0.2)
    said = {"held_out": 37, "expected": 1 / 38, "low": 0.001, "high": 0.078}
    text = str(text_of("run.html", "guarantee", **said, needed=39, allowed=0.05))
    assert "at most 2.6% of ID images are flagged; with 39 held-out images it would be 5.0%" in text
    enough = str(text_of("run.html", "guarantee", **said, needed=0, allowed=0.05))
    assert "of ID images are flagged. The rate of this one gate lies" in enough


def test_the_first_sentence_says_which_sets_are_of_a_kind_used_in_calibration(
    folder: Path,
) -> None:
    lead = re.findall(r'<p class="lead">(.*?)</p>', page_text(folder))[0]
    first = lead.split(". ")[0]
    rows = [r for r in read_results(folder / "results.jsonl") if r.metric == "flagged"]
    used = [r.dataset for r in rows if r.seen_in_calibration]
    unseen = [r.dataset for r in rows if not r.seen_in_calibration]
    assert bool(used) == (folder.name == "run")
    assert first.endswith(str(text_of("run.html", "calibrated_with", used=used, unseen=unseen)))


def test_the_score_of_the_gate_stands_in_the_summary_and_the_others_after_it(folder: Path) -> None:
    text = (folder / "report.html").read_text("utf-8")
    drawn = re.findall(
        r"Histograms of the score (.*?) of test \(ID\), [^\"]*?(, with the|\.)", text
    )
    measured = {method for method, _, metric in results_by_key(folder) if metric == "auroc"}
    titles = [method.title for name, method in METHODS.items() if name in measured]
    assert {title for title, _ in drawn} == {*titles}
    assert [title for title, end in drawn if end != "."] == titles[-1:]


def test_what_depends_on_the_prevalence_and_a_single_set_are_not_averaged(folder: Path) -> None:
    found = tables(folder / "report.html")
    for metric, averaged in (("auroc", folder.name != "run"), ("aupr_out", False)):
        columns = {column for _, _, column in found[metric].cells()}
        assert ("mean unseen" in columns) == averaged


def test_the_prevalence_stands_beside_precision(folder: Path) -> None:
    assert re.search(
        r"Precision-recall curves on noise, of which 38\.5% are OOD", page_text(folder)
    )


def test_the_reliability_of_the_probability_counts_every_image_on_its_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sides = []

    def noted(probability: np.ndarray, is_ood: np.ndarray) -> SimpleNamespace:
        sides.append([probability[~is_ood].tolist(), probability[is_ood].tolist()])
        return SimpleNamespace(curve=[])

    monkeypatch.setattr(run, "ood_calibration", noted)
    monkeypatch.setattr(run, "ood_reliability", lambda curves: Figure())
    scores = {"test": {"probability": np.array([0.1, 0.2])}, "far": {"probability": np.ones(3)}}
    scores["test"]["goen"] = np.zeros(2)
    study = SimpleNamespace(
        scores=scores, sets={"far": "far"}, titles={"goen": ("", "")}, number=lambda *key: 0.6
    )
    assert len(run._ood_reliability(study)) == 1  # type: ignore[arg-type]
    assert sides == [[[0.1, 0.2], [1.0, 1.0, 1.0]]]


def test_the_reliability_of_the_classifier_counts_who_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = []
    monkeypatch.setattr(run, "classifier_reliability", lambda bins, ece: drawn.extend(bins))
    logits = np.log([[0.75, 0.25], [0.25, 0.75], [0.75, 0.25], [0.75, 0.25]])
    scores = {"test": {"logits": logits, "truth": np.array([0, 1, 0, 1])}}
    study = SimpleNamespace(scores=scores, number=lambda *key: 0.0)
    assert len(run._classifier_reliability(study)) == 1  # type: ignore[arg-type]
    [found] = drawn
    assert (found.count, found.observed) == (4, 0.75)  # one of four is wrong
    assert found.mean_predicted == pytest.approx(0.75)


def wrong_rows(folder: Path, name: str) -> list[int]:
    """The images that the gate decides wrongly, the most confident errors first."""
    scores = read_scores(folder / "scores.safetensors")[name]
    wrong = scores["is_ood"] == (name == "test")
    sign = 1 if name == "test" else -1
    return sorted(np.flatnonzero(wrong), key=lambda i: (sign * scores["p_value"][i], i))


def test_every_error_is_there_with_its_class_and_p_value(folder: Path) -> None:
    p = tiny_protocol()
    sets = {"test": p.test, **{name: ood.images for name, ood in p.evaluation.items()}}
    found = galleries(folder / "report.html")
    compared = 0
    for name, images in sets.items():
        rows = wrong_rows(folder, name)
        scores = read_scores(folder / "scores.safetensors")[name]
        text = "ID images flagged" if name == "test" else "OOD images not flagged"
        assert f"{name}: <b>{len(rows)}</b> of {len(images)} {text}." in page_text(folder)
        if not rows:
            assert f"errors-{name}" not in found
            continue
        cards = found[f"errors-{name}"]["cards"]
        assert [card["name"] for card in cards] == [f"{name}/#{i}" for i in rows]
        for card, i in zip(cards, rows, strict=True):
            assert card["seen"] == image_url(images.read([i])[0])
            assert (card["label"], card["p_value"]) == (scores["label"][i], scores["p_value"][i])
            logits = scores["logits"][i].astype(np.float64)
            expected = 1 / np.exp(logits - logits.max()).sum()
            assert card["confidence"] == pytest.approx(expected)
            assert card["truth"] == (images.labels[i] if name == "test" else None)
            compared += 1
    assert compared > 12


def test_of_many_errors_the_most_confident_are_kept_and_the_page_says_so(
    reports: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from goen.io.results import write_mistakes
    from goen.studies.gate_evaluation import find_mistakes

    folder = tmp_path / "run"
    shutil.copytree(reports["run"], folder)
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    monkeypatch.setattr("goen.studies.gate_evaluation._MOST_MISTAKES", 3)
    p, scores = tiny_protocol(), read_scores(folder / "scores.safetensors")
    sets = {"test": p.test, **{name: ood.images for name, ood in p.evaluation.items()}}
    kept = {name: find_mistakes(name, images, scores[name]) for name, images in sets.items()}
    (folder / "mistakes.safetensors").unlink()
    write_mistakes(folder / "mistakes.safetensors", kept)
    write_report(folder)
    many = [name for name in sets if len(wrong_rows(folder, name)) > 3]
    assert many
    for name in many:
        cards = galleries(folder / "report.html")[f"errors-{name}"]["cards"]
        rows = wrong_rows(folder, name)[:3]
        assert [card["name"] for card in cards] == [f"{name}/#{i}" for i in rows]
    assert page_text(folder).count("The 3 most confident errors are shown.") == len(many)


def test_a_run_without_images_of_its_errors_says_so(
    reports: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(reports["run"], folder)
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    (folder / "mistakes.safetensors").unlink()
    write_report(folder)
    assert "mistakes.safetensors is missing: no images are shown." in page_text(folder)
    assert galleries(folder / "report.html") == {}
