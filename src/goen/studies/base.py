"""What every experiment shares: networks from any source, their outputs, methods fitted on them."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from goen.data.imageset import ImageSet
from goen.data.inputs import as_stream, first_inputs
from goen.data.protocol import Protocol
from goen.detectors import Detector
from goen.detectors.calibration_head import HeadConfig
from goen.errors import UsageError
from goen.extraction import BATCH_SIZE, stream
from goen.gate.fitting.passes import try_network
from goen.io.manifest import JsonObject, Manifest
from goen.io.results import Origin
from goen.io.stages import Stages
from goen.models import Backbone
from goen.models.ensemble import ensemble
from goen.models.flip_averaging import FlipAveraged
from goen.models.placement import evaluating, full_precision
from goen.models.repooled import GAMMA, Repooled
from goen.models.rotated import Rotated
from goen.outputs import LinearClassifier, Outputs
from goen.studies.methods import FitData, ForwardMode, Labelled, Method, Network, labels_of
from goen.studies.networks import Member, outputs

AnyMember = TypeVar("AnyMember", bound=Member)


class Forward(NamedTuple):
    """What passes over the images, and what is kept of it.

    Attributes:
        module: returns ``Outputs``.
        key: its identity.
        features: those that are kept, the last one last.
        classifier: the linear classifier behind one of them, if there is one.
    """

    module: nn.Module
    key: str
    features: tuple[str, ...]
    classifier: LinearClassifier | None = None


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


class BaseExperiment(ABC, Generic[AnyMember]):
    """The networks of one study and their outputs, each computed when first needed.

    Where the networks come from is the choice of a subclass: ``Experiment`` trains them,
    ``GivenExperiment`` is handed one.

    Args:
        protocol: the images.
        stages: finished work.
        budget: of the training, as results record it.
        seed: of the training, as results record it.
        head: the training of the paper's calibration head.
        batch_size: images per forward pass.
    """

    def __init__(
        self,
        protocol: Protocol,
        stages: Stages,
        *,
        budget: str,
        seed: int,
        head: HeadConfig,
        batch_size: int = BATCH_SIZE,
    ) -> None:
        self.protocol = protocol
        self.budget = budget
        self.seed = seed
        self.head = head
        self._stages = stages
        self._batch_size = batch_size
        self._outputs: dict[tuple[str, str], tuple[Outputs, float]] = {}
        self._prepared: dict[tuple[str, Detector], Forward] = {}

    @property
    @abstractmethod
    def recipe(self) -> JsonObject:
        """The settings of the networks, for ``run.json``."""

    @abstractmethod
    def members(self, network: Network) -> Sequence[AnyMember]:
        """The network, or the members of the ensemble."""

    @abstractmethod
    def _plain(self, member: AnyMember, network: Network) -> Forward:
        """The network as it is, with the features that methods of this network read."""

    @abstractmethod
    def is_default(self, method: Method) -> bool:
        """Whether the method is compared unless it is named."""

    @cached_property
    def _to_fit(self) -> dict[str, ImageSet]:
        """The sets for fitting by role; ``ood:NAME`` for the OOD sets."""
        return {
            "train": self.protocol.train,
            "calibration": self.protocol.calibration_id,
            **{f"ood:{name}": images for name, images in self.protocol.calibration_ood.items()},
        }

    def outputs(
        self, network: Network, images: ImageSet, forward_mode: ForwardMode = "plain"
    ) -> tuple[Outputs, float]:
        """The network's outputs for the set, and the seconds of its pass."""
        forwards = [self._forward(m, network, forward_mode) for m in self.members(network)]
        key = ("+".join(forward.key for forward in forwards), images.fingerprint)
        if key not in self._outputs:
            passes = [self._pass(forward, images) for forward in forwards]
            whole = passes[0][0] if network != "ensemble" else ensemble([o for o, _ in passes])
            self._outputs[key] = (whole, sum(seconds for _, seconds in passes))
        return self._outputs[key]

    def forget(self, images: ImageSet) -> None:
        """Free the outputs for this set; the finished stages still hold them."""
        for key in [key for key in self._outputs if key[1] == images.fingerprint]:
            del self._outputs[key]

    def _forward(self, member: AnyMember, network: Network, forward_mode: ForwardMode) -> Forward:
        """What passes over the images for methods of this network and forward mode."""
        plain = self._plain(member, network)
        if forward_mode == "plain":
            return plain
        if forward_mode == "flip_averaged":
            return plain._replace(
                module=FlipAveraged(plain.module), key=f"{plain.key} {forward_mode}"
            )
        if isinstance(forward_mode, Detector):
            if (plain.key, forward_mode) not in self._prepared:
                self._prepared[plain.key, forward_mode] = self._prepare(plain, forward_mode)
            return self._prepared[plain.key, forward_mode]
        if not isinstance(plain.module, Backbone):
            raise UsageError(f"{forward_mode} is for networks that goen trains: --from-scratch.")
        if forward_mode == "rotated":
            return Forward(Rotated(plain.module), f"{plain.key} {forward_mode}", ())
        if forward_mode == "last_map_max":
            return Forward(Repooled(plain.module, "max"), f"{plain.key} {forward_mode}", ())
        key = f"{plain.key} {forward_mode} {GAMMA}"
        return Forward(Repooled(plain.module, "mean_std"), key, ())

    def _prepare(self, plain: Forward, detector: Detector) -> Forward:
        """The network as the detector prepares it, with the features that the detector reads.

        One without an attribute ``feature`` reads those that it adds, and the classifier's.
        """
        module = detector.prepare_network(plain.module)
        few = self.protocol.train.take(range(min(2, len(self.protocol.train))))
        example, _ = first_inputs(as_stream(few, few.name, len(few)))
        with evaluating(plain.module), full_precision():
            try_network(plain.module, module, example)
            (tried,) = stream(module, few)
        given = tuple(tried.features)
        read = given
        if not hasattr(detector, "feature"):
            classifier = plain.classifier.feature if plain.classifier is not None else None
            read = tuple(n for n in given if n == classifier or n not in plain.features)
        # Modules that print their settings can be shared between detectors.
        settings = module.extra_repr() or repr(detector)
        key = f"{plain.key} {type(module).__name__}({settings})"
        return Forward(module, key, read, plain.classifier)

    def _pass(self, forward: Forward, images: ImageSet) -> tuple[Outputs, float]:
        whole, seconds = outputs(
            forward.module,
            forward.key,
            images,
            self._stages,
            features=forward.features,
            batch_size=self._batch_size,
        )
        if forward.classifier is not None:
            whole = replace(whole, classifier=forward.classifier)
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
        sets = {role: self._labelled(method, role, images) for role, images in used.items()}
        # A process's first optimiser imports torch._dynamo, which takes longer than most fits.
        torch.optim.Adam([torch.zeros(1, requires_grad=True)])
        started = time.perf_counter()
        detector = method.fit(FitData(members[0].network, self.head, sets))
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

    def _labelled(self, method: Method, role: str, images: ImageSet) -> Labelled:
        whole, _ = self.outputs(method.network, images, method.forward_mode)
        labels = labels_of(images.labels)
        if not role.startswith("ood:"):
            whole = replace(whole, labels=labels)
        return Labelled(whole, labels)

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
