"""Fitting a gate to a trained classifier: one pass over each set; no image is kept.

The threshold of a fitted gate is computed in ``held_out``.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from logging import getLogger

import numpy as np
import torch
from torch import Tensor, nn

from goen.batch import Inputs, map_parts, take
from goen.data.inputs import (
    BatchStream,
    Images,
    as_stream,
    image_hashes,
    require_disjoint_streams,
)
from goen.data.kinds import AskedInputs, ImageInputs, InputKind, find_kind
from goen.detectors import GoenM
from goen.errors import GoenWarning, UsageError
from goen.gate._passes import (
    CuePass,
    count_classes,
    first_inputs,
    measure_cues,
    require_held_out,
    split_held_out,
)
from goen.gate.evidence import FitEvidence, is_clearly_above, is_near_chance
from goen.gate.gate import Gate
from goen.gate.held_out import HeldOut
from goen.gate.partial import PartialFit, read_training
from goen.models import ARCHITECTURES, Backbone
from goen.models.flip_averaging import FlipAveraged
from goen.models.placement import evaluating, placement
from goen.models.precomputed import Precomputed
from goen.models.tapping.deterministic import check_deterministic
from goen.models.tapping.tapped import Tapped
from goen.runs.manifest import JsonObject

# Enough to test whether outputs repeat, few enough to cost nothing.
_TRIED = 8
# On its own training images; most classifiers that anybody uses are above.
_LOW_ACCURACY = 0.5
# The share of held-out images that may be copies of others without a warning.
_COPIES = 0.05
_log = getLogger(__name__)


@dataclass(frozen=True)
class FitSets:
    """The images a gate is fitted on.

    Attributes:
        train: what the classifier was trained on, with labels.
        held_out: ID images it was not trained on.
        ood: each kind of OOD images by its name.
        first: two training images or more; held-out ones where the training images were read.
        kind: what the inputs are.
        read: what was kept of the training images, where they were read before.
    """

    train: BatchStream
    held_out: BatchStream
    ood: Mapping[str, BatchStream]
    first: Inputs
    kind: InputKind
    read: PartialFit | None = None

    @classmethod
    def open(
        cls,
        train: Images | BatchStream | PartialFit,
        held_out: Images | BatchStream,
        ood: Images | Mapping[str, Images | BatchStream] | None,
        *,
        false_alarm_rate: float,
        batch_size: int,
        inputs: AskedInputs = "auto",
    ) -> "FitSets":
        """The sets as streams, checked to be disjoint and enough for the rate."""
        read: PartialFit | None = None
        if isinstance(train, PartialFit):
            train.require_whole()
            inputs = "images" if isinstance(train.kind, ImageInputs) else "tensors"
            read, train = train, train.as_stream()
        training = as_stream(train, "train", batch_size, inputs)
        holding = as_stream(held_out, "held_out", batch_size, inputs)
        unlike = ood_streams(ood, batch_size, inputs)
        require_held_out(holding.count, false_alarm_rate)
        require_disjoint_streams(_by_role(training, holding, unlike))
        if read is None:
            first, training = first_inputs(training)
            kind = find_kind(first, inputs, "train")
        else:
            first, holding = first_inputs(holding)
            kind = read.kind
        return cls(
            replace(training, kind=kind),
            replace(holding, kind=kind),
            {name: replace(stream, kind=kind) for name, stream in unlike.items()},
            first,
            kind,
            read,
        )

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the training set's classes, if it has any."""
        if self.read is not None:
            return self.read.classes
        return None if self.train.images is None else self.train.images.classes

    def by_role(self) -> dict[str, BatchStream]:
        """All sets: ``train``, ``held_out``, ``ood KIND``."""
        return _by_role(self.train, self.held_out, self.ood)

    def require_disjoint(self) -> None:
        """Raise a LeakError if an image was read from two of the sets."""
        require_disjoint_streams(self.by_role())


def _by_role(
    train: BatchStream, held_out: BatchStream, ood: Mapping[str, BatchStream]
) -> dict[str, BatchStream]:
    return {
        "train": train,
        "held_out": held_out,
        **{f"ood {kind}": stream for kind, stream in ood.items()},
    }


