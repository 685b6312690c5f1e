"""What other trainings of the same run gave, recorded beforehand: a single one is partly luck."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from goen.io.manifest import JsonObject, JsonValue, Manifest

# Options of goen run that the recipe has, too, as what they came to: of presets auto and digits are
# the same. The images include those that calibrated, which earlier runs named among their options.
_SAID_ELSEWHERE = (
    *("seed", "preset", "representation", "head_epochs", "precision", "calibration_ood"),
)
RECORDED = Path(__file__).parent / "recorded"


@dataclass(frozen=True)
class Spread:
    """The shares that the gates of several trainings flagged.

    Attributes:
        seeds: how many there are.
        trainings: how many there are: seeds times numbers of threads and instruction sets.
        flagged: by dataset, the least and the most; ``test`` are the ID images.
        versions: of goen and torch, as text.
        recipe: the script that recorded them.
    """

    seeds: int
    trainings: int
    flagged: Mapping[str, tuple[float, float]]
    versions: str
    recipe: str


def recorded_spread(metadata: Manifest) -> Spread | None:
    """The spread over the recorded trainings of a run with these metadata; ``None`` without any.

    Args:
        metadata: of the gate's manifest.
    """
    settings = run_settings(metadata)
    for path in sorted(RECORDED.glob("*.json")):
        recorded = Manifest(json.loads(path.read_text(encoding="utf-8")))
        if recorded.content["settings"] == settings:
            return _spread(recorded)
    return None


def run_settings(metadata: Manifest) -> JsonObject:
    """What two runs have in common that differ in nothing but their seed.

    Raises:
        ValueError: a gate that no run made.
    """
    splits = metadata.part("splits")
    images = {role: splits.part(role).text("fingerprint") for role in splits.content}
    return {
        "recipe": _without(metadata.part("recipe").content, "seed"),
        "run": _without(metadata.part("run").content, *_SAID_ELSEWHERE),
        "images": images,
    }


def _without(settings: JsonObject, *names: str) -> dict[str, JsonValue]:
    return {
        name: _without(value, *names) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if name not in names
    }


def _spread(recorded: Manifest) -> Spread:
    trainings = recorded.parts("trainings")
    flagged = [training.part("flagged") for training in trainings]
    shares = {name: [part.number(name) for part in flagged] for name in flagged[0].content}
    versions = recorded.part("versions")
    return Spread(
        seeds=len({training.number("seed") for training in trainings}),
        trainings=len(trainings),
        flagged={name: (min(values), max(values)) for name, values in shares.items()},
        versions=f"goen {versions.text('goen')}, torch {versions.text('torch')}",
        recipe=recorded.text("recipe"),
    )
