"""What was learnt later: more ID images into the statistics, more kinds of OOD into the weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from goen.data.inputs import Feed, Images, feed, require_apart
from goen.detectors.goen_m import Monotone
from goen.errors import LeakError, UsageError
from goen.functional import conformal
from goen.functional.conformal import raised
from goen.gate._passes import Seen, learn, look, parted
from goen.gate.fit import calibrated_parts, described, ood_feeds
from goen.gate.prediction import Floats
from goen.models.placement import evaluating


@dataclass(frozen=True)
class Change:
    """What an update did: the same images judged by the gate before it and after it.

    Attributes:
        before: by name: ``flagged/held_out`` (of the images that give the threshold), and
            ``auroc/KIND`` and ``flagged/KIND`` of every kind of OOD that took part, at the one
            threshold of all classes. Those images have been seen in fitting, so they show what was
            kept, not what to expect of others.
        after: the same, afterwards.
    """

    before: Mapping[str, float]
    after: Mapping[str, float]

    def __str__(self) -> str:
        width = max(map(len, self.after))
        lines = [f"{'':{width}}  before   after"]
        lines += [f"{k:{width}}  {self.before[k]:.4f}  {self.after[k]:.4f}" for k in self.after]
        return "\n".join(lines)


def updated_parts(
    network: nn.Module,
    scorer: Monotone,
    held_out_scores: Floats,
    held_out_cues: Floats | None,
    false_alarm_rate: float,
    image_size: tuple[int, int],
    facts: Mapping[str, Any],
    *,
    train: Images | None,
    held_out: Images | None,
    ood: Images | Mapping[str, Images] | None,
    batch_size: int,
) -> tuple[dict[str, Any], Change]:
    """The fields of the gate that change, and what that changed; see ``Gate.update``."""
    if train is None and held_out is None and ood is None:
        raise UsageError("There is nothing to update: give train, held_out or ood images.")
    strangers = {k: replace(f, size=image_size) for k, f in ood_feeds(ood, batch_size).items()}
    if train is not None:
        _check_given_again(scorer, held_out, list(strangers))
    given = {"train": train, "held_out": held_out}
    feeds = {
        role: replace(feed(images, role, batch_size), size=image_size)
        for role, images in given.items()
        if images is not None
    }
    apart = {**feeds, **{f"ood {kind}": f for kind, f in strangers.items()}}
    require_apart(apart)
    _check_not_used(apart, facts.get("splits", {}))

    method = Monotone.from_state(scorer.config(), scorer.state())
    splits = dict(facts.get("splits", {}))
    with evaluating(network):
        if train is not None:
            count = learn(method, network, feeds["train"])
            splits[f"train, added {len(splits)}"] = described(feeds["train"], count)
        known = look(network, feeds["held_out"], scorer, method) if held_out is not None else None
        strange = {kind: look(network, f, scorer, method) for kind, f in strangers.items()}
    require_apart(apart)
    splits |= {f"ood {kind}": described(strangers[kind], len(s)) for kind, s in strange.items()}

    old_cues = {**scorer.ood_cues_, **{kind: s.cues[0] for kind, s in strange.items()}}
    kept = {} if train is not None else scorer.ood_cues_
    new_cues = {**kept, **{kind: s.cues[1] for kind, s in strange.items()}}
    if known is not None:
        parts = calibrated_parts(method, known, new_cues, false_alarm_rate)
        splits["held_out"] = described(feeds["held_out"], len(known))
        facts = {**facts, "held_out_accuracy": known.accuracy}
    else:
        parts = _weighed_again(method, scorer, held_out_cues, new_cues, strange)
    threshold = conformal.threshold(held_out_scores, false_alarm_rate)
    change = Change(
        _measured(scorer, threshold, _old_id_cues(known, parts, false_alarm_rate), old_cues),
        _measured(
            method,
            conformal.threshold(parts["held_out_scores"], false_alarm_rate),
            torch.from_numpy(parts["held_out_cues"]),
            new_cues,
        ),
    )
    return {**parts, "facts": {**facts, "splits": splits}}, change


def _check_given_again(scorer: Monotone, held_out: Images | None, kinds: list[str]) -> None:
    if held_out is None:
        raise UsageError(
            "More training images move every distance, and with it the scores of the held-out "
            "images: give held_out again, the same images or better more of them."
        )
    missing = [kind for kind in scorer.ood_cues_ if kind not in kinds]
    if missing:
        raise UsageError(
            "More training images move every distance, also those of the OOD images: give each "
            f"kind again. Missing: {', '.join(missing)}."
        )


def _check_not_used(feeds: Mapping[str, Feed], splits: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse a set that the gate already has in another role, as far as it was named by content."""
    for role, images in feeds.items():
        if images.images is None:
            continue
        for other, split in splits.items():
            stays = other not in feeds and other.partition(",")[0] != role
            if stays and split.get("fingerprint") == images.images.fingerprint:
                raise LeakError(
                    f"{role} is {images.name}, which is the gate's {other} already. What fits, "
                    "what decides and what is strange must be different images."
                )


def _weighed_again(
    method: Monotone,
    scorer: Monotone,
    held_out_cues: Floats | None,
    ood: Mapping[str, Tensor],
    seen: Mapping[str, Seen],
) -> dict[str, Any]:
    """The same distances and the same held-out images under new weights."""
    if held_out_cues is None or scorer.id_cues_ is None:
        raise UsageError("This gate was saved without its held-out cues: give held_out again.")
    method.calibrate(scorer.id_cues_, ood)
    scores, _ = method.judge(torch.from_numpy(held_out_cues))
    rounding = max(one.rounding(method) for one in seen.values())
    return {
        "scorer": method,
        "held_out_scores": raised(scores, rounding),
        "held_out_cues": held_out_cues,
    }


def _old_id_cues(known: Seen | None, parts: Mapping[str, Any], false_alarm_rate: float) -> Tensor:
    """The old scorer's cues of the images that give the new threshold."""
    if known is None:
        return torch.from_numpy(parts["held_out_cues"])
    return known.cues[0][parted(len(known), false_alarm_rate)[1]]


def _measured(
    method: Monotone, threshold: float, known: Tensor, strange: Mapping[str, Tensor]
) -> dict[str, float]:
    """How a scorer and its threshold do on the cues of known and of strange images."""
    from goen.metrics import ood_metrics  # slow to import, and a gate that only scores needs none

    scores, _ = method.judge(known)
    numbers = {"flagged/held_out": float((scores > threshold).double().mean())}
    for kind, cues in strange.items():
        other, _ = method.judge(cues)
        numbers[f"auroc/{kind}"] = ood_metrics(scores.numpy(), other.numpy()).auroc
        numbers[f"flagged/{kind}"] = float((other > threshold).double().mean())
    return numbers
