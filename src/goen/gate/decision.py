"""From a network's outputs to a decision: the arithmetic of gates and of exported gates alike."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from goen.detectors import Detector
from goen.errors import FitError
from goen.functional._rows import sums_are_finite
from goen.functional.combination import count_at_least
from goen.functional.conformal import p_value_steps
from goen.gate.threshold import HeldOut
from goen.outputs import Outputs


@dataclass(frozen=True, eq=False)
class Reference:
    """The held-out images that images are compared with.

    Attributes:
        scores: ``(n,)``, sorted.
        labels: ``(n,)``, their predicted classes, if images are compared within a class.
        cues: K tensors ``(n,)``, each sorted, higher for more unusual; none if they are not known.
        tolerance: scores above a held-out score or a threshold by no more than this count as equal
            to it: the difference between engines.
        steps: the p-values ``(n + 1,)`` that scores have among held-out images in groups, highest
            first; ``None`` if each image counts once.
        cue_steps: the same of each cue.
    """

    scores: Tensor
    labels: Tensor | None
    cues: tuple[Tensor, ...]
    tolerance: Tensor
    steps: Tensor | None = None
    cue_steps: tuple[Tensor, ...] = ()

    @classmethod
    def of(
        cls, detector: Detector, held_out: HeldOut, *, per_class: bool, tolerance: float
    ) -> "Reference":
        """These held-out images, in double precision."""
        scores = torch.tensor(held_out.scores, device="cpu")
        labels = torch.tensor(held_out.labels, device="cpu") if per_class else None
        columns: tuple[torch.return_types.sort, ...] = ()
        if held_out.cues is not None:
            upwards = scores.new_tensor(held_out.cues) * scores.new_tensor(detector.cue_directions)
            columns = tuple(column.sort() for column in upwards.unbind(dim=1))
        steps, groups = held_out.p_value_steps, held_out.groups
        return cls(
            scores,
            labels,
            tuple(column.values for column in columns),
            scores.new_tensor(tolerance),
            None if steps is None else scores.new_tensor(steps),
            ()
            if groups is None
            else tuple(
                scores.new_tensor(p_value_steps(groups[c.indices.numpy()])) for c in columns
            ),
        )


class Decided(NamedTuple):
    """The decision for N images.

    Attributes:
        label: ``(N,)`` int64.
        confidence: ``(N,)``.
        score: ``(N,)``, infinite where outputs are NaN or infinite.
        p_value: ``(N,)``.
        is_ood: ``(N,)``.
        cues: ``(N, K)``.
        cue_p_values: ``(N, K)``, if the reference has cues.
        probability: ``(N,)``, if the detector has it.
    """

    label: Tensor
    confidence: Tensor
    score: Tensor
    p_value: Tensor
    is_ood: Tensor
    cues: Tensor
    cue_p_values: Tensor | None
    probability: Tensor | None


def decide(
    detector: Detector, outputs: Outputs, reference: Reference, threshold: Tensor
) -> Decided:
    """The decision for each image.

    An image with NaN or infinity among its outputs is flagged: it is measured with zeros in their
    place, and what comes of it is replaced.

    Args:
        detector: fitted.
        outputs: logits, and the features that it reads.
        reference: the held-out images.
        threshold: ``()``, or ``(C,)`` where images are compared within a class; scores above it are
            flagged.
    """
    finite = finite_rows(outputs, detector)
    if finite is not None:
        outputs = _with_zeros(outputs, finite)
    cues = detector.cues(outputs)
    score = detector.score_cues(cues)
    probability = detector.probability(score)
    logits = detector.calibrated(outputs).logits.double()
    confidence, label = torch.softmax(logits, dim=1).max(dim=1)
    unusual = cues * cues.new_tensor(detector.cue_directions)
    if finite is not None:
        score = torch.where(finite, score, torch.inf)
        confidence = torch.where(finite, confidence, 0.0)
        cues = torch.where(finite[:, None], cues, torch.inf)
        unusual = torch.where(finite[:, None], unusual, torch.inf)
        if probability is not None:
            probability = torch.where(finite, probability, 1.0)
    lowest = score - reference.tolerance
    return Decided(
        label=label,
        confidence=confidence,
        score=score,
        p_value=compare(lowest, label, reference),
        # Not ">": a score of NaN, which a detector may give for finite outputs, is flagged.
        is_ood=~(lowest <= (threshold[label] if threshold.ndim else threshold)),
        cues=cues,
        cue_p_values=cue_p_values(reference, unusual) if reference.cues else None,
        probability=probability,
    )


def compare(score: Tensor, label: Tensor, reference: Reference) -> Tensor:
    """Conformal p-values ``(N,)``: against all held-out scores, or those of the same class."""
    if reference.labels is None:
        return _p_values(reference.scores, score, reference.steps)
    same = reference.labels == label[:, None]
    above = (reference.scores >= score[:, None]) & same
    counts = (part.to(torch.float64).sum(dim=1) for part in (above, same))
    return (1 + next(counts)) / (next(counts) + 1)


def cue_p_values(reference: Reference, unusual: Tensor) -> Tensor:
    """The p-value of each cue alone, ``(N, K)``; ``unusual`` are cues times their directions."""
    steps = reference.cue_steps or (None,) * len(reference.cues)
    columns = zip(reference.cues, unusual.T.contiguous(), steps, strict=True)
    return torch.stack([_p_values(*column) for column in columns], dim=1)


def _p_values(ordered: Tensor, values: Tensor, steps: Tensor | None = None) -> Tensor:
    """Of values among a sorted reference; ``steps`` where its images come in groups."""
    count, above = ordered.shape[0], count_at_least(ordered, values)
    if steps is None:
        return (1 + above) / (count + 1)
    return steps[(count - above).to(torch.int64)]


def finite_rows(outputs: Outputs, detector: Detector) -> Tensor | None:
    """Which images have finite logits and features; ``None`` if all have."""
    parts = [outputs.logits, *(outputs.feature(name) for name in detector.features)]
    tracing = torch.compiler.is_compiling()
    if not tracing and all(sums_are_finite(part) for part in parts):
        return None
    finite = torch.stack([torch.isfinite(part).all(dim=1) for part in parts]).all(dim=0)
    return None if not tracing and bool(finite.all()) else finite


def require_finite(held_out: Outputs, detector: Detector) -> None:
    """Refuse held-out images that are not finite: always flagged, they can set no threshold.

    Raises:
        FitError: naming how many there are.
    """
    finite = finite_rows(held_out, detector)
    if finite is not None:
        raise FitError(
            f"The network's outputs for {int((~finite).sum())} of the {len(finite)} held-out "
            "images hold NaN or infinity, and a gate flags every such image. Check the images and "
            "the network."
        )


def _with_zeros(outputs: Outputs, finite: Tensor) -> Outputs:
    """The outputs with zeros in place of those of images that are not finite."""
    rows = finite[:, None]
    features = {k: torch.where(rows, v, 0.0) for k, v in outputs.features.items()}
    return replace(outputs, logits=torch.where(rows, outputs.logits, 0.0), features=features)
