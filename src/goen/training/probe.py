"""A linear classifier on the features of a pretrained network, which stays as it is."""

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from goen.data.imageset import ImageSet, require_disjoint
from goen.errors import FitError, UsageError, first_of
from goen.extraction import load_extractor, stream
from goen.features.extractor import FeatureExtractor
from goen.features.loaded_model import LoadedModel
from goen.features.loading import as_loaded, is_library_model, load_model
from goen.features.package_networks import PRETRAINED
from goen.features.pooling import Tokens
from goen.features.preprocess import Preprocess
from goen.models.efficientnet_lite import EfficientNetLite
from goen.models.seeding import seeded

BACKBONE = "efficientnet-lite0"
"""The network of ``fit_probe`` unless another is named."""
BATCH_SIZE = 32  # images of 224 pixels: larger batches are slower on a CPU, and take gigabytes
# The probe is fitted on so many images at most, and its penalty chosen with so many: more change a
# linear classifier of a thousand numbers little, and each passes through the network.
MOST_IMAGES, MOST_TO_CHOOSE = 50_000, 10_000
# scikit-learn's C is one of these over the number of images: the penalty for each is the same.
STRENGTHS = (0.24, 0.8, 2.4, 8.0, 24.0, 80.0, 240.0, 800.0, 2400.0)
_ITERATIONS = 300
_LEAST_SIZE = 160

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Probe:
    """A network for the classes of a training set, and how it was made.

    Attributes:
        network: gives ``Outputs`` with the logits of the linear classifier, the features, and the
            classifier itself. ``Gate.fit`` and every study take it; a gate with a network of
            ``PACKAGE_NETWORKS`` is loaded without a model.
        backbone: the name of the pretrained network, such as ``pretrained:efficientnet-lite0``.
        strength: which of ``STRENGTHS`` was chosen: a weaker penalty is a larger number.
        losses: on the validation images, by strength: the mean log-loss.
        accuracy: on the validation images, which chose the strength.
        images: how many training images fitted it.
    """

    network: FeatureExtractor
    backbone: str
    strength: float
    losses: Mapping[float, float]
    accuracy: float
    images: int


def fit_probe(
    backbone: str | LoadedModel | nn.Module,
    train: ImageSet,
    validation: ImageSet,
    *,
    layers: Sequence[str] | None = None,
    size: int | None = None,
    tokens: Tokens = "mean",
    batch_size: int = BATCH_SIZE,
    device: torch.device | str = "cpu",
) -> Probe:
    """A linear classifier for the classes of ``train`` in place of a pretrained network's own.

    Logistic regression on the standardised features that the network's own classifier reads. The
    strength of its penalty is the one with the smallest log-loss on the validation images, from the
    strongest on until the loss rises twice. Nothing is drawn at random but the images, of more than
    ``MOST_IMAGES``, and these always the same: the same arguments give the same network.

    Args:
        backbone: a name in ``PACKAGE_NETWORKS``, such as ``efficientnet-lite0``; a name that
            ``goen.load_model`` takes (``hf:FOLDER``); what it returns (``timm:NAME`` with weights);
            or a classifier, of which a copy is taken.
        train: images with labels, any number of classes from two.
        validation: others of the same classes. They choose the penalty, so they cannot set the
            threshold of a gate: in a ``Protocol`` they are ``calibration_id``.
        layers: whose features the network gives; by default the layer at half of the depth and the
            one that the classifier reads, as in any other network: see docs/pretrained.md.
        size: of the images in the network. By default the size that it was trained with; in a
            network of ``PACKAGE_NETWORKS``, which takes any size, images of less than half of that
            are enlarged to twice their own, but at least 160 pixels.
        tokens: of a transformer's layers: ``mean`` of all tokens, or the first (``class``). What
            the network's own classifier reads is read as it is.
        batch_size: images per forward pass.
        device: where the network runs and stays.

    Raises:
        UsageError: sets of different classes, a class without training images, or a network whose
            logits are no linear function of a feature.
        FitError: features that are not finite.
        LeakError: an image in both sets.
    """
    _check_sets(train, validation)
    loaded = _opened(backbone)
    model = copy.deepcopy(loaded.model).to(device).eval().requires_grad_(False)
    example = torch.from_numpy(train.read(slice(0, 2))).to(device)
    reader, layer, feature = _reader(replace(loaded, model=model), example, size, tokens)
    used = train.take(_drawn(train.labels, MOST_IMAGES))
    features, others = (
        _features(reader, images, feature, batch_size) for images in (used, validation)
    )
    fitted = fit_logistic_regression(features, used.labels, others, validation.labels)
    _replace_classifier(model, layer, fitted)
    network = FeatureExtractor(
        model,
        layers or reader.layers,
        preprocess=reader.preprocess,
        tokens=reader.tokens,
        example=example,
    )
    return Probe(network, loaded.name, fitted.strength, fitted.losses, fitted.accuracy, len(used))


