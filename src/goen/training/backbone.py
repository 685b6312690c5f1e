"""Stage 1: train a network on labelled images, resumable at every epoch."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from goen.data.imageset import ImageSet
from goen.errors import FitError, UsageError
from goen.extraction import stream
from goen.functional.gaussian import ClassStatistics
from goen.functional.geometry import feature_geometry
from goen.models import Backbone, NetworkConfig, new_network
from goen.models.seeding import seeded
from goen.progress import bar
from goen.training.batches import TrainingBatch, batches, relative_cost, steps_per_epoch
from goen.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from goen.training.checks import check_outliers, check_possible, check_sets
from goen.training.config import TrainingConfig, learning_rate
from goen.training.distributed import (
    broadcast,
    current_rank,
    num_processes,
    parallel,
    sum_over_processes,
    synchronise_norms,
)
from goen.training.forecast import Forecast
from goen.training.losses import TrainingLoss, logit_norm_loss, normalised
from goen.training.precision import check_bfloat16

# The paper's: epochs without a better validation loss after which a training stops early.
PATIENCE = 10
# Images from which a network computes what it has to know before the first step.
_PREPARING, _PIXELS = 5000, 32 * 32
_SHAPE = ("inter_intra_ratio", "total_top_share", "nc1")


@dataclass(frozen=True)
class EpochRow:
    """What one epoch did.

    The last three describe the geometry of the validation images' z after it, as ``Geometry`` does;
    ``None`` where a measure has no meaning.
    """

    epoch: int
    loss: float
    accuracy: float
    validation_loss: float
    validation_accuracy: float
    learning_rate: float
    seconds: float
    inter_intra_ratio: float | None = None
    total_top_share: float | None = None
    nc1: float | None = None


def train_backbone(
    network_config: NetworkConfig,
    config: TrainingConfig,
    train: ImageSet,
    validation: ImageSet,
    *,
    outliers: ImageSet | None = None,
    checkpoint: Path | None = None,
    device: torch.device | str = "cpu",
    on_epoch: Callable[[EpochRow], None] | None = None,
) -> tuple[Backbone, list[EpochRow]]:
    """A trained network and the history of its training.

    Every epoch draws its randomness from (seed, epoch) alone, so training that goes on from a
    checkpoint ends with the same bytes as training never interrupted, on the same machine with the
    same number of threads.

    Args:
        network_config: what to build.
        config: how to train it.
        train: labelled images.
        validation: measured after every epoch; with ``config.patience`` it also decides when to
            stop.
        outliers: images that belong to no class, for ``config.outlier_loss``; their labels are not
            read.
        checkpoint: a file to write after every epoch, and to go on from if it is there. One of
            other settings, training or validation images is an error.
        device: where to train.
        on_epoch: called after every epoch.
    """
    check_sets(train, validation)
    check_outliers(config, train, outliers)
    device = torch.device(device)
    if config.precision == "bfloat16":
        check_bfloat16(device)
    state = _begin(network_config, config, train, device)
    if checkpoint is not None:
        images = [s.fingerprint for s in (train, validation, outliers) if s is not None]
        settings = [network_config.to_json(), config.to_json(), *images]
        state.settings = json.dumps(settings, sort_keys=True)
        load_checkpoint(checkpoint, state)
    _announce(state, train)
    with _progress(config, train, state.epoch) as show:
        while state.epoch < config.epochs and not _out_of_patience(state, config.patience):
            broadcast(True)
            started = time.perf_counter()
            found: dict[str, Any] = {
                **_train_epoch(state, train, show, outliers),
                **_measure(state, validation),
            }
            row = EpochRow(epoch=state.epoch, seconds=time.perf_counter() - started, **found)
            _remember(state, row, config.patience or PATIENCE)
            if checkpoint is not None:
                save_checkpoint(checkpoint, state)
            if on_epoch is not None:
                on_epoch(row)
    broadcast(False)
    return _finished(state), [EpochRow(**row) for row in state.history]


@contextmanager
def _progress(
    config: TrainingConfig, train: ImageSet, epoch: int
) -> Iterator[Callable[[str], None]]:
    """A function to call after each step: it advances the progress bar and the time estimate."""
    steps = steps_per_epoch(train, config)
    costs = [relative_cost(config, train, later) for later in range(epoch, config.epochs)]
    forecast = Forecast(costs, steps)
    with bar() as progress:
        task = progress.add_task(
            "training", total=config.epochs * steps, status="", completed=epoch * steps
        )

        def show(status: str) -> None:
            forecast.step()
            progress.update(task, advance=1, status=status)

        yield show


def _announce(state: Checkpoint, train: ImageSet) -> None:
    """Send the other processes all that they need; ``parallel`` sends the weights."""
    if num_processes() > 1:
        network, images = state.network, train.fingerprint
        momenta = [momentum.cpu() for momentum in state.momenta().values()]
        average = {name: values.cpu() for name, values in (state.average or {}).items()}
        place = network.mean.device.type
        broadcast((network.config, state.config, images, place, state.epoch, momenta, average))


def help_training(train: ImageSet) -> None:
    """Take this process's share of every training that rank 0 starts, until it sends ``None``.

    Args:
        train: the training images of rank 0.
    """
    while (message := broadcast()) is not None:
        network, config, fingerprint, place, epoch, momenta, average = message
        if fingerprint != train.fingerprint:
            raise UsageError(
                f"Rank 0 trains on other images than rank {current_rank()} has, which are "
                f"{train.name}. Give every machine the same datasets."
            )
        state = _begin(network, config, train, torch.device(place))
        state.epoch = epoch
        for own, sent in zip(state.momenta().values(), momenta, strict=True):
            own.copy_(sent)
        state.average = {name: values.to(place) for name, values in average.items()} or None
        while broadcast():
            _train_epoch(state, train, lambda _: None)
            state.epoch += 1


def _finished(state: Checkpoint) -> Backbone:
    """The network that the training ends with: the average, the best, or the last."""
    if state.average is not None:
        state.network.load_state_dict(state.average, strict=False)
    if state.config.patience is not None and state.best is not None:
        state.network.load_state_dict(state.best)
    return state.network.eval()


def _train_epoch(
    state: Checkpoint,
    train: ImageSet,
    show: Callable[[str], None],
    outliers: ImageSet | None = None,
) -> dict[str, float]:
    """Every step of one epoch; its mean loss, its accuracy and the last learning rate."""
    config = state.config
    losses, hits, seen, done = 0.0, 0.0, 0.0, 0.0
    step = state.epoch * steps_per_epoch(train, config)
    for parameter in state.network.early_parameters():
        parameter.requires_grad_(state.epoch < config.early_epochs)
    # The classifier's randomness (dropout, indices). The numbers that order and augment the images
    # have a generator of their own, and the same seed here would repeat them.
    seed = config.seed * 1_000_003 + 500_009 + state.epoch + current_rank() * 10**16
    with seeded(seed, state.network.mean.device):
        loss_of = parallel(state.loss)
        share = (current_rank(), num_processes())
        for batch in batches(train, config, state.epoch, *share, outliers):
            done = (state.epoch + batch.done) / config.epochs
            loss, right = _step(state, loss_of, batch, done)
            step += 1
            if config.look_ahead and step % config.look_ahead == 0:
                _look_ahead(state, done)
            losses += loss * len(batch.labels)
            hits += right
            seen += len(batch.labels)
            show(f"loss {losses / seen:.3f} accuracy {hits / seen:.1%}")
        losses, hits, seen = sum_over_processes(losses, hits, seen)
    if not math.isfinite(losses):
        raise FitError(
            f"Training diverged: the loss of epoch {state.epoch + 1} is not a number. Lower the "
            f"learning rate, which was {config.learning_rate:g}."
        )
    rate = learning_rate(config, done)
    return {"loss": losses / seen, "accuracy": hits / seen, "learning_rate": rate}


def _step(
    state: Checkpoint, loss_of: nn.Module, batch: TrainingBatch, progress: float
) -> tuple[float, int]:
    """One step of SGD; the loss and how many labels were right."""
    for group in state.optimiser.param_groups:
        group["lr"] = group["multiple"] * learning_rate(state.config, progress)
    loss, right = loss_of(batch, progress)
    state.optimiser.zero_grad()
    loss.backward()
    state.optimiser.step()
    return loss.item(), int(right)


def _look_ahead(state: Checkpoint, progress: float) -> None:
    """Move the average towards the weights, and the weights to the average."""
    decay = 0.95**state.config.look_ahead * progress**3
    current = state.network.state_dict()
    if state.average is None:  # of the weights and of the moments of batch norms
        state.average = {k: v.clone() for k, v in current.items() if v.is_floating_point()}
    for name, average in state.average.items():
        average.lerp_(current[name], 1 - decay)
        current[name].copy_(average)


def _begin(
    network_config: NetworkConfig, config: TrainingConfig, train: ImageSet, device: torch.device
) -> Checkpoint:
    check_possible(network_config, config, train)
    with seeded(config.seed, device):
        network = new_network(network_config)
        loss = TrainingLoss(network, config, device)
    height, width = train.image_shape[1:]
    count = _PREPARING * _PIXELS // max(height * width, _PIXELS)  # as many pixels of larger images
    network.prepare(torch.from_numpy(train.read(slice(0, count))))
    network.to(device).train()
    optimiser = torch.optim.SGD(
        _parameter_groups(loss),
        config.learning_rate,
        config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.momentum > 0,  # torch refuses it without momentum
    )
    synchronise_norms(network, device)
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            # Not left to the first step, which takes the gradient's memory layout: another layout
            # adds in another order, and a resumed training would part from an uninterrupted one by
            # a bit.
            optimiser.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return Checkpoint(loss, optimiser)


def _parameter_groups(loss: TrainingLoss) -> list[dict[str, object]]:
    """What is trained: with the learning rate, or with a multiple of it."""
    network, config = loss.network, loss.config
    multiple = config.norm_bias_rate
    biases: set[nn.Parameter] = set()
    if multiple != 1:
        norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
        biases = {norm.bias for norm in norms}
    learning = [parameter for parameter in network.parameters() if parameter.requires_grad]
    groups: list[dict[str, object]] = [
        {"params": [p for p in learning if p not in biases], "multiple": 1.0}
    ]
    if biases:
        decay = config.weight_decay / multiple
        own = [p for p in learning if p in biases]
        groups.append({"params": own, "multiple": multiple, "weight_decay": decay})
    if loss.centres is not None:
        # The paper gives the centres no learning rate: they move with the network's, without decay.
        groups.append({"params": [loss.centres], "weight_decay": 0.0, "multiple": 1.0})
    return groups


def _measure(state: Checkpoint, validation: ImageSet) -> dict[str, float | None]:
    """Loss, accuracy, and the shape of z, from one pass over the validation images."""
    network, config = state.network, state.config
    loss, hits, start = 0.0, 0, 0
    statistics = ClassStatistics(network.config.num_classes, network.z_width)
    for outputs in stream(network, validation):
        labels = torch.from_numpy(validation.labels[start : start + len(outputs)])
        logits = outputs.logits
        # The cross-entropy of logits depends on their length, which two trainings leave free.
        if config.logit_norm:
            mean = logit_norm_loss(logits, labels, temperature=config.logit_norm)
            loss += mean.item() * len(outputs)
        elif config.feature_norm:
            with torch.no_grad():
                read = normalised(outputs.features["z"].to(network.mean.device), network)
                logits = network.classifier(read).cpu()
            loss += cross_entropy(logits, labels, reduction="sum").item()
        else:
            loss += cross_entropy(logits, labels, reduction="sum").item()
        hits += int((logits.argmax(1) == labels).sum())
        statistics.update(outputs.features["z"], labels)
        start += len(outputs)
    shape = feature_geometry(statistics)
    measures = {name: getattr(shape, name) for name in _SHAPE}
    return {
        "validation_loss": loss / len(validation),
        "validation_accuracy": hits / len(validation),
        **{name: value if math.isfinite(value) else None for name, value in measures.items()},
    }


def _remember(state: Checkpoint, row: EpochRow, patience: int) -> None:
    """Note the epoch; its weights too, if early stopping would choose them.

    Also where the training goes on to the end, so that one training serves both budgets.
    """
    best = min((r["validation_loss"] for r in state.history), default=math.inf)
    if row.validation_loss < best and not _out_of_patience(state, patience):
        state.best = {k: v.detach().clone() for k, v in state.network.state_dict().items()}
    state.history.append(asdict(row))
    state.epoch += 1


def _out_of_patience(state: Checkpoint, patience: int | None) -> bool:
    """Whether the validation loss once had no new minimum for so many epochs."""
    best = 0
    for epoch, row in enumerate(state.history):
        if row["validation_loss"] < state.history[best]["validation_loss"]:
            best = epoch
        if patience is not None and epoch - best >= patience:
            return True
    return False
