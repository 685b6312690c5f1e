import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from goen.data import ImageSet, OodSet, Protocol
from goen.errors import ArtifactError, UsageError
from goen.gate import Gate
from goen.io.provenance import versions
from goen.studies.published import Measured, compare, measure_gate, publish, read_published
from tests.gate.test_bundled import stand_in
from tests.tiny import tiny_protocol

METRICS = ["auroc", "fpr95_ood_positive", "flagged"]


@pytest.fixture(scope="module")
def sets() -> Protocol:
    return tiny_protocol()


@pytest.fixture(scope="module")
def rows(sets: Protocol) -> list[Measured]:
    return measure_gate(stand_in(), sets)


def number(rows: list[Measured], dataset: str, metric: str) -> Measured:
    (row,) = (row for row in rows if (row.dataset, row.metric) == (dataset, metric))
    return row


# -- measuring ----------------------------------------------------------------------------------


def test_every_set_has_its_numbers_and_its_identity(rows: list[Measured], sets: Protocol) -> None:
    assert [row.metric for row in rows if row.dataset == "test"] == ["accuracy", "flagged"]
    for name, ood in sets.evaluation.items():
        own = [row for row in rows if row.dataset == name]
        assert [row.metric for row in own] == METRICS
        assert {row.images for row in own} == {50}
        assert {row.fingerprint for row in own} == {ood.images.fingerprint}
    assert {row.dataset for row in rows} == {"test", *sets.evaluation}
    assert number(rows, "test", "accuracy").fingerprint == sets.test.fingerprint


def test_numbers_match_scikit_learn_and_a_slow_count(rows: list[Measured], sets: Protocol) -> None:
    gate = stand_in()
    test = gate.predict(sets.test.read())
    right = [int(a) == int(b) for a, b in zip(test.label, sets.test.labels, strict=True)]
    assert number(rows, "test", "accuracy").value == sum(right) / 80
    assert number(rows, "test", "flagged").value == np.mean(test.score > gate.threshold)
    for name, ood in sets.evaluation.items():
        other = gate.predict(ood.images.read())
        is_ood = np.repeat([0, 1], [len(test), len(other)])
        auroc = number(rows, name, "auroc")
        assert auroc.value == pytest.approx(
            roc_auc_score(is_ood, np.concatenate([test.score, other.score])), abs=1e-12
        )
        assert auroc.low is not None
        assert auroc.high is not None
        assert auroc.low <= auroc.value <= auroc.high
        caught = [t for t in other.score if np.mean(other.score >= t) >= 0.95]
        fpr = np.mean(test.score >= max(caught))
        assert number(rows, name, "fpr95_ood_positive").value == pytest.approx(fpr)
        assert number(rows, name, "flagged").value == np.mean(other.p_value <= 0.05)


class Oracle:
    """Returns fixed scores for each set, and records the calls."""

    classes, image_size = ("a", "b"), (8, 8)

    def __init__(self) -> None:
        self.asked: list[str] = []

    def predict(self, images: ImageSet) -> SimpleNamespace:
        self.asked.append(images.name)
        score = {"test images": [0.1, 0.2, 0.3, 0.6], "ood": [0.4, 0.8]}[images.name]
        label = np.array([0, 1, 1, 1])[: len(score)]
        return SimpleNamespace(score=np.array(score), label=label, is_ood=np.array(score) > 0.5)


def by_hand() -> Protocol:
    def some(name: str, count: int, grey: int) -> ImageSet:
        pixels = np.full((count, 3, 8, 8), grey, np.uint8)
        return ImageSet(name, pixels, np.arange(count) % 2, ("a", "b"))

    far = {"ood": OodSet(some("ood", 2, 1), "far")}
    train, validation = some("train", 2, 3), some("validation", 2, 4)
    return Protocol("by hand", train, validation, some("test images", 4, 2), {}, far, {})


