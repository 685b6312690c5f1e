from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from goen.data.imageset import Pixels
from goen.errors import ArtifactError
from goen.gate.decision import cue_p_values
from goen.gate.export.comparison import (
    ExportOutputs,
    as_outputs,
    compare_with_gate,
    input_pairs,
)
from goen.gate.threshold import engine_tolerance
from tests.gate.export.test_onnx import GATES, own_gate
from tests.gate.test_gate import make_gate
from tests.own_model import digits


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("label", lambda v: 6 - v, "label differs from the gate's"),
        ("confidence", lambda v: v + 2e-4, "confidence differs from the gate's by 0.0002"),
        ("probability", lambda v: v - 2e-4, "probability differs from the gate's by 0.0002"),
        ("score", lambda v: v * np.nan, "score is finite where"),
        ("score", lambda v: v + 0.02, "score differs"),
        ("cues", lambda v: v + np.array([0, 0.01, 0]), "cues differs"),
        ("p_value", lambda v: np.where(v < 0.5, v + 0.1, v), "p-value differs from the gate's"),
        ("p_value", lambda v: np.where(v > 0.5, v - 0.1, v), "p-value differs from the gate's"),
        ("cue_p_values", lambda v: v[:, ::-1], "p-values of cues are not those"),
        ("cue_p_values", lambda v: v + 0.001, "p-values of cues are not those"),
        ("is_ood", np.zeros_like, "decision differs from the gate's"),
        ("is_ood", np.ones_like, "decision differs from the gate's"),
    ],
)
def test_every_output_is_compared(
    name: str, change: Callable[[NDArray[Any]], NDArray[Any]], message: str
) -> None:
    gate = GATES["goen-m"]()
    images = [digits().test.read(range(60)), digits().evaluation["noise"].images.read(range(10))]
    pairs = input_pairs(gate, np.concatenate(images), any_size=False)

    def honest(batch: Pixels) -> ExportOutputs:
        return as_outputs(gate.predict(batch))

    def wrong(batch: Pixels) -> ExportOutputs:
        found = honest(batch)
        return {**found, name: change(found[name])}

    assert compare_with_gate(gate, lambda _: honest, pairs) < 1e-9
    with pytest.raises(ArtifactError, match=message):
        compare_with_gate(gate, lambda _: wrong, pairs)


def test_images_of_other_sizes_are_compared_where_the_file_resizes() -> None:
    gate = own_gate()
    pairs = input_pairs(gate, None, any_size=True)
    assert {own.shape[1:] for _, own in pairs} == {(3, 32, 32)}
    assert {given.shape[2:] for given, _ in pairs} == {(32, 32), (65, 96), (17, 39), (32, 5)}
    assert [len(given) for given, _ in pairs] == [1, 64, 64, 64, 64, 43, 4, 4, 4]
    fixed = input_pairs(gate, None, any_size=False)
    assert {given.shape[2:] for given, _ in fixed} == {(32, 32)}

    def resizes_otherwise(batch: Pixels) -> ExportOutputs:
        """Takes the nearest pixels."""
        rows, columns = (np.arange(32) * side // 32 for side in batch.shape[2:])
        return as_outputs(gate.predict(batch[:, :, rows][:, :, :, columns]))

    compare_with_gate(gate, lambda _: resizes_otherwise, fixed)
    with pytest.raises(ArtifactError, match="differs from the gate's"):
        compare_with_gate(gate, lambda _: resizes_otherwise, pairs)


def test_a_single_image_and_a_gate_without_known_cues_are_enough() -> None:
    gate = make_gate()
    pairs = input_pairs(gate, digits().test.read(range(1)), any_size=True)
    assert pairs[0][0].shape == (1, 3, 32, 32)

    def further(step: float) -> Callable[[Pixels], ExportOutputs]:
        def run(batch: Pixels) -> ExportOutputs:
            found = as_outputs(gate.predict(batch))
            return {**found, "cues": found["cues"] + step}

        return run

    same = [(own, own) for _, own in pairs]
    # No spread of the cues is known, so their tolerance is ten times that of the score.
    most = 10 * engine_tolerance(gate.held_out.scores)
    compare_with_gate(gate, lambda _: further(0.99 * most), same)
    with pytest.raises(ArtifactError, match="cues differs"):
        compare_with_gate(gate, lambda _: further(2 * most), same)


def test_the_tolerance_of_a_cue_follows_its_spread() -> None:
    gate = own_gate()
    pairs = input_pairs(gate, digits().test.read(range(70)), any_size=False)
    assert gate.held_out.cues is not None
    most = np.maximum(1e-4, 1e-2 * gate.held_out.cues.std(axis=0))

    def run(share: float) -> Callable[[Pixels], ExportOutputs]:
        def changed(batch: Pixels) -> ExportOutputs:
            found = as_outputs(gate.predict(batch))
            cues = found["cues"] + share * most
            p_values = cue_p_values(gate.reference, torch.from_numpy(cues)).numpy()
            return {**found, "cues": cues, "cue_p_values": p_values}

        return changed

    compare_with_gate(gate, lambda _: run(0.99), pairs)
    with pytest.raises(ArtifactError, match="cues differs"):
        compare_with_gate(gate, lambda _: run(-2.0), pairs)
