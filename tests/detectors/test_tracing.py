"""The traceable form of a detector computes the cues and scores of the detector itself."""

import pytest
import torch

from goen.detectors import CueDetector, Goen
from goen.detectors.calibration_head import CalibrationHead

from .test_goen_m import fitted, outputs


def detectors() -> dict[str, CueDetector]:
    plain = Goen(feature="late").fit(*outputs(150, 0.0, 0))
    torch.manual_seed(0)
    head = CalibrationHead().eval()
    return {
        "goen": plain.with_head(head, plain.cues(outputs(30, 0.0, 1)[0])),
        "goen without a head": plain,
        "goen-m": fitted(),
        "goen-m with OOD": fitted(ood=True),
    }


@pytest.mark.parametrize("name", detectors())
def test_the_traceable_form_gives_the_same_cues_and_score(name: str) -> None:
    detector = detectors()[name]
    probe, _ = outputs(200, 1.5, 3)
    probe.features["late"][0] = 0.0
    probe.logits[1] = torch.tensor([900.0, -900.0, 0.0])
    with torch.no_grad():
        traced_cues, traced = detector.traceable()(probe)
    cues = detector.cues(probe)
    score = detector.score_cues(cues)
    assert traced_cues.dtype == torch.float64
    assert torch.allclose(traced_cues, cues, rtol=1e-9, atol=1e-9)
    assert traced.dtype == torch.float64
    assert torch.allclose(traced, score, rtol=1e-9, atol=1e-6 if name == "goen" else 1e-9)
