"""Any classifier as a network that gives ``Outputs``: its logits, and its layers by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from logging import getLogger
from typing import Any, TypedDict, TypeGuard, Unpack, cast, get_args

import torch
from torch import Tensor, nn

from goen.batch import Inputs, count_of
from goen.checks import check_choice
from goen.errors import UsageError
from goen.features._calling import (
    batched,
    call_model,
    describe_output,
    explained,
    find_logits,
    first_float,
    full,
    input_keyword,
    recording,
)
from goen.features.layers import LayerTable, choose_layers, list_layers, same_features
from goen.features.pooling import (
    INPUT,
    Layout,
    Tokens,
    find_channels,
    mask_of_frames,
    pool_output,
    split_pooling,
)
from goen.features.preprocess import (
    WAVEFORMS,
    InputPreprocessing,
    Preprocessing,
    TappedInputs,
    prepare,
)
from goen.features.unwrapping import match_names, unwrap
from goen.models.backbone import Backbone
from goen.models.placement import Example, evaluating, example_inputs, placement, require_values
from goen.outputs import LinearClassifier, Outputs

_log = getLogger(__name__)
_LISTED = (
    "Layers are listed by goen.list_layers and, on the command line, by goen fit without --layers"
)

# Lets torch.export return Outputs from a program.
torch.export.register_dataclass(Outputs, serialized_type_name="goen.outputs.Outputs")


class FeatureExtractor(nn.Module):
    """Images ``(N, C, H, W)`` to ``Outputs``: the model's logits and the pooled layers.

    Images are uint8, uint16, or floats in [0, 1], on the model's device. The model is
    not changed: hooks are there during a forward pass only, also when it ends in an error, and
    each thread records its own pass only. Logits and features are float32 (float64 of a float64
    model), whatever the model computes in. Put it in evaluation mode, as ``goen.extract`` does.

    A layer's output is pooled to one row per image, at the moment it is made, before anything
    can change it in place:

    - ``(N, D)`` is taken as it is.
    - Tokens ``(N, T, D)`` are averaged, or with ``tokens="class"`` the first is taken. The mean is
      the default because it is right for every model with tokens; the first token of a model
      that has no class token is one corner of the image. Tokens that an ``attention_mask`` among
      the inputs leaves out are left out; of waveforms (``input_values``) the frames made of them.
      After a convolution over time, ``(N, D, T)`` is averaged over time.
    - Maps ``(N, C, H, W)`` or ``(N, H, W, C)`` are averaged over space. Convolutions and the like
      put the channels first. For another layer the shape decides when the images are square and
      just two of the three sizes are equal. Else a block whose weights are all of convolutions and
      the like has its channels first; else the weights in the layer or the nearest before it decide
      that have as many channels; else ``layout`` has to be given.
    - Of a tuple, a dict or an object (attention with its weights) the first float tensor counts.
    - ``LAYER:POOLING`` takes another statistic than the mean, over the same places: ``mean_abs``
      (of the absolute values), ``std`` (the standard deviation) or ``max``. The same layer may be
      named several times with different poolings.
    - ``LAYER:input`` takes what the layer is given: ``fc:input`` is what a linear classifier
      called ``fc`` reads, also where the model makes it with functions and not with a layer.

    The outputs have the model's linear classifier if one of its linear layers (or convolutions of
    one pixel) makes the logits of one of these features. That is seen from the numbers, on the
    example or else on the first batch: a transformer that classifies its class token has one with
    ``tokens="class"``.

    Args:
        model: maps a batch to logits, or to something that holds them; images are its first
            argument, or its ``pixel_values``. Of a model in ``torch.compile``,
            ``DataParallel`` or ``DistributedDataParallel`` the model inside is taken.
        layers: names as in ``model.named_modules()``; ``layers(model, example)`` lists them. Each
            must be called exactly once in a forward pass. ``LAYER:POOLING`` selects the pooling,
            see above.
        logits: where they are in the model's output: a key, an attribute or an index. Not needed
            when the output is a tensor, or holds only one float tensor of two dimensions.
        preprocess: a ``Preprocess``, or a function of float images in [0, 1] (of other inputs: as
            they are given). Without it, images in [0, 1] go in as they are.
        tokens: ``mean`` or ``class``, see above.
        layout: of maps: ``auto``, ``channels_first`` or ``channels_last``, see above.
        example: images, or a shape ``(C, H, W)``. With it everything is tried at once, and the
            error for a wrong name gives shapes.
        inputs: ``images``, which are scaled to [0, 1]; or ``tensors`` of any shape and type, a
            tuple (several arguments) or a dict (arguments by name) of them, which go in as they
            are, floats in the model's precision.

    Raises:
        UsageError: a model that allows no hooks or has no values, no such layer, a layer that is
            called never or twice, logits that are not found, images of an invalid shape or type.

    Example:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
        >>> outputs = FeatureExtractor(model, ["1"])(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))
        >>> outputs.logits.shape, outputs.features["1"].shape
        (torch.Size([2, 5]), torch.Size([2, 8]))
    """

    def __init__(
        self,
        model: nn.Module,
        layers: str | Sequence[str],
        *,
        logits: str | int | None = None,
        preprocess: Preprocessing | InputPreprocessing | None = None,
        tokens: Tokens = "mean",
        layout: Layout = "auto",
        example: Example | None = None,
        inputs: TappedInputs = "images",
    ) -> None:
        super().__init__()
        model = unwrap(model)
        require_values(model)
        self.model = model
        self.layers = (layers,) if isinstance(layers, str | int) else tuple(layers)
        if not all(isinstance(name, str) for name in self.layers):
            raise UsageError(f"Layer names are strings, such as '2' or 'layer4'; got {layers!r}.")
        self.logits = logits
        if preprocess is not None and not callable(preprocess):
            raise UsageError(
                "preprocess is goen.Preprocess(mean, std, size) or a function of images, got a "
                f"{type(preprocess).__name__}."
            )
        self.preprocess = preprocess
        self.tokens = tokens
        self.layout = layout
        self.training = model.training
        check_choice("tokens", tokens, get_args(Tokens))
        check_choice("layout", layout, get_args(Layout))
        check_choice("inputs", inputs, get_args(TappedInputs))
        if len(set(self.layers)) != len(self.layers):
            raise UsageError(f"Each layer is named once, got {', '.join(self.layers)}.")
        self.inputs = inputs
        self._axes: dict[str, int | None] = {}
        # The layer that classifies and the feature it reads; empty if there is none.
        self._classifier: tuple[str, str] | tuple[()] | None = None
        self._keyword = input_keyword(model) if inputs == "images" else None
        known = dict(model.named_modules(remove_duplicate=False))
        self._taps = {name: split_pooling(name) for name in self.layers}
        places = match_names([layer for layer, _ in self._taps.values()], known)
        self._places = {name: places[layer] for name, (layer, _) in self._taps.items()}
        for name, place in self._places.items():
            if not place or place not in known:
                raise _no_such_layer(self._taps[name][0], model, example, preprocess, inputs)
            if isinstance(known[place], torch.jit.ScriptModule):
                raise UsageError(
                    f"Layer {name!r} was made by torch.jit, whose modules allow no hooks. Choose a "
                    "layer around it, or build the model without torch.jit."
                )
        if example is not None:
            self._try(example)

    @property
    def classifying_layer(self) -> tuple[str, str] | None:
        """The linear layer that makes the logits and the feature it reads; ``None`` without one.

        Known after the first batch, or from the example.
        """
        return self._classifier or None

    def _try(self, example: Example) -> None:
        """Run the model once; what it cannot take gets a sentence."""
        with evaluating(self), torch.no_grad():
            # Whatever preprocess raises is its own.
            x = self._prepared(example_inputs(example, self.model))
            with explained(x):
                self._outputs(x)

    def forward(self, inputs: Inputs) -> Outputs:
        return self._outputs(self._prepared(inputs))

    def _outputs(self, x: Inputs) -> Outputs:
        """Logits and features for preprocessed inputs."""
        count = count_of(x)
        recorded: dict[str, list[Tensor]] = {name: [] for name in self.layers}

        def record(name: str, arguments: Any, output: Any) -> None:
            taken = arguments if self._taps[name][1] == INPUT else output
            recorded[name].append(self._pooled(name, taken, x))

        modules = {name: self.model.get_submodule(place) for name, place in self._places.items()}
        own_errors = self.inputs == "images" or torch.compiler.is_compiling()
        with recording(modules, record), nullcontext() if own_errors else explained(x):
            output = call_model(self.model, x, self._keyword)
        for name, calls in recorded.items():
            if len(calls) != 1:
                raise _not_once(name, len(calls))
        features = {name: calls[0] for name, calls in recorded.items()}
        # A copy: the model may give out the same memory again, as CUDA graphs do.
        logits = full(find_logits(output, self.logits, count)).clone()
        return self._with_classifier(Outputs(logits, features))

    def _with_classifier(self, outputs: Outputs) -> Outputs:
        """The outputs with the model's linear classifier, which is looked for once."""
        if self._classifier is None and not self.training and not torch.compiler.is_compiling():
            self._classifier = _find_classifier(self.model, outputs)
        if not self._classifier:
            return outputs
        layer, feature = self._classifier
        module = cast(nn.Linear, self.model.get_submodule(layer))
        return replace(outputs, classifier=LinearClassifier.of(module, feature))

    def _prepared(self, inputs: Inputs) -> Inputs:
        if self.inputs == "tensors" and isinstance(inputs, Tensor) and self._keyword is None:
            self._keyword = input_keyword(self.model)
        return prepare(inputs, self.preprocess, placement(self.model)[1], self.inputs)

    def _pooled(self, name: str, output: Any, x: Inputs) -> Tensor:
        found, count, tap = first_float(output), count_of(x), self._taps[name][1]
        if found is None or not 2 <= found.ndim <= 5 or found.shape[0] != count:
            raise UsageError(
                f"Layer {name!r} gives {describe_output(output)} for {count} images; a layer to "
                "tap gives a float tensor of 2 to 5 dimensions, the first of them the images. "
                f"{_LISTED}."
            )
        values = full(found)
        if name not in self._axes:  # once: to look at every module takes time
            shape = tuple(x.shape) if isinstance(x, Tensor) else ()
            place = self._places[name]
            axis = find_channels(self.model, place, found.shape, shape, self.layout)
            if tap == INPUT and isinstance(self.model.get_submodule(place), nn.Linear):
                axis = found.ndim - 1
            self._axes[name] = axis
        axis = self._axes[name]
        if axis is None:
            raise UsageError(
                f"Layer {name!r} gives {batched(found.shape[1:])}: its shape does not "
                "determine which axis is the channels. Set the layout to channels_first "
                "(most CNNs) or channels_last (Swin)."
            )
        mask = x.get("attention_mask") if isinstance(x, dict) else None
        if mask is not None and WAVEFORMS in x and (mask.ndim, values.ndim) == (2, 3):
            mask = mask_of_frames(mask, values.shape[1])
        try:
            pooling = "mean" if tap == INPUT else tap
            return pool_output(values, axis, self.tokens, mask, pooling)
        except UsageError as error:
            raise UsageError(f"Layer {name!r} gives {batched(found.shape[1:])}. {error}") from error