def test_numbers_worked_by_hand_from_one_pass_over_each_set() -> None:
    oracle = Oracle()
    rows = measure_gate(cast(Gate, oracle), by_hand())
    assert oracle.asked == ["test images", "ood"]
    # Labels 0 1 0 1 against 0 1 1 1. Of eight pairs only 0.6 against 0.4 stands the wrong way
    # round. To flag both OOD images one flags from 0.4 on, and one of four test images with them.
    assert [(row.dataset, row.images, row.metric, row.value) for row in rows] == [
        ("test", 4, "accuracy", 0.75),
        ("test", 4, "flagged", 0.25),
        ("ood", 2, "auroc", 0.875),
        ("ood", 2, "fpr95_ood_positive", 0.25),
        ("ood", 2, "flagged", 0.5),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"classes": ("a", "b", "c")},
            "for 3 classes and images of 8×8, but test images has 2 classes",
        ),
        ({"image_size": (16, 8)}, "for 2 classes and images of 16×8"),
    ],
)
def test_a_gate_for_other_images_is_refused(change: dict[str, Any], message: str) -> None:
    oracle = Oracle()
    vars(oracle).update(change)
    with pytest.raises(UsageError, match=message):
        measure_gate(cast(Gate, oracle), by_hand())
    assert not oracle.asked


# -- publishing ---------------------------------------------------------------------------------


def test_what_is_published_is_read_again_exactly(rows: list[Measured], tmp_path: Path) -> None:
    path = publish(rows, tmp_path)
    assert path == tmp_path / "published.json"
    assert read_published(tmp_path) == rows
    content = json.loads(path.read_text())
    assert content["versions"] == versions()
    assert content["hardware"]["processor"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"rows": 7}',
        '{"rows": [7]}',
        '{"rows": [{"dataset": "test"}]}',
        json.dumps({"rows": [{**asdict(Measured("t", 1, "f", "m", 0.5)), "value": "much"}]}),
        json.dumps({"rows": [{**asdict(Measured("t", 1, "f", "m", 0.5)), "volue": 1}]}),
        "\xff",
    ],
)
def test_a_damaged_file_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "published.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ArtifactError, match=r"published\.json is damaged \(.*\)\. Copy"):
        read_published(tmp_path)


# -- comparing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("here", "fingerprint", "verdict"),
    [
        (0.9, "same", "agrees"),
        (0.9005, "same", "agrees"),
        (0.8995, "same", "agrees"),
        (0.9006, "same", "differs"),
        (0.8994, "same", "differs"),
        (0.9, "other", "agrees (other files)"),
        (0.905, "other", "agrees (other files)"),
        (0.9051, "other", "differs"),
        (0.8949, "other", "differs"),
        (float("nan"), "same", "differs"),
    ],
)
def test_verdicts(here: float, fingerprint: str, verdict: str) -> None:
    published = [Measured("test", 10_000, "same", "accuracy", 0.9)]
    (row,) = compare(published, [Measured("test", 10_000, fingerprint, "accuracy", here)])
    assert row.verdict == verdict
    assert row.published == 0.9
    if here == here:
        assert row.here == here
        assert row.difference == here - 0.9


@pytest.mark.parametrize(
    ("metric", "images_off", "verdict"),
    [("flagged", 2, "agrees"), ("flagged", 3, "differs"), ("auroc", 2, "differs")],
)
def test_two_images_of_a_small_set_may_change_sides(
    metric: str, images_off: int, verdict: str
) -> None:
    published = [Measured("x", 1_200, "same", metric, 0.5)]
    (row,) = compare(published, [replace(published[0], value=0.5 + images_off / 1_200)])
    assert row.verdict == verdict


def test_a_set_that_only_one_side_has_is_reported() -> None:
    theirs, mine = Measured("svhn", 3, "s", "auroc", 0.9), Measured("mnist", 4, "m", "auroc", 0.8)
    assert [(r.dataset, r.published, r.here, r.difference, r.verdict)
            for r in compare([theirs], [mine])] == [
        ("svhn", 0.9, None, None, "not here"),
        ("mnist", None, 0.8, None, "not published"),
    ]  # fmt: skip


def test_other_test_images_make_other_files_of_what_is_measured_against_them(
    rows: list[Measured],
) -> None:
    here = [replace(r, fingerprint="other") if r.dataset == "test" else r for r in rows]
    verdicts = {(r.dataset, r.metric): r.verdict for r in compare(rows, here)}
    assert verdicts["test", "accuracy"] == "agrees (other files)"
    assert verdicts["noise", "auroc"] == "agrees (other files)"
    assert verdicts["noise", "fpr95_ood_positive"] == "agrees (other files)"
    assert verdicts["noise", "flagged"] == "agrees"
