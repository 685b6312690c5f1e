"""A pretrained network with a linear classifier of its own as the network of an experiment."""

import json
from dataclasses import asdict
from functools import cached_property
from logging import getLogger
from pathlib import Path

import numpy as np
from safetensors.torch import save_file

from goen.data.input_spec import ImageInputs
from goen.data.protocol import PROTOCOLS, Protocol
from goen.detectors.calibration_head import HeadConfig
from goen.errors import UsageError
from goen.features.package_networks import is_installed
from goen.gate.storage.network import Supplied, build_network, network_manifest, network_tensors
from goen.io.artifacts import reading_stage
from goen.io.json_files import json_object
from goen.io.manifest import JsonObject, Manifest
from goen.io.stages import Stages
from goen.io.tensors import read_tensors
from goen.models.placement import find_device
from goen.studies.adapting import adapt_head
from goen.studies.base import BaseExperiment, Forward
from goen.studies.experiment import AS_PRESET
from goen.studies.given_network import GivenNetwork
from goen.studies.methods import Method, Network
from goen.training.fine_tuning import FineTuning, fine_tune
from goen.training.probe import BACKBONE, BATCH_SIZE, fit_probe

_log = getLogger(__name__)
# To be raised when a change of the code changes the result of the stage.
_REVISION = 1
PROBE, FINE_TUNED = "linear probe", "fine-tuned"
"""The budgets, as results name them."""


def can_be_pretrained(protocol: Protocol) -> bool:
    """Whether a pretrained network can classify these images: in colour, of one's own."""
    colour = protocol.train.image_shape[0] == 3 and protocol.train.pixels.dtype == np.uint8
    return colour and protocol.name not in PROTOCOLS and is_installed(BACKBONE)


class PretrainedExperiment(BaseExperiment[GivenNetwork]):
    """An experiment on a pretrained network with a linear classifier fitted to the images.

    Args:
        protocol: the images, in colour.
        stages: finished work.
        seed: of fine-tuning and of the calibration head; the classifier is not drawn at random.
        tuning: how the network is trained further; ``None`` leaves it as it is.
        device: where it runs; auto is CUDA if it is available.
    """

    def __init__(
        self,
        protocol: Protocol,
        stages: Stages,
        *,
        seed: int,
        tuning: FineTuning | None = None,
        device: str = "auto",
    ) -> None:
        head = adapt_head(HeadConfig(seed=seed), len(protocol.calibration_id))
        budget = PROBE if tuning is None else FINE_TUNED
        super().__init__(
            protocol, stages, budget=budget, seed=seed, head=head, batch_size=BATCH_SIZE
        )
        self._tuning = tuning
        self._device = find_device(device)

    @property
    def recipe(self) -> JsonObject:
        folder = self._stage
        with reading_stage(folder):
            return json_object(folder / "probe.json")

    def is_default(self, method: Method) -> bool:
        """Whether the method is compared unless it is named."""
        return not method.uses_ood or bool(self.protocol.calibration_ood)

    def members(self, network: Network) -> list[GivenNetwork]:
        """The network."""
        if network != AS_PRESET:
            raise UsageError(f"The method needs a network of its own ({network}): --from-scratch.")
        return [self._probed]

    @cached_property
    def _stage(self) -> Path:
        train, validation = self.protocol.train, self.protocol.calibration_id
        inputs: JsonObject = {
            "revision": _REVISION,
            "backbone": BACKBONE,
            "tuning": None if self._tuning is None else asdict(self._tuning),
            "train": train.fingerprint,
            "validation": validation.fingerprint,
            "device": self._device.type,
        }

        def make(result: Path, work: Path) -> None:
            _log.info(f"{BACKBONE}, pretrained on ImageNet, with a linear classifier")
            probe = fit_probe(BACKBONE, train, validation, device=self._device)
            network, losses = probe.network, tuple[float, ...]()
            if self._tuning is not None:
                network, losses = fine_tune(network, train, validation, self._tuning)
            network = network.to("cpu")
            tensors = network_tensors(network, self._inputs)
            save_file({n: t.contiguous() for n, t in tensors.items()}, result / "probe.safetensors")
            facts: JsonObject = {
                "network": network_manifest(network),
                "backbone": probe.backbone,
                "strength": probe.strength,
                "validation_accuracy": probe.accuracy,
                "images": probe.images,
                "tuning": inputs["tuning"],
                "validation_losses": list(losses),
            }
            (result / "probe.json").write_text(json.dumps(facts))

        return self._stages.run("probe", inputs, make)

    @property
    def _inputs(self) -> ImageInputs:
        return ImageInputs(*self.protocol.train.image_shape)

    @cached_property
    def _probed(self) -> GivenNetwork:
        folder = self._stage
        with reading_stage(folder):
            manifest = Manifest(json_object(folder / "probe.json")).part("network")
            tensors = read_tensors(folder / "probe.safetensors")
            supplied = Supplied(None, None, BACKBONE)
            network, outputs = build_network(manifest, tensors, self._inputs, supplied)
        network = network.to(self._device)
        used = (self.protocol.train, self.protocol.calibration_id)
        return GivenNetwork(network, folder.name, tuple(outputs.features), outputs.classifier, used)

    def _plain(self, member: GivenNetwork, network: Network) -> Forward:
        return Forward(member.network, member.key, member.features, member.classifier)
