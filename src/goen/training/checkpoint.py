"""The state of a training between two epochs, as one safetensors file."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from goen.errors import ArtifactError
from goen.io.files import whole_file
from goen.io.manifest import Manifest
from goen.io.tensors import Tensors
from goen.models import Backbone


@dataclass
class Checkpoint:
    """A network in training: all that the next epoch depends on.

    ``settings`` identify the training: a checkpoint of another one is not continued. ``average``
    is that of look-ahead.
    """

    network: Backbone
    optimiser: torch.optim.SGD
    centres: nn.Parameter | None
    rotations: nn.Linear | None = None
    settings: str = ""
    epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Tensor] | None = None
    average: dict[str, Tensor] | None = None

    def parameters(self) -> dict[str, nn.Parameter]:
        """What the optimiser moves, by name."""
        named = dict(self.network.named_parameters())
        if self.centres is not None:
            named["centres"] = self.centres
        if self.rotations is not None:
            named |= {f"rotations.{k}": v for k, v in self.rotations.named_parameters()}
        moved = {id(p) for group in self.optimiser.param_groups for p in group["params"]}
        return {name: parameter for name, parameter in named.items() if id(parameter) in moved}

    def momenta(self) -> dict[str, Tensor]:
        """The momentum of each parameter, by its name."""
        return {
            name: self.optimiser.state[parameter]["momentum_buffer"]
            for name, parameter in self.parameters().items()
        }


def save_checkpoint(path: Path, state: Checkpoint) -> None:
    """Write the state, whole or not at all."""
    tensors = {f"network.{k}": v for k, v in state.network.state_dict().items()}
    tensors |= {f"best.{k}": v for k, v in (state.best or {}).items()}
    tensors |= {f"average.{k}": v for k, v in (state.average or {}).items()}
    if state.centres is not None:
        tensors["centres"] = state.centres.detach()
    if state.rotations is not None:
        tensors |= {f"rotations.{k}": v for k, v in state.rotations.state_dict().items()}
    tensors |= {f"momentum.{name}": momentum for name, momentum in state.momenta().items()}
    metadata = {
        "epoch": str(state.epoch),
        "history": json.dumps(state.history),
        "settings": state.settings,
    }
    # safetensors keeps rows, not memory layouts: the layout comes back from the network itself.
    plain = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    with whole_file(path, overwrite=True) as temporary:
        save_file(plain, temporary, metadata=metadata)


def load_checkpoint(path: Path, state: Checkpoint) -> None:
    """Bring ``state`` to where the file left off; without a file it stays as it is.

    Raises:
        ArtifactError: the file belongs to another training or is damaged.
    """
    if not path.exists():
        return
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        if metadata["settings"] != state.settings:
            raise ValueError("it belongs to a training with other settings or images")
        named, expected = Tensors(tensors), state.network.state_dict()
        network, best = named.part("network."), named.part("best.")
        for weights in (network, best) if best else (network,):
            weights.check_like(expected, largest=None)  # a diverged training may hold NaN
        average = named.part("average.")
        if average:
            floats = {k: v for k, v in expected.items() if v.is_floating_point()}
            average.check_like(floats, largest=None)
        state.network.load_state_dict(network)
        state.best = dict(best) or None
        state.average = {k: v.to(expected[k].device) for k, v in average.items()} or None
        with torch.no_grad():
            if state.centres is not None:
                state.centres.copy_(tensors["centres"])
            if state.rotations is not None:
                state.rotations.load_state_dict(named.part("rotations."))
            for name, momentum in state.momenta().items():
                momentum.copy_(tensors[f"momentum.{name}"])
        rows = Manifest({"history": json.loads(metadata["history"])}).parts("history")
        state.history = [dict(row.content) for row in rows]
        state.epoch = int(metadata["epoch"])
    except (OSError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{path} cannot be continued: {error}. Delete it to start this training again."
        ) from error
