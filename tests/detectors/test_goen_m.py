import numpy as np
import pytest
import torch
from goen.detectors.density import Density
from goen.detectors.scorer import conformal_columns
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy as scipy_entropy
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from goen.detectors.calibration_head import CalibrationHead
from goen.detectors.goen import Goen
from goen.detectors.goen_m import Monotone
from goen.errors import FitError, NotFittedError, UsageError
from goen.outputs import Outputs

CLASSES = 3


def outputs(count: int, shift: float, seed: int) -> tuple[Outputs, Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    centres = torch.eye(6)[:CLASSES] * 4 + 1
    features = {
        "early": centres[labels] + torch.randn(count, 6, generator=g) + shift,
        "late": centres[labels][:, :4] + torch.randn(count, 4, generator=g) * 0.5 - shift,
    }
    logits = torch.randn(count, CLASSES, generator=g) + 4 * torch.eye(CLASSES)[labels]
    return Outputs(logits, features), labels


def fitted(ood: bool = False) -> Monotone:
    scorer = Monotone(["early", "late"])
    for part in range(3):
        scorer.update(*outputs(50, 0.0, part))
    strange = {
        "far": scorer.cues(outputs(30, 3.0, 8)[0]),
        "near": scorer.cues(outputs(40, 1, 9)[0]),
    }
    return scorer.calibrate(scorer.cues(outputs(60, 0.0, 7)[0]), strange if ood else None)


def test_cues_are_those_of_scipy_and_sklearn() -> None:
    train = [outputs(50, 0.0, part) for part in range(3)]
    probe, _ = outputs(5, 1.0, 4)
    cues = fitted().cues(probe)
    for column, layer in enumerate(("early", "late")):
        rows = torch.cat([o.features[layer] for o, _ in train]).double().numpy()
        # 150 rows of three classes: a fiftieth of a class is the first neighbour.
        bank = NearestNeighbors(n_neighbors=1).fit(rows / np.linalg.norm(rows, axis=1)[:, None])
        unit = probe.features[layer].double().numpy()
        distance, _ = bank.kneighbors(unit / np.linalg.norm(unit, axis=1)[:, None])
        assert np.allclose(cues[:, column], distance[:, -1], atol=1e-7)
    p = torch.softmax(probe.logits.double(), 1).numpy()
    assert np.allclose(cues[:, 2], scipy_entropy(p, axis=1))


def test_without_ood_the_score_is_the_mean_of_z_scores() -> None:
    scorer = fitted()
    known, probe = scorer.id_cues_.numpy(), scorer.cues(outputs(5, 1.0, 4)[0])
    score, probability = scorer.judge(probe)
    expected = ((probe.numpy() - known.mean(0)) / known.std(0, ddof=1)).mean(1)
    assert np.allclose(score, expected)
    assert probability is None
    assert not scorer.gives_probability


def test_a_score_worked_by_hand() -> None:
    scorer = Monotone(["early"])
    scorer.update(*outputs(30, 0.0, 0))
    # Means 2 and 3, standard deviations 1 and 2.
    scorer.calibrate(torch.tensor([[1.0, 1.0], [2.0, 3.0], [3.0, 5.0]], dtype=torch.float64))
    score, _ = scorer.judge(torch.tensor([[4.0, 4.0]], dtype=torch.float64))
    assert score.item() == 1.25
    # One of three known images is at least 3, and all are at least 0.
    p = scorer.cue_p_values(torch.tensor([[3.0, 0.0]], dtype=torch.float64))
    assert p.tolist() == [[0.5, 1.0]]


def test_with_ood_the_probability_is_the_sigmoid_at_one_half() -> None:
    scorer = fitted(ood=True)
    cues = scorer.cues(outputs(20, 2.0, 5)[0])
    score, probability = scorer.judge(cues)
    assert np.allclose(probability, 1 / (1 + np.exp(-score.numpy())))
    known, _ = scorer.judge(scorer.id_cues_)
    assert known.mean() < 0 < score.mean()


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(-50, 50), min_size=3, max_size=3),
    st.lists(st.floats(0, 50), min_size=3, max_size=3),
    st.booleans(),
)
def test_what_is_farther_in_every_cue_never_scores_lower(
    here: list[float], step: list[float], ood: bool
) -> None:
    scorer = FITTED[ood]
    near = torch.tensor([here], dtype=torch.float64)
    far = near + torch.tensor([step], dtype=torch.float64)
    assert scorer.judge(far)[0] >= scorer.judge(near)[0] - 1e-12