def _reader(
    loaded: LoadedModel, example: Tensor, size: int | None, tokens: Tokens
) -> tuple[FeatureExtractor, str, str]:
    """The model in a feature extractor, the layer that classifies, and the feature it reads."""
    preprocess = loaded.preprocess(images=True)
    if size is not None:
        own = preprocess if isinstance(preprocess, Preprocess) else Preprocess()
        preprocess = replace(own, size=size, crop=None)
    elif isinstance(loaded.model, EfficientNetLite) and isinstance(preprocess, Preprocess):
        preprocess = _resized(preprocess, max(example.shape[2:]))
    reader = load_extractor(
        loaded,
        example,
        images=True,
        preprocess=preprocess,
        layers="auto",
        logits=None,
        tokens=tokens,
        layout="auto",
        reads=lambda _: (),  # the layers are not for a detector: not logged
    )
    if reader.classifying_layer is not None:
        return reader, *reader.classifying_layer
    raise UsageError(
        f"The logits of {loaded.name or type(loaded.model).__name__} are no linear function of one "
        "of its features, so there is no classifier to replace. Wrap the model so that its last "
        "layer is linear."
    )


def _check_sets(train: ImageSet, validation: ImageSet) -> None:
    if validation.classes != train.classes:
        raise UsageError(
            f"{train.name} has the classes {first_of(train.classes, 5)}, {validation.name} has "
            f"{first_of(validation.classes, 5)}: both sets need the same, in the same order."
        )
    without = [name for name, count in train.counts().items() if not count]
    if len(train.classes) < 2:
        raise UsageError(f"A classifier needs two classes or more; {train.name} has one.")
    if without:
        raise UsageError(
            f"{train.name} has no images of {first_of(without, 5)}: give training images of each "
            "class, or leave the class out."
        )
    if not len(validation):
        raise UsageError(
            f"{validation.name} has no images: validation images choose the penalty of the "
            "classifier. Set some training images apart."
        )
    require_disjoint(validation, train)


def _opened(backbone: str | LoadedModel | nn.Module) -> LoadedModel:
    if not isinstance(backbone, str):
        return as_loaded(backbone)
    return load_model(backbone if is_library_model(backbone) else f"{PRETRAINED}:{backbone}")


def _resized(own: Preprocess, side: int) -> Preprocess:
    """The preprocessing at a size that suits images this small."""
    usual, enough = own.read_image_size, max(_LEAST_SIZE, 2 * side)
    return own if usual is None or enough >= max(usual) else replace(own, size=enough, crop=None)


def _drawn(labels: Integers, most: int) -> Integers:
    """The rows of at most so many images, in order: of every class as many as of the others."""
    if len(labels) <= most:
        return np.arange(len(labels))
    order = np.random.RandomState(0).permutation(len(labels))
    grouped = order[np.argsort(labels[order], kind="stable")]
    counts = np.bincount(labels)
    within = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.sort(grouped[np.argsort(within, kind="stable")[:most]])


