import sys

import numpy as np
import pytest

from goen.errors import DataError, ExtraMissing, GoenWarning, UsageError
from goen.gate import Gate, Prediction, concatenate

from ..own_model import LAYERS, digits, preprocess, trained


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
    assert made(3).explain(2) == "layer2: p = 0.0025, entropy: p = 0.025"
    plain = Prediction(**{**vars(made(3)), "cue_p_values": {}})
    assert plain.explain() == "layer2: 4, entropy: 5"


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
    found = p.discoveries(0.1)
    # By hand: the largest j with the j-th smallest p-value at most j / m of the rate.
    ordered = np.sort(p.p_value)
    passing = [j for j in range(1, 121) if ordered[j - 1] <= 0.1 * j / 120]
    assert found.sum() == (p.p_value <= ordered[passing[-1] - 1]).sum()
    assert found[60:].mean() > 0.9
    assert found[:60].sum() <= 0.25 * found.sum()
    with pytest.warns(GoenWarning, match="finds nothing unless"):
        assert not gate.predict(id_images).discoveries(0.01).any()


def test_discoveries_without_power_say_so() -> None:
    def prediction(count: int, held_out: int) -> Prediction:
        p_value = np.full(count, 0.5)
        p_value[0] = 1 / (held_out + 1)
        ones = np.ones(count)
        return Prediction(
            ones.astype(int), ones, ones, p_value, None, p_value < 0.1, {}, ("a", "b"), {}, held_out
        )

    # The least p-value is 1 / 121; one discovery among 100 needs 0.1 / 100.
    with pytest.warns(
        GoenWarning, match="at least 9 images .* 999 held-out images would let it find a single one"
    ):
        assert not prediction(100, 120).discoveries(0.1).any()
    assert prediction(100, 999).discoveries(0.1).tolist() == [True] + [False] * 99
    assert prediction(12, 120).discoveries(0.1)[0]


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
    from goen.gate.score_files import score_columns

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
