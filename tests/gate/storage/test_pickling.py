import copy
import pickle
import pickletools
from collections.abc import Callable

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from goen.errors import ArtifactError
from goen.gate import Gate
from goen.gate.storage.pickling import gate_files, read_contents
from tests.gate.test_gate import make_gate
from tests.own_model import LAYERS, DigitNet, digits, preprocess, trained


def own_gate(flip_averaging: bool = False) -> Gate:
    p = digits()
    return Gate.fit(
        trained(),
        p.train,
        p.validation,
        layers=LAYERS,
        preprocess=preprocess,
        flip_averaging=flip_averaging,
    )


def features_gate() -> Gate:
    rng = np.random.default_rng(0)
    train, held_out = rng.normal(size=(300, 8)), rng.normal(size=(200, 8))
    return Gate.fit_outputs({"a": train}, np.arange(300) % 3, {"a": held_out})


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize("make", [make_gate, own_gate, lambda: own_gate(flip_averaging=True)])
def test_a_gate_that_was_pickled_gives_the_same_prediction(
    make: Callable[[], Gate], dumps: Callable[[Gate], bytes]
) -> None:
    gate = make().with_false_alarm_rate(0.1)
    images = digits().test.read(range(40))
    arrived = pickle.loads(dumps(gate))
    before, after = gate.predict(images), arrived.predict(images)
    assert np.array_equal(before.score, after.score)
    assert np.array_equal(before.p_value, after.p_value)
    assert arrived.false_alarm_rate == 0.1
    assert arrived.metadata == gate.metadata
    assert np.array_equal(copy.deepcopy(gate).predict(images).score, before.score)


def test_a_shallow_copy_shares_the_model_and_leaves_it_alone() -> None:
    gate = own_gate()
    model = gate.network.model
    assert isinstance(model, nn.Module)
    model.train()
    copied = copy.copy(gate)
    assert copied.network is gate.network
    assert model.training
    assert copied.held_out is gate.held_out


def test_a_gate_of_features_travels_as_well() -> None:
    gate = features_gate()
    rows = np.random.default_rng(1).normal(size=(20, 8))
    arrived = pickle.loads(pickle.dumps(gate))
    assert np.array_equal(arrived.predict_outputs(rows).score, gate.predict_outputs(rows).score)


def names_called(data: bytes) -> set[str]:
    """The modules and names that a pickle asks for."""
    texts = []
    found = set()
    for code, argument, _ in pickletools.genops(data):
        if isinstance(argument, str):
            texts.append(argument)
        if code.name == "STACK_GLOBAL":
            found.add(".".join(texts[-2:]))
    return found


def test_a_pickle_of_goens_own_gate_calls_one_function_of_goen_and_nothing_else() -> None:
    data = pickle.dumps(make_gate(), protocol=4)
    assert names_called(data) == {"goen.gate.gate._unpickled"}


def test_only_the_users_own_objects_are_pickled_as_such() -> None:
    data = pickle.dumps(own_gate(), protocol=4)
    assert any(name.endswith("DigitNet") for name in names_called(data))
    assert not any(
        name.startswith(("goen.detectors", "goen.models")) for name in names_called(data)
    )


def test_files_that_were_changed_on_the_way_are_refused() -> None:
    files = gate_files(make_gate())
    tensors = bytearray(files["tensors.safetensors"])
    tensors[-1] ^= 1
    with pytest.raises(ArtifactError, match="does not belong to its manifest"):
        read_contents(Gate, {**files, "tensors.safetensors": bytes(tensors)}, None, None)
    with pytest.raises(ArtifactError, match="damaged"):
        read_contents(Gate, {"../outside": b"x"}, None, None)


def test_another_model_is_refused() -> None:
    class Other(DigitNet):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return super().forward(1 - x)

    gate = own_gate()
    with pytest.raises(ArtifactError, match="differ from those recorded"):
        read_contents(Gate, gate_files(gate), Other(), preprocess)
    with pytest.raises(ArtifactError, match="needs your model"):
        read_contents(Gate, gate_files(gate), None, preprocess)
    assert isinstance(gate.network, nn.Module)
