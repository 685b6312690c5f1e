import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import softmax
from scipy.stats import entropy
from sklearn.preprocessing import normalize

from goen.detectors import Goen
from goen.detectors.calibration_head import HeadConfig, train_head
from goen.errors import FitError, NotFittedError, UsageError
from goen.outputs import Outputs
from tests.detectors.saving import reloaded
from tests.detectors.test_gaussians import blobs


def ood_blobs(count: int, seed: int = 5) -> Outputs:
    """Directions at random, and logits of no class."""
    rng = np.random.default_rng(seed)
    z = torch.from_numpy(rng.normal(size=(count, 6))).float()
    return Outputs(torch.zeros(count, 4), {"z": z})


def slow_cues(fit: Outputs, labels: torch.Tensor, other: Outputs) -> np.ndarray:
    """The paper's equations with scikit-learn and SciPy, one after the other."""
    x, y = normalize(fit.features["z"].double().numpy()), labels.numpy()
    means = np.stack([x[y == c].mean(0) for c in range(4)])
    centred = x - means[y]
    cov = centred.T @ centred / len(x) + 1e-5 * np.eye(x.shape[1])
    unit = normalize(other.features["z"].double().numpy())
    squared = cdist(unit, means, "mahalanobis", VI=np.linalg.inv(cov)) ** 2
    probabilities = softmax(other.logits.double().numpy(), axis=1)
    return np.stack(
        [np.log(squared.min(1) + 1), (unit @ means.T).max(1), entropy(probabilities, axis=1)],
        axis=1,
    )


def test_the_cues_are_the_papers() -> None:
    fit, labels = blobs(200)
    other, _ = blobs(50, seed=1)
    detector = Goen().fit(fit, labels)
    expected = slow_cues(fit, labels, other)
    assert np.allclose(detector.cues(other).numpy(), expected, rtol=1e-7, atol=1e-7)
    assert detector.cue_names == ("log_distance", "similarity", "entropy")


