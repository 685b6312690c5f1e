"""The networks that a study trains itself, by a preset."""

from collections.abc import Mapping
from dataclasses import replace
from logging import getLogger
from typing import get_args

from torch import nn

from goen.checks import check_choice
from goen.data.protocol import Protocol
from goen.detectors import AdaSCALE, Perturbed
from goen.detectors.adascale import MOVED
from goen.detectors.odin import PERTURBED
from goen.io.manifest import JsonObject
from goen.io.stages import Stages
from goen.models import Backbone, ClassifierKind, Representation
from goen.models.flip_averaging import FlipAveraged
from goen.models.placement import find_device
from goen.models.repooled import GAMMA, Repooled
from goen.studies.base import BaseExperiment, FittedMethod, Forward
from goen.studies.methods import ForwardMode, Method, Network, goen_m_for
from goen.studies.networks import Trained, train
from goen.studies.presets import SEEDS, Budget, Preset, choose_preset
from goen.training.precision import PrecisionChoice, choose_precision

__all__ = ["AS_PRESET", "NETWORKS", "Experiment", "FittedMethod", "variant_of"]

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
    return (*dict.fromkeys((*backbone.two_scales, *(goen_m_for(backbone).feature or ()))), "z")


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


class Experiment(BaseExperiment[Trained]):
    """An experiment that trains its networks, each when it is first needed.

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
        if budget == "paper":
            protocol = replace(protocol, threshold_images="test")
        if isinstance(preset, str):
            preset = choose_preset(preset, protocol, budget, seed)
        super().__init__(protocol, stages, budget=budget, seed=seed, head=preset.head)
        self._device = find_device(device)
        chosen = choose_precision(precision, preset.training.precision, self._device)
        self.preset = replace(preset, training=replace(preset.training, precision=chosen))
        self._variants: Budget = budget
        self._trained: dict[tuple[str, int], Trained] = {}

    @property
    def recipe(self) -> JsonObject:
        return self.preset.to_json()

    def is_default(self, method: Method) -> bool:
        """Whether the method is compared unless it is named.

        Flip averaging is not for networks trained without flips, and the maximum of the last map
        not for the fast CNN, whose classifier reads just that. Methods with OOD images need some.
        """
        if method.uses_ood and not self.protocol.calibration_ood:
            return False
        if method.forward_mode == "last_map_max":
            return self.preset.network.architecture != "fast_cnn"
        return method.forward_mode != "flip_averaged" or self.preset.training.flip != "never"

    def members(self, network: Network) -> list[Trained]:
        """The network, or the members of the ensemble; the first has the study's seed."""
        if network != "ensemble":
            return [self._train(network, self.seed)]
        others = [seed for seed in SEEDS if seed != self.seed]
        return [self._train("standard", s) for s in [self.seed, *others][: len(SEEDS)]]

    def _train(self, network: Network, seed: int) -> Trained:
        if (network, seed) not in self._trained:
            variant = variant_of(self.preset, network, self._variants)
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

    def _forward(self, member: Trained, network: Network, forward_mode: ForwardMode) -> Forward:
        backbone, key = member.network, member.key
        features = _features("standard" if network == "ensemble" else network, backbone)
        module: nn.Module = backbone
        if forward_mode in ("perturbed", "one_value_perturbed"):
            one_value = forward_mode == "one_value_perturbed"
            module = perturbed = Perturbed(backbone, one_value=one_value)
            key += f" {forward_mode} {perturbed.epsilon} {perturbed.temperature}"
            features = (PERTURBED,)
        elif forward_mode == "moved":
            detector = AdaSCALE()
            module, features = detector.prepare_network(backbone), ("z", MOVED)
            key += f" moved {detector.epsilon} {detector.share}"
        elif forward_mode == "last_map_max":
            module, key, features = Repooled(backbone, "max"), f"{key} {forward_mode}", ()
        elif forward_mode == "last_map_mean_std":
            module, features = Repooled(backbone, "mean_std"), ()
            key += f" {forward_mode} {GAMMA}"
        elif forward_mode == "flip_averaged":
            module, key = FlipAveraged(module), f"{key} {forward_mode}"
        classifier = backbone.linear_classifier() if "z" in features else None
        return Forward(module, key, features, classifier)
