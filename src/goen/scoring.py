"""The gate: a network, a density, perhaps a head, and a threshold with a guarantee."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from goen import artifacts
from goen.data.imageset import ImageSet
from goen.detectors.density import CUES, Density
from goen.errors import ArtifactError, UsageError
from goen.extract import evaluating, stream
from goen.functional import conformal
from goen.models import NetworkConfig, ResNet18
from goen.models.head import CalibrationHead, probability_of_ood
from goen.outputs import Outputs

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Prediction:
    """What the gate says of N images; every array has length N.

    Attributes:
        label: the classifier's class number; ``classes[label]`` is its name.
        confidence: the classifier's probability of that class.
        score: higher means more OOD.
        p_value: the chance that an image like the held-out ones would score at least this high.
        probability: of being OOD, where a head was calibrated with OOD images; else ``None``.
        is_ood: the decision, p_value at most the false-alarm rate.
        cues: what the score was made of, by name.
        classes: the class names.
    """

    label: NDArray[np.int64]
    confidence: Floats
    score: Floats
    p_value: Floats
    probability: Floats | None
    is_ood: NDArray[np.bool_]
    cues: Mapping[str, Floats]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.label)


@dataclass(frozen=True, eq=False)
class Gate:
    """Decides for each image whether it is one the classifier knows.

    With n held-out ID images that trained, calibrated and chose nothing, an ID image is flagged
    with probability at most ``false_alarm_rate``, for every n, every network and every score: split
    conformal prediction. The rate can be changed at any time without fitting again.

    Attributes:
        network: gives ``Outputs``.
        density: fitted on the training images.
        head: calibrated with OOD images; without one the score is the density's alone.
        held_out_scores: ``(n,)``, sorted.
        false_alarm_rate: the share of ID images that may be flagged.
        classes: names of the classes.
        image_size: (height, width) the network was trained on.
        facts: where everything came from: splits with their hashes, metrics, recipe.
    """

    network: ResNet18
    density: Density
    head: CalibrationHead | None
    held_out_scores: Floats
    false_alarm_rate: float
    classes: tuple[str, ...]
    image_size: tuple[int, int]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "held_out_scores", np.sort(self.held_out_scores))
        conformal.threshold(self.held_out_scores, self.false_alarm_rate)  # enough of them, or error

    def __repr__(self) -> str:
        head = "with" if self.head else "without"
        return (
            f"Gate({len(self.classes)} classes, {head} a head, {len(self.held_out_scores)} "
            f"held-out scores, false_alarm_rate={self.false_alarm_rate:g})"
        )

    @property
    def threshold(self) -> float:
        """Images that score above it are flagged."""
        return conformal.threshold(self.held_out_scores, self.false_alarm_rate)

    def with_false_alarm_rate(self, rate: float) -> "Gate":
        """The same gate at another rate; nothing is fitted again."""
        return replace(self, false_alarm_rate=rate)

    def predict(self, images: Tensor | NDArray[Any]) -> Prediction:
        """Label, score, p-value, probability and decision for each image.

        Args:
            images: ``(N, 3, H, W)`` or one image ``(3, H, W)``; uint8, or floats in [0, 1].

        Raises:
            UsageError: images of another shape, type or range, or with NaN in them.
        """
        batch = check_images(images)
        if tuple(batch.shape[2:]) != self.image_size:
            raise UsageError(
                f"This gate was fitted on images of {self.image_size[0]}×{self.image_size[1]}, got "
                f"{batch.shape[2]}×{batch.shape[3]}. Resize them; it promises nothing at others."
            )
        device = self.network.mean.device
        with evaluating(self.network), torch.inference_mode():
            outputs = self.network(batch.to(device))
            outputs = Outputs(outputs.logits.cpu(), {"z": outputs.features["z"].cpu()})
        return self.judge(outputs)

    def predict_set(self, images: ImageSet) -> Prediction:
        """``predict`` for a whole set, batch by batch."""
        if not len(images):
            raise UsageError(f"{images.name} has no images.")
        return concatenate([self.judge(outputs) for outputs in stream(self.network, images)])

    def judge(self, outputs: Outputs) -> Prediction:
        """The prediction for outputs of this gate's network."""
        cues = self.density.cues(outputs)
        score, probability = score_cues(cues, self.head)
        p_value = conformal.p_values(score, self.held_out_scores)
        confidence, label = torch.softmax(outputs.logits.double(), dim=1).max(dim=1)
        return Prediction(
            label=label.numpy(),
            confidence=confidence.numpy(),
            score=score.numpy(),
            p_value=p_value,
            probability=None if probability is None else probability.numpy(),
            is_ood=p_value <= self.false_alarm_rate,
            cues=dict(zip(CUES, cues.numpy().T, strict=True)),
            classes=self.classes,
        )

    def save(self, folder: Path | str) -> None:
        """Write the gate as a folder, whole or not at all."""
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"density.{k}": v for k, v in self.density.state().items()}
        if self.head is not None:
            tensors |= {f"head.{k}": v for k, v in self.head.state_dict().items()}
        tensors["held_out_scores"] = torch.from_numpy(self.held_out_scores)
        low, mean, high = conformal.false_alarm_interval(
            len(self.held_out_scores), self.false_alarm_rate
        )
        manifest = {
            "network": asdict(self.network.config),
            "density": {
                "feature": self.density.feature,
                "ridge": self.density.ridge,
                "shrinkage": self.density.shrinkage,
                "condition_number": self.density.whitening_.condition_number,
            },
            "head": None if self.head is None else {"cues": list(CUES)},
            "classes": list(self.classes),
            "image_size": list(self.image_size),
            "false_alarm_rate": self.false_alarm_rate,
            "threshold": self.threshold,
            "guarantee": {
                "held_out_images": len(self.held_out_scores),
                "expected_false_alarm_rate": mean,
                "of_this_gate_90_percent": [low, high],
            },
            "facts": dict(self.facts),
        }
        artifacts.save(Path(folder), "gate", tensors, manifest)


