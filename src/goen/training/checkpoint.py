"""The state of a training between two epochs, as one safetensors file."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from goen.errors import ArtifactError
from goen.io.files import whole_file
from goen.io.manifest import Manifest
from goen.io.tensors import Tensors
from goen.models import Backbone
from goen.training.config import TrainingConfig
from goen.training.losses import TrainingLoss

# What a checkpoint holds beside the weights that are trained.
_OTHER = ("best.", "average.", "momentum.")


@dataclass
class Checkpoint:
    """A network in training: all that the next epoch depends on.

    ``loss`` holds the network, and what else is trained with it. ``settings`` identify the
    training: a checkpoint of another one is not continued. ``average`` is that of look-ahead.
    """

    loss: TrainingLoss
    optimiser: torch.optim.SGD
    settings: str = ""
    epoch: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: dict[str, Tensor] | None = None
    average: dict[str, Tensor] | None = None

    @property
    def network(self) -> Backbone:
        return self.loss.network

    @property
    def config(self) -> TrainingConfig:
        return self.loss.config

    def momenta(self) -> dict[str, Tensor]:
        """The momentum of each parameter that the optimiser moves, by its name."""
        return {
            name.removeprefix("network."): self.optimiser.state[parameter]["momentum_buffer"]
            for name, parameter in self.loss.named_parameters()
            if parameter in self.optimiser.state
        }


def save_checkpoint(path: Path, state: Checkpoint) -> None:
    """Write the state, whole or not at all."""
    tensors = dict(state.loss.state_dict())
    tensors |= {f"best.{k}": v for k, v in (state.best or {}).items()}
    tensors |= {f"average.{k}": v for k, v in (state.average or {}).items()}
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
        best, average, momenta = (
            named.part(f"{name}.") for name in ("best", "average", "momentum")
        )
        begun = Tensors({k: v for k, v in tensors.items() if not k.startswith(_OTHER)})
        floats = {k: v for k, v in expected.items() if v.is_floating_point()}
        for found, like in (
            (begun, state.loss.state_dict()),
            (best, expected if best else {}),
            (average, floats if average else {}),
            (momenta, state.momenta()),
        ):
            found.check_like(like, largest=None)  # a diverged training may hold NaN
        state.loss.load_state_dict(begun)
        state.best = dict(best) or None
        state.average = {k: v.to(expected[k].device) for k, v in average.items()} or None
        for name, momentum in state.momenta().items():
            momentum.copy_(momenta[name])
        rows = Manifest({"history": json.loads(metadata["history"])}).parts("history")
        state.history = [dict(row.content) for row in rows]
        state.epoch = int(metadata["epoch"])
    except (OSError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise ArtifactError(
            f"{path} cannot be continued: {error}. Delete it to start this training again."
        ) from error
