"""A network that somebody already has, as the network of an experiment: no training."""

import hashlib
import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from logging import getLogger
from typing import TypedDict

import torch
from torch import nn

from goen.batch import Inputs, take
from goen.data.feature_set import FeatureSet
from goen.data.imageset import ImageSet
from goen.data.inputs import as_stream, first_inputs
from goen.data.protocol import Protocol
from goen.detectors import DETECTORS, Detector, GoenM, make_detector
from goen.detectors.calibration_head import HeadConfig
from goen.errors import UsageError
from goen.extraction import BATCH_SIZE, load_extractor, returns_outputs
from goen.features.extractor import FeatureExtractor
from goen.features.loaded_model import LoadedModel
from goen.features.loading import as_loaded
from goen.features.pooling import Layout, Tokens
from goen.features.precomputed import LOGITS, Precomputed
from goen.features.preprocess import InputPreprocessing, Preprocess, Preprocessing
from goen.gate.fitting.fit import name_classes
from goen.gate.fitting.passes import try_network
from goen.io.manifest import JsonObject
from goen.io.stages import Stages
from goen.models.placement import evaluating, full_precision
from goen.outputs import LinearClassifier, Outputs
from goen.studies.base import BaseExperiment, Forward
from goen.studies.methods import METHODS, Method, Network, Role, fit_detector, with_tuned
from goen.studies.networks import EpochRecord

_log = getLogger(__name__)
GIVEN: Network = "given"
# What a network was trained with is not known.
BUDGET = "given"
_SEED = 0
# Its score is an estimate that few networks have.
_OWN_UNCERTAINTY = "uncertainty"
WITH_OOD = "_ood"
"""What the key of a detector ends with that OOD images help to fit."""
_TITLES = {"goen": "GOEN, distance only"}


class ModelSettings(TypedDict, total=False):
    """How a model is read; see ``goen.extract``."""

    layers: str | Sequence[str]
    logits: str | int | None
    preprocess: Preprocessing | InputPreprocessing | None
    tokens: Tokens
    layout: Layout


@dataclass(frozen=True, eq=False)
class GivenNetwork:
    """A network that returns ``Outputs``, with its identity.

    Attributes:
        network: in evaluation mode when images pass.
        key: the hash of its weights and settings, and of its outputs for two images.
        features: that it gives.
        classifier: the linear classifier behind one of them, if there is one.
        trained_on: the training images, as far as is known.
        epochs: none.
    """

    network: nn.Module
    key: str
    features: tuple[str, ...]
    classifier: LinearClassifier | None
    trained_on: tuple[ImageSet, ...]
    epochs: Sequence[EpochRecord] = field(default=())


def open_network(
    model: nn.Module | LoadedModel | None, protocol: Protocol, settings: ModelSettings | None = None
) -> GivenNetwork:
    """The model as the network of an experiment; its weights are not touched.

    Args:
        model: any classifier, as for ``Gate.fit``; ``None`` for sets of features.
        protocol: its images, or features.
        settings: how the model is read.

    Raises:
        UsageError: a model that is none, or has other classes than the images.
    """
    train = protocol.train
    example, _ = first_inputs(as_stream(train.take(range(min(2, len(train)))), train.name, 2))
    if isinstance(train, FeatureSet) != (model is None):
        raise UsageError(
            "A model goes with sets of images; sets of features need none."
            if model is not None
            else "These are images: give the model that classifies them."
        )
    network: nn.Module
    if isinstance(train, FeatureSet):
        network = _features_alone(train)
    else:
        assert model is not None, "checked above"
        network = _reading(as_loaded(model), example, settings or {}, protocol.normalisation)
    with evaluating(network), full_precision():
        outputs = try_network(network, network, example)
    name_classes(train.classes, outputs.logits.shape[1])
    return GivenNetwork(
        network, identity(network, outputs), tuple(outputs.features), _copied(outputs), (train,)
    )