def fit_to_model(
    tapped: Tapped,
    sets: FitSets,
    *,
    false_alarm_rate: float,
    classes: Sequence[str] | None,
    flip_averaging: bool,
) -> Gate:
    """A gate for the tapped classifier; see ``Gate.fit``."""
    if flip_averaging and not isinstance(sets.kind, ImageInputs):
        raise UsageError(f"Only images can be averaged over flips; the inputs are {sets.kind}.")
    model = type(tapped.model)
    return fit_gate(
        gate_network(tapped, flip_averaging),
        GoenM(tapped.layers),
        sets,
        false_alarm_rate=false_alarm_rate,
        classes=classes,
        made_from=f"{model.__module__}:{model.__qualname__}",
    )


def fit_gate(
    network: nn.Module,
    detector: GoenM,
    sets: FitSets,
    *,
    false_alarm_rate: float,
    classes: Sequence[str] | None,
    made_from: str,
) -> Gate:
    """A gate of this network and detector.

    Args:
        network: gives ``Outputs``.
        detector: not fitted yet.
        sets: to fit it on.
        false_alarm_rate: of the gate.
        classes: their names, if they are given.
        made_from: where the model comes from, for the manifest.
    """
    with evaluating(network):
        count = count_classes(network, sets.first)
        device = placement(network)[0]
        tried = take(sets.first, slice(_TRIED))
        check_deterministic(network, map_parts(lambda part: part.to(device), tried))
        names = name_classes(sets.classes if classes is None else classes, count)
        train = sets.read or read_training(network, detector.layers or (), sets.train)
        train.add_to(detector, network)
        held_out = measure_cues(network, sets.held_out, detector)
        ood = {kind: measure_cues(network, s, detector) for kind, s in sets.ood.items()}
    sets.require_disjoint()
    _warn_of_accuracy(train, held_out, count, is_model=not isinstance(network, Precomputed))
    warn_of_copies(sets.held_out, stacklevel=5)
    if not ood:
        _log.info(
            "No OOD images were given: the gate decides by its p-values, with the same guarantee, "
            "its cues are weighted equally, and it returns no probability."
        )
    ood_cues = {kind: found.cues[0] for kind, found in ood.items()}
    streams = sets.by_role()
    splits = {"train": train.describe(), "held_out": describe_stream(sets.held_out, len(held_out))}
    for kind, found in ood.items():
        splits[f"ood {kind}"] = describe_stream(sets.ood[kind], len(found))
    scores = calibrate(detector, held_out, ood_cues, false_alarm_rate)
    return Gate(
        network=network,
        detector=detector,
        held_out=scores,
        false_alarm_rate=false_alarm_rate,
        classes=names,
        inputs=sets.kind,
        facts={
            "model": made_from,
            "splits": splits,
            "train_accuracy": train.accuracy,
            "held_out_accuracy": held_out.accuracy,
        },
        image_hashes={role: image_hashes(stream.digests()) for role, stream in streams.items()},
        evidence=FitEvidence.from_pass(held_out, detector, false_alarm_rate),
    )


def _warn_of_accuracy(
    train: PartialFit, held_out: CuePass, num_classes: int, *, is_model: bool
) -> None:
    """Warn of accuracies that sets given in the right places to the right model hardly have.

    A held-out set may have no labels, the training set has them.
    """
    for name, accuracy, count in (
        ("held-out", held_out.accuracy, len(held_out)),
        ("training", train.accuracy, len(train)),
    ):
        if accuracy is not None and is_near_chance(accuracy, count, num_classes):
            warnings.warn(
                f"The classifier is right on {accuracy:.1%} of the {name} images, no better than "
                f"chance ({1 / num_classes:.1%}). Is the preprocessing missing, do the labels "
                "count the classes in another order than the logits, or are these other weights?",
                GoenWarning,
                stacklevel=5,
            )
            return
    if train.accuracy is None:
        return
    if held_out.accuracy is not None and is_clearly_above(
        held_out.accuracy, len(held_out), train.accuracy, len(train)
    ):
        warnings.warn(
            f"The classifier is right on {held_out.accuracy:.1%} of the held-out images and on "
            f"{train.accuracy:.1%} of the training images. Are the two swapped, or was it "
            "trained on the held-out images? Then far more new images are flagged than the "
            "false-alarm rate says.",
            GoenWarning,
            stacklevel=5,
        )
    elif is_model and train.accuracy < _LOW_ACCURACY:
        warnings.warn(
            f"The classifier is right on {train.accuracy:.1%} of its training images. Is that what "
            "it should be? If not, look at the preprocessing (mean, standard deviation, size) and "
            "at the order of the classes.",
            GoenWarning,
            stacklevel=5,
        )


