import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from goen.data import ImageSet
from goen.functional.conformal import false_alarm_interval
from goen.gate import Gate
from goen.gate.fitting.summary import fit_summary
from tests.own_model import LAYERS, digits, ood, preprocess, trained


def fit(kinds: dict[str, ImageSet]) -> Gate:
    p = digits()
    return Gate.fit(
        trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess, ood=kinds or None
    )


def test_it_has_the_sets_the_guarantee_the_weights_and_the_ood_metrics() -> None:
    gate = fit(ood())
    text = fit_summary(gate)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "A gate for tests.own_model:DigitNet"
    assert "classes 7" in lines
    assert "inputs images of 32×32" in lines
    assert f"train 664 images ({digits().train.name})" in lines
    assert f"held_out 300 images ({digits().validation.name})" in lines
    low, mean, high = false_alarm_interval(120, 0.05)
    bound = "false-alarm rate at most 0.05 guaranteed: the probability that a new ID image is"
    assert f"{bound} flagged" in lines
    assert (
        f"this gate's rate {mean:.4f} expected; between {low:.4f} and {high:.4f} with 90 % "
        "probability, for these held-out images" in lines
    )
    assert f"threshold {gate.threshold:.4f}, from 120 held-out images" in lines
    known, right = (
        np.mean(gate.predict(images).label == images.labels)
        for images in (digits().train, digits().validation)
    )
    assert f"accuracy {known:.3f} on train, {right:.3f} on held_out" in lines
    for name, weight in zip(gate.detector.cue_names, gate.detector.weights_, strict=True):
        assert f"{name} {weight:.3f}" in lines
    for kind, images in ood().items():
        found = gate.predict(images)
        scores = np.concatenate([gate.held_out.scores, found.score])
        is_ood = np.repeat([0, 1], [len(gate.held_out), len(found)])
        auroc = roc_auc_score(is_ood, scores)
        assert f"{kind} {auroc:.3f} {found.is_ood.mean():.1%}" in lines
    assert "Fitted without OOD images" not in text


@pytest.mark.parametrize("factory", [None, "my_nets:resnet20"])
def test_without_ood_images_it_has_no_table_of_them(factory: str | None) -> None:
    from dataclasses import replace

    gate = fit({})
    if factory:
        gate = replace(gate, metadata={**gate.metadata, "factory": factory})
    text = fit_summary(gate)
    assert text.splitlines()[0] == f"A gate for {factory or 'tests.own_model:DigitNet'}"
    assert "AUROC" not in text
    assert text.endswith("Fitted without OOD images: the gate returns no probability of OOD.")


def test_a_gate_of_features_with_ood_rows_has_a_probability() -> None:
    rng = np.random.default_rng(0)
    train, held_out = rng.normal(5, 1, size=(2, 200, 4))
    labels = np.arange(200) % 2
    far = rng.normal(size=(50, 4))
    gate = Gate.fit_outputs(train, labels, held_out, ood={"far": far})
    assert gate.detector.has_probability
    text = fit_summary(gate)
    assert "Fitted without OOD images" not in text
    found = gate.predict_outputs(far)
    ranks = found.score[:, None] > gate.held_out.scores
    line = f"far {ranks.mean():.3f} {found.is_ood.mean():.1%}"
    assert line in [" ".join(line.split()) for line in text.splitlines()]
