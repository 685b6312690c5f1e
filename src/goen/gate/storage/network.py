"""A gate's network on disk: rebuilt from settings, or from a model that the user supplies."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from goen.batch import map_parts
from goen.data.input_spec import ImageInputs, InputSpec
from goen.errors import ArtifactError, UsageError, quoted
from goen.features.extractor import FeatureExtractor
from goen.features.new_classes import WithNewClasses
from goen.features.pooling import Layout, Tokens
from goen.features.precomputed import LOGITS, Precomputed
from goen.features.preprocess import (
    InputPreprocessing,
    Preprocess,
    Preprocessing,
    PreprocessSound,
)
from goen.features.unwrapping import match_names, unwrap
from goen.io.limits import CLASSES, check_image_size
from goen.io.manifest import JsonObject, Manifest
from goen.io.tensors import Tensors
from goen.models import ARCHITECTURES, Backbone, NetworkConfig, new_network
from goen.models.efficientnet_lite import LITE, EfficientNetLite, is_unchanged
from goen.models.ensemble import LogitEnsemble
from goen.models.flip_averaging import FlipAveraged
from goen.models.half_precision import as_half, from_half
from goen.models.placement import evaluating, placement, require_values
from goen.models.rotated import Rotated
from goen.models.seeding import seeded
from goen.outputs import Outputs

# Outputs in half precision differ between machines by about this share; another model by more.
_SAME = 0.05
PRECOMPUTED = "precomputed"
"""The kind of network of a gate that was fitted on features."""
_EXTRACTOR_FIELDS = (
    *("kind", "model", "layers", "logits", "preprocess"),
    *("tokens", "layout", "dtype", "flip_averaged", "architecture", "new_classes"),
)
# What passes the images of another network in its own way; at most one of them.
_WRAPPERS: Mapping[type[FlipAveraged | Rotated], str] = {
    FlipAveraged: "flip_averaged",
    Rotated: "rotated",
}
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


def network_manifest(network: nn.Module) -> JsonObject:
    """The settings that rebuild a network."""
    if isinstance(network, WithNewClasses):
        added: JsonObject = {
            "count": network.num_classes - network.num_known,
            "feature": network.feature,
        }
        return {**network_manifest(network.network), "new_classes": added}
    for wrapper, name in _WRAPPERS.items():
        if isinstance(network, wrapper):
            return {**network_manifest(network.network), name: True}
    if isinstance(network, Backbone):
        settings = network.config.to_json()
        return {"kind": settings.pop("architecture", "resnet18"), **settings}
    if isinstance(network, LogitEnsemble):
        first = cast(Backbone, network.members[0])
        return {**network_manifest(first), "members": len(network.members)}
    if isinstance(network, Precomputed):
        return {
            "kind": PRECOMPUTED,
            "features": list(network.widths),
            "widths": list(network.widths.values()),
            "num_classes": network.num_classes,
            "logits": network.has_logits,
        }
    if not isinstance(network, FeatureExtractor):
        raise UsageError(
            "Only goen's own networks and feature extractors can be saved, got "
            f"{type(network).__name__}. Wrap it: goen.FeatureExtractor(model, layers)."
        )
    model, preprocess = network.model, network.preprocess
    kept: JsonObject | None = None
    if isinstance(preprocess, (Preprocess, PreprocessSound)):
        kept = {name: value for name, value in asdict(preprocess).items() if value is not None}
    elif preprocess is not None:
        kept = {"function": getattr(preprocess, "__qualname__", type(preprocess).__qualname__)}
    known = {"architecture": str(model.architecture)} if is_packaged(network) else {}
    return {
        "kind": "extractor",
        "model": f"{type(model).__module__}:{type(model).__qualname__}",
        **known,
        "layers": list(network.layers),
        "logits": network.logits,
        "preprocess": kept,
        "tokens": network.tokens,
        "layout": network.layout,
        "dtype": str(placement(model)[1]).removeprefix("torch."),
    }


def unwrapped(network: nn.Module) -> nn.Module:
    """The network whose images a wrapper flips or rotates; itself without one."""
    if isinstance(network, WithNewClasses):
        return unwrapped(network.network)
    return network.network if isinstance(network, FlipAveraged | Rotated) else network


def needs_model(network: nn.Module) -> bool:
    """Whether a saved gate with this network is loaded with the user's model."""
    inner = unwrapped(network)
    return isinstance(inner, FeatureExtractor) and not is_packaged(inner)