def warn_of_copies(held_out: BatchStream, stacklevel: int) -> None:
    """Warn if many held-out images are copies of others, as where a sampler drew them."""
    digests = held_out.digests()
    copies = len(digests) - len(np.unique(digests))
    if copies > _COPIES * len(digests):
        warnings.warn(
            f"{copies:,} of the {len(digests):,} held-out images are copies of others, pixel for "
            "pixel. The false-alarm rate is guaranteed for images that were drawn independently: "
            "leave the copies out, unless new images repeat as often.",
            GoenWarning,
            stacklevel=stacklevel,
        )


def gate_network(tapped: Tapped, flip_averaging: bool) -> nn.Module:
    """The network of the gate: goen's own as it is, any other model tapped.

    goen's own network outputs its features itself, and its gate can be loaded without a model.
    """
    model = tapped.model
    network: nn.Module = tapped
    if (
        isinstance(model, Backbone)
        and type(model) in ARCHITECTURES.values()
        and tapped.preprocess is None
        and tapped.logits is None
        and tapped.inputs == "images"
        and placement(model)[1] is torch.float32
        and {*tapped.layers} <= {scale.name for scale in model.scales}
    ):
        network = model
    return FlipAveraged(network) if flip_averaging else network


def calibrate(
    detector: GoenM, held_out: CuePass, ood_cues: Mapping[str, Tensor], false_alarm_rate: float
) -> HeldOut:
    """Standardise and weight the cues by three fifths of the images; the rest set the threshold."""
    standard, threshold = split_held_out(len(held_out), false_alarm_rate)
    cues = held_out.cues[-1]
    detector.calibrate(cues[standard], ood_cues)
    return HeldOut.from_cues(
        detector,
        cues[threshold],
        labels=held_out.predicted[threshold],
        rounding=held_out.rounding(detector),
    )


def ood_streams(
    ood: Images | Mapping[str, Images | BatchStream] | None,
    batch_size: int,
    inputs: AskedInputs = "auto",
) -> dict[str, BatchStream]:
    """Each kind of OOD images by its name."""
    if ood is None:
        return {}
    if not isinstance(ood, Mapping):
        one = as_stream(ood, "ood", batch_size, inputs)
        return {one.name: one}
    return {
        str(kind): as_stream(images, str(kind), batch_size, inputs) for kind, images in ood.items()
    }


def name_classes(given: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """The names given, else numbers; as many as there are logits."""
    names = () if given is None else tuple(map(str, given))
    names = names or tuple(map(str, range(count)))
    if len(names) != count:
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise UsageError(
            f"The model has {count} logits, but there are {len(names)} class names ({shown}). Give "
            "one class name for each logit, in their order."
        )
    return names


def own_classes(names: Sequence[str], train: BatchStream) -> tuple[str, ...] | None:
    """The class names of the model's own config; ``None`` where the training set has its own.

    Raises:
        UsageError: the set has the same classes in another order, so that its labels are not the
            numbers of the logits.
    """
    of_set = None if train.images is None else train.images.classes
    if not of_set:
        return tuple(names) or None
    if {*of_set} == {*names} and tuple(of_set) != tuple(names):
        raise UsageError(
            f"{train.name} numbers its classes {', '.join(of_set[:3])}, ..., but the logits of the "
            f"model are in the order {', '.join(names[:3])}, .... Number them as the model does: "
            "images.of_classes(names, name)."
        )
    return None


def describe_stream(stream: BatchStream, count: int) -> JsonObject:
    """The name, the size and, for an ``ImageSet``, the fingerprint, for the manifest."""
    fingerprint = {} if stream.images is None else {"fingerprint": stream.images.fingerprint}
    return {"name": stream.name, "images": count, **fingerprint}
