"""The gate: a network, a detector, and a threshold with a guarantee."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

from goen.batch import Inputs, count_of, map_parts, take
from goen.data.forms import PixelForm
from goen.data.imageset import ImageSet
from goen.data.inputs import (
    Array,
    Arrays,
    Hashes,
    Images,
    as_stream,
    check_batch_size,
    is_batch,
    pick_parts,
    tensors,
)
from goen.data.kinds import AskedInputs, ImageInputs, InputKind, check_images
from goen.data.pictures import are_pictures, picture_batches
from goen.detectors import CueDetector
from goen.errors import FitError, UsageError
from goen.extraction import BATCH_SIZE, run_network
from goen.functional import conformal
from goen.functional.ranking import Floats
from goen.gate._passes import least_held_out
from goen.gate.held_out import HeldOut
from goen.gate.predict_outputs import predict_outputs
from goen.gate.prediction import Prediction, concatenate
from goen.libraries.opened import OpenedModel
from goen.libraries.opening import as_opened
from goen.models.placement import evaluating, full_precision, placement
from goen.models.precomputed import Precomputed
from goen.models.tapping.pooling import Layout, Tokens
from goen.models.tapping.preprocess import InputPreprocessing, Preprocessing
from goen.models.tapping.tapped import Tapped, as_tapped
from goen.outputs import Outputs
from goen.runs.manifest import JsonObject

if TYPE_CHECKING:
    from goen.gate.engine import AskedEngine, CompiledNetwork, EngineName
    from goen.gate.evidence import FitEvidence
    from goen.gate.fit_outputs import Features
    from goen.gate.partial import PartialFit
    from goen.gate.pickling import Pickled
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
        inputs: what it takes: images of one shape, or tensors as the model takes them.
        facts: provenance: splits with their hashes, metrics, configuration.
        per_class: whether the rate holds within every class; see ``with_per_class``.
        image_hashes: of the images that fitted the gate, by role (``train``, ``held_out``, ``ood
            KIND``), so that ``update`` finds an image in a second role; empty in gates of
            ``goen run``.
        evidence: what the held-out images gave, image by image, for the report of a fit; not saved.
        compiled: the network in another engine than torch; see ``with_engine``; not saved.
    """

    network: nn.Module
    detector: CueDetector
    held_out: HeldOut
    false_alarm_rate: float
    classes: tuple[str, ...]
    inputs: InputKind
    facts: JsonObject = field(default_factory=dict)
    per_class: bool = False
    image_hashes: Mapping[str, Hashes] = field(default_factory=dict)
    evidence: "FitEvidence | None" = None
    compiled: "CompiledNetwork | None" = None

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
            f"{', per class' if self.per_class else ''}"
            f"{f', {self.engine}' if self.compiled else ''})"
        )

    def __reduce__(self) -> "tuple[Callable[..., Gate], Pickled]":
        """For pickles: checked bytes and the user's own model; ``evidence`` is left out."""
        from goen.gate.pickling import pickled_gate  # it makes gates, so it imports this module

        return pickled_gate(self)

    def __copy__(self) -> Self:
        """The same parts in another gate: by ``__reduce__`` it would load them again."""
        return replace(self)

    def _repr_html_(self) -> str:
        from goen.gate.gate_table import gate_table  # it needs a gate, which needs this module

        return gate_table(self)

    @classmethod
    def fit(
        cls,
        model: nn.Module | Tapped | OpenedModel,
        train: "Images | PartialFit",
        held_out: Images,
        *,
        layers: str | Sequence[str] = "auto",
        ood: Images | Mapping[str, Images] | None = None,
        false_alarm_rate: float = 0.05,
        logits: str | int | None = None,
        preprocess: Preprocessing | InputPreprocessing | None = None,
        tokens: Tokens = "mean",
        layout: Layout = "auto",
        classes: Sequence[str] | None = None,
        flip_averaging: bool = False,
        batch_size: int = 128,
        inputs: AskedInputs = "auto",
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
                Or what ``goen.open_model`` returns. Of a model of transformers the class names
                are taken over and, if it was loaded from a folder, its preprocessing.
            train: what it was trained on, with labels: an ``ImageSet``, a pair (images, labels), or
                an iterable of such batches, a ``DataLoader`` for one. Images are ``(N, C, H, W)``
                with any number of channels, uint8, uint16 or floats in [0, 1], before any
                normalisation. For other models, whatever the model takes in place of images:
                tensors of any shape and type, a tuple (several arguments) or a dict of them
                (arguments by name; ``labels`` in it are the labels). Or what other processes kept
                of them: ``goen.gate.merge`` of ``goen.gate.partial_fit``, with the same settings.
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
                std, size)`` or a function. Of other inputs: a function of them as they are given.
            tokens: of transformers: ``mean`` of all tokens, or the first (``class``).
            layout: of feature maps, where their shape is ambiguous; see ``Tapped``.
            classes: their names, in the order of the logits.
            flip_averaging: average logits and features over each image and its mirror image:
                more accurate, at twice the time. Not for classes that a flip changes, such as
                digits.
            batch_size: of sets and arrays; iterables have their own.
            inputs: ``images``, which are scaled to [0, 1] and checked to lie in their range, or
                ``tensors``, which go into the model as they are. ``auto``: one tensor of four axes
                is images.

        Raises:
            UsageError: invalid layers, labels, images or settings, or an unsuitable model.
            FitError: too few held-out images, or OOD images that no cue separates.
            LeakError: an image in two of the sets.
        """
        from goen.gate.fit import (
            FitSets,
            fit_to_model,
            own_classes,
        )  # it makes gates, so it imports this module

        sets = FitSets.open(
            train,
            held_out,
            ood,
            false_alarm_rate=false_alarm_rate,
            batch_size=batch_size,
            inputs=inputs,
        )
        opened = as_opened(model)
        given = () if classes is None else tuple(classes)
        names = given or own_classes(opened.classes, sets.train)
        are_images = isinstance(sets.kind, ImageInputs)
        if preprocess is None and not isinstance(opened.model, Tapped):
            preprocess = opened.preprocess(images=are_images)
        if sets.read is not None and layers == "auto" and not isinstance(opened.model, Tapped):
            layers = sets.read.bank.layers
        with full_precision():
            tapped = as_tapped(
                opened.model,
                layers,
                logits=logits,
                preprocess=preprocess,
                tokens=tokens,
                layout=layout,
                example=take(sets.first, slice(2)),
                inputs="images" if are_images else "tensors",
            )
            return fit_to_model(
                tapped,
                sets,
                false_alarm_rate=false_alarm_rate,
                classes=names,
                flip_averaging=flip_averaging,
            )

    @classmethod
    def fit_outputs(
        cls,
        train: "Features | PartialFit",
        labels: Array | None,
        held_out: "Features",
        *,
        held_out_labels: Array | None = None,
        ood: "Features | Mapping[str, Features] | None" = None,
        false_alarm_rate: float = 0.05,
        classes: Sequence[str] | None = None,
        batch_size: int = 4096,
    ) -> "Gate":
        """A gate for features you already have: embeddings on disk, or the outputs of any model.

        With logits it decides as a gate of the whole classifier would. Without them there is no
        entropy among its cues, and the label is that of the nearest class: of the class whose mean
        unit vector of the last feature is nearest. Without labels either, there is one class: it is
        a novelty detector, which says whether an embedding is like those it was fitted on.

        ``predict_outputs`` takes features of the same names and widths; so does ``update``, as
        dicts. The gate needs no model to load, and can be exported.

        Args:
            train: ``Outputs``, an array ``(N, D)``, or a dict of arrays by name, where ``logits``
                are the classifier's. Or what other processes kept of them: ``goen.gate.merge`` of
                ``goen.gate.partial_fit_outputs``; then no labels.
            labels: ``(N,)`` whole numbers; ``None``: the classifier's own, or one class.
            held_out: of ID inputs that trained nothing, in the same form.
            held_out_labels: of those, if they are known: for the accuracy.
            ood: of inputs that should be flagged, or several kinds of them by name.
            false_alarm_rate: the share of ID inputs that may be flagged.
            classes: their names.
            batch_size: rows that are measured at once.

        Raises:
            UsageError: features of different names or widths, invalid labels or settings.
            FitError: too few held-out rows, or OOD rows that no cue separates.
            LeakError: a row in two of the sets.
        """
        from goen.gate.fit_outputs import fit_to_outputs  # it makes gates

        with full_precision():
            return fit_to_outputs(
                train,
                labels,
                held_out,
                held_out_labels=held_out_labels,
                ood=ood,
                false_alarm_rate=false_alarm_rate,
                classes=classes,
                batch_size=batch_size,
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
        """The same gate at another rate; nothing is fitted again.

        Raises:
            FitError: it has too few held-out images for this rate.
        """
        needed, there = conformal.required_held_out(rate), len(self.held_out)
        if there < needed:
            raise FitError(
                f"A false-alarm rate of {rate:g} needs {needed:,} held-out images that set the "
                f"threshold; this gate has {there:,}. Fit it again with more held-out images "
                f"(goen fit: {least_held_out(rate):,}, of which two fifths set the threshold), or "
                "allow a higher rate."
            )
        return replace(self, false_alarm_rate=rate)

    def with_per_class(self, per_class: bool = True) -> Self:
        """The same gate with the rate guaranteed within every predicted class.

        Each image is compared only with held-out images of the same predicted class (Mondrian
        conformal prediction), so no class has more false alarms than another. Every class needs as
        many held-out images as a whole gate would.
        """
        return replace(self, per_class=per_class)

    def with_engine(self, engine: "AskedEngine", images: Arrays | None = None) -> Self:
        """The same gate with its network run by another engine.

        onnxruntime is up to twice as fast as torch on a CPU (``pip install 'goen[onnx]'``). To
        convert the network takes seconds, once. Everything behind the network stays as it is.
        Before the engine is used, its predictions are compared with torch's, on images that come
        with goen. Scores differ in the sixth digit; those that are as close as that to a held-out
        score count as equal to it, so that no image is flagged for the difference.

        The weights are those of this moment, the number of threads that of ``torch``. ``save``,
        ``update`` and exports use the model itself; a gate that was updated, copied or sent to
        another process runs in torch again.

        Args:
            engine: ``torch``, ``onnxruntime``, or ``auto``: onnxruntime if it is installed and
                predicts as torch does, else torch, and the reason is logged.
            images: to compare on, uint8 and of the gate's size; by default images embedded in goen.
                A gate of other inputs needs some of them.

        Raises:
            UsageError: onnxruntime is missing, or cannot run this model.
            ArtifactError: its predictions differ from torch's.
        """
        from goen.gate.engine import choose_engine  # it makes gates, so it imports this module

        return replace(self, compiled=choose_engine(self, engine, images).compiled)

    @property
    def engine(self) -> "EngineName":
        """What runs the network: ``torch`` or ``onnxruntime``."""
        return "torch" if self.compiled is None else "onnxruntime"

    @property
    def score_slack(self) -> float:
        """Scores above a held-out score or a threshold by no more than this count as equal to it.

        0 in torch; the difference between the engines in another.
        """
        return 0.0 if self.compiled is None else self.compiled.slack

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

    def predict(
        self,
        images: Images | Arrays | Image.Image | Sequence[Image.Image],
        *,
        batch_size: int = BATCH_SIZE,
        nearest: int = 0,
    ) -> Prediction:
        """Label, score, p-value, probability and decision for each image.

        Args:
            images: whatever ``fit`` takes: an ``ImageSet``, images ``(N, C, H, W)``, uint8, uint16
                or floats in [0, 1], a pair (images, labels), or an iterable of such batches, a
                ``DataLoader`` for one; or one image ``(C, H, W)``. Labels are ignored. Of an array
                without images the prediction is empty. Or a picture of Pillow or a list of them, of
                any mode and size: they are read as ``goen.read_picture`` reads files. For a gate of
                other inputs, those: a tensor, a tuple or a dict.
            batch_size: images that pass through the network at once; iterables have their own.
            nearest: how many of the nearest training images to find in each layer, for
                ``Prediction.nearest``.

        Raises:
            UsageError: images of another shape, type or range, or with NaN in them.
            DataError: no images, such as a generator that was read before, or a broken picture.
        """
        check_batch_size(batch_size)
        if is_batch(images, self.inputs):
            batch = self._checked(images)
            parts = (
                take(batch, slice(start, start + batch_size))
                for start in range(0, max(count_of(batch), 1), batch_size)
            )
            return concatenate(
                [predict_outputs(self, self._outputs(part), nearest) for part in parts]
            )
        if isinstance(images, ImageSet) and not len(images):
            raise UsageError(f"{images.name} has no images.")
        given = [images] if isinstance(images, Image.Image) else images
        if are_pictures(given):
            given = picture_batches(given, self.image_size, batch_size, self.picture_form)
        # The type checker cannot tell that pictures are batches by now.
        return concatenate(list(self._predict_stream(cast(Images, given), batch_size, nearest)))

    def outputs(self, images: Arrays) -> Outputs:
        """What the detector reads of the network's outputs for a batch, on the CPU.

        Args:
            images: ``(N, C, H, W)`` or ``(C, H, W)``, uint8, uint16 or floats in [0, 1]; or a batch
                of what the gate's model takes.

        Raises:
            UsageError: images of another shape, type or range, or with NaN in them.
        """
        return self._outputs(self._checked(images))

    def _outputs(self, batch: Inputs) -> Outputs:
        """Of a batch that was checked."""
        count = count_of(batch)
        network = self._running
        device, _ = placement(network)
        # Not every model takes an empty batch: it gets one input then, of which nothing is kept.
        shown = batch if count else take(self.inputs.pattern(), slice(1))
        with evaluating(network), full_precision(), torch.inference_mode():
            outputs: Outputs = network(map_parts(lambda part: part.to(device), shown))
            return outputs.keep(self.detector.features).cpu()[:count]

    @property
    def _running(self) -> nn.Module:
        """The network in its engine."""
        return self.network if self.compiled is None else self.compiled

    def _checked(self, given: Arrays) -> Inputs:
        batch = tensors(pick_parts(given, self.inputs))
        if not isinstance(self.inputs, ImageInputs):
            return self.inputs.check(batch, "inputs")
        images = check_images(batch, self.inputs.channels)
        self._check_size(images.shape)
        return images

    def _predict_stream(
        self, images: Images, batch_size: int, nearest: int
    ) -> Iterator[Prediction]:
        asked: AskedInputs = "images" if isinstance(self.inputs, ImageInputs) else "tensors"
        stream = as_stream(images, "images", batch_size, asked)
        if stream.images is not None:
            self._check_size((len(stream.images), *stream.images.image_shape))
        stream = replace(stream, kind=self.inputs)
        network, name = self._running, stream.name
        for outputs, _ in run_network(network, stream, name=name, total=stream.count):
            yield predict_outputs(self, outputs, nearest)

    def _check_size(self, shape: Sequence[int]) -> None:
        height, width = self.image_size
        if tuple(shape[2:]) != (height, width):
            raise UsageError(
                f"This gate was fitted on images of {height}×{width}, got {shape[2]}×{shape[3]}. "
                "Resize them: its guarantee holds at that size only."
            )

    @property
    def picture_form(self) -> PixelForm:
        """Channels and bits of its images: how ``goen.read_picture`` reads pictures for it.

        Raises:
            UsageError: a gate whose inputs are no images.
        """
        if not isinstance(self.inputs, ImageInputs):
            raise UsageError(f"This gate takes no images: its inputs are {self.inputs}.")
        return self.inputs.form

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) the gate was fitted on, to which pictures are resized.

        Raises:
            UsageError: a gate whose inputs are no images.
        """
        if not isinstance(self.inputs, ImageInputs):
            raise UsageError(f"This gate takes no images: its inputs are {self.inputs}.")
        return self.inputs.size

    @full_precision()
    def predict_outputs(self, outputs: "Features", *, nearest: int = 0) -> Prediction:
        """The prediction for outputs of this gate's network, or features for ``fit_outputs``'s.

        An image whose logits or features are NaN or infinite is flagged: its score and its cues
        are infinite, its p-values are the least there are, its confidence is 0.

        Args:
            outputs: of the network; or arrays by name, or the array of the only feature.
            nearest: as for ``predict``.

        Raises:
            UsageError: a feature is missing or of another width.
        """
        if not isinstance(outputs, Outputs) or isinstance(self.network, Precomputed):
            outputs = self._as_outputs(outputs)
        return predict_outputs(self, outputs, nearest)

    def _as_outputs(self, given: "Features") -> Outputs:
        from goen.gate.fit_outputs import as_features, renamed  # it makes gates

        features = as_features(given)
        if not isinstance(self.network, Precomputed):
            if "logits" not in features:
                raise UsageError("The outputs of this gate's network are features and logits.")
            parts = {name: torch.as_tensor(part) for name, part in features.items()}
            return Outputs(parts.pop("logits"), parts)
        return self.outputs(renamed(features, self.network.widths))

    @property
    def num_held_out(self) -> int:
        """The held-out images behind a p-value: all, or the fewest of any class."""
        if not self.per_class or self.held_out.labels is None:
            return len(self.held_out)
        return int(np.bincount(self.held_out.labels, minlength=len(self.classes)).min())

    def p_values(self, score: Floats, label: NDArray[np.int64]) -> Floats:
        """Of scores ``(N,)``: against all held-out scores, or those of the same class."""
        lowest = score - self.score_slack
        if not self.per_class or self.held_out.labels is None:
            return conformal.p_values_of_sorted(lowest, self.held_out.scores)
        return conformal.class_conditional_p_values(
            lowest, label, self.held_out.scores, self.held_out.labels
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