def _features(network: FeatureExtractor, images: ImageSet, name: str, batch_size: int) -> Floats:
    rows = [part.features[name] for part in stream(network, images, batch_size=batch_size)]
    values: Floats = torch.cat(rows).float().numpy()
    if not np.isfinite(values).all():
        raise FitError(
            f"Features {name!r} of {images.name} hold NaN or infinity. Check the preprocessing."
        )
    return values


@dataclass(frozen=True)
class LogisticClassifier:
    """Logistic regression on features as they are: ``(C, D)``, ``(C,)``; see ``Probe``."""

    weight: Tensor
    bias: Tensor
    strength: float
    losses: Mapping[float, float]
    accuracy: float


def fit_logistic_regression(
    train: Floats, labels: Integers, validation: Floats, truth: Integers
) -> LogisticClassifier:
    """The linear classifier of ``fit_probe`` on features ``(N, D)``.

    Args:
        train: features.
        labels: their classes, all of ``0 .. C - 1``.
        validation: features that choose the strength of the penalty.
        truth: their classes.
    """
    mean = train.mean(axis=0, dtype=np.float64)
    scale = train.std(axis=0, dtype=np.float64)
    scale[scale <= 1e-12 * np.abs(mean)] = 1.0  # the same for every image: no information
    near, other = (((values - mean) / scale).astype(np.float32) for values in (train, validation))
    few = _drawn(labels, MOST_TO_CHOOSE)
    losses: dict[float, float] = {}
    regression = None
    for strength in STRENGTHS:
        regression = _regression(near[few], labels[few], strength, regression)
        losses[strength] = _log_loss(regression, other, truth)
        if len(losses) - 1 - [*losses.values()].index(min(losses.values())) >= 2:
            break
    strength = min(losses, key=lambda one: losses[one])
    regression = _regression(near, labels, strength, None)
    weight, bias = regression.coef_, regression.intercept_
    if len(weight) == 1:  # of two classes scikit-learn gives the logit of the second
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    weight = weight.astype(np.float64) / scale
    accuracy = float((regression.predict(other) == truth).mean())
    return LogisticClassifier(
        torch.from_numpy(weight), torch.from_numpy(bias - weight @ mean), strength, losses, accuracy
    )


def _regression(
    features: Floats, labels: Integers, strength: float, start: LogisticRegression | None
) -> LogisticRegression:
    """Fitted from the weights of ``start``, if there are any."""
    made = LogisticRegression(C=strength / len(labels), max_iter=_ITERATIONS, warm_start=True)
    if start is not None:
        made.coef_, made.intercept_, made.classes_ = start.coef_, start.intercept_, start.classes_
    with warnings.catch_warnings():
        # Weak penalties converge slowly; the validation images judge what was reached.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return made.fit(features, labels)


def _log_loss(regression: LogisticRegression, features: Floats, truth: Integers) -> float:
    logits = regression.decision_function(features)
    if logits.ndim == 1:  # of two classes it is the logit of the second
        logits = np.stack([np.zeros_like(logits), logits], axis=1)
    # Not scikit-learn's logarithm of a probability, which is -inf where that rounds to 0.
    logs = log_softmax(logits, axis=1)
    return float(-logs[np.arange(len(truth)), truth].mean(dtype=np.float64))


def _replace_classifier(model: nn.Module, name: str, fitted: LogisticClassifier) -> None:
    """Put a layer with these weights where the model has its classifier."""
    old = model.get_submodule(name)
    classes, width = fitted.weight.shape
    pixelwise = isinstance(old, nn.Conv2d)
    with seeded(0):  # the weights that it begins with are drawn
        new = nn.Conv2d(width, classes, 1) if pixelwise else nn.Linear(width, classes)
    with torch.no_grad():
        new.weight.copy_(fitted.weight.reshape(new.weight.shape))
        assert new.bias is not None
        new.bias.copy_(fitted.bias)
    like = next(old.parameters())
    parent, _, last = name.rpartition(".")
    setattr(model.get_submodule(parent), last, new.to(like).requires_grad_(False).eval())
