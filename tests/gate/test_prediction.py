import math
import sys
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from goen.data import ImageSet
from goen.data.images.data_urls import image_url
from goen.errors import DataError, ExtraMissing, GoenWarning, UsageError
from goen.functional.conformal import p_values
from goen.gate import Gate, Prediction, concatenate
from goen.gate.prediction import most_suspicious
from tests.own_model import LAYERS, digits, preprocess, trained


@pytest.fixture(scope="module")
def gate() -> Gate:
    return Gate.fit(
        trained(), digits().train, digits().validation, layers=LAYERS, preprocess=preprocess
    )


def made(count: int, first: float = 0.0, probability: bool = True) -> Prediction:
    values = first + np.arange(count) / 8
    return Prediction(
        label=np.arange(count),
        confidence=values,
        score=values + 1,
        p_value=values + 2,
        probability=values + 3 if probability else None,
        is_ood=values > 0.2,
        cues={"layer2": values + 4, "entropy": values + 5},
        classes=("a", "b", "c"),
        cue_p_values={"layer2": values / 100, "entropy": values / 10},
    )


def test_an_explanation_has_the_p_value_of_each_cue_or_its_value() -> None:
    found = made(3).explain(2)
    for row in (3, -4, "a"):
        with pytest.raises(
            UsageError, match="row must be an integer, at least -3 and below 3; got"
        ):
            made(3).explain(row)  # type: ignore[arg-type]
    assert str(found) == "layer2: p = 0.0025, entropy: p = 0.025"
    assert (found.label, found.p_value, found.is_ood) == ("c", 2.25, True)
    assert found.cues == (("layer2", 4.25, 0.0025), ("entropy", 5.25, 0.025))
    assert found.most_unusual.name == "layer2"
    plain = Prediction(**{**vars(made(3)), "cue_p_values": {}}).explain()
    assert str(plain) == "layer2: 4, entropy: 5"
    assert plain.cues == (("layer2", 4, None), ("entropy", 5, None))


def test_one_image_of_a_prediction_is_plain_numbers() -> None:
    one = made(3)[1]
    assert (one.label, one.class_name, one.is_ood, one.path) == (1, "b", False, None)
    assert (one.confidence, one.score, one.p_value, one.probability) == (0.125, 1.125, 2.125, 3.125)
    assert one.cues == {"layer2": 4.125, "entropy": 5.125}
    assert one.cue_p_values == {"layer2": 0.00125, "entropy": 0.0125}
    assert type(one.label) is int
    assert type(one.is_ood) is bool
    assert made(3)[-1] == made(3)[2]
    assert made(3, probability=False)[0].probability is None
    assert [image.class_name for image in made(3)] == ["a", "b", "c"]
    assert made(3).class_names.tolist() == ["a", "b", "c"]
    assert made(3)[1:].score.tolist() == [1.125, 1.25]
    for row in (3, -4):
        with pytest.raises(IndexError, match=f"of 3 images; there is no row {row}"):
            made(3)[row]


def test_a_prediction_prints_in_a_few_lines() -> None:
    assert str(made(3)) == (
        "3 images, 1 flagged\n"
        "   class  confidence  p-value\n"
        "0  a           0.000        2\n"
        "1  b           0.125      2.1\n"
        "2  c           0.250      2.2  OOD"
    )
    assert str(made(1)).startswith("1 image, 0 flagged\n")
    many = concatenate([made(3), *[made(3)] * 400])
    assert repr(many).endswith("... and 1,193 more")
    assert len(repr(many).splitlines()) == 13
    assert str(made(3).take([])) == "0 images, 0 flagged"
    hostile = Prediction(**{**vars(made(1)), "classes": ("\x1b[2J\nx",)})
    assert "\x1b" not in str(hostile)
    assert len(str(hostile).splitlines()) == 3


