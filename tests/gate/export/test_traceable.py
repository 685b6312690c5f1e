import numpy as np
import pytest
import torch
from PIL import Image

from goen.data.images.decoding import read_image
from goen.gate.decision import cue_p_values
from goen.gate.export.comparison import as_outputs
from goen.gate.export.traceable import TraceableGate, output_names
from tests.gate.export.test_onnx import GATES, own_gate
from tests.gate.test_gate import make_gate
from tests.own_model import digits


def test_the_outputs_are_those_of_the_gate_under_its_names() -> None:
    for make in (*GATES.values(), make_gate):
        gate, images = make(), digits().test.read(range(40))
        with torch.no_grad():
            found = TraceableGate(gate).eval()(torch.from_numpy(images), gate.threshold_tensor)
        expected = as_outputs(gate.predict(images))
        assert set(output_names(gate)) == set(expected)
        for name, values in zip(output_names(gate), found, strict=True):
            assert np.allclose(values, expected[name], rtol=1e-4, atol=1e-4), name


def test_what_a_gate_does_not_have_is_no_output() -> None:
    always = ("label", "confidence", "score", "p_value", "is_ood", "cues")
    assert output_names(make_gate(with_head=False)) == always
    assert output_names(make_gate()) == (*always, "probability")
    assert output_names(own_gate()) == (*always, "cue_p_values")
    assert output_names(GATES["goen-m"]()) == (*always, "cue_p_values", "probability")


@pytest.mark.parametrize("name", ["goen-m", "per class"])
def test_a_tie_with_the_threshold_is_not_flagged(name: str) -> None:
    gate, images = GATES[name](), torch.from_numpy(digits().test.read(range(4)))
    deployed = TraceableGate(gate).eval()
    fitted = gate.threshold_tensor
    with torch.no_grad():
        score = deployed(images, fitted)[2]
        for i in range(4):
            for limit in (score[i], score[i] - deployed.tolerance):
                assert not deployed(images, limit.expand_as(fitted))[4][i]
            assert deployed(images, (score[i] - 1e-3).expand_as(fitted))[4][i]


def test_a_tie_with_an_id_image_counts_in_the_p_value_of_a_cue() -> None:
    for name in ("goen", "goen-m"):
        gate = GATES[name]()
        known = gate.held_out.require_cues() * np.array(gate.detector.cue_directions)
        some = known[:30].copy()
        some[3] = np.inf
        found = cue_p_values(TraceableGate(gate).reference, torch.from_numpy(some)).numpy()
        expected = (1 + (known >= some[:, None]).sum(axis=1)) / (1 + len(known))
        assert np.array_equal(found, expected)
        assert (found[3] == 1 / (1 + len(known))).all()


def test_of_a_fixed_size_the_images_pass_as_they_are() -> None:
    gate, images = own_gate(), torch.from_numpy(digits().test.read(range(3)))
    with torch.no_grad():
        one, other = (
            TraceableGate(gate, any_size=size).eval()(images, gate.threshold_tensor)
            for size in (True, False)
        )
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_file_of_a_fixed_size_has_no_resize() -> None:
    gate = make_gate()
    assert isinstance(TraceableGate(gate, any_size=False).resize, torch.nn.Identity)
    assert not isinstance(TraceableGate(gate).resize, torch.nn.Identity)


def test_images_of_another_size_are_resized_as_pictures_are() -> None:
    gate = own_gate()
    picture = Image.fromarray(digits().test.read(range(1))[0].transpose(1, 2, 0)).resize((90, 61))
    given = torch.from_numpy(np.asarray(picture).transpose(2, 0, 1).copy())[None]
    with torch.no_grad():
        score = TraceableGate(gate).eval()(given, gate.threshold_tensor)[2]
    own = read_image(picture, (32, 32))
    assert score.numpy() == pytest.approx(gate.predict(own).score, rel=1e-6)
    assert score.numpy() != pytest.approx(gate.predict(np.roll(own, 1, axis=2)).score, rel=1e-3)
