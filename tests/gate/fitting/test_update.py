import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import goen
from goen.data import ImageSet
from goen.detectors import GoenM
from goen.errors import LeakError, UsageError
from goen.extraction import extract
from goen.gate import Gate
from tests.gate.test_gate import make_gate
from tests.own_model import LAYERS, digits, ood, preprocess, trained


def fit(train: ImageSet, **changes: object) -> Gate:
    return Gate.fit(
        trained(), train, digits().validation, layers=LAYERS, preprocess=preprocess, **changes
    )


@pytest.fixture(scope="module")
def gate() -> Gate:
    return fit(digits().train.take(range(400)), ood={"noise": ood()["noise"]})


def test_new_training_images_equal_a_fit_on_all_of_them(gate: Gate) -> None:
    rest = digits().train.take(range(400, 664))
    change = gate.update(train=rest, held_out=digits().validation, ood={"noise": ood()["noise"]})
    updated = change.gate
    whole = fit(digits().train, ood={"noise": ood()["noise"]})
    found = updated.detector.bank_.state()
    for name, value in whole.detector.bank_.state().items():
        assert torch.allclose(found[name], value, rtol=0, atol=1e-6), name
    probe = digits().test.read(range(20))
    assert np.allclose(updated.predict(probe).score, whole.predict(probe).score, atol=1e-3)
    assert set(change.before) == {"flagged/held_out", "auroc/noise", "flagged/noise"}
    assert "before   after" in str(change)
    assert updated.metadata["splits"]["train, added 3"]["images"] == 264


def test_the_bank_of_the_same_outputs_equals_a_refit(gate: Gate) -> None:
    # The network's own float32 depends on the size of a batch; the bank does not.
    train = digits().train
    outputs, labels = extract(gate.network, train), torch.from_numpy(train.labels)
    whole = GoenM(LAYERS).update(outputs, labels)
    first = GoenM(LAYERS).update(outputs[:400], labels[:400])
    first.calibrate(outputs[:50])
    later = copy.deepcopy(first)
    later.update(outputs[400:], labels[400:])
    for name, value in whole.bank_.state().items():
        assert torch.equal(later.bank_.state()[name], value), name
    assert torch.equal(whole.cues(outputs), later.cues(outputs))


def test_new_kinds_do_not_forget_the_old(gate: Gate) -> None:
    change = gate.update(ood={"photographs": ood()["photographs"]})
    updated = change.gate
    both = fit(
        digits().train.take(range(400)),
        ood={"noise": ood()["noise"], "photographs": ood()["photographs"]},
    )
    assert list(updated.detector.ood_cues_) == ["noise", "photographs"]
    assert torch.allclose(updated.detector.weights_, both.detector.weights_, atol=1e-6)
    # The tolerance above numerical noise is measured on other images: one number for all scores.
    difference = updated.held_out.scores - both.held_out.scores
    assert np.ptp(difference) < 1e-6
    assert np.abs(difference).max() < 1e-3
    assert change.after["auroc/noise"] > change.before["auroc/noise"] - 0.02
    assert change.after["auroc/photographs"] >= change.before["auroc/photographs"] - 1e-9
    # The gate that was updated is as it was.
    assert list(gate.detector.ood_cues_) == ["noise"]
    assert change.before["flagged/held_out"] <= 0.05


def test_other_held_out_images_take_the_place_of_the_old(gate: Gate) -> None:
    updated = gate.update(held_out=digits().test).gate
    assert len(updated.held_out.scores) == len(digits().test) - 3 * len(digits().test) // 5
    assert list(updated.detector.ood_cues_) == ["noise"]
    assert updated.metadata["splits"]["held_out"]["name"] == digits().test.name


def test_what_must_be_given_again_is_said(gate: Gate) -> None:
    more = digits().train.take(range(400, 500))
    with pytest.raises(UsageError, match="scores of the held-out images: give held_out again"):
        gate.update(train=more)
    with pytest.raises(UsageError, match=r"give each kind again. Missing: noise"):
        gate.update(train=more, held_out=digits().validation)
    for nothing in ({}, {"ood": {}}):
        with pytest.raises(UsageError, match="Nothing to update"):
            gate.update(**nothing)
    with pytest.raises(UsageError, match="keeps nothing of the images that calibrated it: give he"):
        make_gate().update(ood=ood())
    with pytest.raises(LeakError, match="shares 100"):
        gate.update(train=more, held_out=more, ood=ood())


def test_a_saved_gate_can_be_updated(gate: Gate, tmp_path: Path) -> None:
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=trained(), preprocess=preprocess)
    one = gate.update(ood=ood()).gate
    other = loaded.update(ood=ood()).gate
    assert np.array_equal(one.held_out.scores, other.held_out.scores)


def test_a_set_that_already_has_another_role_is_refused(gate: Gate) -> None:
    train, held_out = digits().train.take(range(400)), digits().validation
    with pytest.raises(LeakError, match="are in the gate's train already"):
        gate.update(held_out=train)
    with pytest.raises(LeakError, match="are in the gate's held_out already"):
        gate.update(ood=held_out)
    saved_before = replace(gate, image_hashes={})  # only the hash of whole sets is known then
    with pytest.raises(LeakError, match="which already is the gate's train set"):
        saved_before.update(held_out=train)
    gate.update(held_out=held_out)  # the same role again
    gate.update(ood={"noise": ood()["noise"]})


def test_what_a_gate_says_of_its_accuracy_is_that_of_the_new_images(gate: Gate) -> None:
    p = digits()
    images = p.validation.read()
    labels = gate.predict(images).label
    updated = gate.update(held_out=(images, labels)).gate
    assert updated.metadata["held_out_accuracy"] == 1.0
    assert gate.metadata["held_out_accuracy"] < 1
    wrong = gate.update(held_out=(images, (labels + 1) % 7)).gate
    assert wrong.metadata["held_out_accuracy"] == 0.0
    assert "held_out_accuracy" not in gate.update(held_out=images).gate.metadata


def test_an_image_of_the_training_set_is_found_wherever_it_comes_in(
    gate: Gate, tmp_path: Path
) -> None:
    p = digits()
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=trained(), preprocess=preprocess)
    mixed = np.concatenate([p.test.read(range(200)), p.train.read(range(3))])
    for given in (mixed, torch.from_numpy(mixed) / 255, [torch.from_numpy(mixed)]):
        for each in (gate, loaded):
            with pytest.raises(LeakError, match="3 images of held_out are in the gate's train"):
                each.update(held_out=given)
            with pytest.raises(LeakError, match="3 images of ood new are in the gate's train"):
                each.update(ood={"new": given})
    updated = gate.update(held_out=p.test).gate
    with pytest.raises(LeakError, match="5 images of ood new are in the gate's held_out"):
        updated.update(ood={"new": p.test.read(range(5))})
    updated.update(ood={"old": p.validation})  # held out before, and free again
