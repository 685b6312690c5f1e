import numpy as np
import pytest
import torch

from goen.errors import UsageError
from goen.outputs import LinearClassifier, Outputs, check_classifier

OUTPUTS = Outputs(
    torch.arange(6.0).view(3, 2),
    {"early": torch.arange(3.0)[:, None], "late": torch.arange(9.0).view(3, 3)},
    torch.tensor([0.1, 0.2, 0.3]),
    labels=torch.tensor([1, 0, 1]),
)
PLAIN = Outputs(OUTPUTS.logits, OUTPUTS.features)


def same(one: Outputs, other: Outputs) -> bool:
    uncertainties, labels = (one.uncertainty, other.uncertainty), (one.labels, other.labels)
    return (
        torch.equal(one.logits, other.logits)
        and list(one.features) == list(other.features)
        and all(torch.equal(one.features[k], other.features[k]) for k in one.features)
        and (uncertainties == (None, None) or torch.equal(*uncertainties))  # type: ignore[arg-type]
        and (labels == (None, None) or torch.equal(*labels))  # type: ignore[arg-type]
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
    assert torch.equal(part.labels, OUTPUTS.labels[rows])
    assert PLAIN[rows].uncertainty is None
    assert PLAIN[rows].labels is None


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


def test_what_some_lack_is_dropped() -> None:
    for parts in ([OUTPUTS, PLAIN], [PLAIN, OUTPUTS]):
        assert Outputs.concatenate(parts).uncertainty is None
        assert Outputs.concatenate(parts).labels is None


def test_no_parts_are_an_error() -> None:
    with pytest.raises(UsageError):
        Outputs.concatenate([])


def test_features_are_kept_and_found_by_name() -> None:
    assert list(OUTPUTS.keep(["late"]).features) == ["late"]
    with pytest.raises(UsageError, match=r"Unknown feature 'lat'\. Did you mean 'late'"):
        OUTPUTS.keep(["lat"])
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


def classified(rows: int = 50, dtype: torch.dtype = torch.float32) -> Outputs:
    """A linear classifier's outputs, with a bias that is larger than what the features add."""
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 4)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([0.0, 30.0, -50.0, 2.0]))
    layer, z = layer.to(dtype), torch.randn(rows, 8).to(dtype)
    logits = layer(z).detach().float()
    classifier = LinearClassifier.of(layer, "z")
    return Outputs(logits, {"other": torch.rand(rows, 8), "z": z.float()}, classifier=classifier)


def replaced(outputs: Outputs, weight: torch.Tensor, feature: str = "z") -> Outputs:
    assert outputs.classifier is not None
    changed = LinearClassifier(weight, outputs.classifier.bias, feature)
    return Outputs(outputs.logits, outputs.features, classifier=changed)


def test_a_classifier_stays_with_its_feature() -> None:
    outputs = classified()
    for part in (outputs[:3], outputs.cpu(), outputs.keep(["z"]), Outputs.concatenate([outputs])):
        assert check_classifier(part).feature == "z"
    assert outputs.keep(["other"]).classifier is None


def test_the_weights_are_those_of_the_layer_itself() -> None:
    layer = torch.nn.Linear(8, 4)
    found = LinearClassifier.of(layer, "z")
    assert found is not None
    assert found.weight.data_ptr() == layer.weight.data_ptr()
    assert not found.weight.requires_grad
    pixelwise = torch.nn.Conv2d(8, 4, 1, bias=False)
    found = LinearClassifier.of(pixelwise, "z", 0.5)
    assert found is not None
    assert torch.equal(found.weight, pixelwise.weight.detach()[:, :, 0, 0] / 2)
    assert torch.equal(found.bias, torch.zeros(4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_wrong_classifier_is_refused(dtype: torch.dtype) -> None:
    outputs = classified(dtype=dtype)
    weight = check_classifier(outputs).weight
    assert weight.dtype == torch.float32
    flipped = weight.clone()
    flipped[2, 3] *= -1
    wrong = [flipped, weight * 9, torch.zeros_like(weight)]
    if dtype == torch.float32:
        wrong.append(weight * 1.01)
        check_classifier(replaced(outputs, weight * 1.0001))
    for changed in wrong:
        with pytest.raises(UsageError, match=r"does not reproduce the logits.*'z'.*tolerance is"):
            check_classifier(replaced(outputs, changed))
    with pytest.raises(UsageError, match="does not reproduce"):
        check_classifier(replaced(outputs, weight, "other"))


def test_every_row_is_looked_at_but_those_that_are_not_finite(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("goen.outputs._ROWS", 20)
    outputs = classified()
    outputs.logits[45, 1] = torch.nan
    outputs.features["z"][3, 0] = torch.inf
    check_classifier(outputs)
    outputs.logits[44, 1] += 1
    with pytest.raises(UsageError, match="differ by up to 1,"):
        check_classifier(outputs)


def test_outputs_print_their_shapes() -> None:
    assert repr(OUTPUTS[:2]).startswith("Outputs(logits (2, ")
    assert "early (2, " in repr(OUTPUTS[:2])
    assert repr(classified()).endswith("; classifier)")


def test_outputs_without_a_classifier_say_what_to_extract() -> None:
    with pytest.raises(
        UsageError, match=r"no linear classifier: .* \(early, late\)\. Extract what"
    ):
        check_classifier(OUTPUTS)