class OutputSettings(TypedDict):
    """Of a feature extractor: where its logits are, and how its layers are pooled."""

    logits: str | int | None
    tokens: Tokens
    layout: Layout


def as_extractor(
    model: nn.Module,
    layers: str | Sequence[str],
    *,
    preprocess: Preprocessing | InputPreprocessing | None,
    example: Inputs,
    inputs: TappedInputs = "images",
    reads: Callable[[Outputs], Collection[str]] | None = None,
    **settings: Unpack[OutputSettings],
) -> FeatureExtractor:
    """The model in a feature extractor of these settings, tried on the example.

    With ``"auto"``, ``choose_layers`` chooses the layers. They are logged, unless ``reads``, the
    features that a detector reads of outputs, are none.

    Raises:
        UsageError: no layers, or settings beside a ``FeatureExtractor``, which has its own.
    """
    model = unwrap(model)
    if isinstance(model, FeatureExtractor):
        logits, tokens, layout = settings["logits"], settings["tokens"], settings["layout"]
        if (layers, logits, preprocess, tokens, layout) != ("auto", None, None, "mean", "auto"):
            raise UsageError(
                "A FeatureExtractor holds its own layers, logits, preprocess, tokens and layout: "
                "give them to goen.FeatureExtractor, not beside it."
            )
        if model.inputs != inputs:
            raise UsageError(
                f"The FeatureExtractor model takes {model.inputs}, but the inputs are {inputs}. "
                f"Give inputs={inputs!r} to goen.FeatureExtractor."
            )
        model._try(example)
        return model
    if not layers:
        raise UsageError(
            "Name the layers to measure, such as layer2 and layer4, or leave them out and goen "
            f"chooses. {_LISTED}."
        )
    given: Any = {"preprocess": preprocess, "inputs": inputs}

    def tap(names: Sequence[str]) -> FeatureExtractor:
        return FeatureExtractor(model, names, example=example, **settings, **given)

    if layers != "auto":
        return tap(layers)
    where, layout = settings["logits"], settings["layout"]
    table = list_layers(model, example, logits=where, layout=layout, **given)
    every = tap([info.name for info in table if info.width])
    with evaluating(every), torch.no_grad():
        outputs: Outputs = every(example_inputs(example, every.model))
    chosen = _choose(outputs, table, partial(_read_by_classifier, model, tap))
    if reads is None or reads(outputs):
        _log.info(
            "Layers chosen by their depth: %s. The alternatives (layers=, --layers):\n%s",
            " and ".join(chosen),
            table,
        )
    return tap(chosen)


