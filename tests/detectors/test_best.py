"""The choice of a detector: with OOD images that fit nothing, and never with the threshold's."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from goen.data.inputs import image_hashes
from goen.detectors import DETECTORS, KNN, Best, Detector, Energy, GoenM, make_detector
from goen.errors import FitError, NotFittedError, UsageError
from goen.gate import Gate
from goen.gate.fitting.summary import fit_summary
from goen.metrics import Ranking, ood_metrics
from goen.outputs import Outputs
from tests.detectors.blobs import blob_outputs, id_features, ood_features
from tests.own_model import LAYERS, digits, preprocess, trained


class Backwards(Detector):
    """KNN's opposite."""

    needs_fit = False

    def _score(self, outputs: Outputs) -> Tensor:
        return -outputs.logits.amax(dim=1) * 0 + outputs.features["z"].sum(dim=1) * 0 - 1.0


def fitted(candidates: Mapping[str, Callable[[], Detector]]) -> tuple[Best, Outputs, Outputs]:
    features, labels = id_features(400, 1)
    held_out, ood = blob_outputs(*id_features(120, 2)), blob_outputs(ood_features(120, 3))
    best = Best.among(candidates).fit(
        blob_outputs(features), labels, held_out=held_out, ood={"aside": ood}
    )
    return best, held_out, ood


def test_the_one_with_the_highest_auroc_on_the_calibration_images_is_chosen() -> None:
    candidates: dict[str, type[Detector]] = {
        "knn": KNN,
        "energy": Energy,
        "flat": Backwards,
        "goen_m": GoenM,
    }
    best, held_out, ood = fitted(candidates)
    features, labels = id_features(400, 1)
    areas = {}
    for name, make in candidates.items():
        detector = make()
        if detector.needs_fit:
            detector.fit(blob_outputs(features), labels, held_out=held_out)
        areas[name] = ood_metrics(
            detector.score(held_out).numpy(), detector.score(ood).numpy()
        ).auroc
    assert dict(best.ranking_.means) == pytest.approx(areas)
    assert areas["flat"] == 0.5
    name = max(areas, key=lambda key: areas[key])
    assert isinstance(best.chosen, candidates[name])
    assert torch.equal(best.score(ood), best.chosen.score(ood))


def test_no_candidate_is_fitted_with_ood_images() -> None:
    best, held_out, _ = fitted({"goen_m": GoenM})
    features, labels = id_features(400, 1)
    alone = GoenM().fit(blob_outputs(features), labels, held_out=held_out)
    assert not best.chosen.has_probability
    assert torch.equal(best.chosen.score(held_out), alone.score(held_out))


def test_one_that_cannot_be_fitted_takes_no_part() -> None:
    best, _, _ = fitted({"knn": partial(KNN, k=1000), "energy": Energy})
    assert isinstance(best.chosen, Energy)
    assert "k = 1000" in best.skipped_["knn"]
    with pytest.raises(FitError, match="No detector could be fitted"):
        fitted({"knn": partial(KNN, k=1000)})


def test_before_a_choice_there_is_none() -> None:
    best = make_detector("best")
    with pytest.raises(NotFittedError, match="No detector was chosen"):
        best.chosen  # noqa: B018
    assert repr(best) == "Best()"
    assert best.needs_ood
    assert KNN().chosen.name == "knn"


def test_every_detector_of_plain_outputs_is_a_candidate() -> None:
    best = make_detector("best")
    assert isinstance(best, Best)
    assert {*DETECTORS} - {*best._candidates} >= {"odin", "uncertainty"}
    assert {"knn", "goen_m", "goen_m_last", "vim", "energy"} <= {*best._candidates}


def test_a_gate_has_the_chosen_detector_and_its_threshold_from_other_images() -> None:
    p = digits()
    ood = {name: images.take(range(80)) for name, images in p.calibration_ood.items()}
    gate = Gate.fit(
        trained(),
        p.train,
        p.validation,
        detector="best",
        ood=ood,
        layers=LAYERS,
        preprocess=preprocess,
    )
    assert not isinstance(gate.detector, Best)
    assert gate.diagnostics is not None
    assert not gate.diagnostics.ood_scores  # they chose: nothing is reported on them
    assert len(gate.held_out) == len(p.validation) - int(0.6 * len(p.validation))
    assert (
        gate.image_hashes["selection noise"].tolist() == image_hashes(ood["noise"].digests).tolist()
    )
    summary = fit_summary(gate)
    assert "detector was chosen among" in " ".join(summary.split())
    assert "too good for it: measure the gate on other" in " ".join(summary.split())
    assert "OOD, used in the fit" not in summary
    selection = gate.metadata["selection"]
    assert isinstance(selection, dict)
    best = Ranking.from_json(selection).best
    same = Gate.fit(
        trained(),
        p.train,
        p.validation,
        detector=best,
        calibration=0.6 if gate.detector.calibrates(with_ood=False) else None,
        layers=LAYERS,
        preprocess=preprocess,
    )
    np.testing.assert_allclose(
        same.detector.score(same.outputs(p.test.read(range(20)))),
        gate.detector.score(gate.outputs(p.test.read(range(20)))),
    )


def test_a_choice_without_ood_images_is_refused_before_any_pass() -> None:
    p = digits()
    with pytest.raises(UsageError, match="choice of a detector needs OOD images"):
        Gate.fit(trained(), p.train, p.validation, detector="best", layers=LAYERS)
