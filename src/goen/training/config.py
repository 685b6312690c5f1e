"""The settings of a training, and the learning rate that follows from them."""

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from goen.errors import UsageError, unknown
from goen.runs.manifest import JsonObject, JsonValue

Precision = Literal["float32", "bfloat16"]

# Not in the keys of trainings that leave them at their defaults.
_LATER = (
    *("norm_bias_rate", "look_ahead", "early_epochs", "cutout"),
    *("logit_norm", "fractals", "rotation_loss", "rotated", "precision"),
)


@dataclass(frozen=True)
class TrainingConfig:
    """The paper's recipe; the presets change what two CPU cores cannot afford.

    Attributes:
        epochs: passes over the training images.
        batch_size: images per step.
        learning_rate: the peak of the schedule.
        schedule: ``cosine`` from the peak to zero; ``one_cycle``: up from a tenth over the
            first fifth of the steps, then straight down to zero; ``triangle``: up from a fifth over
            the first 23 % of the steps, then straight down to 7 %.
        momentum: Nesterov's.
        weight_decay: on all parameters, as the paper's optimiser does.
        label_smoothing: share of the target spread over all classes; evidential networks have none.
        center_loss: weight of the centre loss, 0.01 in the paper's default variant; 0 is none.
        patience: epochs without a better validation loss after which training stops and the best
            network is kept; ``None`` (protocol ``full``) trains to the end and keeps the last.
        padding: largest shift of the random crop, in pixels.
        border: what the crop shows beyond the rim.
        flip: whether and how images are mirrored; ``alternating`` flips each image every other
            epoch.
        sizes: (epochs, side) pairs from the start: train on smaller images first, the full size
            afterwards.
        seed: fixes weights, order and augmentation.
        norm_bias_rate: the learning rate of the biases of batch norms, as a multiple of the
            others'; their weight decay is divided by it, so that they shrink as fast.
        look_ahead: after so many steps the weights move back towards their running average, and
            at the end they are that average; 0 is never. See Zhang et al., Lookahead Optimizer
            (2019); here the average's memory grows with the third power of the progress.
        early_epochs: in which a network's ``early_parameters`` are trained.
        cutout: side of a square of each image that is made grey, in pixels; 0 is none.
        logit_norm: temperature of logit normalisation: the loss reads the logits divided by it and
            by their length, Wei et al., Mitigating Neural Network Overconfidence with Logit
            Normalization (2022); 0 is none.
        fractals: share of the images that are mixed with generated fractals.
        rotation_loss: weight of the loss of an extra classifier, which predicts by how many right
            angles an image was rotated, Hendrycks et al., Using Self-Supervised Learning Can
            Improve Model Robustness and Uncertainty (2019); 0 is none.
        rotated: images that are rotated for it and added to a batch, as a share of the batch.
        precision: of the feature maps on a CPU; weights, the classifier and losses are float32.
            ``bfloat16`` halves the time on processors with instructions for it. On a GPU it is
            always that.
    """

    epochs: int = 40
    batch_size: int = 128
    learning_rate: float = 0.1
    schedule: Literal["cosine", "one_cycle", "triangle"] = "cosine"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.1
    center_loss: float = 0.0
    patience: int | None = None
    padding: int = 4
    border: Literal["black", "reflect"] = "black"
    flip: Literal["random", "alternating", "never"] = "random"
    sizes: tuple[tuple[int, int], ...] = ()
    seed: int = 42
    norm_bias_rate: float = 1.0
    look_ahead: int = 0
    early_epochs: int = 3
    cutout: int = 0
    logit_norm: float = 0.0
    fractals: float = 0.0
    rotation_loss: float = 0.0
    rotated: float = 0.25
    precision: Precision = "float32"

    def to_json(self) -> dict[str, JsonValue]:
        """The settings for manifests and stage keys.

        Later settings are left out at their defaults, so that earlier work is found.
        """
        kept: dict[str, JsonValue] = asdict(self)
        for name in _LATER:
            if kept[name] == getattr(type(self), name):
                del kept[name]
        return kept

    @classmethod
    def from_json(cls, settings: JsonObject) -> "TrainingConfig":
        """What ``to_json`` gave, also after a way through JSON, where tuples are lists."""
        given: dict[str, Any] = dict(settings)
        given["sizes"] = tuple((epochs, side) for epochs, side in given.get("sizes", ()))
        return cls(**given)

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2 or self.learning_rate <= 0:
            raise UsageError(
                "Training needs at least one epoch, two images per batch and a learning rate above "
                f"0, got {self.epochs}, {self.batch_size} and {self.learning_rate}."
            )
        if self.norm_bias_rate <= 0 or min(self.look_ahead, self.early_epochs, self.cutout) < 0:
            raise UsageError(
                "norm_bias_rate is above 0, and look_ahead, early_epochs and cutout are not "
                f"negative, got {self.norm_bias_rate}, {self.look_ahead}, {self.early_epochs} and "
                f"{self.cutout}."
            )
        if not (0 <= self.logit_norm < math.inf and 0 <= self.rotation_loss < math.inf):
            raise UsageError(
                "logit_norm and rotation_loss are numbers from 0 on, "
                f"got {self.logit_norm} and {self.rotation_loss}."
            )
        if not (0 <= self.fractals <= 1 and 0 < self.rotated <= 1):
            raise UsageError(
                "fractals is a share from 0 to 1, and rotated one above 0, "
                f"got {self.fractals} and {self.rotated}."
            )
        if self.precision not in get_args(Precision):
            raise unknown("precision", self.precision, get_args(Precision))


def learning_rate(config: TrainingConfig, progress: float) -> float:
    """The learning rate when this share of all steps is done."""
    if config.schedule == "cosine":
        return config.learning_rate * (1 + math.cos(math.pi * progress)) / 2
    top, start, end = (0.2, 0.1, 0.0) if config.schedule == "one_cycle" else (0.23, 0.2, 0.07)
    if progress < top:
        return config.learning_rate * (start + (1 - start) * progress / top)
    return config.learning_rate * (end + (1 - end) * (1 - progress) / (1 - top))
