import copy
import logging
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import goen
from goen.data import load_set
from goen.errors import ArtifactError, ExtraMissing, UsageError
from goen.gate import Gate, Prediction, engine
from goen.gate.engine import CompiledNetwork
from goen.gate.export import conversion
from goen.outputs import Outputs
from tests.gate.export.test_onnx import GATES, Branching, one_count, own_gate
from tests.gate.storage.test_inputs import gate_of
from tests.gate.test_gate import make_gate
from tests.own_model import digits, ood, preprocess, trained


@pytest.fixture(scope="module")
def bundled() -> tuple[Gate, Gate]:
    """The bundled gate in torch and in onnxruntime."""
    gate = goen.load("cifar10-w16")
    return gate, gate.with_engine("onnxruntime")


def pictures() -> NDArray[np.uint8]:
    noise = np.random.default_rng(5).integers(0, 256, (40, 3, 32, 32), dtype=np.uint8)
    some = [load_set("photographs").read(range(100)), load_set("digits").read(range(60))]
    return np.concatenate([*some, noise])


def check_alike(gate: Gate, one: Prediction, other: Prediction) -> None:
    """Equal labels and decisions; scores to rounding, p-values to one held-out image."""
    np.testing.assert_array_equal(one.label, other.label)
    np.testing.assert_array_equal(one.is_ood, other.is_ood)
    rounding = 1e-4 * np.std(gate.held_out.scores)
    np.testing.assert_allclose(one.score, other.score, rtol=1e-6, atol=rounding)
    np.testing.assert_allclose(one.confidence, other.confidence, atol=1e-5)
    assert np.abs(one.p_value - other.p_value).max(initial=0) <= 1.01 * one_count(gate)
    assert one.cues.keys() == other.cues.keys()
    for name, values in one.cues.items():
        np.testing.assert_allclose(values, other.cues[name], atol=1e-4)
    assert (one.probability is None) == (other.probability is None)


def test_onnxruntime_gives_the_decisions_of_torch(bundled: tuple[Gate, Gate]) -> None:
    gate, other = bundled
    assert (gate.engine, other.engine) == ("torch", "onnxruntime")
    assert "onnxruntime" in str(other)
    assert "onnxruntime" not in str(gate)
    images = pictures()
    check_alike(gate, gate.predict(images), other.predict(images))
    floats = images[:20].astype(np.float32) / 255
    check_alike(gate, gate.predict(floats), other.predict(floats))
    deep = images[:20].astype(np.uint16) * 257
    check_alike(gate, gate.predict(images[:20]), other.predict(deep))
    check_alike(gate, gate.predict(images[0]), other.predict(images[0]))
    assert len(other.predict(images[:0])) == 0
    some = load_set("digits").take(range(30))
    check_alike(gate, gate.predict(some), other.predict(some))


def test_onnxruntime_is_what_answers(bundled: tuple[Gate, Gate]) -> None:
    _, other = bundled
    session = other.compiled.session  # type: ignore[union-attr]
    asked = []

    class Counted:
        def run(self, *given: object) -> object:
            asked.append(given)
            return session.run(*given)

    counted = replace(other, compiled=CompiledNetwork(Counted(), other))
    counted.predict(pictures()[:2])
    counted.predict(load_set("digits").take(range(4)), batch_size=2)
    assert len(asked) == 3


def test_what_makes_another_gate_keeps_the_engine(bundled: tuple[Gate, Gate]) -> None:
    gate, other = bundled
    images = pictures()
    strict = other.with_false_alarm_rate(0.01)
    assert strict.engine == "onnxruntime"
    expected = gate.with_false_alarm_rate(0.01).predict(images)
    check_alike(gate, expected, strict.predict(images))
    classwise = gate.with_false_alarm_rate(0.2).with_per_class()
    check = other.with_false_alarm_rate(0.2).with_per_class()
    np.testing.assert_array_equal(classwise.predict(images).is_ood, check.predict(images).is_ood)
    assert other.with_engine("onnxruntime").compiled is other.compiled
    assert other.with_engine("torch").compiled is None
    first, again = gate.predict(images[:3]), other.with_engine("torch").predict(images[:3])
    np.testing.assert_array_equal(first.score, again.score)


@pytest.mark.parametrize("name", GATES)
def test_gates_of_every_kind(name: str) -> None:
    gate = GATES[name]()
    images = np.concatenate([digits().test.read(range(60)), pictures()[-20:]])
    check_alike(gate, gate.predict(images), gate.with_engine("onnxruntime").predict(images))


def test_a_gate_of_bands_of_16_bits() -> None:
    gate = gate_of("thirteen bands of 16 bits")
    shape = (30, *gate.inputs.pattern().shape[1:])  # type: ignore[union-attr]
    tiles = np.random.default_rng(1).integers(0, 65536, shape, dtype=np.uint16)
    other = gate.with_engine("onnxruntime")
    check_alike(gate, gate.predict(tiles), other.predict(tiles))
    # Noise scores a million there, and differs by 0.6; what matters are held-out scores.
    assert other.score_tolerance < 1e-3 * np.std(gate.held_out.scores)


