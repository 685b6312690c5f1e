"""The settings of a training, and the learning rate that follows from them."""

import math
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from goen.checks import check_choice, check_number, check_seed
from goen.data.transforms.augment import Border
from goen.errors import UsageError
from goen.io.manifest import JsonValue

Schedule = Literal["cosine", "one_cycle", "triangle"]
Flip = Literal["random", "alternating", "never"]
Precision = Literal["float32", "bfloat16"]


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
        momentum: Nesterov's; 0 is SGD without it.
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
        seed: fixes weights, order and augmentation; from 0 to 2³² - 1.
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
        feature_norm: whether the classifier reads features of unit length in training, and as they
            are afterwards: T2FNorm, Regmi et al., T2FNorm: Train-time Feature Normalization for OOD
            Detection in Image Classification (2024). The network's ``temperature`` is its τ, 0.1.
        pixmix: share of the images that are mixed with fractals and with augmented copies of
            themselves; 1 is PixMix, see ``goen.data.transforms.pixmix``.
        rotation_loss: weight of the loss of the network's second classifier, which predicts by how
            many right angles an image was rotated, Hendrycks et al., Using Self-Supervised Learning
            Can Improve Model Robustness and Uncertainty (2019); theirs is 1, 0 is none.
        rotated: images that are rotated for it and added to a batch, as a share of the batch; 3 is
            the paper's: every image in all four rotations, at four times the cost.
        outlier_loss: weight of the cross-entropy of outliers to the uniform distribution: outlier
            exposure, Hendrycks et al., Deep Anomaly Detection with Outlier Exposure (2019), whose
            weight is 0.5; 0 is none. ``train_backbone`` then takes the outliers, as many for each
            batch as the batch has images.
        precision: of the feature maps; weights, the classifier and losses are float32.
            ``bfloat16`` halves the time on processors with instructions for it. A GPU without them
            refuses it; the studies choose what a device has, see ``choose_precision``.
    """

    epochs: int = 40
    batch_size: int = 128
    learning_rate: float = 0.1
    schedule: Schedule = "cosine"
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.1
    center_loss: float = 0.0
    patience: int | None = None
    padding: int = 4
    border: Border = "black"
    flip: Flip = "random"
    sizes: tuple[tuple[int, int], ...] = ()
    seed: int = 42
    norm_bias_rate: float = 1.0
    look_ahead: int = 0
    early_epochs: int = 3
    cutout: int = 0
    logit_norm: float = 0.0
    feature_norm: bool = False
    pixmix: float = 0.0
    rotation_loss: float = 0.0
    rotated: float = 0.25
    outlier_loss: float = 0.0
    precision: Precision = "float32"

    def to_json(self) -> dict[str, JsonValue]:
        """The settings for manifests and stage keys."""
        return asdict(self)

    def __post_init__(self) -> None:
        check_choice("schedule", self.schedule, get_args(Schedule))
        check_choice("border", self.border, get_args(Border))
        check_choice("flip", self.flip, get_args(Flip))
        check_choice("precision", self.precision, get_args(Precision))
        check_number("epochs", self.epochs, whole=True, at_least=1)
        check_number("batch_size", self.batch_size, whole=True, at_least=2)
        for name in ("padding", "look_ahead", "early_epochs", "cutout"):
            check_number(name, getattr(self, name), whole=True, at_least=0)
        if self.patience is not None:
            check_number("patience", self.patience, whole=True, at_least=1)
        for name in ("learning_rate", "norm_bias_rate"):
            check_number(name, getattr(self, name), above=0)
        for name in ("weight_decay", "center_loss", "logit_norm", "rotation_loss", "outlier_loss"):
            check_number(name, getattr(self, name), at_least=0)
        check_number("momentum", self.momentum, at_least=0, below=1)
        for name in ("label_smoothing", "pixmix"):
            check_number(name, getattr(self, name), at_least=0, at_most=1)
        check_number("rotated", self.rotated, above=0, at_most=3)
        if self.feature_norm and self.logit_norm:
            raise UsageError(
                "feature_norm and logit_norm both take the length out of the logits: set one."
            )
        check_seed(self.seed)
        for pair in self.sizes:
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise UsageError(
                    "sizes must be pairs of epochs and side, such as ((10, 24), (5, 28)); got "
                    f"{self.sizes}."
                )
            for name, value in zip(("epochs", "side"), pair, strict=True):
                check_number(f"The {name} of each of sizes", value, whole=True, at_least=1)


def learning_rate(config: TrainingConfig, progress: float) -> float:
    """The learning rate when this share of all steps is done."""
    if config.schedule == "cosine":
        return config.learning_rate * (1 + math.cos(math.pi * progress)) / 2
    top, start, end = (0.2, 0.1, 0.0) if config.schedule == "one_cycle" else (0.23, 0.2, 0.07)
    if progress < top:
        return config.learning_rate * (start + (1 - start) * progress / top)
    return config.learning_rate * (end + (1 - end) * (1 - progress) / (1 - top))
