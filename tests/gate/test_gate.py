import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import goen
from goen.data import ImageSet, protocol
from goen.detectors import Density
from goen.detectors.calibration_head import CalibrationHead
from goen.detectors.goen import Goen
from goen.errors import ArtifactError, FitError, UsageError
from goen.extraction import extract
from goen.gate import Gate
from goen.models import NetworkConfig, ResNet18


def make_gate(with_head: bool = True, held_out: int = 200) -> Gate:
    torch.manual_seed(0)
    p = protocol("digits")
    train = p.train.take(range(120))
    network = ResNet18(NetworkConfig(num_classes=7, width=2)).eval()
    density = Density().fit(extract(network, train), torch.from_numpy(train.labels))
    head = CalibrationHead().eval() if with_head else None
    rest = p.validation.take(range(held_out))
    scorer = Goen(density, head)
    draft = Gate(network, scorer, np.arange(200.0), 0.05, train.classes, (32, 32))
    scores = draft.predict_set(rest).score
    return Gate(network, scorer, scores, 0.05, train.classes, (32, 32), {"why": "a test"})


@pytest.fixture(scope="module")
def gate() -> Gate:
    return make_gate()


@pytest.fixture(scope="module")
def some_images() -> ImageSet:
    return protocol("digits").test.take(range(60))


def test_a_prediction_says_everything(gate: Gate, some_images: ImageSet) -> None:
    p = gate.predict(some_images.read())
    assert len(p) == 60
    assert p.label.min() >= 0
    assert p.label.max() < 7
    assert ((p.confidence > 0) & (p.confidence <= 1)).all()
    assert ((p.p_value > 0) & (p.p_value <= 1)).all()
    assert p.probability is not None
    assert ((p.probability >= 0) & (p.probability <= 1)).all()
    assert (p.is_ood == (p.p_value <= 0.05)).all()
    assert (p.is_ood == (p.score > gate.threshold)).all()
    assert set(p.cues) == {"log_distance", "similarity", "entropy"}


def test_the_score_is_the_heads_logit_of_the_cues(gate: Gate, some_images: ImageSet) -> None:
    p = gate.predict(some_images.read())
    cues = np.stack([p.cues[c] for c in ("log_distance", "similarity", "entropy")], axis=1)
    assert gate.head is not None
    with torch.no_grad():
        expected = gate.head(torch.from_numpy(cues).float()).numpy()
    assert np.allclose(p.score, expected, atol=1e-6)
    u = 1 / (1 + np.exp(-p.score))
    assert np.allclose(p.probability, np.clip((u - 0.05) / 0.9, 0, 1))


def test_p_values_are_counted(gate: Gate, some_images: ImageSet) -> None:
    p = gate.predict(some_images.read())
    n = len(gate.held_out_scores)
    for score, p_value in zip(p.score, p.p_value, strict=True):
        assert p_value == (1 + sum(h >= score for h in gate.held_out_scores)) / (n + 1)


def test_without_a_head_the_distance_decides(some_images: ImageSet) -> None:
    p = make_gate(with_head=False).predict(some_images.read())
    assert p.probability is None
    assert (p.score == p.cues["log_distance"]).all()


def test_one_image_equals_the_same_image_among_many(gate: Gate, some_images: ImageSet) -> None:
    many = gate.predict(some_images.read())
    whole = gate.predict_set(some_images)
    for i in (0, 17, 59):
        for one in (gate.predict(some_images.read([i])), gate.predict(some_images.read([i])[0])):
            assert one.label[0] == many.label[i]
            assert one.is_ood[0] == many.is_ood[i]
            assert np.isclose(one.score[0], many.score[i], atol=1e-5)
    assert np.allclose(whole.score, many.score, atol=1e-5)


def test_the_network_is_left_in_the_mode_it_was_in(gate: Gate, some_images: ImageSet) -> None:
    gate.network.train()
    trained = gate.predict(some_images.read([0, 1]))
    assert gate.network.training
    gate.network.eval()
    assert (trained.score == gate.predict(some_images.read([0, 1])).score).all()


def test_the_rate_can_be_changed_without_fitting(gate: Gate, some_images: ImageSet) -> None:
    strict = gate.with_false_alarm_rate(0.01)
    assert strict.threshold >= gate.threshold
    assert (
        strict.predict(some_images.read()).p_value == gate.predict(some_images.read()).p_value
    ).all()
    assert gate.false_alarm_rate == 0.05


