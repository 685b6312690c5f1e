"""Gates of features alone, with a classifier's logits, with class means, or with no classes."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import goen
from goen.errors import ArtifactError, FitError, GoenWarning, LeakError, UsageError
from goen.features.precomputed import Precomputed, as_features
from goen.gate import Gate
from goen.gate.fitting import features
from goen.gate.fitting.sets import split_held_out
from goen.gate.threshold import tie_tolerance
from goen.outputs import Outputs
from tests.gate.false_alarms import flags_allowed
from tests.own_model import LAYERS, digits, preprocess, trained

CENTRES = np.random.default_rng(0).normal(size=(5, 16))


def rows(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 5, count)
    return (CENTRES[labels] + 0.4 * rng.normal(size=(count, 16))).astype(np.float32), labels


X, LABELS = rows(1000, 1)
HELD_OUT, HELD_OUT_LABELS = rows(600, 2)
NEW, NEW_LABELS = rows(800, 3)
UNLIKE = np.random.default_rng(4).normal(size=(300, 16)).astype(np.float32)


@cache
def gate_of(kind: str) -> Gate:
    if kind == "class means":
        return Gate.fit_outputs(
            {"clip": X}, LABELS, {"clip": HELD_OUT}, held_out_labels=HELD_OUT_LABELS
        )
    if kind == "no classes":
        return Gate.fit_outputs(X, None, HELD_OUT)
    return Gate.fit_outputs(
        {"clip": X, "logits": X @ CENTRES.T}, LABELS,
        {"clip": HELD_OUT, "logits": HELD_OUT @ CENTRES.T},
    )  # fmt: skip


def given(kind: str, values: np.ndarray) -> Any:
    if kind == "no classes":
        return values
    return {"clip": values} | ({"logits": values @ CENTRES.T} if kind == "logits" else {})


KINDS = ["class means", "no classes", "logits"]


def test_one_unsure_held_out_image_does_not_disable_the_gate() -> None:
    logits, held_out_logits = (
        30 * np.eye(5)[of] + np.random.default_rng(5).normal(size=(len(of), 5))
        for of in (LABELS, HELD_OUT_LABELS)
    )
    held_out_logits[split_held_out(len(HELD_OUT), 0.6, 0.05)[1][0]] = 0.0
    gate = Gate.fit_outputs(
        {"clip": X, "logits": logits}, LABELS, {"clip": HELD_OUT, "logits": held_out_logits}
    )
    assert gate.held_out.scores[-1] > 1e6  # the entropies of the others are nearly 0
    assert tie_tolerance(gate.held_out.scores, 1e-6) < 0.01
    assert gate.predict_outputs({"clip": UNLIKE, "logits": logits[:300]}).is_ood.mean() > 0.95


@pytest.mark.parametrize("kind", KINDS)
def test_from_the_fit_to_an_exported_file(kind: str, tmp_path: Path) -> None:
    from onnxruntime import InferenceSession

    gate = gate_of(kind)
    found = gate.predict_outputs(given(kind, NEW))  # type: ignore[arg-type]
    fewest, most = flags_allowed(gate, len(NEW))
    assert fewest <= found.is_ood.sum() <= most
    assert gate.predict_outputs(given(kind, UNLIKE)).is_ood.mean() > 0.9  # type: ignore[arg-type]
    if kind != "no classes":
        assert (found.label == NEW_LABELS).mean() > 0.97
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate")
    again = loaded.predict_outputs(given(kind, NEW))  # type: ignore[arg-type]
    assert np.array_equal(again.score, found.score)
    assert np.array_equal(again.label, found.label)

    gate.export(tmp_path / "gate.onnx")
    session = InferenceSession(tmp_path / "gate.onnx")
    feed = given(kind, NEW)
    feed = feed if isinstance(feed, dict) else {"features": feed}
    feed = {name: np.asarray(part, np.float32) for name, part in feed.items()}
    label, decision = session.run(["label", "is_ood"], feed)
    assert np.array_equal(label, found.label)
    assert (decision == found.is_ood).mean() > 0.998  # but for scores between two held-out ones


def test_the_label_is_that_of_the_nearest_mean_of_unit_vectors() -> None:
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    means = np.stack([unit[label == LABELS].mean(0) for label in range(5)])
    new = NEW / np.linalg.norm(NEW, axis=1, keepdims=True)
    squared = ((new[:, None] - means) ** 2).sum(2)
    found = gate_of("class means").predict_outputs({"clip": NEW})
    assert np.array_equal(found.label, squared.argmin(1))
    # The confidence is that of Gaussians of one variance.
    variance = ((unit - means[LABELS]) ** 2).mean()
    weight = np.exp(-(squared - squared.min(1, keepdims=True)) / (2 * variance))
    assert np.allclose(found.confidence, weight.max(1) / weight.sum(1), atol=1e-5)


def test_without_a_classifier_the_entropy_is_no_cue() -> None:
    assert gate_of("class means").detector.cue_names == ("clip",)
    assert gate_of("no classes").detector.cue_names == ("features",)
    assert gate_of("logits").detector.cue_names == ("clip", "entropy")
    assert gate_of("no classes").classes == ("known",)
    assert gate_of("class means").metadata["held_out_accuracy"] > 0.97


def test_outputs_give_the_gate_of_the_network() -> None:
    p = digits()
    network = goen.FeatureExtractor(trained(), LAYERS, preprocess=preprocess)
    whole = Gate.fit(trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess)
    outputs = {part: goen.extract(network, images) for part, images in
               {"train": p.train, "held_out": p.validation, "test": p.test}.items()}  # fmt: skip
    gate = Gate.fit_outputs(outputs["train"], p.train.labels, outputs["held_out"])
    found, expected = gate.predict_outputs(outputs["test"]), whole.predict(p.test)
    assert np.allclose(found.score, expected.score, atol=1e-4)
    assert np.array_equal(found.label, expected.label)
    # And the gate of the network takes outputs, and arrays of them, too.
    arrays = {name: values.numpy() for name, values in outputs["test"].features.items()}
    again = whole.predict_outputs({**arrays, "logits": outputs["test"].logits.numpy()})
    assert np.allclose(again.score, expected.score, atol=1e-4)
    with pytest.raises(UsageError, match="are features and logits"):
        whole.predict_outputs(arrays)


def test_without_labels_the_classifiers_own_are_taken() -> None:
    logits = X @ CENTRES.T
    gate = Gate.fit_outputs(
        {"clip": X, "logits": logits}, None, {"clip": HELD_OUT, "logits": HELD_OUT @ CENTRES.T}
    )
    same = Gate.fit_outputs(
        {"clip": X, "logits": logits}, logits.argmax(1),
        {"clip": HELD_OUT, "logits": HELD_OUT @ CENTRES.T},
    )  # fmt: skip
    assert np.array_equal(gate.held_out.scores, same.held_out.scores)


def test_half_precision_and_memory_maps_are_taken(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.astype(np.float16))
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    gate = Gate.fit_outputs(mapped, LABELS, HELD_OUT.astype(np.float16), batch_size=64)
    expected = Gate.fit_outputs(
        X.astype(np.float16).astype(np.float32), LABELS,
        HELD_OUT.astype(np.float16).astype(np.float32),
    )  # fmt: skip
    assert np.allclose(gate.held_out.scores, expected.held_out.scores, atol=1e-5)


def test_an_update_equals_a_fit_on_everything() -> None:
    more, labels = rows(500, 5)
    change = gate_of("class means").update(
        train=({"clip": more}, labels), held_out={"clip": HELD_OUT}, ood={"other": {"clip": UNLIKE}}
    )
    gate = change.gate
    whole = Gate.fit_outputs(
        np.concatenate([X, more]), np.concatenate([LABELS, labels]), HELD_OUT, ood={"other": UNLIKE}
    )
    found, expected = gate.predict_outputs(NEW), whole.predict_outputs(NEW)
    assert np.allclose(found.score, expected.score, atol=1e-6)
    assert np.allclose(found.confidence, expected.confidence, atol=1e-6)
    assert change.after["auroc/other"] > 0.95
    assert torch.equal(gate.network.sums, whole.network.sums)  # type: ignore[arg-type]
    # The gate that was updated is as it was.
    assert isinstance(gate_of("class means").network, Precomputed)
    assert int(gate_of("class means").network.counts.sum()) == 1000  # type: ignore[arg-type]


def test_kinds_of_ood_by_name_or_one() -> None:
    one = Gate.fit_outputs(X, LABELS, HELD_OUT, ood=UNLIKE)
    named = Gate.fit_outputs(X, LABELS, HELD_OUT, ood={"far": {"features": UNLIKE}})
    assert [*one.detector.ood_cues_] == ["ood"]  # type: ignore[attr-defined]
    assert [*named.detector.ood_cues_] == ["far"]  # type: ignore[attr-defined]
    assert np.array_equal(one.held_out.scores, named.held_out.scores)


def test_a_class_without_rows_is_never_the_label() -> None:
    gate = Gate.fit_outputs(X, LABELS, HELD_OUT, classes=tuple("abcdefg"))
    found = gate.predict_outputs(NEW)
    assert found.label.max() == 4
    assert np.isfinite(found.score).all()


def test_a_row_that_is_not_finite_is_flagged() -> None:
    rows = NEW[:4].copy()
    rows[1, 3] = np.nan
    found = gate_of("class means").predict_outputs(rows)
    assert found.is_ood[1]
    assert np.isinf(found.score[1])
    assert np.isfinite(found.score[[0, 2, 3]]).all()


@pytest.mark.parametrize("detector", ["energy", "knn", "goen", "goen_m"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_held_out_rows_that_are_not_finite_set_no_threshold(detector: str, value: float) -> None:
    """New rows like these are always flagged: with them the rate would be above what was asked."""
    held_out = given("logits", HELD_OUT)
    held_out["logits"][100:200, 0] = value
    with pytest.raises(FitError, match="for 100 of the 600 held-out images hold NaN or infinity"):
        Gate.fit_outputs(given("logits", X), LABELS, held_out, detector=detector)


def test_calibration_outputs_keep_their_labels() -> None:
    def outputs(values: np.ndarray, labels: np.ndarray) -> Outputs:
        clip, numbers = torch.from_numpy(values), torch.from_numpy(labels)
        return Outputs(clip @ torch.tensor(CENTRES).float().T, {"clip": clip}, labels=numbers)

    gate = Gate.fit_outputs(
        outputs(X, LABELS),
        LABELS,
        outputs(HELD_OUT, HELD_OUT_LABELS),
        detector="temperature_scaling",
        calibration=outputs(NEW, NEW_LABELS),
    )
    assert len(gate.held_out) == len(HELD_OUT)


@pytest.mark.parametrize(
    ("train", "labels", "held_out", "message"),
    [
        (X, LABELS, HELD_OUT[:, :3], r"The feature features has shape \(N, 16\), got \(1, 3\)"),
        ({"a": X}, LABELS, {"b": HELD_OUT}, r"inputs are tensors a float .* got tensors b float"),
        (X[:, 0], LABELS, HELD_OUT, r"train: features should be an array \(N, D\) of floats"),
        (X.astype(np.int64), LABELS, HELD_OUT, "of floats, got .* of int64"),
        (X, LABELS[:5], HELD_OUT, "1000 images need as many labels, got 5"),
        (X, LABELS / 1.0, HELD_OUT, "train: labels are whole numbers"),
        (X, LABELS.astype(str), HELD_OUT, r"train: labels are whole numbers \(N,\), got <U"),
        (X, LABELS - 1, HELD_OUT, r"Labels lie in 0 \.\. 3 for 4 classes, got -1 \.\. 3"),
        (X, LABELS + 2_000_000_000, HELD_OUT, r"number the classes from 0; got 2,000,000,004"),
        (X[:, :0], LABELS, HELD_OUT[:, :0], r"train: features should be .* got \(1000, 0\)"),
        (X[:0], LABELS[:0], HELD_OUT, "train: there are no rows"),
        ({}, LABELS, HELD_OUT, "got a dict"),
        ("x.npy", LABELS, HELD_OUT, "got a str"),
        ({"logits": X}, LABELS, HELD_OUT, "Features have names"),
        (X, LABELS, X, "LeakError"),
    ],
)
def test_what_cannot_be_fitted_is_a_sentence(
    train: object, labels: np.ndarray, held_out: object, message: str
) -> None:
    error = LeakError if message == "LeakError" else UsageError
    with pytest.raises(error, match="shares" if error is LeakError else message):
        Gate.fit_outputs(train, labels, held_out)  # type: ignore[arg-type]


@pytest.mark.parametrize("detector", ["energy", "max_softmax", "gen", "vim", "react"])
def test_a_detector_of_logits_is_not_fitted_to_features_alone(detector: str) -> None:
    with pytest.raises(UsageError, match="reads the logits of a classifier, and there are none"):
        Gate.fit_outputs(X, LABELS, HELD_OUT, detector=detector)


def test_there_may_be_as_many_classes_as_are_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "CLASSES", int(LABELS.max()) + 1)
    Gate.fit_outputs(X, LABELS, HELD_OUT)
    with pytest.raises(UsageError, match="number the classes from 0; got"):
        Gate.fit_outputs(X, LABELS + 1, HELD_OUT)


def test_a_detector_that_takes_gradients_needs_a_network() -> None:
    with pytest.raises(UsageError, match="takes gradients of a network"):
        Gate.fit_outputs(
            given("logits", X), LABELS, given("logits", HELD_OUT), detector=goen.detectors.ODIN()
        )


def test_outputs_without_the_feature_are_a_sentence() -> None:
    gate = Gate.fit(
        trained(), digits().train, digits().validation, layers=LAYERS, preprocess=preprocess
    )
    with pytest.raises(UsageError, match="feature"):
        gate.predict_outputs(Outputs(torch.zeros(2, 7), {}))


@pytest.mark.parametrize("name", ["goen_m", "goen", "knn"])
def test_a_detector_that_was_fitted_before_begins_anew(name: str) -> None:
    """It could keep held-out rows among its neighbours, and nearly all others would be flagged."""
    detector = goen.detectors.make_detector(name)
    given_before, labels = (torch.from_numpy(part) for part in (HELD_OUT, HELD_OUT_LABELS))
    logits = given_before @ torch.tensor(CENTRES).float().T
    detector.fit(Outputs(logits, {"clip": given_before}), labels)
    sets = given("logits", X), LABELS, given("logits", HELD_OUT)
    fitted, new = (Gate.fit_outputs(*sets, detector=one) for one in (detector, name))
    for key, value in new.detector.state().items():
        assert torch.equal(fitted.detector.state()[key], value)


def test_several_classes_need_labels() -> None:
    with pytest.raises(UsageError, match="2 classes need labels"):
        Gate.fit_outputs(X, None, HELD_OUT, classes=("a", "b"))


def test_features_by_name() -> None:
    outputs = Outputs(torch.zeros(2, 3), {"a": torch.ones(2, 4)})
    assert [*as_features(outputs)] == ["a", "logits"]
    assert [*as_features(X)] == ["features"]
    with pytest.raises(UsageError, match="got a list"):
        as_features([X])  # type: ignore[arg-type]


def test_a_gate_of_features_takes_no_model(tmp_path: Path) -> None:
    gate_of("class means").save(tmp_path / "gate")
    with pytest.raises(ArtifactError, match="contains its own network"):
        goen.load(tmp_path / "gate", model=trained())


# A thousand classes of 2,048 numbers: a tenth of them without a row, most with one to five, some
# with fifty, one with a thousand.
MANY, WIDE = 1000, 2048
MANY_COUNTS = np.random.default_rng(5).choice([1, 2, 5, 50], MANY, p=[0.5, 0.3, 0.15, 0.05])
MANY_COUNTS[::10], MANY_COUNTS[1] = 0, 1000
MANY_CENTRES = np.random.default_rng(6).normal(size=(MANY, WIDE)).astype(np.float32)


def around(labels: np.ndarray, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(len(labels), WIDE)).astype(np.float32)
    return np.asarray(MANY_CENTRES[labels] + 0.7 * noise)


@pytest.mark.parametrize("has_logits", [True, False])
def test_many_classes_with_few_rows_or_none(has_logits: bool, tmp_path: Path) -> None:
    def given(features: np.ndarray) -> dict[str, np.ndarray]:
        logits = {"logits": features @ MANY_CENTRES.T / 100} if has_logits else {}
        return {"wide": features, **logits}

    labels = np.repeat(np.arange(MANY), MANY_COUNTS)
    known = np.flatnonzero(MANY_COUNTS)
    held_out, new = (np.random.default_rng(s).choice(known, n) for s, n in ((7, 400), (8, 300)))
    names = [f"class {number}" for number in range(MANY)]
    gate = Gate.fit_outputs(
        given(around(labels, 9)), labels, given(around(held_out, 10)),
        held_out_labels=held_out, classes=names,
    )  # fmt: skip

    kept = gate.detector.state()["bank.labels"]
    assert {*kept.tolist()} == {*known.tolist()}  # a row of every class that has any
    assert len(kept) <= 5000 + MANY
    found = gate.predict_outputs(given(around(new, 11)))
    assert (found.label == new).mean() > 0.99
    assert found.is_ood.mean() < 0.1
    without = np.flatnonzero(MANY_COUNTS == 0)
    assert gate.predict_outputs(given(around(without, 12))).is_ood.mean() > 0.9
    with pytest.raises(FitError, match=r"needs 19 held-out images of each.*Too few: class 0 \(0\)"):
        gate.with_per_class()

    gate.save(tmp_path / "gate")
    assert sum(f.stat().st_size for f in (tmp_path / "gate").iterdir()) < 100e6
    again = goen.load(tmp_path / "gate").predict_outputs(given(around(new, 11)))
    assert np.array_equal(again.score, found.score)
    assert np.array_equal(again.label, found.label)


def test_rows_that_only_float64_tells_apart_are_no_leak() -> None:
    base = np.random.default_rng(0).normal(size=(120, 3))
    beside = base * (1 + 2**-40)
    assert np.array_equal(base.astype(np.float32), beside.astype(np.float32))
    with pytest.warns(GoenWarning, match="near-copies"):  # they are, and no leak
        gate = Gate.fit_outputs(base, np.arange(120) % 2, beside)
    assert sum(map(len, gate.image_hashes.values())) == 240
    with pytest.raises(LeakError, match="120 of its 120"):
        Gate.fit_outputs(base, np.arange(120) % 2, base.copy())
