"""A gate's network in a manifest: built again from settings, or from a model the user brings."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from goen.errors import ArtifactError, UsageError
from goen.models import NetworkConfig, ResNet18
from goen.models.flip_averaging import Mirrored
from goen.models.placement import evaluating, placement
from goen.models.tapping.preprocess import Preprocess, Preprocessing
from goen.models.tapping.tapped import Tapped
from goen.outputs import Outputs
from goen.runs.artifacts import part

# Outputs in half precision differ between machines by about this share; another model by more.
_SAME = 0.05


def network_manifest(network: nn.Module) -> dict[str, Any]:
    """What JSON can hold of a network."""
    if isinstance(network, Mirrored):
        return {**network_manifest(network.network), "mirrored": True}
    if isinstance(network, ResNet18):
        return {"kind": "resnet18", **asdict(network.config)}
    if not isinstance(network, Tapped):
        raise UsageError(
            f"Only goen's ResNet18 and tapped models can be saved, got {type(network).__name__}. "
            "Wrap it: goen.Tapped(model, layers)."
        )
    model, preprocess = network.model, network.preprocess
    kept: dict[str, Any] | None = None
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
    """The weights, and what the network says of two images that need not be kept."""
    inner = network.network if isinstance(network, Mirrored) else network
    model = inner.model if isinstance(inner, Tapped) else inner
    tensors = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UsageError(f"The model's state {name!r} is no tensor and cannot be saved.")
        tensors[f"network.{name}"] = value.detach().cpu().clone()  # tied weights share memory
    return {**tensors, "probe": _said(network, image_size)}


def build_network(
    manifest: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    image_size: tuple[int, int],
    model: nn.Module | None,
    preprocess: Preprocessing | None,
    hint: str,
) -> nn.Module:
    """The network, with its weights, checked to say what it said when it was saved."""
    config = dict(manifest)
    kind, mirrored = config.pop("kind"), config.pop("mirrored", False)
    weights = part(tensors, "network.")
    network: nn.Module
    if kind == "resnet18":
        if model is not None or preprocess is not None:
            raise UsageError(
                "This gate has goen's own network and takes no model or preprocessing of yours. Is "
                "it the gate you meant? Name another (--gate), or leave them out."
            )
        config["mean"], config["std"] = tuple(config["mean"]), tuple(config["std"])
        network = ResNet18(NetworkConfig(**config))
        network.load_state_dict(weights)
    elif kind == "tapped":
        network = _tapped(config, weights, model, preprocess, hint)
    else:
        raise ValueError(f"its network is of unknown kind {kind!r}")
    network = Mirrored(network) if mirrored else network
    if not _says(network.eval(), tensors["probe"], image_size):
        raise ArtifactError(
            "The network does not say what it said when the gate was saved: the model (or its "
            "preprocessing) has the same weights but is built differently. Use the code that the "
            f"gate was fitted with: {hint}."
        )
    return network


def _tapped(
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    model: nn.Module | None,
    preprocess: Preprocessing | None,
    hint: str,
) -> Tapped:
    if model is None:
        raise ArtifactError(
            "This gate is for a model of your own, and goen runs no code that a file names: give "
            f"the model, goen.load(folder, model=...) or --model; it was made by {hint}."
        )
    settings = config["preprocess"]
    if settings is not None and "function" in settings:
        if preprocess is None:
            raise ArtifactError(
                f"This gate's preprocessing is a function of your own, {settings['function']}: "
                "give it, goen.load(folder, model=..., preprocess=...) or --preprocess."
            )
    elif settings is not None:
        size = settings["size"]
        size = tuple(size) if isinstance(size, list) else size
        preprocess = Preprocess(settings["mean"], settings["std"], size)
    try:
        model.to(getattr(torch, config["dtype"]))
        for name, own in [*model.named_parameters(), *model.named_buffers()]:
            if name in weights:  # of a model of mixed precision, each as it was
                own.data = own.data.to(weights[name].dtype)
        model.load_state_dict(dict(weights))
    except RuntimeError as error:
        first = str(error).strip().splitlines()[1:2] or [str(error)]
        raise ArtifactError(
            f"The model given does not fit the weights of this gate: {first[0].strip()} It was "
            f"made by {hint}."
        ) from error
    return Tapped(
        model,
        config["layers"],
        logits=config["logits"],
        preprocess=preprocess,
        tokens=config["tokens"],
        layout=config["layout"],
    )


def widths(network: nn.Module, image_size: tuple[int, int]) -> tuple[int, dict[str, int]]:
    """The number of classes, and the width of each feature."""
    outputs = _outputs(network, image_size)
    return outputs.logits.shape[1], {k: v.shape[1] for k, v in outputs.features.items()}


def _said(network: nn.Module, image_size: tuple[int, int]) -> Tensor:
    return torch.cat(_answers(network, image_size), dim=1)


def _says(network: nn.Module, expected: Tensor, image_size: tuple[int, int]) -> bool:
    """Whether logits and features are what they were, each measured by its own size."""
    answers = _answers(network, image_size)
    widths = [answer.shape[1] for answer in answers]
    if expected.shape != (len(answers[0]), sum(widths)):
        return False
    pairs = zip(answers, torch.split(expected, widths, dim=1), strict=True)
    return all((a - b).abs().max() <= _SAME * b.abs().max() for a, b in pairs)


def _answers(network: nn.Module, image_size: tuple[int, int]) -> list[Tensor]:
    outputs = _outputs(network, image_size)
    return [answer.float().cpu() for answer in (outputs.logits, *outputs.features.values())]


def _outputs(network: nn.Module, image_size: tuple[int, int]) -> Outputs:
    """What it says of two images of a fixed pattern."""
    pattern = torch.arange(2 * 3 * image_size[0] * image_size[1]) * 97 % 251
    images = pattern.view(2, 3, *image_size).to(torch.uint8)
    with evaluating(network), torch.no_grad():
        outputs: Outputs = network(images.to(placement(network)[0]))
    return outputs