def _reading(
    loaded: LoadedModel,
    example: Inputs,
    settings: ModelSettings,
    normalisation: tuple[tuple[float, ...], tuple[float, ...]] | None,
) -> nn.Module:
    """The model in a feature extractor; one that gives ``Outputs`` itself as it is.

    Without a preprocessing, the model's own or one that is set, the protocol's normalisation.
    """
    few, own = take(example, slice(2)), isinstance(loaded.model, FeatureExtractor)
    if not own and not settings and returns_outputs(loaded.model, few):
        return loaded.model
    asked = settings.get("preprocess") or loaded.preprocess(images=True)
    if normalisation is not None and not own and asked is None:
        mean, std = normalisation
        _log.info(f"Images are normalised as the protocol says: mean {mean}, std {std}.")
        settings = {**settings, "preprocess": Preprocess(mean, std)}
    wanted: ModelSettings = {
        "layers": "auto",
        "logits": None,
        "preprocess": None,
        "tokens": "mean",
        "layout": "auto",
        **settings,
    }
    return load_extractor(loaded, few, images=True, **wanted)


def _features_alone(train: FeatureSet) -> Precomputed:
    widths = train.widths
    if LOGITS in widths:
        classes = widths.pop(LOGITS)
        return Precomputed(widths, classes, has_logits=True, classifier=train.classifier)
    network = Precomputed(widths, len(train.classes), has_logits=False)
    for parts, labels in as_stream(train, train.name, BATCH_SIZE):
        assert isinstance(parts, dict), "features have names"
        assert labels is not None, "a set has labels"
        network.add(parts, labels)
    return network


def _copied(outputs: Outputs) -> LinearClassifier | None:
    """The classifier as it is now: the model's own weights may be trained further."""
    return None if outputs.classifier is None else deepcopy(outputs.classifier)


def identity(network: nn.Module, outputs: Outputs) -> str:
    """The hash of the weights, of the settings and of two images' outputs, which code decides."""
    content = hashlib.blake2b(digest_size=8)
    content.update(json.dumps(describe(network), sort_keys=True).encode())
    for name, values in sorted(network.state_dict().items()):
        content.update(name.encode())
        content.update(
            values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        )
    for name, values in [("logits", outputs.logits), *outputs.features.items()]:
        content.update(name.encode())
        content.update(values.detach().half().contiguous().numpy().tobytes())  # not rounding
    return f"given-{content.hexdigest()}"


def describe(network: nn.Module) -> JsonObject:
    """What the network is, for manifests."""
    if not isinstance(network, FeatureExtractor):
        return {"model": type(network).__name__, "layers": [*getattr(network, "widths", ())]}
    kind, function = type(network.model), network.preprocess
    name = getattr(function, "__qualname__", None)
    return {
        "model": f"{kind.__module__}:{kind.__qualname__}",
        "layers": list(network.layers),
        "logits": network.logits,
        "preprocess": (name and f"{function.__module__}:{name}") or repr(function),
        "tokens": network.tokens,
        "layout": network.layout,
    }


