import json

import pytest
import torch
from torch import Tensor

from goen.detectors import (
    DETECTORS,
    KNN,
    Detector,
    Energy,
    Mahalanobis,
    load_detector,
    make_detector,
)
from goen.detectors.registry import detector_manifest
from goen.errors import UsageError
from goen.io.manifest import JsonObject, Manifest
from goen.io.tensors import Tensors
from goen.outputs import Outputs


def outputs() -> tuple[Outputs, Tensor]:
    z = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    return Outputs(torch.zeros(60, 2), {"z": z}), torch.arange(60) % 2


def test_a_name_gives_a_new_detector_with_its_settings() -> None:
    assert repr(make_detector("mahalanobis_pp")) == "Mahalanobis(normalise=True)"
    assert make_detector("knn") is not make_detector("knn")
    given = KNN(k=3)
    assert make_detector(given) is given
    with pytest.raises(UsageError, match=r"Unknown detector 'mahalanobs'\. Did you mean 'mahalano"):
        make_detector("mahalanobs")


@pytest.mark.parametrize("given", [KNN, 7])
def test_what_is_neither_a_name_nor_a_detector_is_refused(given: object) -> None:
    with pytest.raises(UsageError, match=r"such as goen\.detectors\.KNN\(k=5\); got"):
        make_detector(given)  # type: ignore[arg-type]


def test_every_name_is_that_of_the_method_and_can_be_loaded_by_it() -> None:
    others = {key for key, make in DETECTORS.items() if make().name != key}
    # Each a setting of another.
    assert others == {
        *("adascale_l", "ash_b", "ash_p", "goen_m_last", "i_odin", "mahalanobis_pp"),
        *("relative_mahalanobis_pp", "she_cosine"),
    }


def test_a_manifest_is_json_and_gives_the_detector_back() -> None:
    detector = Mahalanobis(normalise=True, ridge=1e-3).fit(*outputs())
    manifest = detector_manifest(detector)
    assert manifest == {
        "name": "mahalanobis",
        "settings": {"feature": None, "normalise": True, "ridge": 1e-3},
        "features": ["z"],
        "widths": [3],
        "num_classes": 2,
    }
    loaded = load_detector(Manifest(json.loads(json.dumps(manifest))), Tensors(detector.state()))
    assert repr(loaded) == repr(detector)
    assert torch.equal(loaded.score(outputs()[0]), detector.score(outputs()[0]))
    assert repr(load_detector(Manifest(detector_manifest(Energy())), Tensors({}))) == "Energy()"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "pytorch_ood"}, "its detector 'pytorch_ood' is unknown"),
        ({"name": "os.system"}, "its detector 'os.system' is unknown"),
        ({"name": 3}, "name should be text, got '3'"),
        ({"settings": {"k": 10**9}}, "unknown settings: k"),
        ({"settings": {"ridge": -1}}, "ridge must be a number, at least 0"),
        ({"settings": {"ridge": "1"}}, "ridge must be a number, at least 0"),
        ({"settings": []}, "settings should be"),
        ({"features": ["z", "y"]}, "was fitted on 2 classes and"),
        ({"features": ["z", "z"], "widths": [3, 3]}, "was fitted on 2 classes and"),
        ({"widths": [4]}, r"precision_chol should be float64 of shape \(4, 4\)"),
        ({"widths": [-3]}, "widths"),
        ({"num_classes": -1}, "was fitted on -1 classes"),
        ({"num_classes": 2**40}, "was fitted on 1099511627776 classes"),
        ({"num_classes": 1}, "classes should hold numbers from 0 to 0, got 1"),
        ({"more": 1}, "more"),
    ],
    ids=str,
)
def test_a_forged_manifest_is_refused(change: JsonObject, message: str) -> None:
    detector = Mahalanobis().fit(*outputs())
    forged = Manifest({**detector_manifest(detector), **change})
    with pytest.raises(ValueError, match=message):
        load_detector(forged, Tensors(detector.state()))


class Unregistered(Detector):
    name = "energy"  # which is another's
    needs_fit = False

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        pass

    def _score(self, outputs: Outputs) -> Tensor:
        return outputs.logits.sum(dim=1)


def test_what_could_not_be_loaded_has_no_manifest() -> None:
    with pytest.raises(UsageError, match=r"Unregistered\(\) is not among the detectors of goen"):
        detector_manifest(Unregistered())
