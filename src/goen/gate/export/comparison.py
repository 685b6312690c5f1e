"""The comparison of an exported gate with the gate itself, before its file appears."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from goen.batch import Inputs, count_of, parts_of, take
from goen.data import load_set
from goen.data.images.pixel_format import COLOUR, Pixels
from goen.data.images.resizing import resize_bands
from goen.data.input_spec import ImageInputs, TensorInputs
from goen.data.inputs import Arrays, tensors
from goen.errors import ArtifactError, UsageError
from goen.features.precomputed import LOGITS, Precomputed
from goen.gate.base import BaseGate
from goen.gate.decision import cue_p_values
from goen.gate.prediction import Prediction, concatenate
from goen.gate.threshold import TOLERANCE, engine_tolerance, tie_tolerance

_PROBABILITY_TOLERANCE = 1e-4
_BATCH = 64
_RESIZED = 4
_DTYPES = {"float": torch.float32, "int": torch.int64, "bool": torch.bool}

ExportOutputs = dict[str, NDArray[Any]]
Runner = Callable[[Inputs], ExportOutputs]
InputPairs = Sequence[tuple[Inputs, Inputs]]
"""Batches: what the exported gate is given, and the same at the gate's own size."""


def input_pairs(
    gate: BaseGate, images: Arrays | None, *, any_size: bool, every: int = 1
) -> InputPairs:
    """One input alone, batches of them, and, for ``any_size``, a few images of other sizes.

    Args:
        gate: whose inputs they are.
        images: ``(N, C, H, W)`` of the gate's size and bits, or its other inputs. By default
            digits, photographs and noise, or for features those of the gate's training images.
        any_size: whether the exported gate resizes.
        every: step between the default inputs that are used; 1 uses all.

    Raises:
        UsageError: inputs that goen cannot make up, and none are given.
    """
    if images is None:
        whole = take(_made_up(gate), slice(None, None, every))
    else:
        whole = _given(gate, images)
    count = count_of(whole)
    starts = [0, *range(1, count, _BATCH)]
    stops = [*starts[1:], count]
    parts = [take(whole, slice(*ends)) for ends in zip(starts, stops, strict=True)]
    pairs = [(part, part) for part in parts]
    return [*pairs, *_other_sizes(gate, whole)] if any_size else pairs


def _given(gate: BaseGate, images: Arrays) -> Inputs:
    """As the exported gate takes them: images of its bits, float32, int64 or bool tensors."""
    given = tensors(images)
    if isinstance(gate.inputs, TensorInputs):
        return exported_types(gate.inputs.check(given, "images"), gate.inputs)
    batch, kind = gate.inputs.check(given, "images"), f"uint{gate.inputs.bits}"
    if batch.dtype != getattr(torch, kind):
        raise UsageError(f"This exported gate takes {kind} images: give such to compare on.")
    return batch


def exported_types(batch: Inputs, inputs: TensorInputs) -> Inputs:
    """The inputs in the types of an exported gate: float32, int64 or bool."""
    given = parts_of(batch)
    return inputs.formed({k: given[k].to(_DTYPES[part.dtype]) for k, part in inputs.parts.items()})


