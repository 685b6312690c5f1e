"""The gate: a network, a scorer, and a threshold with a guarantee."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from goen import artifacts
from goen.data.imageset import ImageSet
from goen.detectors.density import Density
from goen.detectors.goen import Goen
from goen.detectors.monotone import Monotone
from goen.detectors.scorer import Scorer
from goen.errors import FitError, UsageError
from goen.extraction import stream
from goen.functional import conformal
from goen.models.head import CalibrationHead
from goen.models.placement import evaluating, placement
from goen.models.pooling import Layout, Tokens
from goen.models.preprocess import Preprocessing
from goen.outputs import Outputs
from goen.scoring.feed import Images, check_images
from goen.scoring.fit import fit_parts
from goen.scoring.network import network_manifest, network_tensors
from goen.scoring.prediction import Floats, Prediction, concatenate
from goen.scoring.update import Change, updated_parts


@dataclass(frozen=True, eq=False)
class Gate:
    """Decides for each image whether it is one the classifier knows.

    With n held-out ID images that trained, calibrated and chose nothing, an ID image is flagged
    with probability at most ``false_alarm_rate``, for every n, every network and every score: split
    conformal prediction. The rate can be changed at any time without fitting again.

    Attributes:
        network: gives ``Outputs``.
        scorer: turns them into cues and a score.
        held_out_scores: ``(n,)``, sorted; raised by what rounding may do (``conformal.raised``).
        false_alarm_rate: the share of ID images that may be flagged.
        classes: names of the classes.
        image_size: (height, width) the gate was fitted on.
        facts: where everything came from: splits with their hashes, metrics, recipe.
        held_out_labels: ``(n,)``, the classifier's answers for the held-out images.
        held_out_cues: ``(n, K)``, for ``update``.
        per_class: whether the rate holds within every class; see ``with_per_class``.
    """

    network: nn.Module
    scorer: Scorer
    held_out_scores: Floats
    false_alarm_rate: float
    classes: tuple[str, ...]
    image_size: tuple[int, int]
    facts: Mapping[str, Any] = field(default_factory=dict)
    held_out_labels: NDArray[np.int64] | None = None
    held_out_cues: Floats | None = None
    per_class: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "false_alarm_rate", float(self.false_alarm_rate))
        order = np.argsort(self.held_out_scores, kind="stable")
        for name in ("held_out_scores", "held_out_labels", "held_out_cues"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, np.asarray(getattr(self, name))[order])
        conformal.threshold(self.held_out_scores, self.false_alarm_rate)  # enough of them, or error
        if self.per_class:
            self.class_thresholds  # noqa: B018  (enough of each class, or error)

    def __repr__(self) -> str:
        return (
            f"Gate({len(self.classes)} classes, {self.scorer}, {len(self.held_out_scores)} "
            f"held-out scores, false_alarm_rate={self.false_alarm_rate:g}"
            f"{', per class' if self.per_class else ''})"
        )

    # -- making one --------------------------------------------------------------------------

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        train: Images,
        held_out: Images,
        *,
        layers: str | Sequence[str],
        ood: Images | Mapping[str, Images] | None = None,
        false_alarm_rate: float = 0.05,
        logits: str | int | None = None,
        preprocess: Preprocessing | None = None,
        tokens: Tokens = "mean",
        layout: Layout = "auto",
        classes: Sequence[str] | None = None,
        mirror: bool = False,
        scorer: str = "goen-m",
        batch_size: int = 128,
    ) -> Self:
        """A gate for a classifier you already have; its weights are not touched.

        Every set passes through the model once, batch by batch, and no image is kept. The model is
        left as it was found: mode, gradients, hooks and device, also after an error. It stays the
        gate's network: train it further, and the gate must be fitted again.

        Of the held-out images three fifths standardise the cues, and weigh them when there are OOD
        images; two fifths give the threshold and nothing else, so that its guarantee holds.

        Args:
            model: any classifier: images in, logits (or something that holds them) out.
            train: what it was trained on, with labels: an ``ImageSet``, a pair (images, labels), or
                an iterable of such batches, a ``DataLoader`` for one. Images are ``(N, 3, H, W)``,
                uint8 or floats in [0, 1], before any normalisation.
            held_out: the same of ID images that trained nothing; labels are not needed.
            layers: where to measure, names as in ``model.named_modules()``; ``goen.layers(model,
                example)`` lists them. One in the middle and the last make a good start.
            ood: images that should be flagged, or a mapping of several kinds by name. They weigh
                the cues and give a probability; without them the cues count the same.
            false_alarm_rate: the share of ID images that may be flagged.
            logits: where they are in the model's output, if it does not say itself.
            preprocess: what the model needs done to images in [0, 1]: ``goen.Preprocess(mean, std,
                size)`` or a function.
            tokens: of transformers: ``mean`` of all tokens, or the first (``class``).
            layout: of maps whose shape does not say it; see ``Tapped``.
            classes: their names, in the order of the logits.
            mirror: look at each image's mirror image as well and take the mean: surer, at twice the
                time. Not for things that a mirror changes, such as digits.
            scorer: the method; ``goen-m``.
            batch_size: of sets and arrays; iterables come with their own.

        Raises:
            UsageError: layers, labels, images or a model that cannot be meant.
            FitError: too few held-out images, or features that cannot be measured.
            LeakError: an image in two of the sets.
        """
        return cls(
            **fit_parts(
                model,
                train,
                held_out,
                layers=layers,
                ood=ood,
                false_alarm_rate=false_alarm_rate,
                logits=logits,
                preprocess=preprocess,
                tokens=tokens,
                layout=layout,
                classes=classes,
                mirror=mirror,
                scorer=scorer,
                batch_size=batch_size,
            )
        )

    def update(
        self,
        *,
        train: Images | None = None,
        held_out: Images | None = None,
        ood: Images | Mapping[str, Images] | None = None,
        batch_size: int = 128,
    ) -> tuple[Self, Change]:
        """The gate with what was learnt later, and what that changed. This one stays as it is.

        Args:
            train: more ID images, with labels. The statistics are then those of a fit on all of
                them, old and new. All distances move, so ``held_out`` and every kind of OOD must be
                given again.
            held_out: ID images in place of the held-out ones before.
            ood: new kinds of OOD; the old ones keep their say, their cues being kept. A kind of the
                same name is replaced.
            batch_size: as for ``fit``.

        Raises:
            UsageError: images missing that are needed again, or a gate made by ``goen run``.
        """
        if not isinstance(self.scorer, Monotone):
            raise UsageError(
                "Only gates of Gate.fit can be updated. This one has the paper's head, which is "
                "trained by goen run: run it again with the new images."
            )
        parts, change = updated_parts(
            self.network,
            self.scorer,
            self.held_out_scores,
            self.held_out_cues,
            self.false_alarm_rate,
            self.image_size,
            self.facts,
            train=train,
            held_out=held_out,
            ood=ood,
            batch_size=batch_size,
        )
        return replace(self, **parts), change

    def with_false_alarm_rate(self, rate: float) -> Self:
        """The same gate at another rate; nothing is fitted again."""
        return replace(self, false_alarm_rate=rate)

    def with_per_class(self, per_class: bool = True) -> Self:
        """The same gate with the rate guaranteed within every class the classifier may answer.

        Each image is compared only with held-out images of the same answer (Mondrian), so no class
        pays for another. Every class needs as many held-out images as a whole gate would.
        """
        return replace(self, per_class=per_class)

    # -- deciding ----------------------------------------------------------------------------

    @property
    def threshold(self) -> float:
        """Images that score above it are flagged."""
        return conformal.threshold(self.held_out_scores, self.false_alarm_rate)

    @property
    def class_thresholds(self) -> Floats:
        """``(C,)``, the same within every class.

        Raises:
            FitError: a class has too few held-out images for the rate.
        """
        if self.held_out_labels is None:
            raise FitError(
                "This gate does not know which classes its held-out images were given. Fit it "
                "again with Gate.fit."
            )
        counts = np.bincount(self.held_out_labels, minlength=len(self.classes))
        needed = conformal.required_held_out(self.false_alarm_rate)
        few = [f"{name} ({n})" for name, n in zip(self.classes, counts, strict=True) if n < needed]
        if few:
            raise FitError(
                f"A false-alarm rate of {self.false_alarm_rate:g} within every class needs "
                f"{needed} held-out images of each to give the threshold. Too few: "
                f"{', '.join(few[:10])}{', ...' if len(few) > 10 else ''}. Hold out more, or allow "
                "a higher rate."
            )
        return np.array(
            [
                conformal.threshold(
                    self.held_out_scores[self.held_out_labels == label], self.false_alarm_rate
                )
                for label in range(len(self.classes))
            ]
        )

    def predict(self, images: Tensor | NDArray[Any]) -> Prediction:
        """Label, score, p-value, probability and decision for each image.

        Args:
            images: ``(N, 3, H, W)`` or one image ``(3, H, W)``; uint8, or floats in [0, 1].

        Raises:
            UsageError: images of another shape, type or range, or with NaN in them.
        """
        batch = check_images(images)
        self._check_size(batch.shape)
        device, _ = placement(self.network)
        with evaluating(self.network), torch.inference_mode():
            outputs: Outputs = self.network(batch.to(device))
            return self.judge(outputs.keep(self.scorer.needs).cpu())

    def predict_set(self, images: ImageSet) -> Prediction:
        """``predict`` for a whole set, batch by batch."""
        if not len(images):
            raise UsageError(f"{images.name} has no images.")
        self._check_size((len(images), *images.image_shape))
        return concatenate([self.judge(outputs) for outputs in stream(self.network, images)])

    def _check_size(self, shape: Sequence[int]) -> None:
        if tuple(shape[2:]) != self.image_size:
            raise UsageError(
                f"This gate was fitted on images of {self.image_size[0]}×{self.image_size[1]}, got "
                f"{shape[2]}×{shape[3]}. Resize them; it promises nothing at others."
            )

    def judge(self, outputs: Outputs) -> Prediction:
        """The prediction for outputs of this gate's network."""
        cues = self.scorer.cues(outputs)
        score, probability = self.scorer.judge(cues)
        confidence, label = torch.softmax(outputs.logits.double(), dim=1).max(dim=1)
        p_value = self.p_values(score.numpy(), label.numpy())
        cue_p_values = self.scorer.cue_p_values(cues)

        def named(columns: Tensor) -> dict[str, Floats]:
            return dict(zip(self.scorer.cue_names, columns.numpy().T, strict=True))

        return Prediction(
            label=label.numpy(),
            confidence=confidence.numpy(),
            score=score.numpy(),
            p_value=p_value,
            probability=None if probability is None else probability.numpy(),
            is_ood=p_value <= self.false_alarm_rate,
            cues=named(cues),
            classes=self.classes,
            cue_p_values={} if cue_p_values is None else named(cue_p_values),
        )

    def p_values(self, score: Floats, label: NDArray[np.int64]) -> Floats:
        """Of scores ``(N,)`` among the held-out ones: of all, or of the same class."""
        if not self.per_class or self.held_out_labels is None:
            return conformal.p_values(score, self.held_out_scores)
        return conformal.class_conditional_p_values(
            score, label, self.held_out_scores, self.held_out_labels
        )

    # -- parts of a gate with the paper's head -----------------------------------------------

    @property
    def head(self) -> CalibrationHead | None:
        """The paper's head, if this gate has one."""
        return self.scorer.head if isinstance(self.scorer, Goen) else None

    @property
    def density(self) -> Density:
        """The one density of a gate that ``goen run`` made."""
        if not isinstance(self.scorer, Goen):
            raise UsageError("This gate measures distances to a bank of images: gate.scorer.bank_.")
        return self.scorer.density

    # -- saving ------------------------------------------------------------------------------

    def save(self, folder: Path | str) -> None:
        """Write the gate as a folder, whole or not at all; an earlier gate there is replaced.

        Raises:
            UsageError: something else lies there, such as a file or a folder with notes.
        """
        tensors = network_tensors(self.network, self.image_size)
        tensors |= {f"scorer.{k}": v for k, v in self.scorer.state().items()}
        for name in ("held_out_scores", "held_out_labels", "held_out_cues"):
            if getattr(self, name) is not None:
                tensors[name] = torch.from_numpy(np.ascontiguousarray(getattr(self, name)))
        manifest = {
            "network": network_manifest(self.network),
            "scorer": {"kind": self.scorer.kind, **self.scorer.config()},
            "classes": list(self.classes),
            "image_size": list(self.image_size),
            "false_alarm_rate": self.false_alarm_rate,
            "per_class": self.per_class,
            "threshold": self.threshold,
            "guarantee": self._guarantee(),
            "facts": dict(self.facts),
        }
        artifacts.save(Path(folder), "gate", tensors, manifest)

    def _guarantee(self) -> dict[str, Any]:
        """What the rate promises and how far this gate's own may lie from it; of each class if the
        promise is made to each."""

        def of(count: int) -> dict[str, Any]:
            low, mean, high = conformal.false_alarm_interval(count, self.false_alarm_rate)
            return {
                "held_out_images": count,
                "expected_false_alarm_rate": mean,
                "of_this_gate_90_percent": [low, high],
            }

        if not self.per_class or self.held_out_labels is None:
            return of(len(self.held_out_scores))
        counts = np.bincount(self.held_out_labels, minlength=len(self.classes))
        return {"by_class": [of(count) for count in counts.tolist()]}