def test_a_prediction_of_files_has_their_paths(gate: Gate, tmp_path: Path) -> None:
    images = digits().test.read(range(4))
    (tmp_path / "below").mkdir()
    names = ["b.png", "a.png", "below/d.png", "below/c.png"]
    for name, image in zip(names, images, strict=True):
        Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / name)
    files = [tmp_path / name for name in names]
    expected = gate.predict(images)
    found = gate.predict(files, batch_size=3)
    assert found.score.tolist() == pytest.approx(expected.score.tolist(), abs=1e-4)
    assert found.paths is not None
    assert found.paths.tolist() == [*map(str, files)]
    one = gate.predict(str(files[1]))
    assert one.score == pytest.approx(expected.score[1:2], abs=1e-4)
    assert one[0].path == str(files[1])
    assert str(files[1]) in str(one)
    assert one.to_pandas()["path"].tolist() == [str(files[1])]
    folder = gate.predict(tmp_path)
    assert folder.score == pytest.approx(expected.score[[1, 0, 3, 2]], abs=1e-4)
    assert folder.take([2])[0].path == str(files[3])
    assert expected.paths is None
    assert folder.show(tmp_path)._repr_html_().count("<img") == 4
    near, same = gate.nearest(files[0])[0], gate.nearest(images[:1])[0]
    assert [row.row for row in near["late"]] == [row.row for row in same["late"]]


def test_batches_are_joined_in_order() -> None:
    whole = concatenate([made(2), made(3, first=7)])
    assert len(whole) == 5
    assert whole.score.tolist() == [1, 1.125, 8, 8.125, 8.25]
    assert whole.probability is not None
    assert whole.probability.tolist() == [3, 3.125, 10, 10.125, 10.25]
    assert whole.cues["entropy"].tolist() == [5, 5.125, 12, 12.125, 12.25]
    assert whole.cue_p_values["layer2"][2] == 0.07
    assert whole.is_ood.tolist() == [False, False, True, True, True]
    assert concatenate([made(2, probability=False)] * 2).probability is None
    with pytest.raises(DataError, match="there are no batches"):
        concatenate([])


def test_discoveries_are_benjamini_and_hochbergs(gate: Gate) -> None:
    id_images, noise = digits().test.read(range(60)), digits().evaluation["noise"].images
    p = gate.predict(np.concatenate([id_images, noise.read(range(60))]))
    found = p.flag_with_fdr(0.1)
    # By hand: the largest j with the j-th smallest p-value at most j / m of the rate.
    ordered = np.sort(p.p_value)
    passing = [j for j in range(1, 121) if ordered[j - 1] <= 0.1 * j / 120]
    assert found.sum() == (p.p_value <= ordered[passing[-1] - 1]).sum()
    assert found[60:].mean() > 0.9
    assert found[:60].sum() <= 0.25 * found.sum()
    with pytest.warns(GoenWarning, match="finds nothing unless"):
        assert not gate.predict(id_images).flag_with_fdr(0.01).any()


def of_p_values(p_values: Sequence[float], held_out: int | None = None) -> Prediction:
    ones = np.ones(len(p_values))
    p = np.asarray(p_values, dtype=np.float64)
    return Prediction(ones.astype(int), ones, ones, p, None, p < 0.1, {}, ("a", "b"), {}, held_out)


def test_discoveries_of_a_case_worked_by_hand() -> None:
    # m = 5, q = 0.1: limits 0.02, 0.04, 0.06, 0.08, 0.10. The fourth passes and takes all below.
    p = [0.075, 0.03, 0.5, 0.05, 0.061]
    assert of_p_values(p).flag_with_fdr(0.1).tolist() == [True, True, False, True, True]
    assert not of_p_values([0.5, 0.9]).flag_with_fdr(0.1).any()
    assert of_p_values([]).flag_with_fdr(0.1).shape == (0,)
    assert of_p_values([0.1]).flag_with_fdr(0.1).tolist() == [True]
    assert of_p_values([0.0, 1.0]).flag_with_fdr(0.05).tolist() == [True, False]