def _made_up(gate: BaseGate) -> Inputs:
    rng = np.random.default_rng(0)
    if isinstance(gate.network, Precomputed):
        return _features(gate, rng)
    if not isinstance(gate.inputs, ImageInputs):
        raise UsageError(
            f"The file is compared with the gate before it is written, and goen cannot make up "
            f"inputs of this kind ({gate.inputs}). Give some that are like those it was fitted on."
        )
    if gate.inputs.pixel_format != COLOUR:
        shape = (100, gate.inputs.channels, *gate.image_size)
        white = 255 if gate.inputs.bits == 8 else 65535
        noise = rng.integers(0, white + 1, shape, dtype=gate.pixel_format.dtype)
        return torch.from_numpy(np.concatenate([noise, noise // 8, white - noise // 4]))
    sets = [
        load_set("digits").read(range(0, 1700, 17)),
        load_set("photographs").read(range(0, 500, 5)),
    ]
    noise = rng.integers(0, 256, (100, 3, 32, 32), dtype=np.uint8)
    return torch.from_numpy(_resized(np.concatenate([*sets, noise]), gate.image_size))


def _features(gate: BaseGate, rng: np.random.Generator) -> Inputs:
    """Unit vectors around one direction, as features of one class are, and others."""
    assert isinstance(gate.network, Precomputed)
    made = {}
    for name, width in gate.network.widths.items():
        near = rng.normal(size=(1, width)) + rng.normal(0, 0.3, size=(200, width))
        drawn = np.concatenate([near, rng.normal(size=(100, width))])
        drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
        made[name] = torch.from_numpy(np.concatenate([drawn, 10 * drawn[::4]])).float()
    if isinstance(gate.inputs, TensorInputs) and LOGITS in gate.inputs.parts:
        shape = (count_of(made), *gate.inputs.parts[LOGITS].sizes)
        made[LOGITS] = torch.from_numpy(rng.normal(0, 3, shape)).float()
    return made


def _other_sizes(gate: BaseGate, images: Inputs) -> InputPairs:
    height, width = gate.image_size
    pixels = parts_of(images)[""].numpy()
    few = pixels[:: max(1, len(pixels) // _RESIZED)][:_RESIZED]
    pairs = []
    for size in ((2 * height + 1, 3 * width), (height // 2 + 1, width + 7), (height, 5)):
        other = _resized(few, size)
        own = _resized(other, gate.image_size)
        pairs.append((torch.from_numpy(other), torch.from_numpy(own)))
    return pairs


def _resized(images: Pixels, size: tuple[int, int]) -> Pixels:
    return np.stack([resize_bands(image, size) for image in images])


def _cue_tolerances(gate: BaseGate) -> NDArray[np.float64]:
    """Ten times as much as for the score, by each cue's own spread where that is known.

    Cues explain a decision and do not make it; what they make of it is compared in the score.
    """
    known = gate.held_out.cues
    if known is None:
        return np.full(len(gate.detector.cue_names), 10 * engine_tolerance(gate.held_out.scores))
    spread: NDArray[np.float64] = np.std(np.asarray(known), axis=0)
    return np.maximum(10 * TOLERANCE, 1e-2 * spread)


def compare_with_gate(
    gate: BaseGate,
    run_with: Callable[[float], Runner],
    pairs: InputPairs,
    tolerance: float | None = None,
) -> float:
    """By how much scores of the exported gate may differ from the gate's and count as equal.

    Args:
        gate: as it was fitted, in torch.
        run_with: runs the exported gate where scores count as equal that differ by so much.
        pairs: what to compare on.
        tolerance: the largest difference allowed; see ``Gate.export``.

    Raises:
        ArtifactError: an output differs by more than the tolerance, a label or a decision differs,
            or a p-value by more than ties explain.
    """
    expected = as_outputs(concatenate([gate.predict(own) for _, own in pairs]))

    def outputs(run: Runner) -> ExportOutputs:
        found = [run(given) for given, _ in pairs]
        return {name: np.concatenate([part[name] for part in found]) for name in expected}

    ties = _measure_differences(gate, expected, outputs(run_with(0.0)), tolerance)
    _check_decisions(gate, expected, outputs(run_with(ties)), ties)
    return ties


def _measure_differences(
    gate: BaseGate, expected: ExportOutputs, found: ExportOutputs, tolerance: float | None
) -> float:
    """1.5 times the largest difference between scores of the exported gate and the gate.

    Of scores as large as held-out scores: differences are taken relative above 1.
    """
    limits: dict[str, float | NDArray[np.float64]] = {
        "score": engine_tolerance(gate.held_out.scores),
        "cues": _cue_tolerances(gate),
        "confidence": _PROBABILITY_TOLERANCE,
        "probability": _PROBABILITY_TOLERANCE,
    }
    finite = np.isfinite(expected["score"])
    if not np.array_equal(np.isfinite(found["score"]), finite):
        raise ArtifactError(
            "The exported gate's score is finite where the gate's is not, or the other way round."
        )
    differences = {}
    for name in (name for name in limits if name in expected):
        most = limits[name] if tolerance is None else tolerance
        own = expected[name][finite]
        difference = np.abs(found[name][finite] - own) / np.maximum(1, np.abs(own))
        differences[name] = float(difference.max(initial=0.0))
        if not (difference <= most).all():
            worst = np.argmax(difference / np.maximum(most, np.finfo(np.float64).tiny))
            limit = np.broadcast_to(most, difference.shape).flat[worst]
            raise ArtifactError(
                f"The exported gate's {name} differs from the gate's by "
                f"{difference.flat[worst]:.2g}, more than {limit:g}. Does the "
                "model compute in half precision, or does a layer hardly vary? Make it float32, "
                "choose other layers, or allow a larger tolerance; decisions are compared in any "
                "case."
            )
    if not np.array_equal(found["label"], expected["label"]):
        raise ArtifactError("The exported gate's label differs from the gate's.")
    return tie_tolerance(gate.held_out.scores, differences["score"])


def _check_decisions(
    gate: BaseGate, expected: ExportOutputs, found: ExportOutputs, tolerance: float
) -> None:
    """Compare the p-values and decisions of an exported gate with the gate's own."""
    # A p-value counts held-out scores; those closer than the tolerance may count or not.
    low, high = (
        gate.p_values(expected["score"] + step, expected["label"])
        for step in (2 * tolerance, -2 * tolerance)
    )
    if not ((low <= found["p_value"]) & (found["p_value"] <= high)).all():
        raise ArtifactError("The exported gate's p-value differs from the gate's.")
    sure = (low > gate.false_alarm_rate) | (high <= gate.false_alarm_rate)
    if not np.array_equal(found["is_ood"][sure], expected["is_ood"][sure]):
        raise ArtifactError("The exported gate's decision differs from the gate's.")
    if "cue_p_values" in expected and not np.allclose(
        found["cue_p_values"], _cue_p_values(gate, found["cues"]), rtol=0, atol=1e-9
    ):
        raise ArtifactError("The exported gate's p-values of cues are not those of its cues.")


def _cue_p_values(gate: BaseGate, cues: NDArray[np.float64]) -> NDArray[np.float64]:
    """What the gate gives for these cues: the least there are where a cue is not finite."""
    unusual = torch.from_numpy(cues * np.array(gate.detector.cue_directions))
    unusual = torch.where(torch.isfinite(unusual), unusual, torch.inf)
    return cue_p_values(gate.reference, unusual).numpy()


def as_outputs(prediction: Prediction) -> ExportOutputs:
    """A gate's prediction by the names of an exported gate's outputs."""
    names = ("label", "confidence", "score", "p_value", "is_ood")
    outputs = {name: getattr(prediction, name) for name in names}
    outputs["cues"] = np.stack([*prediction.cues.values()], axis=1)
    if prediction.cue_p_values:
        outputs["cue_p_values"] = np.stack([*prediction.cue_p_values.values()], axis=1)
    if prediction.probability is not None:
        outputs["probability"] = prediction.probability
    return outputs
