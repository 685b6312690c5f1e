import numpy as np
import pytest
import torch

from goen.errors import UsageError
from goen.outputs import Outputs

OUTPUTS = Outputs(
    torch.arange(6.0).view(3, 2),
    {"early": torch.arange(3.0)[:, None], "late": torch.arange(9.0).view(3, 3)},
    torch.tensor([0.1, 0.2, 0.3]),
)
PLAIN = Outputs(OUTPUTS.logits, OUTPUTS.features)


def same(one: Outputs, other: Outputs) -> bool:
    uncertainties = (one.uncertainty, other.uncertainty)
    return (
        torch.equal(one.logits, other.logits)
        and list(one.features) == list(other.features)
        and all(torch.equal(one.features[k], other.features[k]) for k in one.features)
        and (uncertainties == (None, None) or torch.equal(*uncertainties))  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    "rows",
    [slice(1, 3), torch.tensor([2, 0]), torch.tensor([True, False, True]), [0, 2], np.arange(2)],
)
def test_rows_are_taken_of_everything(rows: slice | torch.Tensor) -> None:
    part = OUTPUTS[rows]
    assert torch.equal(part.logits, OUTPUTS.logits[rows])
    assert torch.equal(part.features["late"], OUTPUTS.features["late"][rows])
    assert torch.equal(part.uncertainty, OUTPUTS.uncertainty[rows])
    assert PLAIN[rows].uncertainty is None


@pytest.mark.parametrize("rows", [0, -1, np.int64(1), torch.tensor(2), (slice(None), 0)])
def test_one_number_is_no_rows(rows: object) -> None:
    with pytest.raises(UsageError, match=r"by a slice or by a list .* outputs\[\[-1\]\]"):
        OUTPUTS[rows]  # type: ignore[index]
    assert same(OUTPUTS[[-1]], OUTPUTS[2:])
    with pytest.raises(UsageError, match="got 0"):
        list(OUTPUTS)  # type: ignore[call-overload]


@pytest.mark.parametrize("outputs", [OUTPUTS, PLAIN])
def test_parts_one_after_the_other_are_the_whole(outputs: Outputs) -> None:
    assert same(Outputs.concatenate(outputs[i : i + 1] for i in range(3)), outputs)
    assert same(outputs.cpu(), outputs)


def test_an_uncertainty_that_some_lack_is_dropped() -> None:
    assert Outputs.concatenate([OUTPUTS, PLAIN]).uncertainty is None


def test_no_parts_are_an_error() -> None:
    with pytest.raises(UsageError):
        Outputs.concatenate([])


def test_features_are_kept_and_found_by_name() -> None:
    assert list(OUTPUTS.keep(["late"]).features) == ["late"]
    assert OUTPUTS.keep(["late"]).uncertainty is OUTPUTS.uncertainty
    assert OUTPUTS.feature("early") is OUTPUTS.features["early"]
    with pytest.raises(UsageError, match=r"Unknown feature 'lat'\. Did you mean 'late'\?"):
        OUTPUTS.feature("lat")


def test_the_last_feature_is_named() -> None:
    assert OUTPUTS.last_feature == "late"
    with pytest.raises(UsageError, match="these outputs have logits alone"):
        _ = Outputs(OUTPUTS.logits, {}).last_feature


def test_logits_and_features_have_the_same_number_of_rows() -> None:
    OUTPUTS.check_counts()
    wrong = Outputs(OUTPUTS.logits, {**OUTPUTS.features, "late": torch.zeros(2, 3)})
    with pytest.raises(UsageError, match="logits have 3 rows, feature 'late' has 2"):
        wrong.check_counts()