def test_a_held_out_set_too_small_for_the_rate_says_how_many(gate: Gate) -> None:
    with pytest.raises(FitError, match="at least 999 held-out scores, got 200"):
        gate.with_false_alarm_rate(0.001)


def test_false_alarms_stay_within_the_promise(gate: Gate) -> None:
    # Held-out and new ID scores of the same kind, split at random again and again.
    p = protocol("digits")
    scores = np.concatenate([gate.predict_set(p.validation).score, gate.predict_set(p.test).score])
    rng = np.random.default_rng(0)
    rates = []
    for _ in range(300):
        order = rng.permutation(len(scores))
        held_out, new = scores[order[:99]], scores[order[99:]]
        again = Gate(gate.network, gate.scorer, held_out, 0.1, gate.classes, (32, 32))
        rates.append((new > again.threshold).mean())
    error = np.std(rates) / np.sqrt(len(rates))
    assert np.mean(rates) <= 0.1 + 2 * error
    assert np.mean(rates) >= 0.1 - 0.01 - 2 * error  # valid, and not by flagging nothing


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 32, 32, 3, dtype=torch.uint8), r"\(N, 3, H, W\)"),
        (torch.zeros(32, 32), r"\(N, 3, H, W\)"),
        (torch.zeros(1, 3, 32, 32, dtype=torch.int64), "uint8, or floats"),
        (torch.full((2, 3, 32, 32), 200.0), "0-255"),
        (torch.full((2, 3, 32, 32), -0.5), r"lie in \[0, 1\]"),
        (
            torch.tensor([0.5, torch.nan]).view(2, 1, 1, 1).expand(2, 3, 8, 8),
            r"Images \[1\] hold NaN",
        ),
    ],
)
def test_images_that_cannot_be_meant_are_said(
    gate: Gate, images: torch.Tensor, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        gate.predict(images)


def test_another_size_than_the_fitted_one_is_refused(gate: Gate) -> None:
    with pytest.raises(UsageError, match="fitted on images of 32×32, got 96×64"):
        gate.predict(torch.zeros(1, 3, 96, 64, dtype=torch.uint8))


def test_a_gate_introduces_itself_in_a_line(gate: Gate) -> None:
    expected = "Gate(7 classes, with a head, 200 held-out scores, false_alarm_rate=0.05)"
    assert repr(gate) == expected


def test_an_empty_set_is_said(gate: Gate, some_images: ImageSet) -> None:
    with pytest.raises(UsageError, match="has no images"):
        gate.predict_set(some_images.take([]))


def test_floats_and_bytes_say_the_same(gate: Gate, some_images: ImageSet) -> None:
    batch = some_images.read(slice(0, 5))
    assert np.allclose(gate.predict(batch / 255).score, gate.predict(batch).score, atol=1e-4)


def test_a_saved_gate_predicts_the_same(gate: Gate, some_images: ImageSet, tmp_path: Path) -> None:
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate")
    a, b = gate.predict(some_images.read()), loaded.predict(some_images.read())
    for name in ("label", "confidence", "score", "p_value", "probability", "is_ood"):
        assert (getattr(a, name) == getattr(b, name)).all(), name
    assert loaded.facts == {"why": "a test"}
    assert loaded.classes == gate.classes
    manifest = json.loads((tmp_path / "gate" / "manifest.json").read_text())
    assert manifest["threshold"] == gate.threshold
    assert manifest["guarantee"]["held_out_images"] == 200
    names = {p.suffix for p in (tmp_path / "gate").iterdir()}
    assert names == {".safetensors", ".json"}


def test_a_gate_that_does_not_fit_its_manifest_is_refused(gate: Gate, tmp_path: Path) -> None:
    folder = tmp_path / "gate"
    gate.save(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    for path, value in [
        (("network", "width"), 3),
        (("network", "colour"), "red"),
        (("scorer", "head"), None),
        (("classes",), ["only one"]),
        (("threshold",), -99.0),
        (("false_alarm_rate",), None),
    ]:
        changed = json.loads(json.dumps(manifest))
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        (folder / "manifest.json").write_text(json.dumps(changed))
        with pytest.raises(ArtifactError, match="not a gate that this goen can use"):
            goen.load(folder)
    shutil.rmtree(folder)
    with pytest.raises(ArtifactError, match="no saved gate"):
        goen.load(folder)
