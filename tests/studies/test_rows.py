from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta

from goen.data import OodSet
from goen.io.results import Origin
from goen.studies.rows import flagged_rows, probability_numbers, share_rows, summary_of
from tests.tiny import tiny_protocol

OWN = Origin("knn", "given", 0, "network", (), ())
GATE = replace(OWN, method="gate")


def test_the_share_flagged_and_its_interval_worked_by_hand() -> None:
    flags = np.array([True, False, False, False, True, False, False, False])
    (row,) = share_rows(GATE, "photos", "far", "flagged", flags, seen=True)
    assert (row.method, row.dataset, row.group, row.metric) == ("gate", "photos", "far", "flagged")
    assert (row.value, row.seen_in_calibration) == (0.25, True)
    # Clopper and Pearson: quantiles of beta distributions.
    assert row.low == pytest.approx(beta.ppf(0.025, 2, 7))
    assert row.high == pytest.approx(beta.ppf(0.975, 3, 6))
    (plain,) = share_rows(GATE, "photos", "far", "flagged", flags, seen=False, interval=False)
    assert (plain.value, plain.low, plain.high) == (0.25, None, None)


def test_flagged_rows_are_of_every_ood_set_and_marked_where_it_was_seen() -> None:
    noise = tiny_protocol().test
    sets = {"a": OodSet(noise, "near"), "b": OodSet(noise, "far")}
    scores = {
        "test": {"probability": np.array([0.1, 0.2, 0.3])},
        "a": {"is_ood": np.array([True, False]), "probability": np.array([0.9])},
        "b": {"is_ood": np.array([True, True]), "probability": np.array([0.5])},
    }
    rows = flagged_rows(GATE, OWN, scores, sets, {"b"})
    assert [(r.method, r.dataset, r.metric) for r in rows] == [
        (method, name, metric)
        for name in ("a", "b")
        for method, metric in (
            ("gate", "flagged"),
            ("knn", "ood_ece"),
            ("knn", "ood_brier"),
            ("knn", "ood_prevalence"),
        )
    ]
    assert [r.value for r in rows if r.metric == "flagged"] == [0.5, 1.0]
    assert {r.dataset for r in rows if r.seen_in_calibration} == {"b"}
    without = {"test": {}, "a": scores["a"]}
    (alone,) = flagged_rows(GATE, OWN, without, {"a": sets["a"]}, (), intervals=True)
    assert alone.low is not None


def test_the_calibration_of_p_ood_worked_by_hand() -> None:
    numbers = probability_numbers(np.array([0.1, 0.2, 0.3]), np.array([0.9]))
    assert numbers["ood_brier"] == pytest.approx((0.01 + 0.04 + 0.09 + 0.01) / 4)
    assert numbers["ood_ece"] == pytest.approx((0.1 + 0.2 + 0.3 + 0.1) / 4)
    assert numbers["ood_prevalence"] == 0.25


def test_a_summary_of_named_data_has_no_ood_images() -> None:
    fields = summary_of("evaluate", {"a": 1}, "own", {"knn": ("KNN", "post-hoc")}, more=2)
    assert fields == {
        "study": "evaluate",
        "data": "own",
        "config": {"a": 1},
        "titles": {"knn": ["KNN", "post-hoc"]},
        "calibration_ood": [],
        "missing": {},
        "skipped": {},
        "more": 2,
    }
    p = replace(tiny_protocol(), missing={"places": "not here"})
    with_images = summary_of("bench", {}, p, {})
    assert with_images["data"] == "digits"
    assert with_images["calibration_ood"] == [*p.calibration_ood]
    assert with_images["missing"] == {"places": "not here"}