def test_inputs_that_are_no_images_are_compared_on_those_that_are_given() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
    rows = torch.randn(500, 6)
    labels = torch.arange(500) % 3
    gate = Gate.fit(model, (rows[:300], labels[:300]), rows[300:], layers="1", inputs="tensors")
    with pytest.raises(UsageError, match="cannot make up inputs"):
        gate.with_engine("onnxruntime")
    other = gate.with_engine("onnxruntime", rows[:50])
    new = torch.randn(40, 6)
    check_alike(gate, gate.predict(new), other.predict(new))
    check_alike(gate, gate.predict(new.double()), other.predict(new.double()))


def test_scores_within_the_difference_of_the_engines_count_as_ties(
    bundled: tuple[Gate, Gate],
) -> None:
    gate, other = bundled
    assert 0 < other.score_tolerance < 1e-4 * np.std(gate.held_out.scores)
    assert gate.score_tolerance == 0
    held = gate.held_out.scores[[5]]
    label = np.array([0])
    above = held + 0.9 * other.score_tolerance
    assert gate.p_values(above, label) < gate.p_values(held, label)
    assert other.p_values(above, label) == gate.p_values(held, label)
    far = held + 1.1 * other.score_tolerance
    assert other.p_values(far, label) == gate.p_values(far, label)


def test_an_engine_that_predicts_otherwise_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = make_gate()
    plain = CompiledNetwork.forward

    def wrong(self: CompiledNetwork, inputs: Tensor) -> Outputs:
        found = plain(self, inputs)
        return Outputs(found.logits.flip(1), {k: 1.01 * v for k, v in found.features.items()})

    monkeypatch.setattr(CompiledNetwork, "forward", wrong)
    with pytest.raises(ArtifactError, match="onnxruntime does not predict as torch does"):
        gate.with_engine("onnxruntime")
    with caplog.at_level(logging.INFO, "goen"):
        assert gate.with_engine("auto").engine == "torch"
    assert "The network runs in torch. onnxruntime does not predict" in caplog.text


def test_a_model_that_onnxruntime_opens_and_cannot_run_stays_in_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        def run(self, *_: object) -> None:
            raise RuntimeError("[ONNXRuntimeError] : 6 : Reshape_node: shapes differ.\nat x.cc:1")

    monkeypatch.setattr(engine, "open_session", lambda model: Failing())
    gate = make_gate()
    sentence = r"onnxruntime cannot run this model: \[ONNXRuntimeError\] : 6 : .* shapes differ\.$"
    with pytest.raises(UsageError, match=sentence):
        gate.with_engine("onnxruntime")
    with caplog.at_level(logging.INFO, "goen"):
        assert gate.with_engine("auto").engine == "torch"
    assert "The network runs in torch. onnxruntime cannot run this model" in caplog.text


def test_without_onnxruntime_auto_is_torch_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    gate = make_gate()
    with pytest.raises(ExtraMissing, match=r"needs onnxruntime: pip install 'goen\[onnx\]'"):
        gate.with_engine("onnxruntime")
    with caplog.at_level(logging.INFO, "goen"):
        assert gate.with_engine("auto") is not None
    assert caplog.text.count("The network runs in torch. The engine onnxruntime needs") == 1


def test_gates_that_no_engine_runs() -> None:
    with pytest.raises(
        UsageError, match=r"Unknown engine 'onnxruntim'\. Did you mean 'onnxruntime'"
    ):
        make_gate().with_engine("onnxruntim")  # type: ignore[arg-type]
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 4)).astype(np.float32)
    of_features = Gate.fit_outputs(features[:100], None, features[100:])
    with pytest.raises(UsageError, match="has no network"):
        of_features.with_engine("onnxruntime")
    assert of_features.with_engine("auto").engine == "torch"
    branching = Branching()
    branching.load_state_dict(trained().state_dict())
    with pytest.raises(UsageError, match="cannot trace this model"):
        own_gate(model=branching.eval()).with_engine("onnxruntime")


def test_a_gate_on_another_device_stays_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = make_gate()
    elsewhere = (torch.device("meta"), torch.float32)
    monkeypatch.setattr(conversion, "placement", lambda network: elsewhere)
    with pytest.raises(UsageError, match="is on meta, ONNX is on the CPU"):
        gate.with_engine("onnxruntime")


def test_saving_and_updating_use_the_model_itself(tmp_path: Path) -> None:
    gate = own_gate()
    other = gate.with_engine("onnxruntime")
    other.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", trained(), preprocess)
    images = digits().test.read(range(20))
    assert loaded.engine == "torch"
    np.testing.assert_array_equal(loaded.predict(images).score, gate.predict(images).score)
    expected = gate.update(ood=ood()).gate
    updated = other.update(ood=ood()).gate
    assert updated.engine == "torch"  # its scores are others, to be compared again
    np.testing.assert_array_equal(updated.predict(images).score, expected.predict(images).score)


def test_a_copy_runs_in_torch(bundled: tuple[Gate, Gate]) -> None:
    gate, other = bundled
    copied = copy.deepcopy(other)
    assert copied.engine == "torch"
    images = pictures()[:5]
    np.testing.assert_array_equal(copied.predict(images).score, gate.predict(images).score)


def test_onnxruntime_has_as_many_threads_as_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    compiled = make_gate().with_engine("onnxruntime").compiled
    assert isinstance(compiled, CompiledNetwork)
    assert compiled.session.get_session_options().intra_op_num_threads == 3