@given(
    counts=st.lists(st.integers(1, 100), min_size=1, max_size=40),
    size=st.sampled_from([100, 1000]),
    percent=st.integers(1, 99),
)
def test_discoveries_are_exact_on_fractions(counts: list[int], size: int, percent: int) -> None:
    exact = sorted(Fraction(count, size) for count in counts)
    rate = Fraction(percent, 100)
    passing = [p for j, p in enumerate(exact, 1) if p * len(exact) <= rate * j]
    expected = [bool(passing) and Fraction(count, size) <= passing[-1] for count in counts]
    found = of_p_values([count / size for count in counts]).flag_with_fdr(percent / 100)
    assert found.tolist() == expected


def test_discoveries_are_flagged_at_equality_whatever_the_rounding() -> None:
    # 1/20 · 3 = 0.15 exactly, but 0.05 * 3 > 0.15 in binary
    assert 0.05 * 3 > 0.15
    found = of_p_values([1 / 20, 1.0, 1.0]).flag_with_fdr(0.15)
    assert found.tolist() == [True, False, False]
    assert not of_p_values([1 / 20 + 1e-12, 1.0, 1.0]).flag_with_fdr(0.15).any()


def test_discoveries_keep_the_false_discovery_rate_on_conformal_p_values() -> None:
    rng = np.random.default_rng(4)
    false_shares = np.empty(500)
    for draw in range(500):
        held_out = rng.normal(size=500)
        scores = np.concatenate([rng.normal(size=80), rng.normal(4, 1, size=20)])
        flagged = of_p_values(p_values(scores, held_out)).flag_with_fdr(0.2)
        false_shares[draw] = flagged[:80].sum() / max(flagged.sum(), 1)
    assert false_shares.mean() <= 0.2
    assert false_shares.mean() > 0.1  # and it does flag


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.5, math.nan, "0.05", None])
def test_a_false_discovery_rate_outside_zero_and_one_is_refused(q: float) -> None:
    with pytest.raises(UsageError, match="q must be a number, above 0 and below 1"):
        of_p_values([0.5]).flag_with_fdr(q)


def test_discoveries_without_power_say_so() -> None:
    def prediction(count: int, held_out: int) -> Prediction:
        return of_p_values([1 / (held_out + 1)] + [0.5] * (count - 1), held_out)

    # The least p-value is 1 / 121; one discovery among 100 needs 0.1 / 100.
    with pytest.warns(
        GoenWarning, match="at least 9 images .* 999 held-out images would let it find a single one"
    ):
        assert not prediction(100, 120).flag_with_fdr(0.1).any()
    assert prediction(100, 999).flag_with_fdr(0.1).tolist() == [True] + [False] * 99
    assert prediction(12, 120).flag_with_fdr(0.1)[0]


def test_a_mask_of_images_is_refused() -> None:
    whole = made(6, probability=False)
    with pytest.raises(UsageError, match=r"got a boolean mask: use numpy\.flatnonzero\(mask\)"):
        whole.take(whole.is_ood)


@pytest.mark.parametrize("probability", [True, False])
def test_some_images_are_taken_with_everything_they_have(probability: bool) -> None:
    whole = made(6, probability=probability)
    some = whole.take([4, 1])
    assert len(some) == 2
    for name in ("label", "confidence", "score", "p_value", "probability", "is_ood"):
        values = getattr(whole, name)
        if values is None:
            assert getattr(some, name) is None
        else:
            assert getattr(some, name).tolist() == values[[4, 1]].tolist()
    for name in ("cues", "cue_p_values"):
        assert {k: v.tolist() for k, v in getattr(some, name).items()} == {
            k: v[[4, 1]].tolist() for k, v in getattr(whole, name).items()
        }
    assert some.classes == whole.classes


def test_a_table_of_pandas_has_the_columns_of_goen_score(gate: Gate) -> None:
    from goen.scoring.rows import score_columns

    found = gate.predict(digits().test.take(range(6)))
    table = found.to_pandas()
    assert [*table.columns] == score_columns(gate)
    assert table["label"].tolist() == [gate.classes[n] for n in found.label]
    assert np.array_equal(table["p_early"], found.cue_p_values["early"])
    assert table["is_ood"].dtype == bool
    assert "probability" in made(2).to_pandas()


def test_without_pandas_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ExtraMissing, match="pip install pandas"):
        made(2).to_pandas()


