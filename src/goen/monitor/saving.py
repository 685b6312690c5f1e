"""A monitor in one file: arrays as safetensors, the rest as JSON in its header, never pickle.

One file, because a file can replace another in one step: whoever is killed while saving leaves the
earlier state or the new one.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save

from goen.errors import ArtifactError, UsageError
from goen.functional.martingales import NUM_BETS, Direction
from goen.functional.online_conformal import ScoreCounts
from goen.io.files import whole_file
from goen.io.json_files import parse_object
from goen.io.manifest import JsonObject, JsonValue, Manifest
from goen.io.provenance import versions
from goen.io.tensors import Tensors, read_tensors, tensor_header
from goen.monitor.inputs import MonitoredGate
from goen.monitor.state import FLAGGED_WINDOW, ChangePoint, Guarantee
from goen.monitor.streams import Stream, Streams

FORM = 1
_KEY = "goen_monitor"
_GATE = ("classes", "cues", "has_labels", "properties")
_MIXTURE = ("capital", "joined", "gains", "lowest", "since")


class MonitorParts(NamedTuple):
    """What a monitor consists of; its attributes have the same names."""

    gate: MonitoredGate | None
    guarantee: Guarantee
    streams: Streams
    flags: NDArray[np.bool_]


def monitor_bytes(monitor: MonitorParts, extra: JsonObject | None = None) -> bytes:
    """The content of a file with this monitor, and ``extra`` with it."""
    arrays = _arrays(monitor)
    manifest = {
        "form": FORM,
        "versions": versions(),
        "sha256": _digest(arrays),
        "guarantee": asdict(monitor.guarantee),
        "seed": int(monitor.streams.seed),
        "restarted_at": monitor.streams.restarted_at,
        "images": monitor.streams.mixture.images,
        "log_e_value": monitor.streams.log_e_value.tolist(),
        "streams": [asdict(stream) for stream in monitor.streams.streams],
        "change_points": [f and asdict(f) for f in monitor.streams.change_points],
        "gate": monitor.gate and {name: getattr(monitor.gate, name) for name in _GATE},
        "extra": extra or {},
    }
    text = json.dumps(manifest, ensure_ascii=False, allow_nan=False)
    return save(arrays, metadata={_KEY: text})


def write_monitor(content: bytes, file: Path, *, overwrite: bool = False) -> None:
    """Write ``monitor_bytes`` to a file, whole or not at all."""
    with whole_file(file, overwrite=overwrite) as temporary:
        temporary.write_bytes(content)


def _arrays(monitor: MonitorParts) -> dict[str, NDArray[Any]]:
    streams = monitor.streams
    arrays: dict[str, NDArray[Any]] = {"flags": monitor.flags}
    arrays |= {name: getattr(streams.mixture, name) for name in _MIXTURE}
    for number, counts in enumerate(streams.counts):
        arrays[f"values.{number}"], arrays[f"counts.{number}"] = counts.values, counts.counts
    if monitor.gate is not None:
        arrays["held_out_scores"] = monitor.gate.held_out_scores
        if monitor.gate.held_out_labels is not None:
            arrays["held_out_labels"] = monitor.gate.held_out_labels
    return {name: np.ascontiguousarray(array) for name, array in arrays.items()}


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = sha256()
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def load_parts(file: Path) -> tuple[MonitorParts, Manifest]:
    """The saved monitor and what was saved with it.

    Raises:
        ArtifactError: there is none, or it is damaged or of another version.
    """
    if not file.is_file():
        raise ArtifactError(f"{file} is not there, so no monitor can be loaded from it.")
    try:
        header = Manifest(tensor_header(file))
        if "__metadata__" not in header or _KEY not in header.part("__metadata__"):
            raise ValueError("it holds something else")
        manifest = Manifest(parse_object(header.part("__metadata__").text(_KEY).encode()))
        form = manifest.content.get("form")
        if form != FORM:
            raise ArtifactError(
                f"{file} has form {form}, this goen reads form {FORM}. Use the version of goen "
                "that saved it, or make a new monitor."
            )
        # Copies: what is read may lie in the file itself.
        tensors = Tensors({name: tensor.clone() for name, tensor in read_tensors(file).items()})
        if manifest.text("sha256") != _digest({n: tensor.numpy() for n, tensor in tensors.items()}):
            raise ValueError("its numbers do not have the checksum that was saved with them")
        return _rebuilt(manifest, tensors), manifest.part("extra")
    except (OSError, KeyError, ValueError, TypeError, UsageError) as error:
        raise ArtifactError(
            f"{file} is not a monitor that can be loaded: {error}. Restore an earlier copy, or "
            "make a new monitor."
        ) from error


def _rebuilt(manifest: Manifest, tensors: Tensors) -> MonitorParts:
    given = manifest.part("guarantee")
    length = given.count("average_run_length") if "average_run_length" in given else None
    chance = given.number("alarm_probability") if "alarm_probability" in given else None
    guarantee = Guarantee(chance, length)
    streams = _streams(manifest, tensors, guarantee)
    flags = tensors["flags"].numpy()
    if flags.dtype != np.bool_ or flags.ndim != 1 or len(flags) > FLAGGED_WINDOW:
        raise ValueError("its flags are not those of a monitor")
    return MonitorParts(_gate(manifest, tensors), guarantee, streams, flags)


def _streams(manifest: Manifest, tensors: Tensors, guarantee: Guarantee) -> Streams:
    described = [
        Stream(part.text("name"), part.number("weight"), part.number("step"), part.number("origin"))
        for part in manifest.parts("streams")
    ]
    seed, restarted_at, images = (
        _whole(manifest, name) for name in ("seed", "restarted_at", "images")
    )
    counts = [
        ScoreCounts(
            tensors.of_shape(f"values.{number}", ("scores",), torch.float64).numpy(),
            tensors.integers(f"counts.{number}", ("scores",)).numpy(),
        )
        for number in range(len(described))
    ]
    if abs(sum(stream.weight for stream in described) - 1) > 1e-9:
        raise ValueError("the weights of its streams do not sum to 1")
    if len({len(part) for part in counts}) != 1 or len(counts[0]) < restarted_at + images:
        raise ValueError("its counts are not those of one stream of images")
    streams = Streams(described, counts, seed=seed, starts=guarantee.starts, images=restarted_at)
    for name in _MIXTURE:
        read = tensors.integers if name == "since" else tensors.floats
        setattr(streams.mixture, name, read(name, (len(described), NUM_BETS)).numpy())
    if not (streams.mixture.joined > 0).all():
        raise ValueError("its stakes should be above 0")
    streams.mixture.images = images
    streams.log_e_value = np.array(manifest.numbers("log_e_value"))
    change_points = manifest.content.get("change_points")
    if not isinstance(change_points, list):
        raise ValueError("its change_points are not a list")
    streams.change_points = [_change_point(found) for found in change_points]
    if not len(streams.log_e_value) == len(streams.change_points) == len(described):
        raise ValueError("its log_e_value and change_points are not one per stream")
    return streams


def _change_point(found: JsonValue) -> ChangePoint | None:
    if found is None:
        return None
    part = Manifest({"change_point": found}).part("change_point")
    known: dict[str, Direction] = {name: name for name in get_args(Direction)}
    return ChangePoint(part.count("at"), part.count("since"), known[part.text("direction")])


def _gate(manifest: Manifest, tensors: Tensors) -> MonitoredGate | None:
    if "gate" not in manifest:
        return None
    part = manifest.part("gate")
    labels = None
    if "held_out_labels" in tensors:
        labels = tensors.integers("held_out_labels", ("images",)).numpy()
    return MonitoredGate(
        classes=part.texts("classes"),
        cues=part.texts("cues"),
        held_out_scores=tensors.of_shape("held_out_scores", ("images",), torch.float64).numpy(),
        held_out_labels=labels,
        has_labels=part.flag("has_labels"),
        properties=part.texts("properties") if "properties" in part else (),
    )


def _whole(manifest: Manifest, name: str) -> int:
    value = manifest.content.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"its {name} should be a whole number, got {value!r}")
    return value
