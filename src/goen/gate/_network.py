"""A gate's network on disk: rebuilt from settings, or from a model that the user supplies."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from goen.errors import ArtifactError, UsageError
from goen.models import NetworkConfig, ResNet18
from goen.models.flip_averaging import FlipAveraged
from goen.models.placement import evaluating, placement, require_values
from goen.models.seeding import seeded
from goen.models.tapping.pooling import Layout, Tokens
from goen.models.tapping.preprocess import Preprocess, Preprocessing
from goen.models.tapping.tapped import Tapped
from goen.models.unwrapping import match_names, unwrap
from goen.outputs import Outputs
from goen.runs.artifacts import part
from goen.runs.manifest import JsonObject, Manifest

# Outputs in half precision differ between machines by about this share; another model by more.
_SAME = 0.05


def network_manifest(network: nn.Module) -> JsonObject:
    """The settings that rebuild a network."""
    if isinstance(network, FlipAveraged):
        return {**network_manifest(network.network), "mirrored": True}
    if isinstance(network, ResNet18):
        return {"kind": "resnet18", **network.config.to_json()}
    if not isinstance(network, Tapped):
        raise UsageError(
            f"Only goen's ResNet18 and tapped models can be saved, got {type(network).__name__}. "
            "Wrap it: goen.Tapped(model, layers)."
        )
    model, preprocess = network.model, network.preprocess
    kept: JsonObject | None = None
    if isinstance(preprocess, Preprocess):
        kept = asdict(preprocess)
    elif preprocess is not None:
        kept = {"function": getattr(preprocess, "__qualname__", type(preprocess).__qualname__)}
    return {
        "kind": "tapped",
        "model": f"{type(model).__module__}:{type(model).__qualname__}",
        "layers": list(network.layers),
        "logits": network.logits,
        "preprocess": kept,
        "tokens": network.tokens,
        "layout": network.layout,
        "dtype": str(placement(model)[1]).removeprefix("torch."),
    }


def network_tensors(network: nn.Module, image_size: tuple[int, int]) -> dict[str, Tensor]:
    """The weights, and the outputs for two images of a fixed pattern, to compare with later."""
    inner = network.network if isinstance(network, FlipAveraged) else network
    model = inner.model if isinstance(inner, Tapped) else inner
    tensors = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UsageError(f"The model's state {name!r} is not a tensor and cannot be saved.")
        tensors[f"network.{name}"] = value.detach().cpu().clone()  # tied weights share memory
    return {**tensors, "probe": torch.cat(_probe_outputs(network, image_size), dim=1)}


@dataclass(frozen=True)
class Supplied:
    """What the user supplies for a saved gate.

    Attributes:
        model: freshly built, for a gate of ``Gate.fit``.
        preprocess: the function that the gate was fitted with, if it was one.
        made_by: where the code of the model is, from the manifest, for error messages.
    """

    model: nn.Module | None
    preprocess: Preprocessing | None
    made_by: str


def build_network(
    manifest: Manifest,
    tensors: Mapping[str, Tensor],
    image_size: tuple[int, int],
    supplied: Supplied,
) -> nn.Module:
    """The network with its weights, checked to return the outputs recorded when it was saved."""
    weights = part(tensors, "network.")
    kind = manifest.text("kind")
    network: nn.Module
    if kind == "resnet18":
        if supplied.model is not None or supplied.preprocess is not None:
            raise ArtifactError(
                "This gate contains its own network, so model and preprocess must not be given. "
                "Leave them out, or choose another gate (--gate)."
            )
        config = _resnet_config(manifest)
        with seeded(0):  # the weights that it begins with are drawn
            network = ResNet18(config)
        network.load_state_dict(weights)
    elif kind == "tapped":
        network = _tapped(manifest, weights, supplied)
    else:
        raise ValueError(f"its network is of unknown kind {kind!r}")
    network = FlipAveraged(network) if manifest.flag("mirrored", False) else network
    if not _same_outputs(network.eval(), tensors["probe"], image_size):
        raise ArtifactError(
            "The outputs of the network differ from those recorded when the gate was saved: the "
            "model (or its preprocessing) has the same weights but is built differently. Use the "
            f"code that the gate was fitted with: {supplied.made_by}."
        )
    return network


def _resnet_config(manifest: Manifest) -> NetworkConfig:
    settings = {k: v for k, v in manifest.content.items() if k not in ("kind", "mirrored")}
    settings |= {name: manifest.numbers(name) for name in ("mean", "std")}
    return NetworkConfig.from_json(settings)  # it checks its own values


def _tapped(manifest: Manifest, weights: Mapping[str, Tensor], supplied: Supplied) -> Tapped:
    if supplied.model is None:
        raise ArtifactError(
            "This gate needs your model, because goen runs no code that a file names: give the "
            f"model (on the command line, --model). It was made by {supplied.made_by}."
        )
    preprocess = _preprocess(manifest, supplied)
    try:
        model = unwrap(supplied.model)
        require_values(model)
    except UsageError as error:  # of the model, not of the saved gate
        raise ArtifactError(str(error)) from error
    names = match_names(weights, model.state_dict())
    weights = {names[name]: value for name, value in weights.items()}
    try:
        model.to(getattr(torch, manifest.text("dtype")))
        for name, own in [*model.named_parameters(), *model.named_buffers()]:
            if name in weights:  # mixed precision: each tensor as it was saved
                own.data = own.data.to(weights[name].dtype)
        model.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[1:2] or [str(error)]
        raise ArtifactError(
            f"The model does not fit the weights of this gate: {first[0].strip()} It was "
            f"made by {supplied.made_by}."
        ) from error
    logits = manifest.content["logits"]
    if not isinstance(logits, (str, int, type(None))):
        raise ValueError(f"its logits should be a name or an index, got {logits!r}")
    return Tapped(
        model,
        manifest.texts("layers"),
        logits=logits,
        preprocess=preprocess,
        tokens=cast(Tokens, manifest.text("tokens")),  # Tapped checks it
        layout=cast(Layout, manifest.text("layout")),
    )


def _preprocess(manifest: Manifest, supplied: Supplied) -> Preprocessing | None:
    if "preprocess" not in manifest:
        return supplied.preprocess
    settings = manifest.part("preprocess")
    if "function" not in settings:
        size = settings.counts("size") if isinstance(settings.content["size"], list) else None
        whole = cast(Any, size or settings.content["size"])  # Preprocess checks it
        return Preprocess(settings.numbers("mean"), settings.numbers("std"), whole)
    if supplied.preprocess is None:
        raise ArtifactError(
            f"This gate's preprocessing is a function of your own, {settings.text('function')}: "
            "give it as well (on the command line, --preprocess)."
        )
    return supplied.preprocess


def widths(network: nn.Module, image_size: tuple[int, int]) -> tuple[int, dict[str, int]]:
    """The number of classes, and the width of each feature."""
    outputs = _outputs(network, image_size)
    return outputs.logits.shape[1], {k: v.shape[1] for k, v in outputs.features.items()}


def _same_outputs(network: nn.Module, expected: Tensor, image_size: tuple[int, int]) -> bool:
    """Whether logits and features are those recorded, each within a share of its own size."""
    outputs = _probe_outputs(network, image_size)
    widths = [output.shape[1] for output in outputs]
    if expected.shape != (len(outputs[0]), sum(widths)):
        return False
    pairs = zip(outputs, torch.split(expected, widths, dim=1), strict=True)
    return all((a - b).abs().max() <= _SAME * b.abs().max() for a, b in pairs)


def _probe_outputs(network: nn.Module, image_size: tuple[int, int]) -> list[Tensor]:
    outputs = _outputs(network, image_size)
    return [output.float().cpu() for output in (outputs.logits, *outputs.features.values())]


def _outputs(network: nn.Module, image_size: tuple[int, int]) -> Outputs:
    """For two images of a fixed pattern."""
    pattern = torch.arange(2 * 3 * image_size[0] * image_size[1]) * 97 % 251
    images = pattern.view(2, 3, *image_size).to(torch.uint8)
    with evaluating(network), torch.no_grad():
        outputs: Outputs = network(images.to(placement(network)[0]))
    return outputs
