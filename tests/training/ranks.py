"""What torchrun starts in the tests of several processes; writes what it found as safetensors."""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from goen.data import protocol
from goen.models import NetworkConfig
from goen.training import TrainingConfig, backbone, help_training, train_backbone
from goen.training.batches import batches
from goen.training.distributed import (
    broadcast,
    current_rank,
    join_processes,
    num_processes,
    parallel,
    sum_over_processes,
)

NETWORK = NetworkConfig(num_classes=7, width=4, rotations=True)
CONFIG = TrainingConfig(
    epochs=3,
    batch_size=64,
    learning_rate=0.05,
    padding=1,
    center_loss=0.01,
    look_ahead=3,
    rotation_loss=0.5,
    early_epochs=1,
)


def train(out: Path) -> None:
    """Trainings of digits with a checkpoint; a rank may be killed when its second epoch begins."""
    images = protocol("digits").train.take(range(200))
    if os.environ.get("KILLED") == str(current_rank()):
        original = backbone._train_epoch

        def killed(state: backbone.Checkpoint, *rest: object) -> tuple[float, float, float]:
            if state.epoch == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(state, *rest)  # type: ignore[arg-type]

        backbone._train_epoch = killed  # type: ignore[assignment]
    if current_rank():
        return help_training(images)
    checkpoint = out.with_suffix(".checkpoint")
    network, rows = train_backbone(NETWORK, CONFIG, images, images, checkpoint=checkpoint)
    found = {name: value.contiguous() for name, value in network.state_dict().items()}
    found["losses"] = torch.tensor([row.loss for row in rows], dtype=torch.float64)
    found["accuracies"] = torch.tensor([row.accuracy for row in rows])
    # Another training in the same processes, whose first layer is frozen after an epoch.
    fast = replace(NETWORK, architecture="fast_cnn", classifier="epinet")
    _, others = train_backbone(fast, replace(CONFIG, epochs=2), images, images)
    found["other losses"] = torch.tensor([row.loss for row in others], dtype=torch.float64)
    broadcast(None)
    save_file(found, out)
    return None


def gradients(state: backbone.Checkpoint) -> dict[str, torch.Tensor]:
    return {k: p.grad.clone() for k, p in state.loss.named_parameters() if p.grad is not None}


def step(out: Path) -> None:
    """The gradients of a step by these processes, and those of each share by rank 0 alone."""
    images = protocol("digits").train.take(range(65))
    config = replace(CONFIG, batch_size=65)
    state = backbone._begin(NETWORK, config, images, torch.device("cpu"))
    shares = [next(batches(images, config, 0, rank, 2)) for rank in range(2)]
    found = {"sum": torch.tensor(sum_over_processes(current_rank() + 1, 0.5))}
    for rank, share in enumerate(shares):
        state.loss(share, 0.5)[0].backward()
        found |= {f"{rank}.{name}": grad for name, grad in gradients(state).items()}
        state.optimiser.zero_grad()
    if current_rank():
        torch.nn.init.zeros_(state.network.conv1.weight)  # type: ignore[union-attr, arg-type]
    loss_of = parallel(state.loss)  # it averages as long as it is there
    loss_of(shares[current_rank()], 0.5)[0].backward()
    found |= {f"both.{name}": grad for name, grad in gradients(state).items()}
    assert broadcast({"sent": current_rank()}) == {"sent": 0}
    if not current_rank():
        save_file(found, out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    assert (current_rank(), num_processes()) == (0, 1)
    with join_processes() as joined:
        assert joined == current_rank()
        {"train": train, "step": step}[sys.argv[1]](Path(sys.argv[2]))
