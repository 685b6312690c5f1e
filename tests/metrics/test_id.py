"""`id_metrics`: hand-worked cases, scikit-learn, and what happens at probability 0."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from goen.errors import UsageError
from goen.metrics import id_metrics

lawful = settings(deadline=None, derandomize=True)


def softmax(logits):
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def draw(num_rows, num_classes, scale=2.0, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, scale, (num_rows, num_classes)), rng.integers(0, num_classes, num_rows)


@pytest.mark.parametrize(
    ("num_rows", "num_classes"), [(1, 2), (3, 2), (500, 3), (300, 100)], ids=str
)
def test_accuracy_nll_and_brier_match_sklearn(num_rows, num_classes):
    logits, labels = draw(num_rows, num_classes)
    p, classes = softmax(logits), range(num_classes)
    m = id_metrics(p, labels)
    assert m.accuracy == pytest.approx(accuracy_score(labels, p.argmax(axis=1)), abs=1e-12)
    assert m.nll == pytest.approx(log_loss(labels, p, labels=classes), abs=1e-12)
    # scikit-learn's two-class form counts one class, so both columns are given to it apart.
    one_hot = np.eye(num_classes)[labels]
    brier = sum(np.mean((p[:, c] - one_hot[:, c]) ** 2) for c in classes)
    assert m.brier == pytest.approx(brier, abs=1e-12)
    if num_classes > 2:
        theirs = brier_score_loss(labels, p, labels=classes, scale_by_half=False)
        assert m.brier == pytest.approx(theirs, abs=1e-12)


def test_a_case_worked_by_hand():
    p = [[0.8, 0.2], [0.6, 0.4], [0.35, 0.65], [0.1, 0.9]]
    m = id_metrics(p, [0, 1, 0, 0], num_bins=5)
    assert m.accuracy == 0.25
    # Bins (0.6, 0.8]: 0.65 wrong and 0.8 right, gap |1.45 - 1|; (0.4, 0.6]: 0.6 wrong, gap 0.6;
    # (0.8, 1]: 0.9 wrong, gap 0.9.
    assert m.ece == pytest.approx((0.45 + 0.6 + 0.9) / 4, abs=1e-12)
    # Each its own bin: 0.6 wrong, 0.65 wrong, 0.8 right, 0.9 wrong.
    assert m.adaptive_ece == pytest.approx((0.6 + 0.65 + 0.2 + 0.9) / 4, abs=1e-12)
    nll = -(np.log(0.8) + np.log(0.4) + np.log(0.35) + np.log(0.1)) / 4
    assert m.nll == pytest.approx(nll, abs=1e-12)
    assert m.brier == pytest.approx(2 * (0.04 + 0.36 + 0.4225 + 0.81) / 4, abs=1e-12)
    assert (m.num_samples, m.num_bins, m.num_zero_probability) == (4, 5, 0)


def test_ece_has_fifteen_bins_with_the_edge_in_the_bin_below():
    # 7/15 and 0.5 lie in bins 7 and 8. In one bin their gaps would cancel.
    edge = 7 / 15
    p = [[edge, 1 - edge - 0.1, 0.1], [0.5, 0.3, 0.2]]
    assert id_metrics(p, [0, 1]).ece == pytest.approx((1 - edge + 0.5) / 2, abs=1e-12)
    inside = edge + 1e-9
    p[0] = [inside, 1 - inside - 0.1, 0.1]
    assert id_metrics(p, [0, 1]).ece == pytest.approx((1 - inside - 0.5) / 2, abs=1e-12)


def test_logits_and_their_softmax_give_the_same_numbers():
    logits, labels = draw(200, 10)
    from_logits, from_rows = (
        id_metrics(logits=logits, labels=labels),
        id_metrics(softmax(logits), labels),
    )
    for name, value in asdict(from_rows).items():
        assert getattr(from_logits, name) == pytest.approx(value, abs=1e-12), name


def test_a_label_given_probability_zero_makes_the_nll_infinite_and_is_counted():
    m = id_metrics([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], [0, 0, 1])
    assert m.nll == float("inf")
    assert m.num_zero_probability == 2
    assert m.accuracy == pytest.approx(1 / 3)


def test_from_logits_the_nll_stays_finite_where_softmax_underflows():
    m = id_metrics(logits=np.array([[800.0, 0.0], [0.0, -800.0]]), labels=[1, 0])
    assert m.nll == 400.0
    assert m.num_zero_probability == 0


def test_a_class_ruled_out_by_minus_infinity_is_infinitely_surprising():
    m = id_metrics(logits=[[0.0, float("-inf"), 0.0]], labels=[1])
    assert m.nll == float("inf")
    assert m.num_zero_probability == 1


def test_the_first_of_equal_classes_is_predicted():
    p = [[0.5, 0.5], [0.5, 0.5]]
    assert id_metrics(p, [0, 0]).accuracy == 1.0
    assert id_metrics(p, [1, 1]).accuracy == 0.0


def test_logits_that_softmax_cannot_tell_apart_are_told_apart():
    assert id_metrics(logits=[[0.0, 1e-20]], labels=[1]).accuracy == 1.0


def test_a_perfect_classifier_scores_zero_everywhere():
    m = id_metrics(np.eye(4), range(4))
    assert (m.accuracy, m.ece, m.adaptive_ece, m.nll, m.brier) == (1.0, 0.0, 0.0, 0.0, 0.0)


def test_float32_rows_of_a_thousand_classes_are_accepted():
    logits = torch.randn(50, 1000, generator=torch.Generator().manual_seed(0)) * 4
    labels = torch.arange(50)
    m = id_metrics(logits.softmax(dim=1), labels)
    assert m.nll == pytest.approx(id_metrics(logits=logits, labels=labels).nll, abs=1e-5)


@lawful
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 1)), min_size=1, max_size=30),
       st.randoms(use_true_random=False))  # fmt: skip
def test_order_of_rows_does_not_matter(rows, random):
    def measure(rows):
        p = np.array([[k / 8, 1 - k / 8] for k, _ in rows])
        return asdict(id_metrics(p, [y for _, y in rows]))

    shuffled = measure(random.sample(rows, len(rows)))
    for name, value in measure(rows).items():
        assert shuffled[name] == pytest.approx(value, abs=1e-12), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [0]}, "got neither"),
        ({"probabilities": [[1.0, 0.0]], "logits": [[1.0, 0.0]], "labels": [0]}, "got both"),
        ({"probabilities": [[1.0, 0.0]]}, "labels are missing"),
        ({"probabilities": [[3.0, -2.0]], "labels": [0]}, r"pass them so: id_metrics\(logits="),
        ({"probabilities": [[0.5, 0.4]], "labels": [0]}, "sums to 0.9"),
        ({"probabilities": [[0.5, float("inf")]], "labels": [0]}, "sums to inf"),
        ({"probabilities": [0.5, 0.5], "labels": [0]}, "one row per sample"),
        ({"probabilities": [[1.0], [1.0]], "labels": [0, 0]}, "at least two classes"),
        ({"probabilities": [[float("nan"), 1.0]], "labels": [0]}, "1 NaN of 2"),
        ({"probabilities": np.zeros((0, 3)), "labels": []}, "probabilities is empty"),
        ({"logits": [[float("inf"), 0.0]], "labels": [0]}, "finite largest entry"),
        ({"logits": [[float("-inf")] * 2], "labels": [0]}, "finite largest entry"),
        ({"probabilities": [[1.0, 0.0]], "labels": [2]}, r"0\.\.1 for 2 classes, got 2\.\.2"),
        ({"probabilities": [[1.0, 0.0]], "labels": [-1]}, "OOD samples have no place here"),
        ({"probabilities": [[1.0, 0.0]], "labels": [0.0]}, "labels must be integers"),
        ({"probabilities": [[1.0, 0.0]], "labels": [[1, 0]]}, r"labels.argmax\(axis=1\)"),
        ({"probabilities": [[1.0, 0.0]], "labels": [0, 1]}, r"shape \(1,\), got shape \(2,\)"),
        ({"probabilities": [[1.0, 0.0]], "labels": [0], "num_bins": 0}, "num_bins must be"),
        (
            {"probabilities": [[1.0, 0.0]], "labels": [0], "num_bins": "15"},
            "integer, at least 1; got '15'",
        ),
        (
            {"probabilities": [[1.0, 0.0]], "labels": [0], "num_bins": np.nan},
            "integer, at least 1; got nan",
        ),
    ],
)
def test_what_cannot_be_meant_is_a_clear_error(arguments, message):
    with pytest.raises(UsageError, match=message):
        id_metrics(**arguments)