def _choose(
    outputs: Outputs, table: LayerTable, find_input: Callable[[int], str | None]
) -> tuple[str, ...]:
    """Layers of the table, chosen by the features that the model gives for the example.

    Where none of them is what the classifier reads, that is found, and is the last.
    """
    # Maps with a channel for each class, whose means are the logits, classify already.
    features = {
        name: values
        for name, values in outputs.features.items()
        if not same_features(values, outputs.logits)
    }
    chosen = choose_layers(table, features or outputs.features)
    read = find_input(outputs.logits.shape[1]) if outputs.classifier is None else None
    return chosen if read is None else (*chosen[:-1], read)


def _read_by_classifier(
    model: nn.Module, tap: Callable[[Sequence[str]], FeatureExtractor], num_classes: int
) -> str | None:
    """The input of the linear layer that makes the logits, where no layer's output is that."""
    if isinstance(model, Backbone):  # it gives its classifier itself, which may read a scaled z
        return None
    for name, module in reversed([*model.named_modules()]):
        makes_logits = isinstance(module, nn.Linear) and module.out_features == num_classes
        if not makes_logits and not (_is_pixelwise(module) and module.out_channels == num_classes):
            continue
        given = f"{name}:{INPUT}"
        try:
            if tap([given]).classifying_layer is not None:
                return given
        except UsageError as error:  # it is called twice, or not at all
            _log.debug("Layer %s does not make the logits: %s", name, error)
    return None


