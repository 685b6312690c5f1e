"""The networks that a study trains itself, by a preset."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from logging import getLogger
from typing import NamedTuple, get_args

from goen.checks import check_choice
from goen.data.imageset import ImageSet
from goen.data.protocol import Protocol
from goen.errors import UsageError
from goen.io.manifest import JsonObject, JsonValue
from goen.io.stages import Stages
from goen.models import Backbone
from goen.models.placement import find_device
from goen.studies.base import BaseExperiment, FittedMethod, Forward
from goen.studies.methods import Method, Network, goen_m_for
from goen.studies.networks import Trained, train
from goen.studies.presets import SEEDS, Budget, Preset, choose_preset
from goen.training.precision import PrecisionChoice, choose_precision

__all__ = ["AS_PRESET", "NETWORKS", "Experiment", "FittedMethod", "variant_of"]

_log = getLogger(__name__)


class Changes(NamedTuple):
    """What a network changes of a preset: settings of ``NetworkConfig`` and of its training."""

    network: Mapping[str, JsonValue]
    training: Mapping[str, JsonValue] = {}


_PLAIN: Mapping[str, JsonValue] = {"representation": "plain"}
_ROTATIONS = Changes({**_PLAIN, "rotations": True}, {"rotation_loss": 1.0, "rotated": 3.0})
NETWORKS: Mapping[Network, Changes] = {
    "standard": Changes(_PLAIN),
    "dropout": Changes({**_PLAIN, "classifier": "dropout"}),
    "evidential": Changes({**_PLAIN, "classifier": "evidential"}),
    "epinet": Changes({**_PLAIN, "classifier": "epinet"}),
    "experts": Changes({**_PLAIN, "classifier": "experts"}),
    "logit_norm": Changes(_PLAIN, {"logit_norm": 0.04}),
    "t2fnorm": Changes({**_PLAIN, "temperature": 0.1}, {"feature_norm": True}),
    "pixmix": Changes(_PLAIN, {"pixmix": 1.0}),
    "rotations": _ROTATIONS,
    "rotations_pixmix": Changes(_ROTATIONS.network, {**_ROTATIONS.training, "pixmix": 1.0}),
    "outliers": Changes(_PLAIN, {"outlier_loss": 0.5}),
    "goen": Changes({"representation": "multi_scale"}),
}
"""The networks that methods need; the preset has the other settings."""
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
    changes = NETWORKS[network]
    config = replace(preset.network, **changes.network)  # type: ignore[arg-type]
    training = replace(preset.training, **changes.training)  # type: ignore[arg-type]
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
        Training methods have a network each, and are named, as are those tuned on OOD images.
        """
        if method.section in ("training", "tuned"):
            return False
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
                self._outliers if variant.training.outlier_loss else (),
            )
        return self._trained[network, seed]

    @property
    def _outliers(self) -> tuple[ImageSet, ...]:
        """The OOD sets that calibrate, which outlier exposure trains with."""
        sets = tuple(self.protocol.calibration_ood.values())
        if not sets:
            raise UsageError(
                "Outlier exposure trains with the OOD sets that calibrate, and there are none: "
                "name some with --calibration-ood."
            )
        return sets

    def _plain(self, member: Trained, network: Network) -> Forward:
        backbone = member.network
        features = _features("standard" if network == "ensemble" else network, backbone)
        classifier = backbone.linear_classifier() if "z" in features else None
        return Forward(backbone, member.key, features, classifier)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How the networks of a study are trained.

    Attributes:
        preset: network and training settings: digits (width 8, half a minute), cpu (width 16, 36
            epochs), short (the same, 12 epochs), fast (another network, made for short trainings of
            sixteen epochs), fast-bf16 (the same in bfloat16, 20 epochs: for processors with
            instructions for it), wide-bf16 (short at width 64 in bfloat16), paper (width 64, 40
            epochs, for a GPU) or paper-bf16 (the same in bfloat16, nine hours of one core); auto
            takes digits for the digits and cpu for CIFAR, and for images of your own cpu, adapted
            to their number and size.
        budget: full trains every network for the full schedule; paper stops early with a patience
            of ten epochs, by all validation images, and gives the baselines 2.5 times GOEN's
            epochs, as in the paper; a fifth of the test images then sets the threshold, and the
            share flagged is measured on the others.
        seed: random seed of training and calibration; an ensemble uses four others as well.
        device: where networks train and run: cpu, cuda (cuda:1 is the second GPU), or auto: CUDA if
            it is available.
        precision: of trainings: float32, bfloat16, or auto: bfloat16 on a GPU that has instructions
            for it, float32 on other GPUs, and the preset's on a CPU.
    """

    preset: str = "auto"
    budget: Budget = "full"
    seed: int = 42
    device: str = "auto"
    precision: PrecisionChoice = "auto"

    def experiment(
        self, protocol: Protocol, stages: Stages, preset: Preset | None = None
    ) -> Experiment:
        """The experiment that trains so; with a preset of its own where one is given."""
        return Experiment(
            preset or self.preset,
            self.budget,
            self.seed,
            protocol,
            stages,
            self.device,
            self.precision,
        )