def is_packaged(network: nn.Module) -> bool:
    """Whether this is a feature extractor of a network whose architecture goen knows by name.

    A gate with it needs no model to load.
    """
    return isinstance(network, FeatureExtractor) and is_unchanged(network.model)


def network_tensors(network: nn.Module, inputs: InputSpec) -> dict[str, Tensor]:
    """The weights, and the outputs for two inputs of a fixed pattern, to compare with later."""
    inner = unwrapped(network)
    model = inner.model if isinstance(inner, FeatureExtractor) else inner
    own = isinstance(inner, (Backbone, LogitEnsemble))
    tensors = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, Tensor):
            raise UsageError(f"The model's state {name!r} is not a tensor and cannot be saved.")
        kept = value.detach().cpu().clone()  # tied weights share memory
        if own and kept.is_floating_point() and kept.dtype != torch.float32:
            raise UsageError(
                f"goen's own networks are saved in float32; {name} is {kept.dtype}. Call "
                "network.float() before the gate is fitted."
            )
        tensors[f"network.{name}"] = as_half(kept) if own else kept
    if isinstance(network, WithNewClasses):
        means = network.means.state_dict()
        tensors |= {f"new_classes.{name}": value.cpu().clone() for name, value in means.items()}
    return {**tensors, "probe": torch.cat(_side_by_side(_outputs(network, inputs)), dim=1)}


@dataclass(frozen=True)
class Supplied:
    """What the user supplies for a saved gate.

    Attributes:
        model: freshly built, for a gate of ``Gate.fit``.
        preprocess: the function that the gate was fitted with, if it was one.
        model_source: where the code of the model is, from the manifest, for error messages.
    """

    model: nn.Module | None
    preprocess: Preprocessing | None
    model_source: str


def build_network(
    manifest: Manifest, tensors: Tensors, inputs: InputSpec, supplied: Supplied
) -> tuple[nn.Module, Outputs]:
    """The network with its weights, checked to return the outputs recorded when it was saved.

    Also its outputs for two images, which tell the number of classes and the widths of features.
    """
    weights = tensors.part("network.")
    kind = manifest.text("kind")
    network: nn.Module
    own, packaged = kind in ARCHITECTURES or kind == PRECOMPUTED, "architecture" in manifest
    if (own and supplied.preprocess is not None) or (
        (own or packaged) and supplied.model is not None
    ):
        raise ArtifactError(
            "This gate contains its own network, so model and preprocess must not be given. "
            "Leave them out, or choose another gate (--gate)."
        )
    if kind in ARCHITECTURES:
        network = _own_network(manifest, weights, inputs)
    elif kind == PRECOMPUTED:
        network = _precomputed(manifest, weights, inputs)
    elif kind == "extractor":
        if packaged:
            supplied = replace(supplied, model=_packaged(manifest, weights))
        network = _extractor(manifest, weights, inputs, supplied)
    else:
        raise ValueError(f"its network is of unknown kind {quoted(kind)}")
    for wrapper, name in _WRAPPERS.items():
        network = wrapper(network) if manifest.flag(name, False) else network
    if "new_classes" in manifest:
        network = _with_new_classes(network.eval(), manifest.part("new_classes"), tensors, inputs)
    outputs = _outputs(network.eval(), inputs)
    recorded = tensors.floats("probe", (len(outputs), "outputs"), dtype=torch.float32)
    if not _same_outputs(outputs, recorded):
        raise ArtifactError(
            "The outputs of the network differ from those recorded when the gate was saved: the "
            "model (or its preprocessing) has the same weights but is built differently. Use the "
            f"code that the gate was fitted with: {supplied.model_source}."
        )
    return network, outputs


