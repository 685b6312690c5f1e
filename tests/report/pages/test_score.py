"""The page of ``goen score --report``: what it tells its script, and what it says."""

import html
import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from goen.data.images.data_urls import image_url
from goen.gate.flagged import FlaggedGroup, FlaggedGroups
from goen.report.pages.score import ScoreReport, _listed
from tests.image_sources import scored_rows
from tests.own_model import digits
from tests.report.scored import HOSTILE, Scored, galleries, own_gate, scored

pytestmark = pytest.mark.xdist_group("report")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Scored:
    return scored(tmp_path_factory.mktemp("scored"))


def rates(num_held_out: int) -> list[float]:
    """Rates that people write, and every fraction of the held-out images with its neighbours."""
    size = num_held_out + 1
    exact = [k / size for k in range(1, size)]
    around = [float(np.nextafter(rate, end)) for rate in exact for end in (0, 1)]
    written = [i / 1000 for i in range(9, 1000, 7)]
    return [rate for rate in (*exact, *around, *written) if 1 / size <= rate < 1]


def test_the_decision_at_every_rate_is_the_gates(page: Scored) -> None:
    gallery = galleries(page.page)["scored-images"]
    prediction = page.gate.predict(page.images)
    p = {card["name"]: card["p_value"] for card in gallery["cards"]}
    assert len(p) == len(page.files) == 150
    for rate in rates(120):
        strict = page.gate.with_false_alarm_rate(rate)
        expected = strict.predict_outputs(strict.outputs(page.images)).is_ood
        found = [p[str(file)] <= rate for file in page.files]
        assert found == expected.tolist()
        counted = sum(number for value, number in gallery["rates"]["counts"] if value <= rate)
        assert counted == expected.sum()
    assert [p[str(file)] for file in page.files] == prediction.p_value.tolist()


def test_with_a_threshold_per_class_too(page: Scored, tmp_path: Path) -> None:
    gate = page.gate.with_false_alarm_rate(0.2).with_per_class()
    report = ScoreReport(gate, "g")
    scored_rows(gate, *page.files, observer=report.images)
    report.write(tmp_path / "page.html")
    assert (
        "ID) images of the same predicted class that score at least as high, estimated with at "
        f"least {gate.num_held_out} held-out ID images of each class;"
    ) in (tmp_path / "page.html").read_text("utf-8")
    gallery = galleries(tmp_path / "page.html")["scored-images"]
    assert gallery["rates"]["held_out"] == gate.num_held_out < 120
    p = {card["name"]: card["p_value"] for card in gallery["cards"]}
    for rate in gallery["rates"]["choices"]:
        expected = gate.with_false_alarm_rate(rate).predict(page.images).is_ood
        assert [p[str(file)] <= rate for file in page.files] == expected.tolist()


def test_the_most_suspicious_come_first(page: Scored) -> None:
    cards = galleries(page.page)["scored-images"]["cards"]
    prediction = page.gate.predict(page.images)
    order = np.lexsort((-prediction.score, prediction.p_value))
    assert [card["name"] for card in cards] == [str(page.files[i]) for i in order]
    for card, i in zip(cards, order, strict=True):
        assert card["seen"] == image_url(page.images[i])
        assert card["label"] == prediction.label[i]
        assert card["confidence"] == pytest.approx(prediction.confidence[i])
        assert card["thumbnail"].startswith("data:image/jpeg")  # 96×64 pixels


def test_what_is_kept_of_an_image_is_no_part_of_its_batch(page: Scored) -> None:
    report = ScoreReport(page.gate, "g", most=3)
    scored_rows(page.gate, *page.files, observer=report.images)
    assert len(report.images.kept) == 3
    for *_, feature in report.images.kept:
        assert feature.base is None


def test_the_neighbours_and_their_pictures_are_there(page: Scored) -> None:
    gallery = galleries(page.page)["scored-images"]
    train = digits().train
    assert gallery["layers"] == ["early", "late"]
    assert gallery["cues"] == ["early", "late", "entropy"]
    for card in gallery["cards"]:
        assert [len(near) for near in card["nearest"]] == [3, 3]
        for number, label, _ in (n for near in card["nearest"] for n in near):
            assert label == train.labels[number]
            assert gallery["training"][str(number)] == ["", image_url(train.read([number])[0])]


def test_names_of_strangers_are_text(page: Scored) -> None:
    text = page.page.read_text()
    names = {Path(card["name"]).name for card in galleries(page.page)["scored-images"]["cards"]}
    assert {*HOSTILE} <= names
    for name in (*HOSTILE, "<_b><svg onload=alert(2)>.png"):
        assert name not in text
    assert f"{html.escape('<_b><svg onload=alert(2)>.png')}</td><td>is not an image" in text
    assert text.count("<script") == 1 + len(galleries(page.page))  # their data and its own script
    assert "<!--" not in text
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len({*ids}) >= 4


