"""The trained networks of one study, their outputs, and the methods fitted on them."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from logging import getLogger
from typing import get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from goen.checks import check_choice
from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.detectors import AdaSCALE, Detector, Perturbed
from goen.detectors.adascale import MOVED
from goen.detectors.odin import PERTURBED
from goen.errors import UsageError
from goen.io.manifest import Manifest
from goen.io.results import Origin
from goen.io.stages import Stages
from goen.models import Backbone, ClassifierKind, Representation
from goen.models.ensemble import ensemble
from goen.models.flip_averaging import FlipAveraged
from goen.models.placement import find_device
from goen.models.repooled import GAMMA, Repooled
from goen.outputs import Outputs
from goen.studies.methods import (
    FitData,
    ForwardMode,
    Labelled,
    Method,
    Network,
    goen_m_for,
    labels_of,
)
from goen.studies.networks import Trained, outputs, train
from goen.studies.presets import SEEDS, Budget, Preset, choose_preset
from goen.training.precision import PrecisionChoice, choose_precision

_log = getLogger(__name__)

NETWORKS: Mapping[Network, tuple[Representation, ClassifierKind]] = {
    "standard": ("plain", "linear"),
    "dropout": ("plain", "dropout"),
    "evidential": ("plain", "evidential"),
    "epinet": ("plain", "epinet"),
    "experts": ("plain", "experts"),
    "goen": ("multi_scale", "linear"),
}
"""The representation and the classifier of each network; the preset has the other settings."""
# A network trained as the preset says, representation and label smoothing included.
AS_PRESET: Network = "preset"

# In the paper the baselines train for 100 epochs and GOEN for 40.
_PAPER_EPOCHS = 100 / 40


def _features(network: Network, backbone: Backbone) -> tuple[str, ...]:
    """Those that a method of this network reads."""
    if network in ("goen", AS_PRESET):
        return (*(scale.name for scale in backbone.scales), "z")
    if network != "standard":
        return ()
    return (*dict.fromkeys((*backbone.two_scales, *(goen_m_for(backbone).layers or ()))), "z")


def variant_of(preset: Preset, network: Network, budget: Budget) -> Preset:
    """The preset for one of ``NETWORKS``, or as it is for ``AS_PRESET``.

    The baselines have no label smoothing: in the paper only GOEN has it.
    """
    if network == AS_PRESET:
        return preset
    representation, classifier = NETWORKS[network]
    config = replace(preset.network, representation=representation, classifier=classifier)
    training = preset.training
    if network != "goen":
        longer = _PAPER_EPOCHS if budget == "paper" else 1
        training = replace(training, label_smoothing=0.0, epochs=round(training.epochs * longer))
    return Preset(config, training, preset.head)


@dataclass(frozen=True, eq=False)
class FittedMethod:
    """A method fitted on its network's outputs.

    Attributes:
        method: itself.
        detector: fitted.
        origin: what its numbers come from; the seconds are those of the fit.
        training_seconds: of all its networks.
        seen: the OOD sets of which other images calibrated it.
    """

    method: Method
    detector: Detector
    origin: Origin
    training_seconds: float
    seen: tuple[str, ...]


class Experiment:
    """The networks of one study and their outputs, each computed when first needed.

    Args:
        preset: its name, or itself.
        budget: of training.
        seed: of all trainings; the ensemble adds four of the paper's other seeds.
        protocol: the images. With the paper's budget all validation images stop the trainings and
            calibrate, and the threshold comes from test images.
        stages: finished work.
        device: where networks train and run; auto is CUDA if it is available.
        precision: of the trainings; auto is bfloat16 on a GPU that has it, and the preset's
            elsewhere.
    """

    def __init__(
        self,
        preset: str | Preset,
        budget: Budget,
        seed: int,
        protocol: Protocol,
        stages: Stages,
        device: str = "auto",
        precision: PrecisionChoice = "auto",
    ) -> None:
        check_choice("precision", precision, get_args(PrecisionChoice))
        self.budget = budget
        self.seed = seed
        if budget == "paper":
            protocol = replace(protocol, threshold_images="test")
        self.protocol = protocol
        if isinstance(preset, str):
            preset = choose_preset(preset, protocol, budget, seed)
        self._stages = stages
        self._device = find_device(device)
        chosen = choose_precision(precision, preset.training.precision, self._device)
        self.preset = replace(preset, training=replace(preset.training, precision=chosen))
        self._trained: dict[tuple[str, int], Trained] = {}
        self._outputs: dict[tuple[str, str, ForwardMode], tuple[Outputs, float]] = {}

    @cached_property
    def _to_fit(self) -> dict[str, ImageSet]:
        """The sets for fitting by role; ``ood:NAME`` for the OOD sets."""
        return {
            "train": self.protocol.train,
            "calibration": self.protocol.calibration_id,
            **{f"ood:{name}": images for name, images in self.protocol.calibration_ood.items()},
        }

    def members(self, network: Network) -> list[Trained]:
        """The network, or the members of the ensemble; the first has the study's seed."""
        if network != "ensemble":
            return [self._train(network, self.seed)]
        others = [seed for seed in SEEDS if seed != self.seed]
        return [self._train("standard", s) for s in [self.seed, *others][: len(SEEDS)]]

    def _train(self, network: Network, seed: int) -> Trained:
        if (network, seed) not in self._trained:
            variant = variant_of(self.preset, network, self.budget)
            title = "of the preset" if network == AS_PRESET else network
            _log.info(f"network {title}, seed {seed}")
            self._trained[network, seed] = train(
                variant.network,
                replace(variant.training, seed=seed),
                self.protocol.train,
                self.protocol.calibration_id,
                self._stages,
                self._device,
            )
        return self._trained[network, seed]

    def outputs(
        self, network: Network, images: ImageSet, forward_mode: ForwardMode = "plain"
    ) -> tuple[Outputs, float]:
        """The network's outputs for the set, and the seconds of its pass."""
        key = (network, images.fingerprint, forward_mode)
        if key not in self._outputs:
            passes = [self._pass(m, network, images, forward_mode) for m in self.members(network)]
            whole = passes[0][0] if network != "ensemble" else ensemble([o for o, _ in passes])
            self._outputs[key] = (whole, sum(seconds for _, seconds in passes))
        return self._outputs[key]

    def forget(self, images: ImageSet) -> None:
        """Free the outputs for this set; the finished stages still hold them."""
        for key in [key for key in self._outputs if key[1] == images.fingerprint]:
            del self._outputs[key]

    def _pass(
        self, trained: Trained, network: Network, images: ImageSet, forward_mode: ForwardMode
    ) -> tuple[Outputs, float]:
        features = _features("standard" if network == "ensemble" else network, trained.network)
        module: nn.Module = trained.network
        key = trained.key
        if forward_mode in ("perturbed", "one_value_perturbed"):
            one_value = forward_mode == "one_value_perturbed"
            module = perturbed = Perturbed(trained.network, one_value=one_value)
            key += f" {forward_mode} {perturbed.epsilon} {perturbed.temperature}"
            features = (PERTURBED,)
        elif forward_mode == "moved":
            detector = AdaSCALE()
            module, features = detector.prepare_network(trained.network), ("z", MOVED)
            key += f" moved {detector.epsilon} {detector.share}"
        elif forward_mode == "last_map_max":
            module, key, features = Repooled(trained.network, "max"), f"{key} {forward_mode}", ()
        elif forward_mode == "last_map_mean_std":
            module, features = Repooled(trained.network, "mean_std"), ()
            key += f" {forward_mode} {GAMMA}"
        elif forward_mode == "flip_averaged":
            module, key = FlipAveraged(module), f"{key} {forward_mode}"
        whole, seconds = outputs(module, key, images, self._stages, features=features)
        if "z" in features:
            whole = replace(whole, classifier=trained.network.linear_classifier())
        return whole, seconds

    def origin(self, key: str, network: Network) -> Origin:
        """What the numbers of this method by this network come from."""
        members = self.members(network)
        return Origin(
            method=key,
            budget=self.budget,
            seed=self.seed,
            network="+".join(member.key for member in members),
            fitted_on=tuple(images.identity for images in members[0].trained_on),
        )

    def fit(self, method: Method) -> FittedMethod:
        """The method, fitted on the data that it declares and nothing else."""
        members = self.members(method.network)
        roles = self._to_fit.items()
        used = {role: s for role, s in roles if role.partition(":")[0] in method.fits_on}
        sets = {
            role: Labelled(
                self.outputs(method.network, images, method.forward_mode)[0],
                labels_of(images.labels),
            )
            for role, images in used.items()
        }
        # A process's first optimiser imports torch._dynamo, which takes longer than most fits.
        torch.optim.Adam([torch.zeros(1, requires_grad=True)])
        started = time.perf_counter()
        detector = method.fit(FitData(members[0].network, self.preset.head, sets))
        seconds = time.perf_counter() - started
        if not isinstance(detector, Detector):
            raise UsageError(
                f"The fit of method {method.key!r} should return a fitted Detector, got "
                f"{type(detector).__name__}. Let it return what detector.fit(...) returns, of a "
                "subclass of goen.detectors.Detector."
            )
        origin = replace(
            self.origin(method.key, method.network),
            calibrated_on=tuple(used[role].identity for role in used if role != "train"),
            seconds=seconds,
        )
        trained_for = sum(
            Manifest(row).number("seconds") for member in members for row in member.epochs
        )
        seen = tuple(self.protocol.calibration_ood) if method.uses_ood else ()
        return FittedMethod(method, detector, origin, trained_for, seen)

    def score(self, fitted: FittedMethod, images: ImageSet) -> tuple[NDArray[np.float64], float]:
        """The method's scores of the set, and the seconds that are this method's own.

        A pass over perturbed or flipped images counts, since it is made for one method; the plain
        pass, which all methods share, does not.
        """
        forward_mode = fitted.method.forward_mode
        outputs, seconds = self.outputs(fitted.method.network, images, forward_mode)
        started = time.perf_counter()
        scores = fitted.detector.score(outputs).numpy()
        return scores, time.perf_counter() - started + (0.0 if forward_mode == "plain" else seconds)

    def class_logits(self, fitted: FittedMethod, images: ImageSet) -> NDArray[np.float32]:
        """The logits of the method's classification of the set."""
        method = fitted.method
        # Only flip averaging is for labels, too.
        mode = method.forward_mode if method.forward_mode == "flip_averaged" else "plain"
        outputs, _ = self.outputs(method.network, images, mode)
        return fitted.detector.calibrated(outputs).logits.numpy()
