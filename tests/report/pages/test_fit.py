"""The page of ``goen fit``: every number against one computed in another way."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from scipy.stats import beta, binomtest
from sklearn.metrics import roc_auc_score

import goen
from goen.data import ImageSet
from goen.data.images.data_urls import image_url
from goen.errors import UsageError
from goen.gate import Gate
from goen.report.pages import fit
from goen.report.pages.fit import write_fit_page
from tests.gate.test_gate import make_gate
from tests.own_model import LAYERS, digits, ood, preprocess, trained
from tests.report.reading import plain, tables
from tests.report.scored import galleries, own_gate

pytestmark = pytest.mark.xdist_group("report")


@pytest.fixture(scope="module")
def gate() -> Gate:
    return own_gate()


@pytest.fixture(scope="module")
def with_ood() -> Gate:
    p = digits()
    return Gate.fit(
        trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess, ood=ood()
    )


@pytest.fixture(scope="module")
def page(gate: Gate, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fit") / "report.html"
    write_fit_page(gate, digits().validation, path, training=digits().train)
    return path


def interval(count: int, total: int) -> tuple[float, float]:
    found = binomtest(count, total).proportion_ci(method="exact")
    return found.low, found.high


def test_the_summary_has_the_accuracy_with_its_interval(gate: Gate, page: Path) -> None:
    text = page.read_text()
    right = int((gate.predict(digits().validation).label == digits().validation.labels).sum())
    low, high = interval(right, 300)
    assert f"right on <b>{right / 300:.1%}</b> of the held-out images" in text
    assert f"({low:.1%} to {high:.1%} with 95 % confidence)" in text
    assert "fitted on 664 training images and 300 held-out images" in text
    assert "flags at most <b>5%</b> of ID images" in text
    assert "no better than chance" not in text


def test_the_threshold_is_explained_by_its_rank(gate: Gate, page: Path) -> None:
    text = page.read_text()
    # 120 held-out images set it; 0.05 * 121 = 6.05.
    assert f"<td>{gate.threshold:.4f}: rank 6 among the scores of 120 images</td>" in text
    assert sorted(gate.held_out.scores)[-6] == gate.threshold
    assert f"<td>{6 / 121:.4f} = 6 / 121</td>" in text
    low, high = beta.ppf([0.05, 0.95], 6, 115)
    assert f"<td>{low:.4f} to {high:.4f} with 90 % probability</td>" in text
    assert f"<td>{1 / 121:.2g} = 1 / 121; a lower one needs more images</td>" in text


def test_the_check_counts_the_other_held_out_images(gate: Gate, page: Path) -> None:
    scores = gate.predict(digits().validation).score
    order = np.random.RandomState(0).permutation(300)
    above = int((scores[order[:180]] > gate.threshold).sum())
    low, high = interval(above, 180)
    expected = f"{above} of 180 other held-out images are above the threshold: {above / 180:.4f}"
    assert f"{expected} ({low:.4f} to {high:.4f} with 95 % confidence)" in page.read_text()


@pytest.mark.parametrize("detector", ["knn", "energy"])
def test_without_calibration_images_there_is_no_check(detector: str, tmp_path: Path) -> None:
    p, page = digits(), tmp_path / "report.html"
    gate = Gate.fit(
        trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess, detector=detector
    )
    write_fit_page(gate, p.validation, page, training=p.train)
    text = page.read_text()
    assert "among the scores of 300 images" in text
    assert "other held-out images" not in text
    assert len(galleries(page)["suspicious"]["cards"]) == 5


def test_false_alarms_are_counted_by_predicted_class(gate: Gate, page: Path) -> None:
    prediction = gate.predict(digits().validation)
    cells = tables(page)["classes"].cells()
    for label, name in enumerate(gate.classes):
        mine = prediction.label == label
        flagged = int((mine & (prediction.score > gate.threshold)).sum())
        assert cells["", name, "held-out images"].text == str(mine.sum())
        assert cells["", name, "flagged"].text == str(flagged)
        assert cells["", name, "share"].text == f"{flagged / mine.sum():.1%}"
        low, high = interval(flagged, int(mine.sum()))
        assert cells["", name, "share"].interval == f"{low:.1%}–{high:.1%}"
        right = np.mean(digits().validation.labels[mine] == label)
        assert cells["", name, "right"].text == f"{right:.1%}"


def test_the_suspicious_images_are_those_with_the_highest_scores(gate: Gate, page: Path) -> None:
    held_out = digits().validation
    prediction = gate.predict(held_out)
    rows = np.argsort(-prediction.score)[:5]
    gallery = galleries(page)["suspicious"]
    assert [card["name"] for card in gallery["cards"]] == [f"{held_out.name}/#{i}" for i in rows]
    for card, i in zip(gallery["cards"], rows, strict=True):
        assert card["seen"] == image_url(held_out.read([i])[0])
        assert (card["label"], card["truth"]) == (prediction.label[i], held_out.labels[i])
        assert card["p_value"] == prediction.p_value[i]
        assert [len(near) for near in card["nearest"]] == [3, 3]
    assert gallery["rates"] is None
    numbers = {n[0] for card in gallery["cards"] for near in card["nearest"] for n in near}
    assert {int(number) for number in gallery["training"]} == numbers
    assert "often labelled wrongly" in page.read_text()


def test_every_cue_has_a_histogram_and_a_weight(gate: Gate, with_ood: Gate, tmp_path: Path) -> None:
    write_fit_page(with_ood, digits().validation, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    for name, weight in zip(gate.detector.cue_names, with_ood.detector.weights_, strict=True):  # type: ignore[attr-defined]
        sets = "held-out (ID), photographs (OOD), noise (OOD)"
        assert f'alt="Histograms of the cue {name} of {sets}."' in text
        assert f"<tr><td>{name}</td><td>{weight:.3f}</td></tr>" in text
    assert "weights were fitted with the OOD images" in text


@pytest.mark.parametrize("detector", ["goen_m", "goen"])
def test_ood_images_of_the_fit_have_their_numbers(
    detector: str, with_ood: Gate, tmp_path: Path
) -> None:
    if detector != "goen_m":
        p = digits()
        settings = {"layers": LAYERS, "preprocess": preprocess, "detector": detector}
        with_ood = Gate.fit(trained(), p.train, p.validation, ood=ood(), **settings)  # type: ignore[arg-type]
    write_fit_page(with_ood, digits().validation, tmp_path / "report.html")
    cells = tables(tmp_path / "report.html")["ood"].cells()
    for kind, images in ood().items():
        prediction = with_ood.predict(images)
        id_scores = with_ood.held_out.scores
        is_ood = np.repeat([0, 1], [len(id_scores), len(images)])
        auroc = roc_auc_score(is_ood, np.concatenate([id_scores, prediction.score]))
        assert plain(cells["", kind, "AUROC"].text) == f"{auroc:.4f}"
        assert cells["", kind, "flagged"].text == f"{prediction.is_ood.mean():.1%}"
        assert cells["", kind, "images"].text == str(len(images))


def test_files_give_names_and_thumbnails(gate: Gate, tmp_path: Path) -> None:
    files = [tmp_path / f"{i}<b>.png" for i in range(300)]
    for file, pixels in zip(files, digits().validation.read(), strict=True):
        image = Image.fromarray(pixels.transpose(1, 2, 0))
        image.resize((200, 100)).save(file)
    write_fit_page(gate, digits().validation, tmp_path / "report.html", files=files)
    cards = galleries(tmp_path / "report.html")["suspicious"]["cards"]
    assert [Path(card["name"]).parent for card in cards] == [tmp_path] * 5
    assert all(card["thumbnail"].startswith("data:image/jpeg") for card in cards)
    assert "<b>.png" not in (tmp_path / "report.html").read_text()


def test_without_labels_there_is_no_accuracy(tmp_path: Path) -> None:
    p = digits()
    unlabelled = Gate.fit(
        trained(), p.train, p.validation.read(), layers=LAYERS, preprocess=preprocess
    )
    write_fit_page(unlabelled, p.validation, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "is right on" not in text
    assert "right" not in tables(tmp_path / "report.html")["classes"].columns
    cards = galleries(tmp_path / "report.html")["suspicious"]["cards"]
    assert [card["truth"] for card in cards] == [None] * 5


def test_a_single_cue_is_drawn_once(tmp_path: Path) -> None:
    p = digits()
    gate = Gate.fit(
        *(trained(), p.train, p.validation), detector="energy", layers=LAYERS, preprocess=preprocess
    )
    write_fit_page(gate, p.validation, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert gate.detector.description in text
    assert "Histograms of the cue" not in text
    assert "none: the detector reads the logits" in text


def test_an_accuracy_near_chance_is_a_warning(gate: Gate, tmp_path: Path) -> None:
    assert gate.diagnostics is not None
    wrong = replace(gate.diagnostics, truth=(gate.diagnostics.predicted + 1) % 7)
    write_fit_page(replace(gate, diagnostics=wrong), digits().validation, tmp_path / "report.html")
    assert (
        '<p class="warn">This accuracy is no better than chance (14.3%)'
        in (tmp_path / "report.html").read_text()
    )


def test_of_very_many_classes_those_with_the_most_false_alarms_are_listed(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.report.pages.fit._MOST_CLASSES", 2)
    write_fit_page(gate, digits().validation, tmp_path / "report.html")
    shown = [row[1] for row in tables(tmp_path / "report.html")["classes"].rows]
    prediction = gate.predict(digits().validation)
    counts = np.bincount(prediction.label[prediction.score > gate.threshold], minlength=7)
    assert sorted(counts[[gate.classes.index(name) for name in shown]]) == sorted(counts)[-2:]
    assert "The 2 of 7 classes with the most are listed" in (tmp_path / "report.html").read_text()


def test_gates_that_were_not_just_fitted_are_refused(gate: Gate, tmp_path: Path) -> None:
    gate.save(tmp_path / "gate")
    held_out: ImageSet = digits().validation
    loaded = goen.load(tmp_path / "gate", model=trained(), preprocess=preprocess)
    for other in (make_gate(), loaded):
        with pytest.raises(UsageError, match=r"as Gate\.fit returned it"):
            write_fit_page(other, held_out, tmp_path / "report.html")
    with pytest.raises(UsageError, match="300 held-out images, got 20"):
        write_fit_page(gate, held_out.take(range(20)), tmp_path / "report.html")


def test_each_cue_is_drawn_with_its_quantity(
    gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = {}
    draw = fit.histograms

    def noted(title: str, by_set: dict, *others: object) -> Figure:  # type: ignore[type-arg]
        drawn[title] = others[-1]
        return draw(title, by_set, *others)  # type: ignore[arg-type]

    monkeypatch.setattr(fit, "histograms", noted)
    write_fit_page(gate, digits().validation, tmp_path / "report.html")
    early, late = LAYERS
    assert {early: "distance", late: "distance", "entropy": "entropy of the softmax"}.items() <= (
        drawn.items()
    )
