"""What the rows of a folder of shards depend on: a folder belongs to one job."""

import json
from hashlib import sha256

from safetensors.torch import load
from torch import uint8

from goen.gate.gate import Gate
from goen.gate.storage.pickling import gate_files
from goen.io.manifest import JsonObject
from goen.io.provenance import versions
from goen.scoring.pipeline import ScoreSettings
from goen.scoring.rows import all_columns
from goen.scoring.sinks import RowFormat
from goen.scoring.sources import Sources


def describe_job(
    sources: Sources, settings: ScoreSettings, row_format: RowFormat, *, flagged_only: bool = False
) -> JsonObject:
    """What the rows depend on; threads and workers are not among it."""
    here, gate = versions(), sources.gate
    return {
        "sources": [place.encode("utf-8", "backslashreplace").decode() for place in sources.given],
        "image_column": sources.column,
        "shard_size": sources.shard_size,
        "batch_size": settings.batch_size,
        "format": row_format,
        "flagged_only": flagged_only,
        "device": settings.device,
        "engine": settings.engine,
        "gate_sha256": gate_identity(gate),
        "columns": all_columns(gate),
        "versions": {name: here[name] for name in ("goen", "torch")},
    }


def gate_identity(gate: Gate) -> str:
    """A hash of what the gate decides by, the same on every machine: its tensors and settings."""
    files = gate_files(gate)
    manifest = json.loads(files["manifest.json"])
    # The versions are those of this process; the probe is an output of the network, whose last
    # bits depend on the processor.
    for name in ("versions", "tensors_sha256"):
        del manifest[name]
    tensors = load(files["tensors.safetensors"])
    tensors.pop("probe", None)
    digest = sha256(json.dumps(manifest, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(uint8).numpy().tobytes())
    return digest.hexdigest()
