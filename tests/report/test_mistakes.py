"""The errors on the page of a run: all of them, with the scores of the run."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from goen.data.images.data_urls import image_url
from goen.io.results import read_scores
from goen.report import write_report
from tests.report.reading import page_text
from tests.report.scored import galleries
from tests.tiny import tiny_protocol

pytestmark = pytest.mark.xdist_group("report")


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
    from goen.studies.evaluate import find_mistakes

    folder = tmp_path / "run"
    shutil.copytree(reports["run"], folder)
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    monkeypatch.setattr("goen.studies.evaluate._MOST_MISTAKES", 3)
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