def _own_network(
    manifest: Manifest, weights: Tensors, inputs: InputSpec
) -> Backbone | LogitEnsemble:
    """goen's own network, built only when it is known to be as large as its weights."""
    names = ["kind", "num_classes", "width", "head", "mean", "std", "classifier"]
    names += ["members", "stem_stride", "temperature", "rotations", "new_classes"]
    names += _WRAPPERS.values()
    manifest.check_names(names)
    if manifest.flag("rotated", False) and not manifest.flag("rotations", False):
        raise ValueError("its network has no classifier of rotations, which network.rotated needs")
    if not isinstance(inputs, ImageInputs):
        raise ValueError(f"its network takes images, its inputs should not be {inputs}")
    mean, std = manifest.numbers("mean"), manifest.numbers("std")
    if not len(mean) == len(std) == inputs.channels or min(std) <= 0:
        raise ValueError(
            "its network.mean and network.std should be a number for each channel of its inputs "
            f"({inputs}), those of std above 0, got {mean[:4]} and {std[:4]}"
        )
    settings = {
        "num_classes": manifest.count("num_classes"),
        "width": manifest.count("width"),
        "head": manifest.text("head"),
        "mean": mean,
        "std": std,
        "classifier": manifest.text("classifier"),
        "architecture": manifest.text("kind"),
        "stem_stride": manifest.count("stem_stride", 1),
        "temperature": manifest.number("temperature") if "temperature" in manifest else 1.0,
        "rotations": manifest.flag("rotations", False),
    }
    config = NetworkConfig.from_json(settings)

    def build() -> Backbone | LogitEnsemble:
        networks = [new_network(config) for _ in range(manifest.count("members", 1))]
        # float32 also where torch's default type is float64.
        return (LogitEnsemble(networks) if "members" in manifest else networks[0]).float()

    with torch.device("meta"):  # shapes without memory
        expected = build().state_dict()
    weights = Tensors({name: from_half(weights[name]) for name in weights}, weights.prefix)
    weights.check_like(expected)
    with seeded(0):  # the weights that it begins with are drawn
        network = build()
    network.load_state_dict(weights)
    return network


def _precomputed(manifest: Manifest, weights: Tensors, inputs: InputSpec) -> Precomputed:
    manifest.check_names(["kind", "features", "widths", "num_classes", "logits"])
    widths = dict(zip(manifest.texts("features"), manifest.counts("widths"), strict=True))
    num_classes, has_logits = manifest.count("num_classes"), manifest.flag("logits")
    parts = {**widths, LOGITS: num_classes} if has_logits else widths
    sizes = {name: (width,) for name, width in parts.items()}
    found = {} if isinstance(inputs, ImageInputs) else inputs.parts
    if {name: part.sizes for name, part in found.items()} != sizes or num_classes > CLASSES:
        raise ValueError(f"its network takes features {sizes}, its inputs should not be {inputs}")
    with torch.device("meta"):  # shapes without memory
        made = Precomputed(widths, num_classes, has_logits=has_logits)
    weights.check_like(made.state_dict())
    made = made.to_empty(device="cpu")
    made.load_state_dict(weights)
    if not has_logits and not (bool((made.counts >= 0).all()) and bool(made.counts.any())):
        raise ValueError("its class means should be those of one image or more")
    return made


def _with_new_classes(
    network: nn.Module, added: Manifest, tensors: Tensors, inputs: InputSpec
) -> WithNewClasses:
    """The network with the class means that ``Gate.update`` gave it."""
    added.check_names(["count", "feature"])
    outputs, feature = _outputs(network, inputs), added.text("feature")
    known = outputs.logits.shape[1]
    total = known + added.count("count")
    if feature not in outputs.features or total > CLASSES:
        raise ValueError(f"its network.new_classes cannot be {quoted(dict(added.content))}")
    width = outputs.feature(feature).shape[1]
    made, means = (
        WithNewClasses(network, feature, width, known, total),
        tensors.part("new_classes."),
    )
    means.check_like(made.means.state_dict())
    made.means.load_state_dict(means)
    if bool((made.means.counts < 0).any()) or not bool(made.means.counts.any()):
        raise ValueError("its class means should be those of one image or more")
    return made


def _packaged(manifest: Manifest, weights: Tensors) -> EfficientNetLite:
    """The network of this architecture for as many classes as the weights are for."""
    name = manifest.text("architecture")
    if name not in LITE:
        raise ValueError(f"its network.architecture {name[:80]!r} is unknown")
    weight = weights["classifier.weight"]
    if weight.ndim != 2 or len(weight) > CLASSES:
        raise ValueError(f"its classifier should be a matrix, got {tuple(weight.shape)}")
    with seeded(0):  # the weights that it begins with are drawn
        return EfficientNetLite(name, len(weight)).eval()


