"""The gate: a network, a detector, and a threshold with a guarantee."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from goen.data.imageset import ImageSet
from goen.data.inputs import Array, Hashes, Images, as_stream, check_images
from goen.data.pictures import are_pictures, picture_batches
from goen.detectors import CueDetector
from goen.errors import FitError, UsageError
from goen.extraction import BATCH_SIZE, run_network
from goen.functional import conformal
from goen.functional._rows import sums_are_finite
from goen.functional.ranking import Floats
from goen.gate.held_out import HeldOut
from goen.gate.prediction import Prediction, concatenate
from goen.models.placement import evaluating, full_precision, placement
from goen.models.tapping.pooling import Layout, Tokens
from goen.models.tapping.preprocess import Preprocessing
from goen.models.tapping.tapped import Tapped, as_tapped
from goen.outputs import Outputs
from goen.runs.manifest import JsonObject

if TYPE_CHECKING:
    from goen.gate.evidence import FitEvidence
    from goen.gate.update import Change


@dataclass(frozen=True, eq=False)
class Gate:
    """Classifies images, scores them, and flags OOD inputs.

    With n held-out ID images that were used for nothing else, a new ID image is flagged with
    probability at most ``false_alarm_rate``, for every n, every network and every score: split
    conformal prediction. The rate can be changed at any time without fitting again. The arrays of a
    gate are read-only.

    Attributes:
        network: gives ``Outputs``.
        detector: turns them into cues and a score.
        held_out: the held-out ID images that set the threshold.
        false_alarm_rate: the share of ID images that may be flagged.
        classes: names of the classes.
        image_size: (height, width) the gate was fitted on.
        facts: provenance: splits with their hashes, metrics, configuration.
        per_class: whether the rate holds within every class; see ``with_per_class``.
        image_hashes: of the images that fitted the gate, by role (``train``, ``held_out``, ``ood
            KIND``), so that ``update`` finds an image in a second role; empty in gates of
            ``goen run``.
        evidence: what the held-out images gave, image by image, for the report of a fit; not saved.
    """

    network: nn.Module
    detector: CueDetector
    held_out: HeldOut
    false_alarm_rate: float
    classes: tuple[str, ...]
    image_size: tuple[int, int]
    facts: JsonObject = field(default_factory=dict)
    per_class: bool = False
    image_hashes: Mapping[str, Hashes] = field(default_factory=dict)
    evidence: "FitEvidence | None" = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "false_alarm_rate", float(self.false_alarm_rate))
        hashes = {role: _read_only(values) for role, values in self.image_hashes.items()}
        object.__setattr__(self, "image_hashes", hashes)
        self.held_out.threshold(self.false_alarm_rate)  # enough, or an error
        if self.per_class:
            self.class_thresholds  # noqa: B018  (enough of each class, or an error)

    def __repr__(self) -> str:
        return (
            f"Gate({len(self.classes)} classes, {self.detector}, {len(self.held_out)} "
            f"held-out scores, false_alarm_rate={self.false_alarm_rate:g}"
            f"{', per class' if self.per_class else ''})"
        )

    @classmethod
    def fit(
        cls,
        model: nn.Module | Tapped,
        train: Images,
        held_out: Images,
        *,
        layers: str | Sequence[str] = "auto",
        ood: Images | Mapping[str, Images] | None = None,
        false_alarm_rate: float = 0.05,
        logits: str | int | None = None,
        preprocess: Preprocessing | None = None,
        tokens: Tokens = "mean",
        layout: Layout = "auto",
        classes: Sequence[str] | None = None,
        flip_averaging: bool = False,
        batch_size: int = 128,
    ) -> "Gate":
        """A gate for a classifier you already have; its weights are not touched.

        Every set passes through the model once, batch by batch, and no image is kept. The model is
        left as it was found: mode, gradients, hooks and device, also after an error. It stays the
        gate's network: train it further, and the gate must be fitted again.

        Of the held-out images three fifths standardise the cues, and weight them when there are
        OOD images; two fifths set the threshold and do nothing else, so that its guarantee holds.

        Args:
            model: any classifier: images in, logits (or something that holds them) out. Or a
                ``goen.Tapped``, which holds the layers, logits, preprocessing, tokens and layout.
            train: what it was trained on, with labels: an ``ImageSet``, a pair (images, labels), or
                an iterable of such batches, a ``DataLoader`` for one. Images are ``(N, 3, H, W)``,
                uint8 or floats in [0, 1], before any normalisation.
            held_out: ID images the classifier was not trained on, in the same forms; labels are
                not needed.
            layers: whose features to use, names as in ``model.named_modules()``;
                ``goen.layers(model, example)`` lists them. ``"auto"`` takes the layer at half of
                the depth and the last one before the classifier, and logs them and the others.
            ood: images that should be flagged, or a mapping of several kinds by name. They weight
                the cues and give a probability; without them the cues are weighted equally.
            false_alarm_rate: the share of ID images that may be flagged.
            logits: their key, attribute or index in the model's output, if that is ambiguous.
            preprocess: of images in [0, 1], before they enter the model: ``goen.Preprocess(mean,
                std, size)`` or a function.
            tokens: of transformers: ``mean`` of all tokens, or the first (``class``).
            layout: of feature maps, where their shape is ambiguous; see ``Tapped``.
            classes: their names, in the order of the logits.
            flip_averaging: average logits and features over each image and its mirror image:
                more accurate, at twice the time. Not for classes that a flip changes, such as
                digits.
            batch_size: of sets and arrays; iterables have their own.

        Raises:
            UsageError: invalid layers, labels, images or settings, or an unsuitable model.
            FitError: too few held-out images, or OOD images that no cue separates.
            LeakError: an image in two of the sets.
        """
        from goen.gate.fit import FitSets, fit_gate  # it makes gates, so it imports this module

        sets = FitSets.open(
            train, held_out, ood, false_alarm_rate=false_alarm_rate, batch_size=batch_size
        )
        with full_precision():
            tapped = as_tapped(
                model,
                layers,
                logits=logits,
                preprocess=preprocess,
                tokens=tokens,
                layout=layout,
                example=sets.first[:2],
            )
            return fit_gate(
                tapped,
                sets,
                false_alarm_rate=false_alarm_rate,
                classes=classes,
                flip_averaging=flip_averaging,
            )

    def update(
        self,
        *,
        train: Images | None = None,
        held_out: Images | None = None,
        ood: Images | Mapping[str, Images] | None = None,
        batch_size: int = 128,
    ) -> tuple["Gate", "Change"]:
        """The updated gate, and what the update changed. This gate stays as it is.

        Args:
            train: more ID images, with labels. The result equals a fit on all of them, old and
                new. All distances change, so ``held_out`` and every kind of OOD must be given
                again.
            held_out: ID images that replace the previous held-out images.
            ood: new kinds of OOD; the previous ones are kept. A kind of the same name is replaced.
            batch_size: as for ``fit``.

        Raises:
            UsageError: images missing that are needed again, or a gate made by ``goen run``.
        """
        from goen.gate.update import update_gate  # it makes gates, so it imports this module

        with full_precision():
            return update_gate(self, train=train, held_out=held_out, ood=ood, batch_size=batch_size)

    def with_false_alarm_rate(self, rate: float) -> Self:
        """The same gate at another rate; nothing is fitted again."""
        return replace(self, false_alarm_rate=rate)

    def with_per_class(self, per_class: bool = True) -> Self:
        """The same gate with the rate guaranteed within every predicted class.

        Each image is compared only with held-out images of the same predicted class (Mondrian
        conformal prediction), so no class has more false alarms than another. Every class needs as
        many held-out images as a whole gate would.
        """
        return replace(self, per_class=per_class)

    @property
    def threshold(self) -> float:
        """Images that score above it are flagged."""
        return self.held_out.threshold(self.false_alarm_rate)

    @property
    def class_thresholds(self) -> Floats:
        """``(C,)``: the threshold of each predicted class, for ``with_per_class``.

        Raises:
            FitError: a class has too few held-out images for the rate.
        """
        if self.held_out.labels is None:
            raise FitError(
                "This gate was saved without the predicted classes of its held-out images, so it "
                "has no threshold per class. Gates that goen fit makes have them."
            )
        counts = np.bincount(self.held_out.labels, minlength=len(self.classes))
        needed = conformal.required_held_out(self.false_alarm_rate)
        few = [f"{name} ({n})" for name, n in zip(self.classes, counts, strict=True) if n < needed]
        if few:
            raise FitError(
                f"A false-alarm rate of {self.false_alarm_rate:g} within every class needs "
                f"{needed} held-out images of each to set the threshold. Too few: "
                f"{', '.join(few[:10])}{', ...' if len(few) > 10 else ''}. Hold out more, or allow "
                "a higher rate."
            )
        return np.array(
            [
                self.held_out.of_class(label).threshold(self.false_alarm_rate)
                for label in range(len(self.classes))
            ]
        )

    def predict(
        self,
        images: Images | Image.Image | Sequence[Image.Image],
        *,
        batch_size: int = BATCH_SIZE,
    ) -> Prediction:
        """Label, score, p-value, probability and decision for each image.

        Args:
            images: whatever ``fit`` takes: an ``ImageSet``, images ``(N, 3, H, W)``, uint8 or
                floats in [0, 1], a pair (images, labels), or an iterable of such batches, a
                ``DataLoader`` for one; or one image ``(3, H, W)``. Labels are ignored. Of an array
                without images the prediction is empty. Or a picture of Pillow or a list of them, of
                any mode and size: they are resized as ``goen.read_picture`` resizes files.
            batch_size: of an ``ImageSet``, a pair or a list of pictures; an array is one batch, and
                iterables have their own.

        Raises:
            UsageError: images of another shape, type or range, or with NaN in them.
            DataError: no images, such as a generator that was read before, or a broken picture.
        """
        if isinstance(images, (Tensor, np.ndarray)):
            with torch.inference_mode():
                return self.predict_outputs(self.outputs(images))
        if isinstance(images, ImageSet) and not len(images):
            raise UsageError(f"{images.name} has no images.")
        given = [images] if isinstance(images, Image.Image) else images
        if are_pictures(given):
            given = picture_batches(given, self.image_size, batch_size)
        # The type checker cannot tell that pictures are batches by now.
        return concatenate(list(self._predict_stream(cast(Images, given), batch_size)))

    def outputs(self, images: Array) -> Outputs:
        """What the detector reads of the network's outputs for a batch of images, on the CPU.

        Args:
            images: ``(N, 3, H, W)`` or ``(3, H, W)``, uint8 or floats in [0, 1].

        Raises:
            UsageError: images of another shape, type or range, or with NaN in them.
        """
        batch = check_images(images)
        self._check_size(batch.shape)
        device, _ = placement(self.network)
        # Not every model takes an empty batch: it gets one image then, of which nothing is kept.
        shown = batch if len(batch) else batch.new_zeros(1, *batch.shape[1:])
        with evaluating(self.network), full_precision(), torch.inference_mode():
            outputs: Outputs = self.network(shown.to(device))
            return outputs.keep(self.detector.features).cpu()[: len(batch)]

    def _predict_stream(self, images: Images, batch_size: int) -> Iterator[Prediction]:
        stream = as_stream(images, "images", batch_size)
        if stream.images is not None:
            self._check_size((len(stream.images), *stream.images.image_shape))
        stream = replace(stream, size=self.image_size)
        for outputs, _ in run_network(self.network, stream, name=stream.name, total=stream.count):
            yield self.predict_outputs(outputs)

    def _check_size(self, shape: Sequence[int]) -> None:
        if tuple(shape[2:]) != self.image_size:
            raise UsageError(
                f"This gate was fitted on images of {self.image_size[0]}×{self.image_size[1]}, got "
                f"{shape[2]}×{shape[3]}. Resize them: its guarantee holds at that size only."
            )

    @full_precision()
    def predict_outputs(self, outputs: Outputs) -> Prediction:
        """The prediction for outputs of this gate's network.

        An image whose logits or features are NaN or infinite is flagged: its score and its cues
        are infinite, its p-values are the least there are, its confidence is 0.
        """
        broken = _not_finite(outputs, self.detector.features)
        if broken is not None:
            outputs = _with_zeros(outputs, broken)
        cues = self.detector.cues(outputs)
        score = self.detector.score_cues(cues)
        confidence, label = torch.softmax(outputs.logits.double(), dim=1).max(dim=1)
        probability = self.detector.probability(score)
        cue_p_values = self.detector.cue_p_values(cues)
        if broken is not None:
            score = score.masked_fill(broken, torch.inf)
            confidence = confidence.masked_fill(broken, 0.0)
            cues = cues.masked_fill(broken[:, None], torch.inf)
            if probability is not None:
                probability = probability.masked_fill(broken, 1.0)
            if cue_p_values is not None and self.detector.id_cues_ is not None:
                least = 1 / (1 + len(self.detector.id_cues_))
                cue_p_values = cue_p_values.masked_fill(broken[:, None], least)
        p_value = self.p_values(score.numpy(), label.numpy())

        def named(columns: Tensor) -> dict[str, Floats]:
            return dict(zip(self.detector.cue_names, columns.numpy().T, strict=True))

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
            num_held_out=self.num_held_out,
        )

    @property
    def num_held_out(self) -> int:
        """The held-out images behind a p-value: all, or the fewest of any class."""
        if not self.per_class or self.held_out.labels is None:
            return len(self.held_out)
        return int(np.bincount(self.held_out.labels, minlength=len(self.classes)).min())

    def p_values(self, score: Floats, label: NDArray[np.int64]) -> Floats:
        """Of scores ``(N,)``: against all held-out scores, or those of the same class."""
        if not self.per_class or self.held_out.labels is None:
            return conformal.p_values_of_sorted(score, self.held_out.scores)
        return conformal.class_conditional_p_values(
            score, label, self.held_out.scores, self.held_out.labels
        )

    def save(self, folder: Path | str) -> None:
        """Write the gate as a folder, whole or not at all; an earlier gate there is replaced.

        Raises:
            UsageError: something else is there, such as a file or a folder with other files.
        """
        from goen.gate.saving import save_gate  # it makes gates, so it imports this module

        with full_precision():
            save_gate(self, Path(folder))


def _read_only(values: Hashes) -> Hashes:
    view = values.view()
    view.flags.writeable = False
    return view


def _not_finite(outputs: Outputs, features: Sequence[str]) -> Tensor | None:
    """Which images have NaN or infinity among their logits or these features; ``None``: none."""
    parts = [outputs.logits, *(outputs.features[name] for name in features)]
    if all(sums_are_finite(part) for part in parts):
        return None
    finite = torch.stack([torch.isfinite(part).all(dim=1) for part in parts]).all(dim=0)
    return None if bool(finite.all()) else ~finite


def _with_zeros(outputs: Outputs, rows: Tensor) -> Outputs:
    """The outputs with zeros in place of those of these images."""

    def replaced(values: Tensor) -> Tensor:
        return values.masked_fill(rows[:, None], 0.0)

    features = {name: replaced(values) for name, values in outputs.features.items()}
    return Outputs(replaced(outputs.logits), features, outputs.uncertainty)
