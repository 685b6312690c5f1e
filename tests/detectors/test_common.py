"""Every registered detector goes through the same checks: alone, traced, and in a gate.

Alone, on features in blobs (``blobs.py``). In a gate, on a small classifier of digits.
"""

import copy
import pickle
import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

import goen
from goen.data import ImageSet
from goen.detectors import DETECTORS, Detector, Goen, PytorchOod, make_detector
from goen.detectors.calibration_head import HeadConfig
from goen.errors import FitError, GoenWarning, NotFittedError, UsageError
from goen.gate import Gate
from goen.gate.export.conversion import convert, open_session, quiet_exporters, run_session
from goen.gate.prediction import Prediction
from goen.models import NetworkConfig, ResNet18
from goen.monitor import Monitor
from goen.outputs import Outputs
from tests.detectors.blobs import blob_outputs, id_features, ood_features
from tests.detectors.saving import reloaded
from tests.own_model import LAYERS, DigitNet, digits, preprocess, trained

WITH_OOD = {"goen": "goen with OOD images", "goen_m": "goen_m with OOD images"}
"""Those that OOD images can calibrate are tested with and without."""
CASES = (*DETECTORS, *WITH_OOD.values())
every = pytest.mark.parametrize("case", CASES)
every_name = pytest.mark.parametrize("name", DETECTORS)

# The checks that do not apply to a detector, and why.
NOTHING_TO_FIT = "its fit learns nothing, so there is nothing to forget and nothing to miss"
LOGITS_ALONE = "it reads no feature, so none can be missing"
LEARNS_NOTHING = "it learns which feature to read, and nothing from the training images"
NOT_APPLICABLE: dict[str, dict[str, str]] = {
    "needs a fit": dict.fromkeys(
        ("energy", "entropy", "gen", "i_odin", "max_logit", "max_softmax", "odin", "uncertainty"),
        NOTHING_TO_FIT,
    ),
    "needs a feature": dict.fromkeys(
        (
            *("energy", "entropy", "gen", "i_odin", "kl_matching", "max_logit", "max_softmax"),
            *("odin", "openmax", "temperature_scaling", "uncertainty"),
        ),
        LOGITS_ALONE,
    ),
    "learns from images": {
        **dict.fromkeys(("gradnorm", "lts", "mcm", "scale"), LEARNS_NOTHING),
        **dict.fromkeys(("ash", "ash_b", "ash_p"), "it learns a percentile, here the same again"),
    },
    "distinct scores": {
        "masf": "a p-value has as many steps as its class has training images",
        "nac": "a mean of counts over few neurons has few values",
    },
    "any precision": {
        "optfs": "a rounded activation can fall into another bin",
        **dict.fromkeys(("adascale", "adascale_l"), "a rounded feature can have another rank"),
    },
    "ties at the top": {"kl_matching": "held-out images that repeat are usual ones to it"},
    "empty in onnxruntime": {"masf": "onnxruntime cannot compare an empty batch along three axes"},
    "gate of any classifier": {"uncertainty": "a classifier rarely has an uncertainty of its own"},
}


def cases_for(check: str) -> pytest.MarkDecorator:
    chosen = [case for case in CASES if case.split()[0] not in NOT_APPLICABLE[check]]
    return pytest.mark.parametrize("case", chosen)


def new(case: str) -> Detector:
    if case == WITH_OOD["goen"]:
        return Goen(head=HeadConfig(batch_size=16))  # there are few images
    return make_detector(case.split()[0])


def outputs_for(case: str, features: Tensor, labels: Tensor | None = None) -> Outputs:
    detector = new(case)
    return blob_outputs(
        features, labels, perturbed=detector.needs_gradient, relu=detector.made_for_relu
    )


def data(case: str, seed: int = 1) -> dict[str, Any]:
    """The arguments of ``fit``."""
    features, labels = id_features(400, seed)
    given: dict[str, Any] = {
        "outputs": outputs_for(case, features),
        "labels": labels,
        "held_out": outputs_for(case, *id_features(120, seed + 100)),
    }
    if case in WITH_OOD.values():
        given["ood"] = {"aside": outputs_for(case, ood_features(120, seed + 200))}
    return given


