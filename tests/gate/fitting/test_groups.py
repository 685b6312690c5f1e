"""Held-out images in groups: each group counts once, in every part of a gate."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import goen
from goen.errors import ArtifactError, FitError, UsageError
from goen.functional.conformal import grouped_p_values
from goen.gate import Gate, HeldOut
from goen.gate.export.comparison import as_outputs
from goen.gate.export.conversion import open_session, run_session
from goen.gate.export.traceable import output_names
from goen.gate.fitting.groups import number_groups
from goen.gate.fitting.sets import split_held_out
from goen.gate.fitting.summary import fit_summary
from goen.monitor import Monitor
from tests.gate.fitting.test_near_copies import copies, features
from tests.own_model import LAYERS, digits, preprocess, trained
from tests.serve.running import png, running

GROUPS = 50


def in_groups(seed: int, groups: int = GROUPS) -> tuple[NDArray[np.float64], list[str]]:
    """Rows in groups of one to seven, of which the rows are alike, and the names of the groups."""
    sizes = np.random.default_rng(seed).integers(1, 8, groups)
    rows = copies(features(groups, seed)[0].repeat(sizes, axis=0), 0.05)
    names = [f"video {number}" for number in range(groups)]
    return rows, np.repeat(names, sizes).tolist()


def fitted(**changes: Any) -> Gate:
    rows, groups = in_groups(1)
    settings: dict[str, Any] = {"detector": "knn", "groups": groups, **changes}
    return Gate.fit_outputs(*features(2000, 0), rows, **settings)


@pytest.fixture(scope="module")
def gate() -> Gate:
    return fitted()


def definition(gate: Gate, scores: NDArray[np.float64]) -> list[float]:
    """The p-values, group by group, in fractions."""
    groups = gate.held_out.groups
    assert groups is not None
    names = {*groups.tolist()}
    found = []
    for score in scores:
        total = Fraction(1)
        for group in names:
            mine = gate.held_out.scores[groups == group]
            total += Fraction(int((mine >= score).sum()), len(mine))
        total /= len(names) + 1
        found.append(total.numerator / total.denominator)
    return found


def test_p_values_and_decisions_count_each_group_once(gate: Gate) -> None:
    assert gate.num_held_out == GROUPS < len(gate.held_out)
    rows = np.concatenate([features(300, 5)[0], 2 * features(50, 6)[0], in_groups(1)[0]])
    for rate in (0.02, 0.05, 0.1, 0.29):
        found = gate.with_false_alarm_rate(rate).predict_outputs(rows)
        assert found.p_value.tolist() == definition(gate, found.score)
        assert (found.is_ood == (found.p_value <= rate)).all()
        assert found.is_ood.any()
        assert not found.is_ood.all()
    cues, groups = gate.held_out.cues, gate.held_out.groups
    assert cues is not None
    assert groups is not None
    [(name, values)] = found.cues.items()
    own = grouped_p_values(values, cues[:, 0], groups)
    assert found.cue_p_values[name].tolist() == own.tolist()
    assert found.explain(0).p_value == found.p_value[0]
    assert f"in {GROUPS} groups" in fit_summary(gate)
    assert f"in {GROUPS} groups" in gate._repr_html_()


def test_too_few_groups_are_an_error_that_counts_them(gate: Gate) -> None:
    with pytest.raises(FitError, match="needs 99 groups of held-out images that set"):
        gate.with_false_alarm_rate(0.01)
    with pytest.raises(FitError, match="at least 99 groups of held-out images, got 50"):
        fitted(false_alarm_rate=0.01)
    rows, groups = in_groups(1, groups=18)
    with pytest.raises(FitError, match="at least 19 groups of held-out images, got 18"):
        Gate.fit_outputs(*features(500, 0), rows, detector="knn", groups=groups)


def test_a_group_calibrates_or_sets_the_threshold() -> None:
    groups = np.array([0, 1, 2, 3, 4, 5, 6, 7, 8, 9] * 3)
    calibrating, rows = split_held_out(30, 0.6, 0.3, groups)
    assert sorted([*calibrating.tolist(), *rows.tolist()]) == [*range(30)]
    assert len({*groups[calibrating]}) == 6
    assert not {*groups[calibrating]} & {*groups[rows]}
    made = fitted(detector="goen_m")  # it calibrates itself with three fifths
    assert made.num_held_out == GROUPS - 30
    assert made.predict_outputs(features(300, 5)[0]).is_ood.mean() < 0.3


def test_a_saved_gate_is_the_same_and_a_damaged_one_is_refused(gate: Gate, tmp_path: Path) -> None:
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate")
    rows = features(300, 5)[0]
    assert (loaded.predict_outputs(rows).p_value == gate.predict_outputs(rows).p_value).all()
    assert loaded.threshold == gate.threshold
    assert '"held_out_groups": 50' in (tmp_path / "gate" / "manifest.json").read_text()
    held_out = gate.held_out
    assert held_out.groups is not None
    broken = [np.where(held_out.groups == 3, 4, held_out.groups), held_out.groups - 1]
    for number, groups in enumerate(broken):
        forged = HeldOut(held_out.scores, held_out.labels, held_out.cues, groups)
        replace(gate, held_out=forged).save(tmp_path / f"broken {number}")
        with pytest.raises(ArtifactError, match="held_out_groups"):
            goen.load(tmp_path / f"broken {number}")


def test_an_update_needs_groups_where_the_gate_has_them(gate: Gate) -> None:
    rows, groups = in_groups(2)
    with pytest.raises(UsageError, match="come in groups: give groups of the new ones"):
        gate.update(held_out={"features": rows})
    updated = gate.update(held_out={"features": rows}, groups=groups).gate
    found = updated.predict_outputs(features(300, 5)[0])
    assert found.p_value.tolist() == definition(updated, found.score)


def test_new_kinds_of_ood_leave_the_groups_as_they_are() -> None:
    rows = {"features": features(60, 8)[0] * 2 + 9}
    made = fitted(detector="goen_m", ood=features(60, 6)[0] - 9)
    with pytest.raises(UsageError, match="give held_out, too"):
        made.update(ood={"more": rows}, groups=["a"])
    updated = made.update(ood={"more": rows}).gate
    assert updated.num_held_out == made.num_held_out == GROUPS - 30
    found = updated.predict_outputs(features(100, 5)[0])
    assert found.p_value.tolist() == definition(updated, found.score)


def test_what_groups_do_not_have_is_a_sentence(gate: Gate) -> None:
    with pytest.raises(FitError, match="one threshold, and none per class"):
        gate.with_per_class()
    with pytest.raises(UsageError, match="false-discovery control is valid for"):
        gate.predict_outputs(features(30, 5)[0]).flag_with_fdr(0.1)
    with pytest.raises(UsageError, match="come in groups, and a monitor needs"):
        Monitor(gate)


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        (["a"] * 29, "30 held-out images need a group each, got 29"),
        ([*"a" * 29, None], "a name or a whole number"),
        (np.ones(30), "a name or a whole number"),
        (np.ones((30, 1), int), "a name or a whole number"),
    ],
)
def test_groups_that_are_none(groups: Any, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        number_groups(groups, 30)


def test_names_numbers_and_tensors_are_groups() -> None:
    for groups in ([7, 5, 7], torch.tensor([7, 5, 7]), np.array(["b", "a", "b"], object)):
        assert number_groups(groups, 3).tolist() == [1, 0, 1]


def test_a_stream_of_another_length_is_counted_at_its_end() -> None:
    rows, groups = in_groups(1)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU(), torch.nn.Linear(8, 5))

    def batches() -> Any:
        yield from torch.from_numpy(rows).float().split(20)

    with pytest.raises(UsageError, match=f"{len(rows)} held-out images need a group each"):
        Gate.fit(model.eval(), None, batches(), detector="energy", layers="1", groups=groups[1:])


def test_an_exported_gate_has_the_same_p_values(gate: Gate, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    gate.export(tmp_path / "gate.onnx")  # which compares the two
    rows = np.concatenate([features(300, 5)[0], 2 * features(50, 6)[0]]).astype(np.float32)
    session, names = open_session(tmp_path / "gate.onnx"), output_names(gate)
    given = {session.get_inputs()[0].name: rows}
    found = dict(zip(names, run_session(session, names, given), strict=True))
    expected = as_outputs(gate.predict_outputs(rows))
    assert np.allclose(found["p_value"], expected["p_value"], atol=2 / GROUPS)
    assert (found["p_value"] == expected["p_value"]).mean() > 0.95
    assert (found["is_ood"] == (found["p_value"] <= 0.05)).all()


def test_a_new_group_is_flagged_at_the_rate() -> None:
    flagged = []
    for seed in range(60):
        rows, groups = in_groups(100 + seed, groups=39)
        made = Gate.fit_outputs(
            *features(400, 0), rows, detector="knn", groups=groups, false_alarm_rate=0.1
        )
        flagged.append(made.predict_outputs(features(400, 900 + seed)[0]).is_ood.mean())
    # The rate of one gate is about Beta(4, 36): mean 0.1, standard deviation 0.047.
    assert 0.1 - 4 * 0.047 / 60**0.5 < np.mean(flagged) < 0.1 + 3 * 0.047 / 60**0.5


def test_a_gate_of_images_is_served_without_a_monitor_and_runs_in_onnxruntime(
    caplog: pytest.LogCaptureFixture,
) -> None:
    p = digits()
    made = Gate.fit(
        trained(),
        p.train,
        p.validation,
        detector="knn",
        layers=LAYERS,
        preprocess=preprocess,
        groups=np.arange(300) % 40,
    )
    images = p.test.read(range(20))
    expected = made.predict(images).p_value
    with running(gates={"digits": made}) as found:
        assert found.post("/score", png(images[3])).json()["p_value"] == expected[3]
        assert found.service.find(None).monitor is None
    assert "come in groups, and a monitor needs" in caplog.text
    other = made.with_engine("onnxruntime").predict(images).p_value
    assert np.allclose(other, expected, atol=2 / 40)
