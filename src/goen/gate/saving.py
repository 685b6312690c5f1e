"""A saved gate, ready to decide."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from goen.detectors.goen import Goen
from goen.detectors.goen_m import Monotone
from goen.detectors.scorer import Scorer
from goen.errors import ArtifactError
from goen.gate._network import build_network, widths
from goen.gate.bundled import shipped, shipped_folder
from goen.gate.gate import Gate
from goen.models.tapping.preprocess import Preprocessing
from goen.runs import artifacts

_SCORERS: Mapping[str, type[Goen] | type[Monotone]] = {"goen": Goen, "goen-m": Monotone}


def load(
    folder: Path | str, model: nn.Module | None = None, preprocess: Preprocessing | None = None
) -> Gate:
    """The gate that was saved in this folder or in the folder of a run, or that goen brings along.

    Args:
        folder: of the gate, or of a run; or, as a string, the name of a gate that comes with goen,
            such as ``"cifar10-w16"``. What exists at that path comes before a name; a ``Path`` is
            never a name.
        model: for a gate of ``Gate.fit``: the model, freshly built by your own code. It is given
            the weights that were saved. No code is ever taken from the folder. A gate for goen's
            own network needs none.
        preprocess: if the gate was fitted with a function of your own, that function.

    Raises:
        ArtifactError: there is none, or it is damaged, or of another version, or the model is
            missing or another one.
    """
    path = gate_folder(folder)
    try:
        tensors, manifest = artifacts.load(path, "gate")
    except ArtifactError as error:
        if isinstance(folder, Path) or path.exists() or not shipped():
            raise
        known = ", ".join(f'goen.load("{name}")' for name in shipped())
        raise ArtifactError(f"{error} Or take one that comes with goen: {known}.") from error
    try:
        return _gate(tensors, manifest, model, preprocess)
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ArtifactError(
            f"{path} is not a gate that this goen can use: {error}. Save it again."
        ) from error


def gate_folder(gate: Path | str) -> Path:
    """The folder that ``load`` reads: the one given, its ``gate/`` if a run's, or a shipped one."""
    own = shipped_folder(gate) if isinstance(gate, str) else None
    path = Path(gate)
    if own is not None and not path.exists():
        return own
    if (path / "results.jsonl").is_file() and (path / "gate").is_dir():
        return path / "gate"
    return path


def _gate(
    tensors: Mapping[str, Tensor],
    manifest: Mapping[str, Any],
    model: nn.Module | None,
    preprocess: Preprocessing | None,
) -> Gate:
    height, width = manifest["image_size"]
    classes = tuple(manifest["classes"])
    facts = manifest["facts"]
    hint = facts.get("factory") or manifest["network"].get("model") or "goen run"
    network = build_network(manifest["network"], tensors, (height, width), model, preprocess, hint)
    settings = dict(manifest["scorer"])
    scorer: Scorer = _SCORERS[settings.pop("kind")].from_state(
        settings, artifacts.part(tensors, "scorer.")
    )
    count, feature_widths = widths(network, (height, width))
    if len(classes) != count:
        raise ValueError(f"{len(classes)} class names for {count} classes")
    scorer.check(count, feature_widths)

    def array(name: str) -> Any:
        return tensors[name].numpy() if name in tensors else None

    gate = Gate(
        network=network,
        scorer=scorer,
        held_out_scores=tensors["held_out_scores"].numpy(),
        false_alarm_rate=manifest["false_alarm_rate"],
        classes=classes,
        image_size=(height, width),
        facts=facts,
        held_out_labels=array("held_out_labels"),
        held_out_cues=array("held_out_cues"),
        per_class=manifest["per_class"],
    )
    if gate.threshold != manifest["threshold"]:
        raise ValueError(f"its threshold is {gate.threshold}, not {manifest['threshold']}")
    return gate
