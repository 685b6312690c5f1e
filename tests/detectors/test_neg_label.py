import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from goen.detectors import DETECTORS, MCM, NegLabel
from goen.errors import FitError, UsageError
from tests.detectors.linear import CLASSES, DIM, labels, of, some, weights
from tests.detectors.saving import reloaded


def words(count: int, seed: int = 5) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, DIM, generator=generator, dtype=torch.float64)


def kept(candidates: torch.Tensor, share: float, quantile: float) -> list[int]:
    """The words that are least like the classes, from the definition."""
    likeness = 1 - cdist(candidates.numpy(), weights()[0].numpy(), "cosine")
    by_word = [np.quantile(row, quantile) for row in likeness]
    return sorted(range(len(by_word)), key=lambda n: by_word[n])[: int(share * len(by_word))]


def slow(images: torch.Tensor, groups: list[torch.Tensor], temperature: float) -> list[float]:
    """S, image by image and group by group."""
    names = weights()[0]
    found = []
    for image in images:
        shares = []
        for group in groups:
            to_names, to_words = (
                sum(
                    np.exp(float(image @ other / (image.norm() * other.norm())) / temperature)
                    for other in others
                )
                for others in (names, group)
            )
            shares.append(to_names / (to_names + to_words))
        found.append(float(np.mean(shares)))
    return found


@pytest.mark.parametrize(("temperature", "groups"), [(1.0, 4), (0.05, 1), (0.2, 3)])
def test_it_is_the_mean_share_of_the_class_names(temperature: float, groups: int) -> None:
    train, other, candidates = some(30), some(20, 1), words(40)
    detector = NegLabel.with_words(
        candidates, temperature=temperature, share=0.4, quantile=0.7, groups=groups
    ).fit(train, labels(30))
    chosen = kept(candidates, 0.4, 0.7)
    order = np.random.RandomState(0).permutation(16)
    size = 16 // groups
    of_groups = [
        candidates[[chosen[n] for n in order[start : start + size]]]
        for start in range(0, groups * size, size)
    ]
    share = slow(other.features["z"], of_groups, temperature)
    score = detector.score(other).numpy()
    assert np.allclose(1 / (1 + np.exp(score)), share, rtol=1e-9)
    assert len(of_groups) == groups


def test_by_hand() -> None:
    # One class along x, words along y and -x; the word against the class is the less alike.
    outputs = of(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([[3.0, 0.0]]))
    candidates = torch.tensor([[0.0, 5.0], [-1.0, 0.0]])
    one = NegLabel.with_words(candidates, temperature=1, share=0.5, groups=1)
    one.fit(outputs, torch.tensor([0, 0]))
    assert one.negatives_.tolist() == [[[-1.0, 0.0]]]
    # Log-odds: the cosine with the word minus that with the class, -1 - 1 and 0 - 0.
    assert one.score(outputs).tolist() == pytest.approx([-2, 0], abs=1e-12)
    both = NegLabel.with_words(candidates, temperature=0.5, share=1, groups=1)
    both.fit(outputs, torch.tensor([0, 0]))
    expected = [np.log(np.exp(0) + np.exp(-2)) - 2, np.log(np.exp(2) + np.exp(0)) - 0]
    assert both.score(outputs).tolist() == pytest.approx(expected)


def test_far_scores_do_not_tie() -> None:
    # At the authors' temperature the share of the class names rounds to 1.
    angles = torch.tensor([0.0, 0.1, 0.2])
    images = torch.stack([angles.cos(), angles.sin()], dim=1)
    outputs = of(images, torch.tensor([[1.0, 0.0]]))
    detector = NegLabel.with_words(torch.tensor([[-1.0, 0.0]]), share=1).fit(
        outputs, torch.zeros(3, dtype=torch.int64)
    )
    scores = detector.score(outputs)
    assert (scores.diff() > 0).all()
    assert scores[0].item() == pytest.approx(-200)


def test_words_that_are_left_over_are_left_out() -> None:
    train = some(30)
    detector = NegLabel.with_words(words(11), share=1, groups=4).fit(train, labels(30))
    assert detector.negatives_.shape == (4, 2, DIM)
    few = NegLabel.with_words(words(3), share=1).fit(train, labels(30))
    assert few.negatives_.shape == (3, 1, DIM)


def test_saved_and_loaded_it_scores_the_same_without_the_words() -> None:
    train, other = some(30), some(20, 1)
    detector = NegLabel.with_words(words(50), share=0.5, groups=5).fit(train, labels(30))
    again = reloaded(detector)
    assert torch.equal(again.score(other), detector.score(other))
    with pytest.raises(ValueError, match="negatives"):
        reloaded(detector, {"negatives": 2 * detector.negatives_})
    with pytest.raises(ValueError, match="negatives"):
        reloaded(detector, {"negatives": detector.negatives_[..., 1:].clone()})
    with pytest.raises(ValueError, match="directions"):
        reloaded(detector, without="directions")


def test_a_traced_program_scores_the_same() -> None:
    train, other = some(30), some(20, 1)
    detector = NegLabel.with_words(words(50), share=0.5, groups=5).fit(train, labels(30))

    class Program(torch.nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return detector.score_cues(detector.cues(of(z, *weights())))

    z = other.features["z"]
    program = torch.export.export(Program(), (z,)).module()
    assert torch.allclose(program(z), detector.score(other), rtol=1e-12)


def test_no_command_can_ask_for_it() -> None:
    assert "neg_label" not in DETECTORS
    assert "mcm" in DETECTORS
    assert len(weights()[0]) == CLASSES


def test_what_cannot_be_meant_is_refused() -> None:
    train = some(30)
    with pytest.raises(UsageError, match=r"make it with their embeddings, NegLabel\.with_words"):
        NegLabel().fit(train, labels(30))
    with pytest.raises(UsageError, match="floats"):
        NegLabel.with_words(torch.ones(3, DIM, dtype=torch.int64))
    with pytest.raises(FitError, match="embedding"):
        NegLabel.with_words(torch.full((3, DIM), torch.nan))
    with pytest.raises(FitError, match="A class or a word has the embedding 0"):
        NegLabel.with_words(torch.zeros(20, DIM)).fit(train, labels(30))
    with pytest.raises(FitError, match=r"0\.15 of 5 words is none"):
        NegLabel.with_words(words(5)).fit(train, labels(30))
    with pytest.raises(UsageError, match="width"):
        NegLabel.with_words(words(20)[:, 1:]).fit(train, labels(30))
    for wrong in ({"temperature": 0}, {"share": 0}, {"quantile": 1.5}, {"groups": 0}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            NegLabel(**wrong)


def test_it_asks_for_more_than_mcm() -> None:
    # An image between a class name and a word: MCM knows the class alone.
    outputs = of(torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 2.0]]), torch.eye(3)[:2])
    truth = torch.tensor([0, 1])
    negative = NegLabel.with_words(torch.eye(3)[2:], share=1).fit(outputs, truth)
    assert negative.score(outputs)[1] > 0 > negative.score(outputs)[0]
    assert MCM().fit(outputs, truth).score(outputs)[1] < 0
