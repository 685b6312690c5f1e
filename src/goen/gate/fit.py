"""A gate for a classifier that goen never saw: one pass over each set, nothing of them kept."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from goen.data.inputs import Feed, Images, feed, require_apart
from goen.detectors.goen_m import Monotone
from goen.errors import UsageError, unknown
from goen.functional.conformal import raised
from goen.gate._passes import Seen, check_enough, check_logits, learn, look, parted, peek
from goen.models import ResNet18
from goen.models.flip_averaging import Mirrored
from goen.models.placement import evaluating, placement
from goen.models.tapping.deterministic import check_deterministic
from goen.models.tapping.pooling import Layout, Tokens
from goen.models.tapping.preprocess import Preprocessing
from goen.models.tapping.tapped import Tapped
from goen.progress import note

SCORERS = (Monotone.kind,)
# Enough to see whether outputs repeat, few enough to cost nothing.
_TRIED = 8


def fit_parts(
    model: nn.Module,
    train: Images,
    held_out: Images,
    *,
    layers: str | Sequence[str],
    ood: Images | Mapping[str, Images] | None,
    false_alarm_rate: float,
    logits: str | int | None,
    preprocess: Preprocessing | None,
    tokens: Tokens,
    layout: Layout,
    classes: Sequence[str] | None,
    mirror: bool,
    scorer: str,
    batch_size: int,
) -> dict[str, Any]:
    """The fields of a fitted gate; see ``Gate.fit``."""
    if scorer not in SCORERS:
        raise unknown("scorer", scorer, SCORERS)
    feeds = {
        "train": feed(train, "train", batch_size),
        "held_out": feed(held_out, "held_out", batch_size),
    }
    strangers = ood_feeds(ood, batch_size)
    check_enough(feeds["held_out"].count, false_alarm_rate)
    apart = {**feeds, **{f"ood {kind!r}": f for kind, f in strangers.items()}}
    require_apart(apart)
    first, training = peek(feeds["train"])
    with evaluating(model):
        tapped = Tapped(
            model,
            layers,
            logits=logits,
            preprocess=preprocess,
            tokens=tokens,
            layout=layout,
            example=first[:2],
        )
        plain = preprocess is None and logits is None
        network: nn.Module = model if plain and gives_itself(model, tapped.layers) else tapped
        network = Mirrored(network) if mirror else network
        count = check_logits(network, first)
        check_deterministic(network, first[:_TRIED].to(placement(network)[0]))
        names = class_names(classes, training, count)
        method = Monotone(tapped.layers)
        seen_in_training = learn(method, network, training)
        size = tuple(first.shape[2:])
        known = look(network, replace(feeds["held_out"], size=size), method)
        strange = {k: look(network, replace(f, size=size), method) for k, f in strangers.items()}
    require_apart(apart)
    if not strange:
        note(
            "No OOD images were given: the gate decides by its p-values, with the same guarantee, "
            "but it cannot say a probability, and its cues count the same."
        )
    cues = {kind: seen.cues[0] for kind, seen in strange.items()}
    fitted = calibrated_parts(method, known, cues, false_alarm_rate)
    facts = {
        "model": f"{type(model).__module__}:{type(model).__qualname__}",
        "splits": {
            role: described(f, n)
            for role, f, n in [
                ("train", training, seen_in_training),
                ("held_out", feeds["held_out"], len(known)),
                *((f"ood {kind}", strangers[kind], len(s)) for kind, s in strange.items()),
            ]
        },
        "held_out_accuracy": known.accuracy,
    }
    return {
        "network": network,
        "classes": names,
        "image_size": size,
        "facts": facts,
        "false_alarm_rate": false_alarm_rate,
        **fitted,
    }


def gives_itself(model: nn.Module, layers: Sequence[str]) -> bool:
    """Whether this is goen's own network and these its own features: it needs no tapping then, and
    is saved whole, without code from outside."""
    if type(model) is not ResNet18 or placement(model)[1] is not torch.float32:
        return False
    return {*layers} <= {scale.name for scale in model.scales}


def calibrated_parts(
    method: Monotone, known: Seen, strange: Mapping[str, Tensor], false_alarm_rate: float
) -> dict[str, Any]:
    """Standardise and weigh by three fifths of the held-out images; the rest give the scores."""
    standard, threshold = parted(len(known), false_alarm_rate)
    cues = known.cues[-1]
    method.calibrate(cues[standard], strange)
    scores, _ = method.judge(cues[threshold])
    return {
        "scorer": method,
        "held_out_scores": raised(scores, known.rounding(method)),
        "held_out_labels": known.label[threshold].numpy(),
        "held_out_cues": cues[threshold].numpy(),
    }


def ood_feeds(ood: Images | Mapping[str, Images] | None, batch_size: int) -> dict[str, Feed]:
    """Each kind of OOD images by its name."""
    if ood is None:
        return {}
    if not isinstance(ood, Mapping):
        one = feed(ood, "ood", batch_size)
        return {one.name: one}
    return {str(kind): feed(images, str(kind), batch_size) for kind, images in ood.items()}


def class_names(classes: Sequence[str] | None, train: Feed, count: int) -> tuple[str, ...]:
    """The names given, else those of the set, else numbers; as many as there are logits."""
    given = classes if classes is not None else (train.images and train.images.classes)
    names = tuple(map(str, given or range(count)))
    if len(names) != count:
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        raise UsageError(
            f"The model has {count} logits, but there are {len(names)} class names ({shown}). Give "
            "classes= one name for each logit, in their order."
        )
    return names


def described(images: Feed, count: int) -> dict[str, Any]:
    """What is known of the images, for the manifest."""
    known: dict[str, Any] = {"name": images.name, "images": count}
    if images.images is not None:
        known["fingerprint"] = images.images.fingerprint
    return known