FITTED = {ood: fitted(ood) for ood in (False, True)}


def test_ood_that_looks_more_known_than_the_known_is_refused() -> None:
    scorer = fitted()
    probe = scorer.cues(outputs(5, 1.0, 4)[0])
    before = scorer.judge(probe)[0]
    with pytest.raises(FitError, match="No cue is higher for the OOD images"):
        scorer.calibrate(scorer.id_cues_, {"odd": scorer.id_cues_ - 100})
    assert torch.equal(scorer.judge(probe)[0], before)
    assert not scorer.gives_probability
    with pytest.raises(FitError, match="NaN or infinity"):
        scorer.calibrate(scorer.id_cues_ * torch.nan)


def test_new_training_images_forget_the_calibration() -> None:
    scorer = fitted(ood=True).update(*outputs(10, 0.0, 3))
    for use in (lambda: scorer.judge(torch.zeros(1, 3)), scorer.state, scorer.config):
        with pytest.raises(NotFittedError, match="not calibrated"):
            use()


def test_a_cue_that_never_varies_is_only_centred() -> None:
    scorer = fitted()
    flat = torch.tensor([[1.0, 0.1, 0.0]] * 3, dtype=torch.float64)
    flat[1, 0], flat[2, 2] = 3.0, 2.0
    scorer.calibrate(flat)  # the mean of three 0.1 is not 0.1
    assert (scorer.judge(flat)[0].abs() < 2).all()
    assert scorer.std_[1] == 1


def test_names_that_cannot_be_meant() -> None:
    for layers in ([], ["late", "entropy"]):
        with pytest.raises(UsageError, match="one layer or more"):
            Monotone(layers)
    with pytest.raises(FitError, match="Two ID images or more"):
        fitted().calibrate(torch.zeros(1, 3))


@pytest.mark.parametrize("ood", [False, True])
def test_a_saved_scorer_is_the_same_to_the_last_bit(ood: bool) -> None:
    scorer = fitted(ood)
    loaded = Monotone.from_state(scorer.config(), scorer.state())
    probe, _ = outputs(20, 1.0, 6)
    cues = scorer.cues(probe)
    assert torch.equal(loaded.cues(probe), cues)
    for own, other in zip(scorer.judge(cues), loaded.judge(cues), strict=True):
        assert (own is None and other is None) or torch.equal(own, other)
    assert str(loaded) == str(scorer)
    scorer.check(CLASSES, {"early": 6, "late": 4})
    with pytest.raises(ValueError, match="another network"):
        scorer.check(CLASSES, {"early": 6, "late": 5})


def scorers() -> dict[str, Goen | Monotone]:
    train = outputs(150, 0.0, 0)
    density = Density(feature="late").fit(*train)
    torch.manual_seed(0)
    return {
        "goen": Goen(density, CalibrationHead().eval(), density.cues(outputs(30, 0.0, 1)[0])),
        "goen without a head": Goen(density, None),
        "goen-m": fitted(),
        "goen-m with OOD": fitted(ood=True),
    }


@pytest.mark.parametrize("name", scorers())
def test_the_traceable_form_says_the_same(name: str) -> None:
    scorer = scorers()[name]
    probe, _ = outputs(200, 1.5, 3)
    probe.features["late"][0] = 0.0
    probe.logits[1] = torch.tensor([900.0, -900.0, 0.0])
    with torch.no_grad():
        traced = scorer.traceable()(probe)
    score, _ = scorer.judge(scorer.cues(probe))
    assert traced.dtype == torch.float64
    assert torch.allclose(traced, score, rtol=1e-9, atol=1e-6 if name == "goen" else 1e-9)


def test_the_papers_similarity_counts_downwards() -> None:
    scorer = scorers()["goen"]
    far = scorer.cues(outputs(50, 5.0, 2)[0])
    p = scorer.cue_p_values(far)
    assert (p.mean(0)[:2] < 0.2).all()
    assert scorers()["goen without a head"].cue_p_values(far) is None
    loaded = Goen.from_state(scorer.config(), scorer.state())
    assert torch.equal(loaded.cue_p_values(far), p)


def test_columns_are_compared_with_their_own() -> None:
    reference = torch.tensor([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    p = conformal_columns(torch.tensor([[2.0, 31.0], [0.0, 10.0]]), reference)
    assert p.tolist() == [[0.75, 0.25], [1.0, 1.0]]