def load(folder: Path | str) -> Gate:
    """The gate that was saved in this folder, or in the folder of a run.

    Raises:
        ArtifactError: there is none, or it is damaged, or of another version.
    """
    path = Path(folder)
    if (path / "results.jsonl").is_file() and (path / "gate").is_dir():
        path = path / "gate"
    tensors, manifest = artifacts.load(path, "gate")
    try:
        config = dict(manifest["network"])
        config["mean"], config["std"] = tuple(config["mean"]), tuple(config["std"])
        network = ResNet18(NetworkConfig(**config))
        network.load_state_dict(artifacts.part(tensors, "network."))
        settings = {k: manifest["density"][k] for k in ("feature", "ridge", "shrinkage")}
        density = Density(**settings).load_state(artifacts.part(tensors, "density."))
        head = None
        if (manifest["head"] is None) != (not artifacts.part(tensors, "head.")):
            raise ValueError("its manifest and its tensors disagree about a head")
        if manifest["head"] is not None:
            head = CalibrationHead(len(CUES))
            head.load_state_dict(artifacts.part(tensors, "head."))
            head.eval()
        height, width = manifest["image_size"]
        classes = tuple(manifest["classes"])
        if len(classes) != network.config.num_classes:
            raise ValueError(f"{len(classes)} class names for {network.config.num_classes} classes")
        if (density.whitening_.num_classes, density.whitening_.dim) != (
            network.config.num_classes,
            network.z_width,
        ):
            raise ValueError("its density was fitted on another network")
        gate = Gate(
            network=network.eval(),
            density=density,
            head=head,
            held_out_scores=tensors["held_out_scores"].numpy(),
            false_alarm_rate=manifest["false_alarm_rate"],
            classes=classes,
            image_size=(height, width),
            facts=manifest["facts"],
        )
        if gate.threshold != manifest["threshold"]:
            raise ValueError(f"its threshold is {gate.threshold}, not {manifest['threshold']}")
        return gate
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ArtifactError(
            f"{path} is not a gate that this goen can use: {error}. Save it again."
        ) from error


def score_cues(cues: Tensor, head: CalibrationHead | None) -> tuple[Tensor, Tensor | None]:
    """Score ``(N,)`` float64 and, with a head, the probability of being OOD."""
    if head is None:
        return cues[:, 0], None
    with torch.inference_mode():
        logit = head(cues.float()).double()
    return logit, probability_of_ood(logit)


def check_images(images: Tensor | NDArray[Any]) -> Tensor:
    """The images as a batch that the network may see, or an error that says what is wrong."""
    batch = torch.as_tensor(images)
    if batch.ndim == 3:
        batch = batch[None]
    if batch.ndim != 4 or batch.shape[1] != 3:
        raise UsageError(
            f"Images have shape (N, 3, H, W), channels first; got {tuple(batch.shape)}."
        )
    if batch.dtype == torch.uint8:
        return batch
    if not batch.is_floating_point():
        raise UsageError(f"Images are uint8, or floats in [0, 1]; got {batch.dtype}.")
    if not bool(torch.isfinite(batch).all()):
        bad = torch.nonzero(~torch.isfinite(batch).flatten(1).all(1)).flatten().tolist()
        raise UsageError(f"Images {bad[:10]} hold NaN or infinity. Leave them out.")
    if len(batch) and (batch.min() < 0 or batch.max() > 1):
        raise UsageError(
            f"Float images lie in [0, 1]; got {batch.min():.3g}..{batch.max():.3g}. Are they "
            "0-255 (then pass uint8), or normalised already (then pass them before that)?"
        )
    return batch.float()


def concatenate(parts: list[Prediction]) -> Prediction:
    """The predictions of several batches as one."""

    def joined(name: str) -> NDArray[Any]:
        return np.concatenate([getattr(part, name) for part in parts])

    first = parts[0]
    return Prediction(
        label=joined("label"),
        confidence=joined("confidence"),
        score=joined("score"),
        p_value=joined("p_value"),
        probability=None if first.probability is None else joined("probability"),
        is_ood=joined("is_ood"),
        cues={cue: np.concatenate([part.cues[cue] for part in parts]) for cue in first.cues},
        classes=first.classes,
    )