def test_two_classes_worked_by_hand() -> None:
    # Unit vectors (1, 0), (0, 1), each twice: no spread, so the covariance is the ridge alone.
    z = torch.tensor([[2.0, 0.0], [5.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    detector = Goen(ridge=0.5).fit(Outputs(torch.zeros(4, 2), {"z": z}), torch.tensor([0, 0, 1, 1]))
    probe = Outputs(torch.zeros(1, 2), {"z": torch.tensor([[3.0, 4.0]])})
    # (0.6, 0.8): nearest mean (0, 1), squared distance (0.36 + 0.04) / 0.5 = 0.8.
    assert np.allclose(detector.cues(probe).numpy(), [[np.log(1.8), 0.8, np.log(2)]])
    assert detector.score(probe).item() == pytest.approx(np.log(1.8))


def test_without_ood_images_the_log_distance_is_the_score() -> None:
    fit, labels = blobs(200)
    other, _ = blobs(50, seed=1)
    for held_out in (None, blobs(40, seed=2)[0]):
        detector = Goen().fit(fit, labels, held_out=held_out)
        assert torch.equal(detector.score(other), detector.cues(other)[:, 0])
        assert detector.probability(detector.score(other)) is None
        assert not detector.has_probability


def test_with_ood_images_the_heads_logit_is_the_score() -> None:
    fit, labels = blobs(200)
    held_out, ood = blobs(80, seed=2)[0], {"random": ood_blobs(80)}
    config = HeadConfig(batch_size=16, epochs=3)
    detector = Goen(head=config).fit(fit, labels, held_out=held_out, ood=ood)
    plain = Goen().fit(fit, labels)
    id_cues, ood_cues = plain.cues(held_out), {"random": plain.cues(ood["random"])}
    head, _ = train_head(id_cues, ood_cues, config)
    other, _ = blobs(50, seed=1)
    with torch.no_grad():
        expected = head(detector.cues(other).float()).double()
    assert torch.equal(detector.score(other), expected)
    assert torch.equal(detector.score(other), detector.score_cues(detector.cues(other)))
    u = 1 / (1 + np.exp(-expected.numpy()))
    probability = detector.probability(detector.score(other))
    assert np.allclose(probability.numpy(), np.clip((u - 0.05) / 0.9, 0, 1))
    assert detector.has_probability
    assert len(detector.head_epochs_) == 3
    later = plain.calibrate(held_out, ood)
    assert not torch.equal(later.score(other), expected)  # with the default head
    assert torch.equal(
        Goen(head=config).fit(fit, labels).calibrate(held_out, ood).score(other), expected
    )
    assert not later.calibrate(held_out).has_probability


def test_ood_images_need_held_out_images() -> None:
    fit, labels = blobs(40)
    detector = Goen()
    with pytest.raises(UsageError, match="needs held_out ID images beside the OOD images"):
        detector.fit(fit, labels, ood={"random": ood_blobs(40)})
    with pytest.raises(NotFittedError, match="This Goen is not fitted"):
        detector.score(fit)


def test_far_away_scores_higher() -> None:
    fit, labels = blobs(400)
    detector = Goen().fit(fit, labels)
    assert detector.score(ood_blobs(100)).median() > detector.score(fit).quantile(0.9)


def test_updates_in_any_chunks_equal_one_fit() -> None:
    fit, labels = blobs(301)
    whole = Goen().fit(fit, labels).cues(fit)
    parts = Goen()
    for start in range(0, 301, 37):
        parts.update(fit[start : start + 37], labels[start : start + 37])
    assert torch.allclose(parts.cues(fit), whole, rtol=1e-10)


def with_head(count: int = 100) -> Goen:
    ood = {"random": ood_blobs(40)}
    config = HeadConfig(batch_size=16, epochs=1)
    return Goen(head=config).fit(*blobs(count), held_out=blobs(40, seed=2)[0], ood=ood)


def test_new_training_images_drop_the_head() -> None:
    detector = with_head()
    assert detector.has_probability
    detector.update(*blobs(20, seed=4))
    assert not detector.has_probability
    assert detector.head_epochs_ == ()


def test_a_copy_does_not_follow_updates() -> None:
    detector = with_head()
    other = copy.deepcopy(detector)
    probe, _ = blobs(50, seed=1)
    before = detector.score(probe)
    assert torch.equal(other.score(probe), before)
    detector.update(*blobs(100, seed=2))
    assert not torch.equal(detector.score(probe), before)
    assert torch.equal(other.score(probe), before)


def test_ledoit_wolf_comes_back_with_its_share() -> None:
    fit, labels = blobs(60)
    detector = Goen(shrinkage="ledoit_wolf").fit(fit, labels)
    loaded = reloaded(detector)
    assert torch.equal(loaded.cues(fit), detector.cues(fit))
    assert not torch.allclose(detector.cues(fit), Goen().fit(fit, labels).cues(fit))
    with pytest.raises(UsageError, match="Did you mean 'oas'"):
        Goen(shrinkage="oaz")


def test_degenerate_sets_have_scores() -> None:
    fit, labels = blobs(100)
    # a class with one image, and a class with none
    few = labels.clone()
    few[few == 3] = 0
    few[0] = 2
    keep = torch.isin(few, torch.tensor([0, 1])) | (torch.arange(100) == 0)
    detector = Goen().fit(fit[keep], few[keep])
    assert detector.whitening_.classes.tolist() == [0, 1, 2]
    assert torch.isfinite(detector.cues(fit)).all()
    # one class only
    assert torch.isfinite(Goen().fit(fit, torch.zeros(100, dtype=torch.int64)).cues(fit)).all()
    # constant features: only the ridge is left, and distances are still distances
    same = Outputs(torch.zeros(10, 4), {"z": torch.ones(10, 6)})
    flat = Goen().fit(same, torch.arange(10) % 4)
    assert torch.allclose(flat.score(same), torch.zeros(10, dtype=torch.float64))
    assert (flat.score(fit) > 1).all()
    # a zero vector has no direction, and is far from everything
    nothing = Outputs(torch.zeros(1, 4), {"z": torch.zeros(1, 6)})
    assert torch.isfinite(Goen().fit(fit, labels).cues(nothing)).all()


def test_a_thousand_classes() -> None:
    rng = torch.Generator().manual_seed(0)
    z = torch.randn(3000, 16, generator=rng)
    outputs = Outputs(torch.zeros(3000, 1000), {"z": z})
    detector = Goen().fit(outputs, torch.arange(3000) % 1000)
    assert torch.isfinite(detector.cues(outputs)).all()


def test_what_cannot_be_fitted_or_scored_is_an_error() -> None:
    fit, labels = blobs(20)
    with pytest.raises(NotFittedError, match="not fitted"):
        Goen().score(fit)
    broken = Outputs(fit.logits, {"z": fit.features["z"].clone()})
    broken.features["z"][3, 2] = torch.nan
    with pytest.raises(FitError, match="1 of 20"):
        Goen().fit(broken, labels)
    narrow = Outputs(fit.logits, {"z": fit.features["z"][:, :3]})
    with pytest.raises(UsageError, match="width 6, got 3"):
        Goen().fit(fit, labels).score(narrow)


def test_the_papers_similarity_counts_downwards() -> None:
    detector = Goen().fit(*blobs(150))
    near, far = detector.cues(blobs(60, seed=1)[0]), detector.cues(ood_blobs(50))
    upwards = torch.tensor(detector.cue_directions)
    assert upwards.tolist() == [1, -1, 1]
    assert ((far * upwards).mean(0)[:2] > (near * upwards).mean(0)[:2]).all()


def test_a_detector_with_a_head_comes_back() -> None:
    detector = with_head()
    loaded = reloaded(detector)
    assert repr(loaded) == repr(detector)
    assert loaded.has_probability
    probe = ood_blobs(30)
    assert torch.equal(loaded.score(probe), detector.score(probe))
    loaded.update(*blobs(20, seed=4))
    assert torch.equal(loaded.score(probe), detector.update(*blobs(20, seed=4)).score(probe))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("density.mean_high", lambda t: t[1:], "density.mean_high should be float64 of shape"),
        ("density.mean_high", lambda t: t + 1.5, "density.mean_high should hold finite numbers fr"),
        ("density.counts", lambda t: -t, "density.counts should hold numbers from 0"),
        ("density.counts", lambda t: t * 0 + 2**33 + 1, "density.counts should hold numbers from"),
        ("density.within_scatter", lambda t: t * torch.nan, "density.within_scatter should hold"),
        ("density.within_scatter", lambda t: t[:, :3], "density.within_scatter should be float64"),
        ("density.shrinkage", lambda t: t + 2, "density.shrinkage should hold finite numbers"),
        ("head.layers.0.weight", lambda t: t[1:], "head.layers.0.weight should be float32"),
        ("head.layers.4.bias", lambda t: t + 1e30, "head.layers.4.bias should hold finite"),
    ],
)
def test_a_forged_state_is_refused(
    name: str, change: Callable[[torch.Tensor], torch.Tensor], message: str
) -> None:
    detector = with_head()
    with pytest.raises(ValueError, match=message):
        reloaded(detector, {name: change(detector.state()[name])})


def test_as_many_rows_of_a_class_as_sums_are_exact_for_are_accepted() -> None:
    detector = Goen().fit(*blobs(150))
    most = torch.full_like(detector.state()["density.counts"], 2**33)
    assert int(reloaded(detector, {"density.counts": most}).statistics_.counts_.max()) == 2**33


def test_states_of_other_networks_and_half_a_head_are_refused() -> None:
    detector = with_head()
    with pytest.raises(ValueError, match=r"it has no tensor head\.layers\.2\.bias"):
        reloaded(detector, without="head.layers.2.bias")
    with pytest.raises(ValueError, match="unknown names: more"):
        reloaded(detector, {"more": torch.zeros(1)})
    state = detector.state()
    for widths, classes in (({"z": 6}, 5), ({"z": 7}, 4)):
        with pytest.raises(ValueError, match=r"density\.mean_high should be float64 of shape"):
            Goen().load_state(state, widths, classes)
    with pytest.raises(ValueError, match="unpack"):
        Goen().load_state(state, {"z": 3, "y": 3}, 4)
    with pytest.raises(ValueError, match="its settings are of the wrong type"):
        Goen.from_settings({"head": {"epoch": 3}})
    with pytest.raises(ValueError, match="unknown settings: rigde"):
        Goen.from_settings({"rigde": 1.0})
