"""The one loop that runs a network over images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import nn

from goen.batch import Inputs, count_of, map_parts, parts_of, take
from goen.data.input_spec import ImageInputs, InputsOption, find_input_spec
from goen.data.inputs import BatchStream, Images, as_stream, first_inputs
from goen.errors import UsageError
from goen.features.extractor import FeatureExtractor, as_extractor
from goen.features.loaded_model import LoadedModel
from goen.features.loading import as_loaded
from goen.features.pooling import Layout, Tokens
from goen.features.preprocess import InputPreprocessing, Preprocessing
from goen.features.reading import ModelReading
from goen.functional.image_properties import image_properties
from goen.models.placement import evaluating, full_precision, placement
from goen.outputs import LinearClassifier, Outputs
from goen.progress import bar

BATCH_SIZE = 256

Beside = TypeVar("Beside")


def extract(
    model: nn.Module | LoadedModel,
    images: Images,
    *,
    layers: str | Sequence[str] = "auto",
    logits: str | int | None = None,
    preprocess: Preprocessing | InputPreprocessing | None = None,
    tokens: Tokens = "mean",
    layout: Layout = "auto",
    batch_size: int = BATCH_SIZE,
    inputs: InputsOption = "auto",
) -> Outputs:
    """The model's outputs for every image, on the CPU, with the labels that came with them.

    Args:
        model: as for ``Gate.fit``; or one that returns ``Outputs``, as a gate's, without settings.
        images: as for ``Gate.fit``, with labels or without.
        layers: whose features to extract; see ``Gate.fit``.
        logits: their key, attribute or index in the model's output, if that is ambiguous.
        preprocess: of images in [0, 1], before they enter the model.
        tokens: of transformers: ``mean`` of all tokens, or the first (``class``).
        layout: of feature maps, where their shape is ambiguous.
        batch_size: of sets and arrays; iterables have their own.
        inputs: as for ``Gate.fit``; a ``FeatureExtractor`` has its own.

    Raises:
        UsageError: invalid images, layers or settings, or an unsuitable model.
        DataError: there are no images.

    Example:
        >>> from goen.data import load_set
        >>> from goen.models import NetworkConfig, ResNet18
        >>> outputs = extract(ResNet18(NetworkConfig(width=1)), load_set("digits").take(range(5)))
        >>> len(outputs), sorted(outputs.features), outputs.labels
        (5, ['layer1', 'layer2', 'layer3', 'layer4', 'z'], tensor([0, 1, 2, 3, 4]))
    """
    opened = as_loaded(model)
    network, own = opened.model, isinstance(opened.model, FeatureExtractor)
    asked = network.inputs if isinstance(network, FeatureExtractor) else inputs
    given = ModelReading(opened, preprocess).open_paths({"images": images}, batch_size, asked)
    first, batches = first_inputs(as_stream(given["images"], "images", batch_size, asked))
    spec, few = find_input_spec(first, asked, batches.name), take(first, slice(2))
    if not own and returns_outputs(network, few):
        if (layers, logits, preprocess, tokens, layout) != ("auto", None, None, "mean", "auto"):
            raise UsageError(
                f"{type(network).__name__} returns goen.Outputs, with logits and features of its "
                "own: layers, logits, preprocess, tokens and layout are settings for other models."
            )
    else:
        network = load_extractor(
            opened,
            few,
            images=isinstance(spec, ImageInputs),
            layers=layers,
            logits=logits,
            preprocess=preprocess,
            tokens=tokens,
            layout=layout,
        )
    outputs = Outputs.concatenate(stream(network, replace(batches, spec=spec)))
    return replace(outputs, classifier=_copied(outputs.classifier))


def load_extractor(
    loaded: LoadedModel,
    example: Inputs,
    *,
    images: bool,
    preprocess: Preprocessing | InputPreprocessing | None,
    **settings: Any,
) -> FeatureExtractor:
    """The model in a feature extractor with these settings, and its own preprocessing by default.

    Args:
        loaded: the model, or a ``FeatureExtractor`` as it is.
        example: two inputs.
        images: whether they are images.
        preprocess: in place of the model's own.
        settings: ``layers``, ``logits``, ``tokens`` and ``layout`` of the extractor, and ``reads``:
            see ``as_extractor``.
    """
    if preprocess is None and not isinstance(loaded.model, FeatureExtractor):
        preprocess = loaded.preprocess(images=images)
    with full_precision():
        return as_extractor(
            loaded.model,
            preprocess=preprocess,
            example=example,
            inputs="images" if images else "tensors",
            **settings,
        )


def _copied(classifier: LinearClassifier | None) -> LinearClassifier | None:
    """The classifier as it is now: the model's own weights may be trained further."""
    if classifier is None:
        return None
    return replace(classifier, weight=classifier.weight.clone(), bias=classifier.bias.clone())