@cache
def fitted(case: str) -> Detector:
    return new(case).fit(**data(case))


@cache
def far_and_near(case: str) -> tuple[Outputs, Outputs]:
    far, (near, _) = ood_features(200, 7), id_features(200, 8)
    return outputs_for(case, far), outputs_for(case, near)


def test_a_detector_without_a_name_has_that_of_its_class() -> None:
    class OddLength(Detector):
        def _score(self, outputs: Outputs) -> Tensor:
            return outputs.logits[:, 0]

    assert OddLength.name == OddLength().cue_names[0] == "odd_length"
    assert make_detector("knn").name == "knn"


def test_a_detector_without_training_images_keeps_none() -> None:
    assert make_detector("energy").num_kept == (0, 0)


# -- alone -------------------------------------------------------------------------------------


@every
def test_ood_features_score_higher(case: str) -> None:
    far, near = far_and_near(case)
    scores = torch.cat([fitted(case).score(near), fitted(case).score(far)])
    assert roc_auc_score(np.arange(400) >= 200, scores.numpy()) > 0.95


@every
def test_one_finite_float64_per_image_and_cue(case: str) -> None:
    detector = fitted(case)
    for outputs in far_and_near(case):
        scores, cues = detector.score(outputs), detector.cues(outputs)
        assert scores.shape == (200,)
        assert cues.shape == (200, len(detector.cue_names))
        assert len(detector.cue_directions) == len({*detector.cue_names}) == cues.shape[1]
        assert scores.dtype == cues.dtype == torch.float64
        assert torch.isfinite(scores).all()
        assert torch.equal(detector.score_cues(cues), scores)
    empty = far_and_near(case)[0][:0]
    assert detector.score(empty).shape == (0,)
    assert detector.cues(empty).shape == (0, len(detector.cue_names))


@every
def test_a_probability_is_known_where_ood_images_took_part(case: str) -> None:
    detector, (far, near) = fitted(case), far_and_near(case)
    assert detector.has_probability == (case in WITH_OOD.values())
    found = [detector.probability(detector.score(outputs)) for outputs in (near, far)]
    if detector.has_probability:
        low, high = (float(p.mean()) for p in found if p is not None)
        assert 0 <= low < 0.5 < high <= 1
    else:
        assert found == [None, None]


@cases_for("distinct scores")
def test_nothing_saturates(case: str) -> None:
    for outputs in far_and_near(case):
        assert len(fitted(case).score(outputs).unique()) > 190