# The table

HOSTILE = "<img src=x onerror=alert(1)>&\"'\x1b[31m" + "x" * 100


def shown(count: int = 5, **changes: object) -> Prediction:
    values = np.arange(count) / max(count, 1)
    fields = {
        "label": np.arange(count) % 2,
        "confidence": values,
        "score": values,
        "p_value": 1 - values * 0.99,
        "probability": None,
        "is_ood": values > 0.7,
        "cues": {"layer<b>": values},
        "classes": ("cat", HOSTILE),
        "cue_p_values": {"layer<b>": 1 - values / 2},
        "num_held_out": 99,
    }
    return Prediction(**{**fields, **changes})  # type: ignore[arg-type]


def test_every_text_is_escaped_and_long_ones_are_cut() -> None:
    html = shown()._repr_html_()
    assert "<img" not in html
    assert "layer<b>" not in html
    assert "p of layer&lt;b&gt;" in html
    assert "\x1b" not in html
    assert "&lt;img src=x" in html
    assert "x" * 50 not in html
    assert "5 images, 1 flagged" in html
    assert html.count("OOD</span>") == 1


def test_bars_are_longer_for_lower_p_values_and_full_at_the_least() -> None:
    html = shown(3, p_value=np.array([1.0, 0.1, 0.01]), cue_p_values={})._repr_html_()
    # By hand: 0, half and all of 64 pixels, for 1 / (99 + 1) = 0.01.
    assert [html.count(f"display:block;width:{n}px") for n in (0, 32, 64)] == [1, 1, 1]


def test_a_long_prediction_is_cut_with_a_sentence_and_an_empty_one_is_none() -> None:
    assert "20 of 1,000 images are shown." in shown(1000)._repr_html_()
    assert shown(1000)._repr_html_().count("<tr") == 21
    assert "are shown" not in shown(20)._repr_html_()
    assert "0 images, 0 flagged" in shown(0)._repr_html_()


def test_the_most_suspicious_come_first() -> None:
    p = shown(4, p_value=np.array([0.5, 0.1, 0.1, 0.9]), score=np.array([1.0, 2.0, 3.0, 9.0]))
    assert most_suspicious(p) == [2, 1, 0, 3]
    assert p.show(most=2).rows == [2, 1]
    assert list(p.show(rows=[3]).rows) == [3]


@pytest.mark.parametrize("kind", ["set", "array", "tensor", "floats", "pictures"])
def test_thumbnails_are_the_images_of_the_rows(kind: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)
    given = {
        "set": ImageSet("a", pixels, np.zeros(5, np.int64), ("a",)),
        "array": pixels,
        "tensor": torch.from_numpy(pixels),
        "floats": pixels / 255,
        "pictures": [Image.fromarray(image.transpose(1, 2, 0)) for image in pixels],
    }[kind]
    html = shown().show(given, rows=[3, 1])._repr_html_()
    assert html.count("<img") == 2
    assert html.index(image_url(pixels[3])) < html.index(image_url(pixels[1]))
    with pytest.raises(UsageError, match="is of 5 images, and 4 are given"):
        shown().show(pixels[:4])


def test_floats_beyond_black_and_white_are_shown_as_these() -> None:
    values = np.full((5, 1, 2, 2), [[-0.5, 0.25], [1.5, np.nan]])
    html = shown().show(values, rows=[0])._repr_html_()
    assert image_url(np.array([[[0, 64], [255, 0]]], np.uint8)) in html


def test_what_is_no_image_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"\(N, C, H, W\); got one of \(8, 8\)"):
        shown().show(np.zeros((5, 8, 8), np.uint8))
    with pytest.raises(UsageError, match="got int64"):
        shown().show(np.zeros((5, 3, 8, 8), np.int64))


def test_probabilities_and_cues_without_p_values_have_their_columns() -> None:
    html = shown(2, probability=np.array([0.25, 0.75]), cue_p_values={})._repr_html_()
    assert "P(OOD)" in html
    assert "0.750" in html
    assert "p of" not in html
    assert "layer&lt;b&gt;" in html