def test_what_is_left_out_is_counted_and_stated(page: Scored, tmp_path: Path) -> None:
    gate, shown = page.gate, 100
    report = ScoreReport(gate, "g", most=shown)
    for start in range(0, len(page.files), 40):  # several batches, the worst images in the last
        part = page.files[::-1][start : start + 40]
        scored_rows(gate, *part, observer=report.images)
        assert len(report.images.kept) <= shown
    report.write(tmp_path / "page.html")
    gallery = galleries(tmp_path / "page.html")["scored-images"]
    whole = galleries(page.page)["scored-images"]
    assert [t["name"] for t in gallery["cards"]] == [t["name"] for t in whole["cards"][:shown]]
    assert gallery["rates"] == whole["rates"]
    text = (tmp_path / "page.html").read_text()
    highest = whole["cards"][shown - 1]["p_value"]
    assert highest > whole["cards"][1]["p_value"]
    assert "The 100 most suspicious of 150 images are shown. The 50 others" in text
    assert f"p-values of {highest:.2g} or more" in text


def test_the_text_has_the_gates_numbers(page: Scored) -> None:
    text = page.page.read_text()
    flagged = int(page.gate.predict(page.images).is_ood.sum())
    assert "The gate my-gate scored 150 images. At its false-alarm rate of <b>0.05</b> it " in text
    assert f"it flags <b>{flagged}</b> of them" in text
    assert "estimated with 120 held-out ID images" in text
    assert "2 files could not be read and got no score." in text
    assert "most suspicious of" not in text


def test_many_unreadable_files_are_counted(tmp_path: Path) -> None:
    gate = own_gate()
    report = ScoreReport(gate, "g")
    gone = [tmp_path / f"{i}.png" for i in range(250)]
    scored_rows(gate, *gone, observer=report.images)
    report.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "250 files could not be read and got no score. The first 200 are listed; 50 are" in text
    assert text.count("<td>does not exist.</td>") == 200
    assert "scored 0 images" in text


def test_the_page_is_the_same_every_time_and_asks_nothing_from_outside(
    page: Scored, tmp_path: Path
) -> None:
    report = ScoreReport(page.gate, "my-gate", digits().train)
    everything = sorted(page.files[0].parent.iterdir())
    scored_rows(page.gate, *everything, observer=report.images)
    report.write(tmp_path / "again.html")
    assert (tmp_path / "again.html").read_text() == page.page.read_text()
    assert "http" not in page.page.read_text().replace("http-equiv", "")


def test_of_many_classes_the_first_are_listed() -> None:
    names = [f"c{number}" for number in range(52)]
    assert _listed(names[:50]) == ", ".join(names[:50])
    assert _listed(names) == f"{', '.join(names[:50])} and 2 others"


def test_the_flagged_images_are_grouped_and_some_are_to_label_first(page: Scored) -> None:
    text, shown = page.page.read_text(), galleries(page.page)
    found = page.gate.group_flagged(page.images)
    assert f"The {len(found):,} flagged images on this page" in text
    first = [card["name"] for card in shown["label-first"]["cards"]]
    flagged = page.gate.predict(page.images).is_ood
    names = {str(file) for file, is_ood in zip(page.files, flagged, strict=True) if is_ood}
    for gallery in shown.values():
        assert gallery["cues"] == list(page.gate.detector.cue_names)
        assert {len(card["cue_p_values"]) for card in gallery["cards"]} == {len(gallery["cues"])}
    assert len(first) == min(20, len(names))
    assert {*first} <= names
    if found.groups:
        typical = shown["typical-images"]["cards"]
        sizes = [sum(card["note"] == f"group {n + 1}" for card in typical) for n in range(2)]
        most = min(8, 24 // len(found.groups))
        assert sizes == [min(most, len(group)) for group in found.groups][:2]
        assert f"The {most} most typical" in " ".join(text.split())
        assert all(card["name"] in names for card in typical)


def test_images_of_every_group_are_seen_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (resources.files("goen.report") / "templates" / "gallery.js").read_text()
    assert "small: 24" in script  # as many cards as are shown at first
    groups = tuple(FlaggedGroup((3 * n, 3 * n + 1, 3 * n + 2), "3", 1.0) for n in range(10))
    found = FlaggedGroups(tuple(map(str, range(30))), groups, (), (0, 3))
    monkeypatch.setattr(ScoreReport, "groups", lambda report: found)
    page = scored(tmp_path / "scored").page
    assert [card["note"] for card in galleries(page)["typical-images"]["cards"]] == [
        f"group {n}" for n in range(1, 11) for _ in range(2)
    ]
    assert "The 2 most typical" in " ".join(page.read_text().split())


def test_without_flagged_images_there_is_nothing_to_group(page: Scored, tmp_path: Path) -> None:
    report = ScoreReport(page.gate.with_false_alarm_rate(1 / 121), "g")
    report.write(tmp_path / "page.html")
    assert "What was flagged" not in (tmp_path / "page.html").read_text()
    assert report.groups().names == ()
