"""Parameters that given OOD images choose."""

import numpy as np
import pytest

from goen.detectors import DETECTORS, KNN, Best, make_detector
from goen.detectors.tuned import SEARCHED, TUNED
from goen.errors import UsageError
from goen.metrics import ood_metrics
from tests.detectors.test_best import blob_outputs, fitted, id_features


@pytest.mark.parametrize("name", SEARCHED)
def test_every_value_makes_a_detector_of_its_own(name: str) -> None:
    tuned = make_detector(name + TUNED)
    assert isinstance(tuned, Best)
    assert len(tuned._candidates) == np.prod([len(values) for values in SEARCHED[name].values()])
    kind = type(DETECTORS[name]())
    for title, make in tuned._candidates.items():
        assert repr(make()) == title
        assert type(make()) is kind
        assert {*make().settings()} == {*DETECTORS[name]().settings()}


def test_a_variant_stays_itself() -> None:
    made = [make() for make in make_detector("ash_b" + TUNED)._candidates.values()]  # type: ignore[attr-defined]
    assert {detector.treatment for detector in made} == {"binarise"}


def test_the_neighbour_with_the_highest_auroc_is_chosen() -> None:
    tuned, held_out, ood = fitted(make_detector("knn" + TUNED)._candidates)  # type: ignore[attr-defined]
    features, labels = id_features(400, 1)
    areas = {}
    for k in SEARCHED["knn"]["k"]:
        if k <= len(features):
            knn = KNN(k=int(k)).fit(blob_outputs(features), labels)
            scores = knn.score(held_out).numpy(), knn.score(ood).numpy()
            areas[int(k)] = ood_metrics(*scores).auroc
    chosen = tuned.chosen
    assert isinstance(chosen, KNN)
    assert areas[chosen.k or 0] == max(areas.values())
    assert set(areas) < {*SEARCHED["knn"]["k"]}
    assert {"KNN(k=500)", "KNN(k=1000)"} <= {*tuned.skipped_}


def test_a_detector_without_such_parameters_has_no_tuned_form() -> None:
    with pytest.raises(UsageError, match="Unknown detector 'energy_tuned'"):
        make_detector("energy_tuned")
