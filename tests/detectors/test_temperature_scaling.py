from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from goen.detectors import MaxSoftmax, TemperatureScaling
from goen.errors import FitError, NotFittedError, UsageError
from goen.metrics import id_metrics
from goen.outputs import Outputs
from tests.detectors.saving import reloaded


def overconfident(
    scale: float, rows: int = 800, classes: int = 6, seed: int = 0
) -> tuple[Outputs, torch.Tensor]:
    """Labels drawn from softmax(z), logits z times ``scale``: the best temperature is near it."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(rows, classes)) * 2
    labels = np.array([rng.choice(classes, p=p) for p in softmax(z, axis=1)])
    return Outputs(torch.from_numpy(z * scale), {}), torch.from_numpy(labels)


def temperature_of(outputs: Outputs, labels: torch.Tensor) -> float:
    return TemperatureScaling().fit(outputs, labels).temperature_.item()


def nll(outputs: Outputs, labels: torch.Tensor, temperature: float) -> float:
    log_p = log_softmax(outputs.logits.numpy() / temperature, axis=1)
    return float(-log_p[np.arange(len(labels)), labels.numpy()].mean())


@pytest.mark.parametrize("scale", [0.05, 0.3, 1.0, 4.0, 60.0])
def test_it_ends_where_a_search_over_one_number_ends(scale: float) -> None:
    outputs, labels = overconfident(scale)
    found = minimize_scalar(
        lambda t: nll(outputs, labels, np.exp(t)),
        bounds=np.log([0.01, 100]),
        method="bounded",
        options={"xatol": 1e-12},
    )
    temperature = temperature_of(outputs, labels)
    assert temperature == pytest.approx(np.exp(found.x), rel=1e-5)
    assert nll(outputs, labels, temperature) <= found.fun + 1e-12
    assert temperature == pytest.approx(scale, rel=0.2)


def test_by_hand() -> None:
    # Sure by 6 and right two times in three: e^(6 / T) = 2.
    logits = torch.tensor([[6.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    scaling = TemperatureScaling().fit(Outputs(logits, {}), torch.tensor([0, 0, 0]))
    assert scaling.temperature_.item() == pytest.approx(6 / np.log(2), rel=1e-6)
    assert scaling.score(Outputs(logits[:1], {})).item() == pytest.approx(-np.log(2), rel=1e-6)


def test_the_score_is_max_softmax_of_the_calibrated_outputs() -> None:
    outputs, labels = overconfident(3.0)
    scaling = TemperatureScaling().fit(outputs, labels)
    calibrated = MaxSoftmax().score(scaling.calibrated(outputs))
    assert torch.equal(scaling.score(outputs), calibrated)
    assert not torch.equal(calibrated.argsort(), MaxSoftmax().score(outputs).argsort())


def test_calibrated_outputs_are_better_calibrated_and_no_less_accurate() -> None:
    outputs, labels = overconfident(4.0)
    other, other_labels = overconfident(4.0, seed=1)
    calibrated = TemperatureScaling().fit(outputs, labels).calibrated(other)
    before = id_metrics(softmax(other.logits.numpy(), axis=1), other_labels.numpy())
    after = id_metrics(softmax(calibrated.logits.numpy(), axis=1), other_labels.numpy())
    assert after.accuracy == before.accuracy
    assert after.ece < before.ece / 3
    assert after.nll < before.nll


def test_calibrating_keeps_everything_else() -> None:
    outputs, labels = overconfident(2.0, rows=50)
    full = Outputs(outputs.logits.float(), {"z": torch.ones(50, 3)}, torch.ones(50))
    scaling = TemperatureScaling().fit(full, labels)
    calibrated = scaling.calibrated(full)
    assert calibrated.features is full.features
    assert calibrated.uncertainty is full.uncertainty
    assert calibrated.logits.dtype == torch.float32
    assert torch.allclose(calibrated.logits * scaling.temperature_, full.logits)


@pytest.mark.parametrize("gap", [0.001, 1.0, 50.0, 3e4])
def test_logits_that_are_always_right_or_always_wrong_do_not_run_away(gap: float) -> None:
    logits = gap * torch.eye(3).repeat(10, 1)
    labels = torch.arange(3).repeat(10)
    right = temperature_of(Outputs(logits, {}), labels)
    wrong = temperature_of(Outputs(logits, {}), (labels + 1) % 3)
    assert 0.01 * (1 - 1e-9) <= right <= 1
    assert 1 <= wrong <= 100 * (1 + 1e-9)
    if gap == 1.0:
        assert right < 0.1
        assert wrong == pytest.approx(100)


def test_what_all_logits_of_an_image_share_does_not_matter() -> None:
    outputs, labels = overconfident(3.0)
    whole = outputs.logits.round()
    offset = 2.0 ** (torch.arange(len(whole)) % 45)[:, None]
    plain = temperature_of(Outputs(whole, {}), labels)
    shifted = temperature_of(Outputs(whole + offset, {}), labels)
    assert shifted == pytest.approx(plain, rel=1e-9)


def test_logits_that_say_nothing_leave_the_temperature_at_one() -> None:
    outputs = Outputs(torch.zeros(10, 3), {})
    assert temperature_of(outputs, torch.arange(10) % 3) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_what_was_made_in_inference_mode_can_be_fitted(dtype: torch.dtype) -> None:
    outputs, labels = overconfident(3.0)
    with torch.inference_mode():
        made = Outputs(outputs.logits.to(dtype), {})
        inside = temperature_of(made, labels)
    assert temperature_of(made, labels) == inside
    assert inside == pytest.approx(temperature_of(outputs, labels), rel=1e-2)


def test_errors_say_what_to_do() -> None:
    outputs, labels = overconfident(1.0, rows=10)
    with pytest.raises(NotFittedError, match=r"is not fitted. Call fit\(outputs, labels\)"):
        TemperatureScaling().calibrated(outputs)
    with pytest.raises(UsageError, match="needs held-out images with labels"):
        TemperatureScaling().fit(outputs, labels, held_out=outputs)
    with pytest.raises(UsageError, match=r"Labels lie in 0 \.\. 5"):
        TemperatureScaling().fit(outputs, labels, held_out=replace(outputs, labels=labels + 6))
    with pytest.raises(UsageError, match="at least two"):
        TemperatureScaling().fit(Outputs(torch.zeros(3, 1), {}), torch.zeros(3, dtype=torch.int64))
    outputs.logits[4, 2] = torch.inf
    with pytest.raises(FitError, match="1 of 10 logit rows"):
        TemperatureScaling().fit(outputs, labels)


def test_held_out_images_are_what_it_is_fitted_on() -> None:
    train, labels = overconfident(1.0)
    held_out, held_out_labels = overconfident(4.0, seed=1)
    given = replace(held_out, labels=held_out_labels)
    scaling = TemperatureScaling().fit(train, labels, held_out=given)
    assert scaling.temperature_.item() == temperature_of(held_out, held_out_labels)
    assert scaling.temperature_.item() != temperature_of(train, labels)


@pytest.mark.parametrize("wrong", [0.009, 101.0, float("nan")])
def test_a_forged_temperature_is_refused(wrong: float) -> None:
    scaling = TemperatureScaling().fit(*overconfident(2.0))
    assert torch.equal(reloaded(scaling).temperature_, scaling.temperature_)
    with pytest.raises(ValueError, match="its tensor temperature should hold finite numbers from"):
        reloaded(scaling, {"temperature": torch.tensor(wrong).double()})
    with pytest.raises(ValueError, match=r"temperature should be float64 of shape \(\)"):
        reloaded(scaling, {"temperature": torch.ones(1).double()})
    with pytest.raises(ValueError, match="it has no tensor temperature"):
        reloaded(scaling, without="temperature")
