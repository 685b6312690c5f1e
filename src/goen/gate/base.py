"""The gate as a value: a network, a detector, and a threshold with a guarantee."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Self, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from goen.batch import Inputs, count_of, map_parts, parts_of, take
from goen.checks import check_number
from goen.data.images.decoding import are_pil_images, image_batches
from goen.data.images.pixel_format import PixelFormat
from goen.data.imageset import ImageSet
from goen.data.input_spec import ImageInputs, InputsOption, InputSpec
from goen.data.inputs import (
    Arrays,
    Hashes,
    Images,
    as_stream,
    check_batch_size,
    is_batch,
    pick_parts,
    tensors,
)
from goen.data.sets.folders import AS_THEY_ARE, ImageReading, are_paths, list_files
from goen.detectors import Detector
from goen.errors import FitError, UsageError, first_of
from goen.extraction import BATCH_SIZE, stream
from goen.features.new_classes import WithNewClasses
from goen.features.precomputed import Features, Precomputed, as_features, renamed
from goen.functional import conformal
from goen.functional.image_properties import image_properties, property_names
from goen.functional.ranking import Floats
from goen.gate.decision import Reference, compare, decide, finite_rows
from goen.gate.error_rate import Acceptance, AcceptBy, ErrorRate, find_acceptance
from goen.gate.flagged import FlaggedGroups, deciding_cues, group_features, group_images
from goen.gate.one_image import NearestImages, TrainingRow
from goen.gate.prediction import Prediction, concatenate
from goen.gate.threshold import FitDiagnostics, HeldOut
from goen.io.manifest import JsonObject
from goen.models.placement import evaluating, full_precision, placement
from goen.notebook import html_table, wide
from goen.outputs import Outputs

AnyImages: TypeAlias = Images | Arrays | Image.Image | Sequence[Image.Image]
"""Whatever ``Gate.fit`` takes, one image, or images of Pillow."""
EngineName = Literal["torch", "onnxruntime"]
_MOST_CLASSES = 10


@dataclass(frozen=True, eq=False)
class BaseGate:
    """A gate as a value: it classifies inputs, scores them, and flags OOD inputs.

    ``goen.Gate`` adds fitting, saving and exporting. With n held-out ID images that were used for
    nothing else, a new ID image is flagged with probability at most ``false_alarm_rate``, for every
    n, every network and every score: split conformal prediction. The rate can be changed at any
    time without fitting again. The arrays of a gate are read-only.

    Attributes:
        network: gives ``Outputs``.
        detector: turns them into cues and a score.
        held_out: the held-out ID images that set the threshold.
        false_alarm_rate: the share of ID images that may be flagged.
        classes: names of the classes.
        inputs: what it takes: images of one shape, or tensors as the model takes them.
        metadata: provenance: splits with their hashes, metrics, configuration.
        per_class: whether the rate holds within every class; see ``with_per_class``.
        error_rate: of the images that are accepted; see ``with_error_rate``.
        image_hashes: of the images that fitted the gate, by role (``train``, ``held_out``,
            ``calibration``, ``ood KIND``), so that ``update`` finds an image in a second role;
            empty in gates of ``goen run``.
        compiled: the network in another engine; see ``with_engine``. It is not saved.
        diagnostics: what the held-out images of the fit gave, for its report. It is not saved.
    """

    network: nn.Module
    detector: Detector
    held_out: HeldOut
    false_alarm_rate: float
    classes: tuple[str, ...]
    inputs: InputSpec
    metadata: JsonObject = field(default_factory=dict)
    per_class: bool = False
    error_rate: ErrorRate | None = None
    image_hashes: Mapping[str, Hashes] = field(default_factory=dict)
    compiled: nn.Module | None = None
    diagnostics: FitDiagnostics | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "false_alarm_rate", float(self.false_alarm_rate))
        hashes = {role: _read_only(values) for role, values in self.image_hashes.items()}
        object.__setattr__(self, "image_hashes", hashes)
        self.held_out.threshold(self.false_alarm_rate)  # enough, or an error
        if self.per_class:
            self.class_thresholds  # noqa: B018  (enough of each class, or an error)
        self.acceptance  # noqa: B018  (a bound that is low enough, or an error)

    def __repr__(self) -> str:
        return (
            f"Gate({len(self.classes)} classes, {self.detector}, {len(self.held_out)} "
            f"held-out scores, false_alarm_rate={self.false_alarm_rate:g}"
            f"{', per class' if self.per_class else ''}"
            f"{f', error_rate={self.error_rate.rate:g}' if self.error_rate else ''}"
            f"{f', {self.engine}' if self.compiled else ''})"
        )

    def __copy__(self) -> Self:
        """The same parts in another gate: as a pickle it would load them again."""
        return replace(self)

    def _repr_html_(self) -> str:
        """What the gate takes, what it was fitted on, and what it guarantees.

        A gate may come from anyone: nothing of its metadata is taken for granted.
        """
        low, mean, high = conformal.false_alarm_interval(self.num_held_out, self.false_alarm_rate)
        each = " within every predicted class" if self.per_class else ""
        groups = "" if self.held_out.groups is None else f" in {self.num_held_out:,} groups"
        limit = self.threshold
        rows = [
            ("inputs", str(self.inputs)),
            (f"{len(self.classes):,} classes", first_of(self.classes, _MOST_CLASSES)),
            ("detector", str(self.detector)),
            ("cues", ", ".join(self.detector.cue_names)),
            ("false-alarm rate", f"at most {self.false_alarm_rate:g}{each}, on average"),
            ("this gate's rate", f"{mean:.3f}, or {low:.3f} to {high:.3f} with 90 % probability"),
            ("held-out images", f"{len(self.held_out):,}{groups} set the threshold, {limit:.4g}"),
        ]
        if self.error_rate is not None and self.acceptance is not None:
            promise = f"at most {self.error_rate.rate:g} of accepted ID images"
            share = f"{self.acceptance.coverage:.1%} of held-out images are accepted"
            rows.append(
                ("error rate", f"{promise}, with {self.error_rate.confidence:.0%}; {share}")
            )
        kept, total = self.detector.num_kept
        if kept:
            rows.append(("training images", f"{kept:,} of {total:,} are kept"))
        accuracy = self.metadata.get("held_out_accuracy")
        if isinstance(accuracy, float):
            rows.append(("accuracy", f"{accuracy:.3f} on held-out images"))
        return html_table("Gate", ("", ""), [(name, wide(value)) for name, value in rows])

    def with_false_alarm_rate(self, rate: float) -> Self:
        """The same gate at another rate; nothing is fitted again.

        Raises:
            FitError: it has too few held-out images for this rate.
        """
        needed, there = conformal.required_held_out(rate), self.held_out.independent
        if there < needed:
            what = (
                "held-out images" if self.held_out.groups is None else "groups of held-out images"
            )
            raise FitError(
                f"A false-alarm rate of {rate:g} needs {needed:,} {what} that set the threshold; "
                f"this gate has {there:,}. Fit it again with more {what}, or allow a higher rate."
            )
        return replace(self, false_alarm_rate=rate)

    def with_per_class(self, per_class: bool = True) -> Self:
        """The same gate with the rate guaranteed within every predicted class.

        Each image is compared only with held-out images of the same predicted class (Mondrian
        conformal prediction), so no class has more false alarms than another. Every class needs as
        many held-out images as a whole gate would.
        """
        return replace(self, per_class=per_class)

    def with_error_rate(
        self,
        rate: float | None,
        *,
        confidence: float = 0.95,
        by: AcceptBy = "confidence",
    ) -> Self:
        """The same gate, which also decides what to accept; nothing is fitted again.

        Predictions then have ``accepted``: images that are not flagged, and whose confidence is
        high enough. Of accepted ID images at most this share is misclassified: with probability
        ``confidence`` over the held-out images, the gate keeps this. Nothing is promised of OOD
        images that are not flagged. ``is_ood``, scores and p-values stay as they are. It needs
        held-out images with labels; ``docs/error-rate.md`` has the procedure and what it costs.

        Args:
            rate: the largest share of wrong classes among accepted ID images; ``None`` for a gate
                that accepts nothing.
            confidence: the probability with which the rate is kept.
            by: what orders the images that are not flagged: the classifier's ``confidence``, or
                the gate's ``score``.

        Raises:
            FitError: the held-out images are too few, or the errors among them too many.
            UsageError: they have no labels, or come in groups, or the gate has a threshold for
                each class.
        """
        wanted = None if rate is None else ErrorRate(rate, confidence, by)
        return replace(self, error_rate=wanted)

    @cached_property
    def acceptance(self) -> Acceptance | None:
        """Which images are accepted; ``None`` without an error rate."""
        if self.error_rate is None:
            return None
        if self.per_class:
            raise UsageError(
                "The bound on the error rate is for one threshold, and this gate has one for each "
                "class. Have one of the two: gate.with_per_class(False) (without --per-class), or "
                "gate.with_error_rate(None)."
            )
        return find_acceptance(self.error_rate, self.held_out, self.detector, self.false_alarm_rate)

    @property
    def engine(self) -> EngineName:
        """What runs the network: ``torch`` or ``onnxruntime``."""
        return "torch" if self.compiled is None else "onnxruntime"

    @property
    def score_tolerance(self) -> float:
        """Scores above a held-out score or a threshold by no more than this count as equal to it.

        0 in torch; the difference between the engines in another.
        """
        return 0.0 if self.compiled is None else cast(float, self.compiled.tolerance)

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
        return self.held_out.class_thresholds(self.false_alarm_rate, self.classes)

    def predict(self, images: AnyImages, *, batch_size: int = BATCH_SIZE) -> Prediction:
        """Label, score, p-value, probability and decision for each image.

        Args:
            images: whatever ``fit`` takes: an ``ImageSet``, images ``(N, C, H, W)``, uint8, uint16
                or floats in [0, 1], a pair (images, labels), or an iterable of such batches, a
                ``DataLoader`` for one; or one image ``(C, H, W)``. Labels are ignored. Of an array
                without images the prediction is empty. Or a file, a list of files, a folder of
                images (all below it), or an image of Pillow or a list of them, of any mode and
                size: ``goen.read_image`` reads them in the gate's size and channels. For a gate of
                other inputs, those: a tensor, a tuple or a dict.
            batch_size: images that pass through the network at once; iterables have their own.

        Raises:
            UsageError: images of another shape, type or range, or with NaN in them.
            DataError: no images, such as a generator that was read before, or a broken image.
        """
        files = list_files(images) if are_paths(images) else None
        given = images if files is None else files
        found = concatenate([self._predict(part) for part in self._batches(given, batch_size)])
        return found if files is None else replace(found, paths=np.array([*map(str, files)]))

    def nearest(
        self, images: AnyImages, count: int = 3, *, batch_size: int = BATCH_SIZE
    ) -> list[NearestImages]:
        """The training images nearest to each image in each layer, the nearest first.

        They are the nearest of those that the detector keeps.

        Args:
            images: as for ``predict``.
            count: how many of each layer.
            batch_size: as for ``predict``.

        Raises:
            UsageError: images as in ``predict``, or a detector that keeps no training images.
        """
        check_number("count", count, whole=True, at_least=1)
        if not self.detector.num_kept[0]:
            raise UsageError(
                "gate.nearest needs a detector that keeps training images, such as goen_m; "
                f"{self.detector} keeps none."
            )
        return [
            near
            for outputs in self._batches(images, batch_size)
            for near in self._nearest(outputs, count)
        ]

    def group_flagged(self, images: AnyImages, *, batch_size: int = BATCH_SIZE) -> FlaggedGroups:
        """The flagged ones among these images in groups, and which of them to label first.

        They are grouped by their features; where they do not fall into groups, there are none. See
        docs/flagged.md.

        Args:
            images: as for ``predict``. Their names are their paths, or their numbers.
            batch_size: as for ``predict``.

        Raises:
            UsageError: images as in ``predict``.
        """
        files = list_files(images) if are_paths(images) else None
        features, found = [], []
        for outputs in self._batches(images if files is None else files, batch_size):
            prediction = self._predict(outputs)
            flagged = np.flatnonzero(prediction.is_ood)
            features.append(group_features(outputs)[flagged])
            found.append(prediction)
        whole = concatenate(found)
        rows = np.flatnonzero(whole.is_ood)
        flagged_ones = whole.take(rows.tolist())
        return group_images(
            np.concatenate(features),
            [str(row if files is None else files[row]) for row in rows],
            flagged_ones.class_names.tolist(),
            deciding_cues(flagged_ones),
        )

    def _nearest(self, outputs: Outputs, count: int) -> list[NearestImages]:
        """Those of each image; none of an image for which the network's outputs are not finite."""
        finite, features = finite_rows(outputs, self.detector), self.detector.features
        places = (
            torch.arange(len(outputs), device="cpu")
            if finite is None
            else torch.nonzero(finite).flatten()
        )
        found: list[NearestImages] = [dict.fromkeys(features, ()) for _ in range(len(outputs))]
        for layer, near in self.detector.nearest(outputs[places], count).items():
            columns = (near.numbers.tolist(), near.labels.tolist(), near.distances.tolist())
            for place, *row in zip(places.tolist(), *columns, strict=True):
                found[place][layer] = tuple(
                    TrainingRow(number, label, self.classes[label], distance)
                    for number, label, distance in zip(*row, strict=True)
                )
        return found

    def _batches(self, images: AnyImages, batch_size: int) -> Iterator[Outputs]:
        """The outputs of the network for images in any form."""
        check_batch_size(batch_size)
        if is_batch(images, self.inputs):
            batch = self._checked(images)
            for start in range(0, max(count_of(batch), 1), batch_size):
                yield self.run(take(batch, slice(start, start + batch_size)))
            return
        if isinstance(images, ImageSet) and not len(images):
            raise UsageError(f"{images.name} has no images.")
        given = [images] if isinstance(images, Image.Image) else images
        if are_pil_images(given):
            given = image_batches(given, self.image_size, batch_size, self.pixel_format)
        asked: InputsOption = "images" if isinstance(self.inputs, ImageInputs) else "tensors"
        # The type checker cannot tell that images of Pillow are batches by now.
        batches = as_stream(cast(Images, given), "images", batch_size, asked, self.reading)
        parts = stream(
            self._running,
            replace(batches, spec=self.inputs),
            with_properties=bool(self.property_names),
        )
        for outputs in parts:
            yield outputs.keep(self.detector.features)

    def outputs(self, images: Arrays) -> Outputs:
        """What the detector reads of the network's outputs for a batch, on the CPU.

        Args:
            images: ``(N, C, H, W)`` or ``(C, H, W)``, uint8, uint16 or floats in [0, 1]; or a batch
                of what the gate's model takes.

        Raises:
            UsageError: images of another shape, type or range, or with NaN in them.
        """
        return self.run(self._checked(images))

    def run(self, batch: Inputs) -> Outputs:
        """``outputs`` of a batch that goen itself made or checked."""
        count = count_of(batch)
        network = self._running
        device, _ = placement(network)
        # Not every model takes an empty batch: it gets one input then, of which nothing is kept.
        shown = batch if count else take(self.inputs.pattern(), slice(1))
        with evaluating(network), full_precision(), torch.inference_mode():
            outputs: Outputs = network(map_parts(lambda part: part.to(device), shown))
            found = outputs.keep(self.detector.features).cpu()
        if self.property_names:
            found = replace(found, properties=image_properties(parts_of(shown)[""]).cpu())
        return found if count else found[:0]

    @property
    def _running(self) -> nn.Module:
        """The network in its engine, prepared for the detector."""
        running = self.network if self.compiled is None else self.compiled
        return self.detector.prepare_network(running)

    @cached_property
    def reference(self) -> Reference:
        """The held-out images as tensors."""
        per_class, tolerance = self.per_class, self.score_tolerance
        return Reference.of(self.detector, self.held_out, per_class=per_class, tolerance=tolerance)

    @property
    def has_cue_p_values(self) -> bool:
        """Whether predictions have a p-value for each cue."""
        return self.held_out.cues is not None

    @property
    def property_names(self) -> tuple[str, ...]:
        """The properties of images that predictions have: those of the held-out images."""
        if self.held_out.properties is None:
            return ()
        return property_names(self._images.channels)

    @property
    def num_known_classes(self) -> int | None:
        """How many classes the classifier was trained on, if ``update`` added others."""
        return self.network.num_known if isinstance(self.network, WithNewClasses) else None

    @cached_property
    def threshold_tensor(self) -> Tensor:
        """The threshold as a tensor: ``()``, or ``(C,)`` of each predicted class."""
        values = self.class_thresholds if self.per_class else np.float64(self.threshold)
        return torch.as_tensor(values, dtype=torch.float64, device="cpu")

    @torch.no_grad()
    def _predict(self, outputs: Outputs) -> Prediction:
        """Of outputs that were checked."""
        detector = self.detector
        found = decide(detector, outputs, self.reference, self.threshold_tensor)

        def named(columns: Tensor) -> dict[str, Floats]:
            return dict(zip(detector.cue_names, columns.numpy().T, strict=True))

        known, label = self.num_known_classes, found.label.numpy()
        score, confidence, accepted = found.score.numpy(), found.confidence.numpy(), None
        if self.acceptance is not None:
            accepted = self.acceptance.accepts(score + self.score_tolerance, confidence)
        return Prediction(
            label=label,
            confidence=confidence,
            score=score,
            p_value=found.p_value.numpy(),
            probability=None if found.probability is None else found.probability.numpy(),
            is_ood=found.is_ood.numpy(),
            cues=named(found.cues),
            classes=self.classes,
            cue_p_values={} if found.cue_p_values is None else named(found.cue_p_values),
            num_held_out=self.num_held_out,
            grouped=self.held_out.groups is not None,
            accepted=accepted,
            new_class=None if known is None else label >= known,
            properties={}
            if outputs.properties is None
            else dict(zip(self.property_names, outputs.properties.numpy().T, strict=True)),
        )

    def _checked(self, given: Arrays) -> Inputs:
        return self.inputs.check(tensors(pick_parts(given, self.inputs)), "inputs")

    @property
    def _images(self) -> ImageInputs:
        if not isinstance(self.inputs, ImageInputs):
            raise UsageError(f"This gate takes no images: its inputs are {self.inputs}.")
        return self.inputs

    @property
    def pixel_format(self) -> PixelFormat:
        """Channels and bits of its images: how ``goen.read_image`` reads pictures for it.

        Raises:
            UsageError: a gate whose inputs are no images.
        """
        return self._images.pixel_format

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) the gate was fitted on, to which pictures are resized.

        Raises:
            UsageError: a gate whose inputs are no images.
        """
        return self._images.size

    @property
    def reading(self) -> ImageReading:
        """How image files are read for this gate; of a gate of other inputs, nothing."""
        if not isinstance(self.inputs, ImageInputs):
            return AS_THEY_ARE
        return ImageReading(self.inputs.size, self.inputs.pixel_format, self.classes)

    @full_precision()
    def predict_outputs(self, outputs: Features) -> Prediction:
        """The prediction for outputs of this gate's network, or features for ``fit_outputs``'s.

        An image whose logits or features are NaN or infinite is flagged: its score and its cues
        are infinite, its p-values are the least there are, its confidence is 0.

        Args:
            outputs: of the network; or arrays by name, or the array of the only feature.

        Raises:
            UsageError: a feature is missing or of another width.
        """
        if isinstance(self.network, Precomputed):
            outputs = self.outputs(renamed(as_features(outputs), self.network.widths))
        elif not isinstance(outputs, Outputs):
            parts = {
                name: torch.as_tensor(part, device="cpu")
                for name, part in as_features(outputs).items()
            }
            if "logits" not in parts:
                raise UsageError("The outputs of this gate's network are features and logits.")
            outputs = Outputs(parts.pop("logits"), parts)
        return self._predict(outputs)

    @property
    def held_out_counts(self) -> list[int]:
        """How many held-out images set the threshold: all, or of each class those of it.

        Of images in groups the groups count.
        """
        if not self.per_class or self.held_out.labels is None:
            return [self.held_out.independent]
        counts = np.bincount(self.held_out.labels, minlength=len(self.classes))
        return [int(count) for count in counts]

    @property
    def num_held_out(self) -> int:
        """The held-out images, or groups of them, behind a p-value; the fewest of any class."""
        return min(self.held_out_counts)

    def p_values(self, score: Floats, label: NDArray[np.int64]) -> Floats:
        """Of scores ``(N,)``: against all held-out scores, or those of the same class."""
        lowest = torch.tensor(score, device="cpu") - self.reference.tolerance
        return compare(lowest, torch.tensor(label, device="cpu"), self.reference).numpy()


def _read_only(values: Hashes) -> Hashes:
    view = values.view()
    view.flags.writeable = False
    return view