class GivenExperiment(BaseExperiment[GivenNetwork]):
    """An experiment on one network that was trained elsewhere.

    Args:
        given: the network.
        protocol: the images; the training images are those that it was trained on.
        stages: finished work; outputs are found again by the network's identity.
        batch_size: images per forward pass.
    """

    def __init__(
        self,
        given: GivenNetwork,
        protocol: Protocol,
        stages: Stages,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        super().__init__(
            protocol,
            stages,
            budget=BUDGET,
            seed=_SEED,
            head=HeadConfig(),
            batch_size=batch_size,
        )
        self._given = given

    @property
    def recipe(self) -> JsonObject:
        return {"network": {**describe(self._given.network), "identity": self._given.key}}

    def is_default(self, method: Method) -> bool:
        """Whether the method is compared unless it is named: without OOD images."""
        return not method.uses_ood

    def members(self, network: Network) -> list[GivenNetwork]:
        """The network."""
        if network != GIVEN:
            raise UsageError(f"The method needs a network of its own ({network}): goen trains it.")
        return [self._given]

    def _plain(self, member: GivenNetwork, network: Network) -> Forward:
        return Forward(member.network, member.key, member.features, member.classifier)


def detector_methods(
    network: nn.Module, detectors: Sequence[str | Detector] = (), *, tune: bool = False
) -> tuple[list[Method], dict[str, str]]:
    """The methods of a given network, each a detector, and those left out with the reason.

    Args:
        network: whose outputs they score.
        detectors: names, as of ``goen fit --detector``, with ``_ood`` behind one that OOD images
            help to fit; or detectors. All that need no network of their own if none is given.
        tune: those with parameters also with those that OOD images choose.

    Raises:
        UsageError: one that was named cannot score the outputs of this network.
    """
    if isinstance(detectors, str | Detector):
        raise UsageError(f"detectors are a list, got one: write detectors=[{detectors!r}].")
    methods: list[Method] = []
    skipped: dict[str, str] = {}
    names = [name for name in METHODS if name in DETECTORS]
    names += [name for name in DETECTORS if name not in (*METHODS, _OWN_UNCERTAINTY)]
    wanted = detectors or names
    if tune:
        chosen = [name for name in wanted if isinstance(name, str)]
        wanted = [*wanted, *with_tuned(chosen)[len(chosen) :]]
    for given in wanted:
        detector, with_ood = _detector(given, network)
        why = _why_not(detector, network)
        if why is None:
            methods.append(_method(given, detector, with_ood=with_ood))
        elif detectors:
            raise UsageError(f"{detector} is left without what it needs: {why}")
        else:
            skipped[str(given)] = why
    keys = [method.key for method in methods]
    twice = [key for key in keys if keys.count(key) > 1]
    if twice:
        raise UsageError(f"Each detector is compared once; {twice[0]} is named twice.")
    return methods, skipped


def own_networks() -> str:
    """Which methods no given network can have, in a sentence."""
    titles = "; ".join(m.title for m in METHODS.values() if _needs_own_network(m))
    return f"Not compared, as each needs a network of its own, which goen trains: {titles}."


def _needs_own_network(method: Method) -> bool:
    trained = method.network not in ("standard", "goen")
    return trained or method.forward_mode in ("last_map_max", "last_map_mean_std")


def has_logits(network: nn.Module) -> bool:
    """Whether it classifies: features alone may have no logits."""
    return not isinstance(network, Precomputed) or network.has_logits


def _why_not(detector: Detector, network: nn.Module) -> str | None:
    """Why features without a network, or without logits, are not enough for the detector."""
    if isinstance(network, Precomputed) and detector.needs_gradient:
        return "It takes gradients of a network, and features have none."
    if not has_logits(network) and not hasattr(detector, "feature"):
        return f"It reads the logits of a classifier, and there are none ({LOGITS})."
    return None


def _detector(given: str | Detector, network: nn.Module) -> tuple[Detector, bool]:
    """A copy of the detector, and whether OOD images help to fit it."""
    if isinstance(given, Detector):
        return deepcopy(given), False
    with_ood = given not in DETECTORS and given.endswith(WITH_OOD)
    detector = make_detector(given.removesuffix(WITH_OOD) if with_ood else given)
    if with_ood and not detector.uses_ood:
        raise UsageError(f"{detector} uses no OOD images: leave {WITH_OOD} out of {given!r}.")
    if isinstance(detector, GoenM) and not has_logits(network):
        detector = GoenM(detector.layers, logit_cues=())
    return detector, with_ood or detector.needs_ood


def _method(given: str | Detector, detector: Detector, *, with_ood: bool) -> Method:
    """A detector as a method of a given network, by what it declares."""
    roles: list[Role] = ["train"] if detector.needs_fit else []
    roles += ["calibration"] if detector.calibrates(with_ood=with_ood) else []
    roles += ["ood"] if with_ood else []
    title, relative = repr(detector), METHODS.get(str(given)) or METHODS.get(detector.name)
    if isinstance(given, str):
        name = given.removesuffix(WITH_OOD) if with_ood else given
        title = _TITLES.get(name) or (METHODS[name].title if name in METHODS else name)
    helped = with_ood and not detector.needs_ood
    return Method(
        given if isinstance(given, str) else repr(detector),
        f"{title.partition(',')[0]}, fitted with OOD" if helped else title,
        partial(fit_detector, detector),
        "other" if relative is None else relative.section,
        GIVEN,
        tuple(roles),
        detector if detector.needs_gradient else "plain",
        detector.require_library,
    )