def stream(
    network: nn.Module,
    images: Images | BatchStream,
    *,
    batch_size: int = BATCH_SIZE,
    with_properties: bool = False,
) -> Iterator[Outputs]:
    """The outputs batch by batch, in order: memory that does not grow with the set.

    The network returns ``Outputs``. It is put into evaluation mode and left as it was found.

    Args:
        network: whose outputs.
        images: that it reads.
        batch_size: of sets and arrays.
        with_properties: measure the properties of the inputs, which are images.
    """
    batches = as_stream(images, "images", batch_size)
    both = ((inputs, (inputs, labels)) for inputs, labels in batches)
    found = run_network(network, both, name=batches.name, total=batches.count)
    for outputs, (inputs, labels) in found:
        known = outputs.labels if labels is None else labels.cpu()
        properties = image_properties(parts_of(inputs)[""]).cpu() if with_properties else None
        yield replace(outputs, labels=known, properties=properties)


def run_network(
    network: nn.Module,
    batches: Iterable[tuple[Inputs, Beside]],
    *,
    name: str,
    total: int | None,
) -> Iterator[tuple[Outputs, Beside]]:
    """The outputs of each batch on the CPU, with whatever accompanied it.

    Args:
        network: put into evaluation mode and left as it was found.
        batches: what the network takes, on any device, and anything.
        name: of the images, for the progress bar.
        total: how many images there are, if known.
    """
    device, _ = placement(network)
    with evaluating(network), bar() as progress:
        task = progress.add_task(f"reading {name}", total=total, status="images")
        for inputs, beside in batches:
            with full_precision(), torch.inference_mode():
                outputs = _outputs(network, map_parts(lambda part: part.to(device), inputs))
            yield outputs.cpu(), beside
            progress.advance(task, count_of(inputs))


def _outputs(network: nn.Module, inputs: Inputs) -> Outputs:
    """What the network returns for this batch, if that is ``Outputs``."""
    name = type(network).__name__
    advice = "Wrap it and name the layers to read: goen.FeatureExtractor(model, layers)."
    try:
        outputs = network(inputs)
    except (RuntimeError, TypeError) as error:
        # A plain model fails where images of whole numbers meet its weights.
        if _is_of_goen(network) or isinstance(error, torch.OutOfMemoryError):
            raise
        raise UsageError(
            f"{name} cannot take the images as goen gives them, whole numbers (N, C, H, W): "
            f"{error}. {advice}"
        ) from error
    if not isinstance(outputs, Outputs):
        got = type(outputs).__name__
        raise UsageError(
            f"The network should return goen.Outputs, and {name} returns {got}. {advice}"
        )
    return outputs


def returns_outputs(network: nn.Module, inputs: Inputs) -> bool:
    """Whether this is a network of goen, or another that returns ``Outputs``."""
    if _is_of_goen(network):
        return True
    device = placement(network)[0]
    try:
        with evaluating(network), full_precision(), torch.inference_mode():
            return isinstance(network(map_parts(lambda part: part.to(device), inputs)), Outputs)
    except Exception:  # so does a plain model of floats; a model's own code may raise anything
        return False


def _is_of_goen(network: nn.Module) -> bool:
    return type(network).__module__.partition(".")[0] == "goen"
