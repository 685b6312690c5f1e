"""What torchrun starts in the tests of several processes; writes what it found as safetensors."""

import os
import signal
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from goen.data import protocol
from goen.models import NetworkConfig
from goen.training import TrainingConfig, backbone, help_training, train_backbone
from goen.training.distributed import Ranks, join_ranks, synchronised_norms

NETWORK = NetworkConfig(num_classes=7, width=4)
CONFIG = TrainingConfig(
    epochs=3,
    batch_size=63,
    learning_rate=0.05,
    padding=1,
    center_loss=0.01,
    look_ahead=3,
    rotation_loss=0.5,
)


def train(out: Path, ranks: Ranks) -> None:
    """A training of digits with a checkpoint; a rank may be killed when its second epoch begins."""
    images = protocol("digits").train.take(range(200))
    if os.environ.get("KILLED") == str(ranks.rank):
        original = backbone._train_epoch

        def killed(state: backbone.Checkpoint, *rest: object) -> tuple[float, float, float]:
            if state.epoch == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(state, *rest)  # type: ignore[arg-type]

        backbone._train_epoch = killed  # type: ignore[assignment]
    if ranks.rank:
        return help_training(images)
    network, rows = train_backbone(
        NETWORK, CONFIG, images, images, checkpoint=out.with_suffix(".checkpoint")
    )
    ranks.broadcast(None)
    found = {name: value.contiguous() for name, value in network.state_dict().items()}
    found["losses"] = torch.tensor([row.loss for row in rows], dtype=torch.float64)
    found["accuracies"] = torch.tensor([row.accuracy for row in rows])
    save_file(found, out)
    return None


class Net(nn.Module):
    """Both kinds of batch norm, one without a weight that learns, and dropout at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.4), nn.Tanh())
        self.first[1].weight.requires_grad = False  # type: ignore[union-attr]
        self.second = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
        self.classifier = nn.Sequential(nn.Dropout(0.3), nn.Linear(5, 2))

    def encode(self, images: Tensor) -> Tensor:
        hidden: Tensor = self.second(self.first(images).mean((2, 3)))
        return hidden


def step(out: Path, ranks: Ranks) -> None:
    """The gradients and the moments of one step of float64, by these processes."""
    torch.manual_seed(0)
    net, images = Net().double(), torch.rand(9, 3, 6, 6, dtype=torch.float64) + 3
    with synchronised_norms(net, ranks):
        torch.manual_seed(1)
        hidden = ranks.gather_rows(net.encode(images[ranks.share(9)]), 9)
        loss = (net.classifier(hidden).square().sum(1) - hidden.prod(dim=1)).mean()
        loss.backward()
    ranks.average_gradients(net.parameters())
    assert "forward" not in vars(net.first[1])
    assert ranks.broadcast({"said": ranks.rank}) == {"said": 0}
    assert ranks.gather_bytes(b"ab" * ranks.rank) == [b"ab" * rank for rank in range(ranks.size)]
    if not ranks.rank:
        found = {f"grad.{k}": p.grad for k, p in net.named_parameters() if p.grad is not None}
        save_file({**found, **dict(net.named_buffers()), "loss": loss.detach()}, out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join_ranks() as joined:
        {"train": train, "step": step}[sys.argv[1]](Path(sys.argv[2]), joined)