def _extractor(
    manifest: Manifest, weights: Tensors, inputs: InputSpec, supplied: Supplied
) -> FeatureExtractor:
    manifest.check_names(_EXTRACTOR_FIELDS)
    if supplied.model is None:
        raise ArtifactError(
            "This gate needs your model, because goen runs no code that a file names: give the "
            f"model (on the command line, --model). It was made by {supplied.model_source}."
        )
    preprocess = _preprocess(manifest, supplied)
    dtype = _DTYPES.get(manifest.text("dtype"))
    if dtype is None:
        raise ValueError(
            f"its network.dtype should be one of {', '.join(_DTYPES)}, got "
            f"{quoted(manifest.text('dtype'))}"
        )
    try:
        model = unwrap(supplied.model)
        require_values(model)
    except UsageError as error:  # of the model, not of the saved gate
        raise ArtifactError(str(error)) from error
    names = match_names(weights, model.state_dict())
    state = {names[name]: value for name, value in weights.items()}
    try:
        model.to(dtype)
        for name, own in [*model.named_parameters(), *model.named_buffers()]:
            if name in state:  # mixed precision: each tensor as it was saved
                own.data = own.data.to(state[name].dtype)
        model.load_state_dict(state)
    except RuntimeError as error:
        first = str(error).strip().splitlines()[1:2] or [str(error)]
        raise ArtifactError(
            f"The model does not fit the weights of this gate: {first[0].strip()} It was "
            f"made by {supplied.model_source}."
        ) from error
    logits = manifest.content.get("logits")
    if isinstance(logits, bool) or not isinstance(logits, (str, int, type(None))):
        raise ValueError(f"its network.logits should be a name or an index, got {quoted(logits)}")
    return FeatureExtractor(
        model,
        manifest.texts("layers"),
        logits=logits,
        preprocess=preprocess,
        tokens=cast(Tokens, manifest.text("tokens")),  # FeatureExtractor checks it
        layout=cast(Layout, manifest.text("layout")),
        inputs="images" if isinstance(inputs, ImageInputs) else "tensors",
    )


def _preprocess(
    manifest: Manifest, supplied: Supplied
) -> Preprocessing | InputPreprocessing | None:
    if "preprocess" not in manifest:
        return supplied.preprocess
    settings = manifest.part("preprocess")
    if "sampling_rate" in settings:
        settings.check_names(["sampling_rate", "normalise"])
        return PreprocessSound(settings.count("sampling_rate"), settings.flag("normalise"))
    settings.check_names(["function", "mean", "std", "size", "crop"])
    if "function" not in settings:
        mean, std = (settings.numbers(n) if n in settings else None for n in ("mean", "std"))
        size, crop = (_preprocess_size(settings, n) for n in ("size", "crop"))
        return Preprocess(mean, std, size, crop)
    if supplied.preprocess is None:
        raise ArtifactError(
            f"This gate's preprocessing is a function of your own, {settings.text('function')}: "
            "give it as well (on the command line, --preprocess)."
        )
    return supplied.preprocess


def _preprocess_size(settings: Manifest, name: str) -> int | tuple[int, int] | None:
    if name not in settings:
        return None
    if isinstance(settings.content[name], int):
        side = settings.count(name)
        check_image_size(side, side)
        return side
    sides = settings.size(name)
    check_image_size(*sides)
    return sides


def _same_outputs(outputs: Outputs, expected: Tensor) -> bool:
    """Whether logits and features are those recorded, each within a share of its own size."""
    found = _side_by_side(outputs)
    widths = [output.shape[1] for output in found]
    if expected.shape[1] != sum(widths):
        return False
    pairs = zip(found, torch.split(expected, widths, dim=1), strict=True)
    return all(bool((a - b).abs().max() <= _SAME * b.abs().max()) for a, b in pairs)


def _side_by_side(outputs: Outputs) -> tuple[Tensor, ...]:
    """Logits and features, float32 on the CPU."""
    return tuple(o.float().cpu() for o in (outputs.logits, *outputs.features.values()))


def _outputs(network: nn.Module, inputs: InputSpec) -> Outputs:
    """For two inputs of a fixed pattern."""
    device = placement(network)[0]
    with evaluating(network), torch.no_grad():
        outputs: Outputs = network(map_parts(lambda part: part.to(device), inputs.pattern()))
    return outputs