def _find_classifier(model: nn.Module, outputs: Outputs) -> tuple[str, str] | tuple[()]:
    """The layer that makes the logits of a feature, and that feature: the last ones that do."""
    for layer, module in reversed([*model.named_modules()]):
        if not isinstance(module, nn.Linear) and not _is_pixelwise(module):
            continue
        for feature in reversed([*outputs.features]):
            found = LinearClassifier.of(module, feature)
            shape = (outputs.logits.shape[1], outputs.features[feature].shape[1])
            if found is None or found.weight.shape != shape:
                continue
            difference, tolerance = found.difference(outputs)
            if difference <= tolerance:
                return layer, feature
            _log.debug(
                "Layer %s is not a linear classifier of feature %s: logits differ by up to %.3g.",
                layer, feature, difference,
            )  # fmt: skip
    return ()


def _is_pixelwise(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    return isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.groups == 1


def _not_once(name: str, calls: int) -> UsageError:
    if not calls:
        return UsageError(
            f"Layer {name!r} is not called in the forward pass: the model has it but does not use "
            "it, uses its weights only, or runs it in a part compiled by torch (then give the "
            f"model before that). {_LISTED}."
        )
    return UsageError(
        f"Layer {name!r} is called {calls} times in the forward pass, so its name does not "
        "determine the features. Tap the layer before or around it, or give the model one "
        "module for each call."
    )


def _no_such_layer(
    name: str,
    model: nn.Module,
    example: Example | None,
    preprocess: Preprocessing | InputPreprocessing | None,
    inputs: TappedInputs,
) -> UsageError:
    """The nearest names, with their shapes when there is an example."""
    names = [known for known, _ in model.named_modules(remove_duplicate=False) if known]
    shapes: dict[str, str] = {}
    if example is not None:
        table = list_layers(model, example, preprocess=preprocess, every=True, inputs=inputs)
        shapes = {info.name: f" {batched(info.shape)}" for info in table}
        names = list(shapes)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    shown = near or [known for known in names if "." not in known] or names[:8]
    listed = ", ".join(f"{known!r}{shapes.get(known, '')}" for known in shown)
    hint = f"Did you mean {listed}?" if near else f"It has {listed}."
    return UsageError(f"The model has no layer {name!r}. {hint} {_LISTED}.")
