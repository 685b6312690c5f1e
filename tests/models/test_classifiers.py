import math

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from scipy.stats import kstest
from torch import Tensor, nn
from torch.distributions import Dirichlet, kl_divergence
from torch.nn.functional import cross_entropy

from goen.functional.predictive import mutual_information
from goen.metrics import ood_metrics
from goen.models.classifiers import (
    CLASSIFIERS,
    INDEX_SIZE,
    TRAINING_INDICES,
    Classifier,
    EpiNet,
    Evidential,
    LinearClassifier,
    MCDropout,
    MixtureOfExperts,
)

WIDTH, CLASSES = 48, 5
KINDS = sorted(CLASSIFIERS)
SAMPLING = ("dropout", "epinet")


def make(kind: str, seed: int = 0, classes: int = CLASSES) -> Classifier:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return CLASSIFIERS[kind](WIDTH, classes)  # type: ignore[index]


def features(rows: int = 40, seed: int = 0) -> Tensor:
    drawn = np.random.default_rng(seed).normal(size=(rows, WIDTH)) * 2
    return torch.from_numpy(drawn).float().relu()


LABELS = torch.arange(40) % CLASSES


def blobs(rows: int, seed: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """Features around three points, each on eight axes of its own, the first from ``first`` on."""
    labels = torch.arange(rows) % 3
    axes = torch.eye(WIDTH)[first : first + 24].view(3, 8, WIDTH).sum(1)
    return 0.3 * features(rows, seed).sqrt() + 2 * axes[labels], labels


def trained(kind: str) -> Classifier:
    classifier = make(kind, classes=3).train()
    moving = [p for p in classifier.parameters() if p.requires_grad]
    sgd = torch.optim.SGD(moving, 0.1, momentum=0.9, weight_decay=5e-4)
    hidden, labels = blobs(150, seed=1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for step in range(150):
            loss, _ = classifier.loss(hidden, labels, progress=step / 150)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
    return classifier.eval()


@pytest.mark.parametrize("kind", KINDS)
class TestEveryClassifier:
    def test_the_softmax_of_the_logits_is_a_prediction_of_every_row(self, kind: str) -> None:
        logits, uncertainty = make(kind).eval().predict(features())
        assert logits.shape == (40, CLASSES)
        assert logits.dtype == torch.float32
        assert torch.isfinite(logits).all()
        if kind == "linear":
            assert uncertainty is None
        else:
            assert uncertainty is not None
            assert uncertainty.shape == (40,)
            assert uncertainty.dtype == torch.float64
            assert (uncertainty >= 0).all()
            assert len(uncertainty.unique()) > 30
        if kind in ("dropout", "evidential", "epinet"):  # logits that are log-probabilities
            assert torch.allclose(logits.exp().sum(1), torch.ones(40), atol=1e-5)

    def test_evaluation_is_deterministic(self, kind: str) -> None:
        classifier = make(kind).eval()
        torch.manual_seed(1)
        first, state = classifier.predict(features()), torch.get_rng_state()
        torch.manual_seed(2)
        again = classifier.predict(features())
        assert torch.equal(first.logits, again.logits)
        assert first.uncertainty is None or torch.equal(first.uncertainty, again.uncertainty)
        torch.manual_seed(1)
        assert torch.equal(state, torch.get_rng_state()), "evaluation drew random numbers"

    def test_a_row_does_not_depend_on_its_batch(self, kind: str) -> None:
        classifier = make(kind).eval()
        hidden = features()
        whole = classifier.predict(hidden)
        for rows in (slice(0, 1), slice(3, 17), slice(None, None, 3), torch.randperm(40)):
            part = classifier.predict(hidden[rows])
            assert torch.allclose(part.logits, whole.logits[rows], atol=1e-6)
            if whole.uncertainty is not None:
                assert torch.allclose(part.uncertainty, whole.uncertainty[rows], atol=1e-7)

    def test_called_like_a_function_it_gives_the_logits(self, kind: str) -> None:
        classifier = make(kind).eval()
        assert torch.equal(classifier(features()), classifier.predict(features()).logits)

    def test_saved_and_loaded_it_says_the_same(self, kind: str) -> None:
        classifier, other = make(kind).eval(), make(kind, seed=1).eval()
        assert not torch.equal(classifier(features()), other(features()))
        other.load_state_dict(classifier.state_dict())
        assert torch.equal(classifier(features()), other(features()))

    def test_in_training_only_the_sampling_ones_are_random(self, kind: str) -> None:
        classifier = make(kind).train()
        losses = {classifier.loss(features(), LABELS)[0].item() for _ in range(3)}
        assert len(losses) == (3 if kind in SAMPLING else 1)

    def test_the_loss_moves_every_parameter_that_learns(self, kind: str) -> None:
        classifier = make(kind).train()
        hidden = features().requires_grad_()
        loss, logits = classifier.loss(hidden, LABELS, label_smoothing=0.1, progress=0.7)
        assert loss.shape == ()
        assert loss.dtype == torch.float32
        assert logits.shape == (40, CLASSES)
        loss.backward()
        assert hidden.grad is not None
        assert hidden.grad.abs().sum() > 0
        for name, parameter in classifier.named_parameters():
            assert (parameter.grad is None) == (not parameter.requires_grad), name
            assert parameter.grad is None or parameter.grad.abs().sum() > 0, name

    def test_it_learns_blobs(self, kind: str) -> None:
        hidden, labels = blobs(90, seed=2)
        assert (trained(kind)(hidden).argmax(1) == labels).all()

    def test_gradients_reach_the_features_in_evaluation(self, kind: str) -> None:
        hidden = features().requires_grad_()
        make(kind).eval()(hidden)[:, 0].sum().backward()
        assert hidden.grad is not None
        assert torch.isfinite(hidden.grad).all()
        assert hidden.grad.abs().sum() > 0

    def test_no_rows_are_no_error(self, kind: str) -> None:
        assert make(kind).eval()(features(0)).shape == (0, CLASSES)


@pytest.mark.parametrize("kind", ["dropout", "evidential", "epinet"])
def test_uncertainty_is_higher_where_no_training_was(kind: str) -> None:
    classifier = trained(kind)
    near = classifier.predict(blobs(90, seed=2)[0]).uncertainty
    far = classifier.predict(blobs(90, seed=3, first=24)[0]).uncertainty
    assert near is not None
    assert far is not None
    assert ood_metrics(near.numpy(), far.numpy()).auroc > 0.95


def test_a_linear_classifier_is_the_layer_it_always_was() -> None:
    torch.manual_seed(3)
    plain = nn.Linear(WIDTH, CLASSES)
    ours = make("linear", seed=3)
    assert list(ours.state_dict()) == ["weight", "bias"]
    assert torch.equal(ours.weight, plain.weight)
    assert torch.equal(ours.bias, plain.bias)
    assert torch.equal(ours(features()), plain(features()))
    assert isinstance(ours, LinearClassifier)
    loss, logits = ours.loss(features(), LABELS, label_smoothing=0.2, progress=0.3)
    assert torch.equal(loss, cross_entropy(plain(features()), LABELS, label_smoothing=0.2))
    assert torch.equal(logits, plain(features()))


def sampled(passes: list[Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """The mean probabilities and the mutual information, in NumPy."""
    p = np.stack([softmax(logits.detach().double().numpy(), axis=1) for logits in passes])
    mean = p.mean(0)
    within = -(p * np.log(p)).sum(2).mean(0)
    return mean, -(mean * np.log(mean)).sum(1) - within


def test_dropout_equals_twenty_passes_one_by_one() -> None:
    classifier = make("dropout").eval()
    assert isinstance(classifier, MCDropout)
    hidden = features()
    assert classifier.masks.shape == (20, WIDTH)
    passes = [classifier.linear(hidden * mask * 2) for mask in classifier.masks]
    mean, information = sampled(passes)
    found = classifier.predict(hidden)
    assert np.allclose(torch.softmax(found.logits, 1).detach(), mean, atol=1e-6)
    assert np.allclose(found.uncertainty, information, atol=1e-7)


def test_the_masks_drop_half_and_differ() -> None:
    masks = CLASSIFIERS["dropout"](1000, 2).masks
    assert isinstance(masks, Tensor)
    assert masks.dtype == torch.bool
    assert abs(masks.double().mean().item() - 0.5) < 4 * 0.5 / math.sqrt(20_000)
    assert len({mask.numpy().tobytes() for mask in masks}) == 20
    torch.manual_seed(1)
    assert torch.equal(masks, MCDropout(1000, 2).masks), "another seed, other masks"


def test_dropout_in_training_is_torchs() -> None:
    classifier = make("dropout").train()
    assert isinstance(classifier, MCDropout)
    torch.manual_seed(5)
    loss, logits = classifier.loss(features(), LABELS, label_smoothing=0.1)
    torch.manual_seed(5)
    plain = classifier.linear(nn.functional.dropout(features(), 0.5))
    assert torch.allclose(loss, cross_entropy(plain, LABELS, label_smoothing=0.1))
    assert torch.allclose(logits, torch.log_softmax(plain, 1), atol=1e-6)


def test_another_rate_drops_another_share() -> None:
    classifier = MCDropout(4000, 2, rate=0.25).eval()
    assert abs(classifier.masks.double().mean().item() - 0.75) < 0.01
    hidden = torch.ones(1, 4000)
    passes = [classifier.linear(hidden * mask / 0.75) for mask in classifier.masks]
    expected = mutual_information(torch.log_softmax(torch.stack(passes).double(), 2))
    assert torch.allclose(classifier.predict(hidden).uncertainty, expected, atol=1e-9)


def one_pass(network: nn.Module, hidden: Tensor, index: Tensor) -> Tensor:
    """The perturbation as it is defined: concatenate, two layers, dot with the index."""
    both = torch.cat([hidden, index.expand(len(hidden), -1)], 1)
    out = network.second(torch.relu(network.first(both)))
    return (out.view(len(hidden), CLASSES, INDEX_SIZE) * index).sum(2)


def test_epinet_equals_twenty_passes_one_by_one() -> None:
    classifier = make("epinet").eval()
    assert isinstance(classifier, EpiNet)
    hidden = features()
    assert classifier.indices.shape == (20, INDEX_SIZE)
    passes = [
        classifier.base(hidden)
        + one_pass(classifier.epinet, hidden, index)
        + one_pass(classifier.prior, hidden, index)
        for index in classifier.indices
    ]
    assert torch.allclose(classifier.samples(hidden), torch.stack(passes), atol=1e-5)
    mean, information = sampled(passes)
    found = classifier.predict(hidden)
    assert np.allclose(torch.softmax(found.logits, 1).detach(), mean, atol=1e-6)
    assert np.allclose(found.uncertainty, information, atol=1e-6)


def test_epinet_draws_a_few_indices_for_each_batch() -> None:
    classifier = make("epinet").train()
    assert isinstance(classifier, EpiNet)
    hidden = features()
    torch.manual_seed(5)
    loss, _ = classifier.loss(hidden, LABELS, label_smoothing=0.1)
    torch.manual_seed(5)
    losses = []
    for index in torch.randn(TRAINING_INDICES, INDEX_SIZE):
        logits = classifier.base(hidden) + one_pass(classifier.epinet, hidden, index)
        logits = logits + one_pass(classifier.prior, hidden, index)
        losses.append(cross_entropy(logits, LABELS, label_smoothing=0.1))
    assert torch.allclose(loss, torch.stack(losses).mean(), atol=1e-6)


def test_the_indices_do_not_depend_on_the_seed_and_look_normal() -> None:
    indices = [make("epinet", seed).indices for seed in (0, 1)]
    assert isinstance(indices[0], Tensor)
    assert torch.equal(*indices)
    assert kstest(indices[0].flatten().numpy(), "norm").pvalue > 0.01


def test_no_gradient_passes_the_epinet() -> None:
    classifier = make("epinet").train()
    assert isinstance(classifier, EpiNet)
    nn.init.zeros_(classifier.base.weight)
    hidden = features().requires_grad_()
    loss, _ = classifier.loss(hidden, LABELS)
    loss.backward()
    assert hidden.grad is not None
    assert torch.equal(hidden.grad, torch.zeros_like(hidden))
    assert classifier.epinet.first.weight.grad is not None
    assert classifier.epinet.first.weight.grad.abs().sum() > 0
    assert classifier.base.weight.grad is not None
    assert classifier.base.weight.grad.abs().sum() > 0


def test_the_prior_is_another_network_and_never_learns() -> None:
    classifier = make("epinet")
    assert isinstance(classifier, EpiNet)
    assert not torch.equal(classifier.prior.first.weight, classifier.epinet.first.weight)
    assert {k for k, v in classifier.named_parameters() if not v.requires_grad} == {
        f"prior.{layer}.{part}" for layer in ("first", "second") for part in ("weight", "bias")
    }
    before = make("epinet", classes=3).state_dict()
    after = trained("epinet").state_dict()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) == (name.startswith("prior") or name == "indices")


def set_logits(classifier: Classifier, logits: list[list[float]]) -> Tensor:
    """Features on which ``classifier.linear`` says these logits."""
    assert isinstance(classifier, Evidential)
    nn.init.zeros_(classifier.linear.bias)
    with torch.no_grad():
        classifier.linear.weight.zero_()
        classifier.linear.weight[:, : len(logits)] = torch.tensor(logits).T
    return torch.eye(WIDTH)[: len(logits)]


def test_evidence_by_hand() -> None:
    classifier = make("evidential", classes=3).eval()
    hidden = set_logits(classifier, [[2.0, -5.0, 4.0], [-1.0, -2.0, -3.0]])
    logits, uncertainty = classifier.predict(hidden)
    # alpha = (3, 1, 5) and (1, 1, 1).
    expected = torch.tensor([[3 / 9, 1 / 9, 5 / 9], [1 / 3, 1 / 3, 1 / 3]])
    assert torch.allclose(torch.softmax(logits, 1), expected)
    assert torch.allclose(logits.exp(), expected)
    assert uncertainty is not None
    assert uncertainty.tolist() == [3 / 9, 1.0]


@pytest.mark.parametrize(
    ("progress", "weight"), [(0, 0), (0.25, 0.5), (0.4, 0.8), (0.5, 1), (0.9, 1)]
)
def test_the_evidential_loss_is_likelihood_and_annealed_divergence(
    progress: float, weight: float
) -> None:
    classifier = make("evidential").train()
    assert isinstance(classifier, Evidential)
    alpha = torch.relu(classifier.linear(features())).double() + 1
    total = 0.0
    for row, label in zip(alpha, LABELS, strict=True):
        without = row.clone()
        without[label] = 1
        divergence = kl_divergence(Dirichlet(without), Dirichlet(torch.ones(CLASSES).double()))
        total += (row.sum() / row[label]).log().item() + weight * divergence.item()
    for smoothing in (0.0, 0.3):
        loss, logits = classifier.loss(
            features(), LABELS, label_smoothing=smoothing, progress=progress
        )
        assert math.isclose(loss.item(), total / 40, rel_tol=1e-6)
    assert torch.allclose(logits.exp(), alpha / alpha.sum(1, keepdim=True))


def test_right_evidence_is_never_punished_by_the_divergence() -> None:
    classifier = make("evidential", classes=3).train()
    hidden = set_logits(classifier, [[50.0, -1.0, -1.0]])
    loss, _ = classifier.loss(hidden, torch.tensor([0]), progress=1.0)
    assert math.isclose(loss.item(), math.log(53 / 51), rel_tol=1e-5)


@pytest.mark.parametrize(
    ("label", "gradient"),
    [
        # alpha = (4, 1, 2), S = 7, and d/d alpha (log S - log alpha_y) = 1/7 - [y] / alpha_y.
        # Class 1 has no evidence, so nothing passes it unless it is the label.
        (0, [1 / 7 - 1 / 4, 0, 1 / 7]),
        (1, [1 / 7, 1 / 7 - 1, 1 / 7]),
    ],
)
def test_a_label_without_evidence_can_come_to_life(label: int, gradient: list[float]) -> None:
    classifier = make("evidential", classes=3).train()
    hidden = set_logits(classifier, [[3.0, -5.0, 1.0]])
    loss, _ = classifier.loss(hidden, torch.tensor([label]), progress=0.0)
    assert math.isclose(loss.item(), math.log(7 / (4, 1)[label]), rel_tol=1e-6)
    loss.backward()
    assert isinstance(classifier, Evidential)
    assert classifier.linear.bias.grad is not None
    assert torch.allclose(classifier.linear.bias.grad, torch.tensor(gradient), atol=1e-7)


def test_the_mixture_is_the_weighted_sum_of_the_experts_logits() -> None:
    classifier = make("experts").eval()
    assert isinstance(classifier, MixtureOfExperts)
    hidden = features()
    gates = softmax(classifier.gate(hidden).detach().double().numpy(), axis=1)
    mixed = np.zeros((40, CLASSES))
    for k, expert in enumerate(classifier.experts):
        first, _, second = expert
        said = torch.relu(hidden @ first.weight.T + first.bias) @ second.weight.T + second.bias
        mixed += gates[:, k : k + 1] * said.detach().numpy()
    found = classifier.predict(hidden)
    assert np.allclose(found.logits.detach(), mixed, atol=1e-6)
    assert np.allclose(found.uncertainty, 1 - gates.max(1), atol=1e-7)
    loss, _ = classifier.loss(hidden, LABELS, label_smoothing=0.2)
    target = 0.8 * np.eye(CLASSES)[LABELS] + 0.2 / CLASSES
    log_p = log_softmax(mixed, axis=1)
    assert math.isclose(loss.item(), -(target * log_p).sum(1).mean(), rel_tol=1e-5)


def test_there_are_five_experts_of_two_layers_and_a_linear_gate() -> None:
    shapes = [tuple(p.shape) for p in make("experts").parameters()]
    assert shapes == [(64, WIDTH), (64,), (CLASSES, 64), (CLASSES,)] * 5 + [(5, WIDTH), (5,)]


def test_gates_that_are_all_but_sure_do_not_tie() -> None:
    classifier = make("experts").eval()
    assert isinstance(classifier, MixtureOfExperts)
    nn.init.zeros_(classifier.gate.bias)
    with torch.no_grad():
        classifier.gate.weight.zero_()
        classifier.gate.weight[0, 0] = 1.0
    hidden = torch.zeros(3, WIDTH)
    hidden[:, 0] = torch.tensor([0.0, 60.0, 61.0])
    uncertainty = classifier.predict(hidden).uncertainty
    assert uncertainty is not None
    # 1 - g = 4 / (4 + exp(h)): 0.8, 3.5e-26, 1.3e-26.
    expected = [4 / (4 + math.exp(h)) for h in (0, 60, 61)]
    assert uncertainty.tolist() == pytest.approx(expected, rel=2e-6, abs=0)