@every
def test_an_image_is_scored_alone(case: str) -> None:
    features = torch.cat([ood_features(40, 9), id_features(41, 10)[0]])
    outputs = outputs_for(case, features)
    whole = fitted(case).score(outputs)
    one_by_one = torch.cat([fitted(case).score(outputs[i : i + 1]) for i in range(81)])
    atol = 1e-6 if case == WITH_OOD["goen"] else 1e-8  # the head computes in float32
    assert torch.allclose(one_by_one, whole, rtol=1e-6, atol=atol)
    order = torch.randperm(81, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(fitted(case).score(outputs[order]), whole[order], rtol=1e-6, atol=atol)


def tensors_of(given: object) -> list[Tensor]:
    """All tensors in outputs, and in dicts of them."""
    if isinstance(given, Outputs):
        parts = (given.logits, *given.features.values(), given.uncertainty, given.labels)
        return [part for part in parts if part is not None]
    if isinstance(given, dict):
        return [part for value in given.values() for part in tensors_of(value)]
    return [given] if isinstance(given, Tensor) else []


@every
def test_inputs_stay_as_they_are(case: str) -> None:
    given = {**data(case), "scored": far_and_near(case)[0]}
    before = [part.clone() for part in tensors_of(given)]
    scored = given.pop("scored")
    new(case).fit(**given).score(scored)
    after = tensors_of({**given, "scored": scored})
    assert len(after) == len(before)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@every
def test_fit_returns_the_detector_and_a_fresh_fit_is_the_same(case: str) -> None:
    detector, (far, _) = new(case), far_and_near(case)
    assert detector.fit(**data(case)) is detector
    assert torch.equal(detector.score(far), fitted(case).score(far))


@cases_for("needs a fit")
def test_a_second_fit_forgets_the_first(case: str) -> None:
    detector, (_, near) = new(case), far_and_near(case)
    moved = data(case, seed=77)
    moved.pop("ood", None)  # and it forgets that there were any
    detector.fit(**moved)
    if case not in NOT_APPLICABLE["learns from images"]:
        assert not torch.equal(detector.score(near), fitted(case).score(near))
    detector.fit(**data(case))
    assert torch.equal(detector.score(near), fitted(case).score(near))
    detector.fit(**moved)
    assert torch.equal(detector.score(near), new(case).fit(**moved).score(near))
    assert not detector.has_probability


@every
def test_a_fit_that_fails_changes_nothing(case: str) -> None:
    detector, (far, _) = new(case).fit(**data(case)), far_and_near(case)
    before, state = detector.score(far), detector.state()
    good = data(case, seed=77)
    outputs, labels = good["outputs"], good["labels"]
    for wrong in (
        {"labels": labels + 4},
        {"labels": labels[:9]},
        {"labels": labels.float()},
        {"outputs": outputs[:0], "labels": labels[:0]},
        {"outputs": replace(outputs, features={"z": outputs.features["z"][:9]})},
    ):
        with pytest.raises(UsageError):
            detector.fit(**{**good, **wrong})
    if detector.needs_fit:
        with pytest.raises(FitError):
            detector.fit(**{**good, **broken(outputs, held_out=good["held_out"])})
    if detector.calibrates(with_ood="ood" in good):
        other = replace(good["held_out"], logits=good["held_out"].logits[:, :3])
        with pytest.raises(UsageError, match="fitted on outputs of 4 classes, got 3"):
            detector.fit(**{**good, "held_out": other})
    assert torch.equal(detector.score(far), before)
    assert all(torch.equal(detector.state()[name], value) for name, value in state.items())


def broken(outputs: Outputs, **more: Outputs) -> dict[str, Outputs]:
    """The outputs, and more of them by name, with NaN in one image."""
    found = {}
    for name, part in {"outputs": outputs, **more}.items():
        rows = torch.arange(len(part)) == 3

        def spoilt(values: Tensor, rows: Tensor = rows) -> Tensor:
            return torch.where(rows.view(-1, *[1] * (values.ndim - 1)), torch.nan, values)

        assert part.uncertainty is not None
        found[name] = replace(
            part,
            logits=spoilt(part.logits),
            features={key: spoilt(values) for key, values in part.features.items()},
            uncertainty=spoilt(part.uncertainty),
        )
    return found


@every
def test_outputs_that_are_not_finite_are_refused(case: str) -> None:
    with pytest.raises(UsageError):
        fitted(case).score(broken(far_and_near(case)[0])["outputs"])


@every
def test_settings_and_state_give_the_same_detector_to_the_bit(case: str) -> None:
    detector, (far, near) = fitted(case), far_and_near(case)
    assert all(isinstance(value, Tensor) for value in detector.state().values())
    for again in (
        reloaded(detector),
        copy.deepcopy(detector),
        pickle.loads(pickle.dumps(detector)),
    ):
        assert repr(again) == repr(detector)
        assert again.features == detector.features
        assert again.has_probability == detector.has_probability
        assert again.cue_names == detector.cue_names
        assert again.description == detector.description
        for outputs in (far, near):
            assert torch.equal(again.cues(outputs), detector.cues(outputs))
            assert torch.equal(again.score(outputs), detector.score(outputs))
        again_state = again.state()
        assert again_state.keys() == detector.state().keys()
        assert all(torch.equal(again_state[k], v) for k, v in detector.state().items())


@every
def test_a_state_with_a_tensor_too_many_or_too_few_or_not_finite_is_refused(case: str) -> None:
    detector = fitted(case)
    state = detector.state()
    if state:
        with pytest.raises(ValueError, match="unknown names: forged"):
            reloaded(detector, {"forged": torch.zeros(2)})
    for name, value in state.items():
        if name != "ood_cues.aside":  # which need not be there
            with pytest.raises(ValueError, match=f"no tensor {re.escape(name)}"):
                reloaded(detector, without=name)
        if value.is_floating_point():
            with pytest.raises(ValueError, match=f"its tensor {re.escape(name)}.* should"):
                reloaded(detector, {name: value * torch.nan})
        with pytest.raises(ValueError, match=f"its tensor {re.escape(name)} should be"):
            reloaded(detector, {name: value[None]})


@cases_for("needs a fit")
def test_without_a_fit_there_is_no_score(case: str) -> None:
    detector, (far, _) = new(case), far_and_near(case)
    assert not detector.is_fitted
    message = rf"This {type(detector).__name__} is not fitted\. Call fit\(outputs, labels\), or"
    for use in (detector.score, detector.cues, detector.calibrate):
        with pytest.raises(NotFittedError, match=message):
            use(far)


@every
def test_more_training_images_or_a_sentence(case: str) -> None:
    given, (far, _) = data(case), far_and_near(case)
    detector = new(case)
    if not detector.can_update:
        with pytest.raises(UsageError, match=r"is fitted on all training images at once: fit it"):
            detector.fit(**given).update(given["outputs"], given["labels"])
        return
    for rows in (slice(0, 150), slice(150, 400)):
        assert detector.update(given["outputs"][rows], given["labels"][rows]) is detector
    if detector.calibrates(with_ood="ood" in given):
        detector.calibrate(given["held_out"], given.get("ood"))
    assert torch.allclose(detector.score(far), fitted(case).score(far), rtol=1e-6)
    state, good, labels = detector.state(), given["outputs"], given["labels"]
    for wrong, error in (
        (broken(good)["outputs"], FitError),
        (replace(good, logits=good.logits[:, :3]), UsageError),
        (replace(good, features={k: v[:, 1:] for k, v in good.features.items()}), UsageError),
        (replace(good, features={}), UsageError),
        (good[:9], UsageError),
    ):
        with pytest.raises(error):
            detector.update(wrong, labels)
    assert all(torch.equal(detector.state()[name], value) for name, value in state.items())


@every
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_callers_gradient_mode_does_not_matter(case: str, mode: Any) -> None:
    given, (far, _) = data(case), far_and_near(case)
    with mode():
        detector = new(case).fit(**given)
    assert torch.equal(detector.score(far), fitted(case).score(far))
    if detector.can_update:
        detector.update(given["outputs"], given["labels"])  # outside of the mode


@every
def test_torchs_default_device_and_type_do_not_matter(case: str) -> None:
    given, (far, _) = data(case), far_and_near(case)
    expected = fitted(case).score(far)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            detector = new(case).fit(**given)
            scores, again = detector.score(far), reloaded(detector).score(far)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(scores, expected)
    assert torch.equal(again, expected)


@cases_for("any precision")
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_precisions_are_scored_too(case: str, dtype: torch.dtype) -> None:
    far, _ = far_and_near(case)
    features = {name: values.to(dtype) for name, values in far.features.items()}
    scores = fitted(case).score(replace(far, logits=far.logits.to(dtype), features=features))
    reference = fitted(case).score(far)
    assert scores.dtype == torch.float64
    assert ((scores - reference).abs() / reference.std().clamp_min(1e-6)).max() < 0.25


@every
def test_features_of_other_images_than_the_logits_are_refused(case: str) -> None:
    far, _ = far_and_near(case)
    expected = "logits have 200 rows, feature 'layer2' has 100"
    mixed = replace(far, features={name: rows[:100] for name, rows in far.features.items()})
    given = data(case)
    zeros = torch.zeros(200, dtype=torch.int64)
    uses = [partial(fitted(case).score, mixed), partial(new(case).fit, mixed, zeros)]
    if new(case).calibrates(with_ood="ood" in given):
        uses += [partial(new(case).fit, **{**given, "held_out": mixed})]
    if new(case).can_update:
        uses += [partial(new(case).update, mixed, zeros)]
    for use in uses:
        with pytest.raises(UsageError, match=expected):
            use()


@cases_for("needs a fit")
@pytest.mark.parametrize("columns", [[0, 1, 2], [0, 1, 2, 3, 3]], ids=len)
def test_another_number_of_classes_is_refused(case: str, columns: list[int]) -> None:
    far, _ = far_and_near(case)
    detector = fitted(case)
    message = f"{type(detector).__name__} was fitted on outputs of 4 classes, got {len(columns)}"
    for once_more in (detector, reloaded(detector)):
        with pytest.raises(UsageError, match=message):
            once_more.score(replace(far, logits=far.logits[:, columns]))


@every
def test_an_image_without_its_axis_is_refused(case: str) -> None:
    far, _ = far_and_near(case)
    one = Outputs(far.logits[0], {name: rows[0] for name, rows in far.features.items()})
    with pytest.raises(UsageError, match=r"Expected rows of shape \(N, D\), got \(4,\)"):
        fitted(case).score(one)


@cases_for("needs a feature")
def test_a_feature_that_is_not_there_is_named(case: str) -> None:
    far, _ = far_and_near(case)
    detector = fitted(case)
    with pytest.raises(UsageError, match=f"Unknown feature '{detector.features[0]}'"):
        detector.score(Outputs(far.logits, {"zz": far.features["z"]}))
    name = detector.features[0]
    narrow = {**far.features, name: far.features[name][:, 1:]}
    with pytest.raises(UsageError, match=r"Expected features of width \d+, got \d+\. Different"):
        detector.score(replace(far, features=narrow))


def test_the_table_of_exceptions_is_that_of_the_detectors() -> None:
    for check in NOT_APPLICABLE.values():
        assert check.keys() <= DETECTORS.keys()
    for name, make in DETECTORS.items():
        assert make().needs_fit == (name not in NOT_APPLICABLE["needs a fit"])
        reads = bool(fitted(name).widths_)
        assert reads == (name not in NOT_APPLICABLE["needs a feature"])


@every
def test_a_detector_is_printed_with_its_settings_and_described(case: str) -> None:
    detector = fitted(case)
    assert repr(detector) == repr(new(case))
    assert repr(detector).startswith(f"{type(detector).__name__}(")
    assert "tensor(" not in repr(detector)
    assert len(repr(detector)) < 200
    assert detector.description.endswith((".", "OOD"))


# -- traced ------------------------------------------------------------------------------------


class Scores(nn.Module):
    """The scores, and the logits behind the confidence, of tensors by position."""

    def __init__(self, detector: Detector, names: list[str]) -> None:
        super().__init__()
        self.detector = detector
        self.names = names

    def forward(self, *given: Tensor) -> tuple[Tensor, Tensor]:
        parts = dict(zip(self.names, given, strict=True))
        outputs = Outputs(parts.pop("logits"), {}, parts.pop("uncertainty", None))
        outputs = replace(outputs, features=parts)
        scores = self.detector.score_cues(self.detector.cues(outputs))
        return scores, self.detector.calibrated(outputs).logits


def read_parts(detector: Detector, outputs: Outputs) -> dict[str, Tensor]:
    """The tensors that the detector reads."""
    parts = {"logits": outputs.logits}
    parts |= {name: outputs.feature(name) for name in detector.features}
    if detector.name == "uncertainty":
        assert outputs.uncertainty is not None
        parts["uncertainty"] = outputs.uncertainty
    return parts


@every
def test_its_score_is_the_same_traced_and_in_onnx(case: str) -> None:
    detector = reloaded(fitted(case))  # of which nothing was computed before
    far, near = far_and_near(case)
    outputs = Outputs.concatenate([far[:50], near[:50]])
    parts = read_parts(detector, outputs)
    axes = tuple({0: torch.export.Dim("count")} for _ in parts)
    module = Scores(detector, list(parts)).eval()
    with quiet_exporters(), torch.no_grad():
        program = torch.export.export(
            module, tuple(parts.values()), dynamic_shapes=(axes,), strict=False
        )
    expected = fitted(case).score(outputs)
    close = {"rel": 1e-7 if case == "gen" else 1e-9, "abs": 1e-12}
    if case == WITH_OOD["goen"]:
        close = {"rel": 1e-6, "abs": 1e-6}  # the head computes in float32
    # The live detector is as it was: nothing of the traced program is kept in it.
    assert torch.equal(detector.score(outputs), expected)
    assert torch.equal(detector.score(outputs[:3]), fitted(case).score(outputs[:3]))
    confident = detector.calibrated(outputs).logits
    for count in (100, 7, 1, 0):
        some = {name: part[:count] for name, part in parts.items()}
        scores, logits = program.module()(*some.values())
        assert scores.tolist() == pytest.approx(expected[:count].tolist(), **close)
        assert torch.allclose(logits, confident[:count], rtol=1e-6)

    pytest.importorskip("onnxruntime")
    session = open_session(convert(program, list(parts), ["scores", "calibrated"]))
    known = [given.name for given in session.get_inputs()]
    for count in (100, 1, 0)[: 2 if case in NOT_APPLICABLE["empty in onnxruntime"] else 3]:
        some = {name: parts[name][:count].numpy() for name in known}
        found, logits = run_session(session, ["scores", "calibrated"], some)
        assert found.dtype == np.float64
        assert found.tolist() == pytest.approx(expected[:count].tolist(), **close)
        assert np.allclose(logits, confident[:count], rtol=1e-6)


# -- in a gate ---------------------------------------------------------------------------------


@cache
def images() -> dict[str, ImageSet]:
    """Digits; more held-out images for an update."""
    p = digits()
    return {"train": p.train, "held_out": p.validation, "test": p.test}


@cache
def gate(name: str) -> Gate:
    sets = images()
    return Gate.fit(
        trained(),
        sets["train"],
        sets["held_out"],
        detector=name,
        layers=LAYERS,
        preprocess=preprocess,
        false_alarm_rate=0.1,
    )


def equal(a: Prediction, b: Prediction) -> bool:
    """To the last bit."""

    def arrays(p: Prediction) -> list[NDArray[Any]]:
        alone = [p.label, p.confidence, p.score, p.p_value, p.is_ood]
        alone += [] if p.probability is None else [p.probability]
        return [*alone, *p.cues.values(), *p.cue_p_values.values()]

    pairs = zip(arrays(a), arrays(b), strict=True)
    return all(np.array_equal(one, other) for one, other in pairs)


GATES = [name for name in DETECTORS if name not in NOT_APPLICABLE["gate of any classifier"]]
every_gate = pytest.mark.parametrize("name", GATES)


@every_gate
def test_a_gate_predicts_explains_and_flags_few_of_its_kind(name: str) -> None:
    made, held_out = gate(name), images()["held_out"]
    prediction = made.predict(images()["test"])
    assert len(prediction) == len(images()["test"])
    assert np.isfinite(prediction.score).all()
    assert prediction.is_ood.mean() < 0.3
    assert ((prediction.p_value <= 0.1) == prediction.is_ood).all()
    explained = prediction.explain(0)
    assert tuple(cue.name for cue in explained.cues) == made.detector.cue_names
    assert all(f"{name}: p = " in str(explained) for name in made.detector.cue_names)
    calibrates = make_detector(name).calibrates(with_ood=False)
    shares = {False: len(held_out), True: len(held_out) - round(0.6 * len(held_out))}
    assert made.num_held_out == shares[calibrates]
    noise = np.random.default_rng(0).integers(0, 256, (64, *held_out.image_shape), dtype=np.uint8)
    assert np.isfinite(made.predict(noise).score).all()
    assert repr(made.detector) in repr(made)
    assert made.detector.cue_names[0] in made._repr_html_()


class Constant(DigitNet):
    """Features and logits that do not depend on the image."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return super().forward(0 * x)  # which has a gradient


@pytest.mark.filterwarnings("ignore:The classifier is right on")
@every_gate
def test_a_gate_that_can_never_flag_warns_or_is_refused(name: str) -> None:
    model = Constant().eval()
    model.load_state_dict(trained().state_dict())
    sets = images()
    refused = (
        *("class_mixture", "fdbd", "flow", "mahalanobis", "mahalanobis_pp", "mm_pp", "neco"),
        *("openmax", "relative_mahalanobis", "relative_mahalanobis_pp", "residual", "vim"),
    )
    warned = pytest.warns(GoenWarning, match="and 0 score above it: the gate flags 0 of ID images")
    with pytest.raises(FitError) if name in refused else warned:
        Gate.fit(
            model, sets["train"], sets["held_out"], detector=name, layers=LAYERS,
            preprocess=preprocess,
        )  # fmt: skip


@pytest.mark.filterwarnings("ignore:.* are copies of others")
@every_gate
def test_ties_at_the_top_of_the_held_out_scores_are_a_warning(name: str) -> None:
    if name in NOT_APPLICABLE["ties at the top"]:
        return
    sets = images()
    order = np.argsort(gate(name).predict(sets["held_out"]).score)
    rows = np.concatenate([order[:-1:5], order[-1:].repeat(90)])
    some = sets["held_out"].read(rows), sets["held_out"].labels[rows]
    with pytest.warns(GoenWarning, match="are many held-out images the same"):
        Gate.fit(
            trained(), sets["train"], some, detector=name, layers=LAYERS, preprocess=preprocess
        )


@every_gate
def test_a_gate_is_saved_loaded_and_pickled_to_the_bit(name: str, tmp_path: Path) -> None:
    made, some = gate(name), images()["test"]
    expected = made.predict(some)
    made.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=trained(), preprocess=preprocess)
    assert equal(loaded.predict(some), expected)
    assert repr(loaded.detector) == repr(made.detector)
    assert loaded.threshold == made.threshold
    assert equal(pickle.loads(pickle.dumps(loaded)).predict(some), expected)


@every_gate
def test_a_gate_is_updated_with_held_out_images_and_watched(name: str) -> None:
    made, sets = gate(name), images()
    before = made.predict(sets["held_out"])
    report = made.update(held_out=sets["test"])
    assert report.gate.threshold != made.threshold
    assert "flagged/held_out" in str(report)
    assert equal(made.predict(sets["held_out"]), before)  # this gate stays as it is
    updated = report.gate.predict(sets["held_out"])
    calibrated_again = made.detector.calibrates(with_ood=False)
    assert np.array_equal(updated.score, before.score) is not calibrated_again
    monitor = Monitor(report.gate)
    state = monitor.update(updated)
    assert state.images == len(sets["held_out"])
    assert not state.alarm


@every_gate
def test_a_gate_takes_more_training_images_or_says_why_not(name: str) -> None:
    made, sets = gate(name), images()
    half = sets["test"].read(), sets["test"].labels
    more, rest = ((half[0][rows], half[1][rows]) for rows in (slice(0, 60), slice(60, None)))
    if not made.detector.can_update:
        with pytest.raises(UsageError, match="is fitted on all training images at once: fit the"):
            made.update(train=more, held_out=rest)
        return
    updated = made.update(train=more, held_out=rest).gate
    assert not np.array_equal(updated.predict(rest).score, made.predict(rest).score)


def test_a_gate_whose_detector_needs_all_training_images_at_once() -> None:
    sets = images()
    detector = Goen(shrinkage="ledoit_wolf")
    made = Gate.fit(
        trained(), sets["train"], sets["held_out"], detector=detector, layers=LAYERS,
        preprocess=preprocess,
    )  # fmt: skip
    assert np.isfinite(made.predict(sets["test"]).score).all()


def test_an_uncertainty_is_that_of_the_network_or_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hold no uncertainty of the network's own"):
        gate("uncertainty")
    torch.manual_seed(0)
    network = ResNet18(NetworkConfig(num_classes=7, width=2, classifier="evidential")).eval()
    sets = images()
    with pytest.warns(goen.errors.GoenWarning, match="no better than chance"):
        made = Gate.fit(network, None, sets["held_out"], detector="uncertainty", layers=["layer4"])
    expected = made.predict(sets["test"])
    assert str(expected.explain(0)).startswith("uncertainty: p = ")
    made.save(tmp_path / "gate")
    assert equal(goen.load(tmp_path / "gate").predict(sets["test"]), expected)


@pytest.mark.parametrize("name", ["knn", "energy", "goen_m"])
def test_a_whole_gate_runs_in_onnx(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    made = gate(name)
    some = images()["test"].read()[:50]
    made.export(tmp_path / "gate.onnx", any_size=False)  # which compares the two
    session = open_session(tmp_path / "gate.onnx")
    expected = made.predict(some)
    names = ["label", "score", "p_value", "is_ood"]
    label, score, p_value, is_ood = run_session(session, names, {"images": some})
    assert np.array_equal(label, expected.label)
    assert np.array_equal(is_ood, expected.is_ood)
    assert np.allclose(score, expected.score, atol=1e-3)
    assert np.abs(p_value - expected.p_value).mean() < 1e-3


def test_a_gate_with_a_gradient_is_not_exported(tmp_path: Path) -> None:
    sentence = r"A gate with ODIN\(\) cannot be exported: the detector takes gradients of the netw"
    with pytest.raises(UsageError, match=sentence):
        gate("odin").export(tmp_path / "gate.onnx")
    assert not [*tmp_path.iterdir()]


class Centroid:
    """With pytorch-ood's methods for features."""

    def fit_features(self, x: Tensor, y: Tensor) -> "Centroid":
        self.centre = x.mean(0)
        return self

    def predict_features(self, x: Tensor) -> Tensor:
        return (x - self.centre).norm(dim=1)

    def __repr__(self) -> str:
        return "Centroid()"


def test_a_detector_of_pytorch_ood_is_in_a_gate_and_stays_in_the_process(tmp_path: Path) -> None:
    sets = images()
    detector = PytorchOod(Centroid(), feature="late")
    options = {"layers": LAYERS, "preprocess": preprocess}
    made = Gate.fit(trained(), sets["train"], sets["held_out"], detector=detector, **options)
    prediction = made.predict(sets["test"])
    assert str(prediction.explain(0)).startswith("pytorch_ood: p = ")
    assert prediction.is_ood.mean() < 0.2
    assert not hasattr(detector.detector, "centre")  # a copy was fitted
    assert len(made.update(held_out=sets["test"]).gate.held_out) == len(sets["test"])
    assert Monitor(made).update(prediction).images == len(sets["test"])
    with pytest.raises(
        UsageError, match=r"PytorchOod\(.*keeps its state in another library.*cannot be saved"
    ):
        made.save(tmp_path / "gate")
    with pytest.raises(UsageError, match=r"^[^.]*PytorchOod\(.* cannot be exported: .* own\.$"):
        made.export(tmp_path / "gate.onnx")
    assert not [*tmp_path.iterdir()]


def test_a_model_is_needed_to_load_a_gate_of_ones_own(tmp_path: Path) -> None:
    gate("energy").save(tmp_path / "gate")
    with pytest.raises(goen.errors.GoenError, match=DigitNet.__name__):
        goen.load(tmp_path / "gate")
