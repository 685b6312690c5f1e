"""Classifiers of Hugging Face: a folder on disk, or a model of transformers.

Nothing is downloaded, and no code from the folder runs: the class of the model comes from
transformers, its weights from safetensors files.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from logging import getLogger
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from goen.errors import ArtifactError, UsageError
from goen.features.hugging_face_checks import check_config, check_folder, check_size, offline
from goen.features.image_config import from_hugging_face
from goen.features.importing import import_library, missing_library
from goen.features.loaded_model import LoadedModel, OwnPreprocess
from goen.features.preprocess import PreprocessSound
from goen.io.json_files import json_object
from goen.io.manifest import Manifest
from goen.models.seeding import seeded

_log = getLogger(__name__)
# Where transformers has its classifiers of images, sound and text.
_CLASSIFIERS = (
    ("AutoModelForImageClassification", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING"),
    ("AutoModelForAudioClassification", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING"),
    ("AutoModelForSequenceClassification", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING"),
)
# Files that describe preprocessing, and the part of each for images or sound.
_PROCESSORS = (
    ("preprocessor_config.json", ()),
    ("processor_config.json", ("image_processor", "feature_extractor")),
)
# The feature extractor that gives waveforms; others give spectrograms of their own.
_WAVEFORMS = "Wav2Vec2FeatureExtractor"


def open_hugging_face(folder: Path, *, num_classes: int | None = None) -> LoadedModel:
    """The classifier of images, sound or text that ``save_pretrained`` wrote into a folder.

    Its weights are float32, whatever they are on disk.

    Args:
        folder: with ``config.json``, ``model.safetensors`` (or its parts) and, for images and
            sound, ``preprocessor_config.json``.
        num_classes: of a classifier whose weights are not read: for a gate, which has its own.

    Raises:
        UsageError: no such folder, or a model that is no classifier.
        ArtifactError: a folder that cannot be read.
        ExtraMissing: transformers is not here or cannot be imported.
    """
    if not (folder / "config.json").is_file():
        raise UsageError(
            f"{folder} is not a folder with a config.json, as save_pretrained writes it. goen "
            "downloads no models. Download it first, such as with: hf download OWNER/NAME "
            "--local-dir FOLDER, and then name that folder, hf:FOLDER."
        )
    transformers = import_library("transformers", "hf")
    with offline(), _quiet(transformers), seeded(0), _readable(folder):
        check_folder(folder)
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        check_config(config, folder)
        auto = _auto_class(transformers, config, folder)
        if num_classes not in (None, config.num_labels):
            config.num_labels = num_classes
        model = _model(auto, config, folder, num_classes is None)
    return _loaded(model.eval(), folder, config)


def describe_hugging_face(model: nn.Module) -> LoadedModel | None:
    """A model of transformers with what it says about itself; ``None`` for any other model.

    Its preprocessing is known if it was loaded from a folder that is still there.
    """
    module = sys.modules.get("transformers.modeling_utils")
    if module is None or not isinstance(model, module.PreTrainedModel):
        return None
    where = str(getattr(model, "name_or_path", "") or "")
    folder = Path(where)
    if not where or not folder.is_dir():
        return LoadedModel(model, classes=_classes(model.config))
    return _loaded(model, folder, model.config)


def _loaded(model: nn.Module, folder: Path, config: Any) -> LoadedModel:
    name = f"hf:{folder}"
    return LoadedModel(model, name, _classes(config), cache(lambda: _own_preprocess(folder, name)))


def _auto_class(transformers: ModuleType, config: Any, folder: Path) -> Any:
    """The class in transformers that makes the classifier which the config names."""
    named = [str(name) for name in config.architectures or ()]
    for auto, mapping in _CLASSIFIERS:
        found = getattr(transformers, mapping).get(type(config), None)
        known = found if isinstance(found, (tuple, list)) else [found]
        if any(cls is not None and cls.__name__ in named for cls in known):
            return getattr(transformers, auto)
    held = ", ".join(named)[:200] or "a model without a name"
    raise UsageError(
        f"{folder} holds {held}, which transformers does "
        "not have among its classifiers of images, sound or text (such as "
        "ViTForImageClassification, Wav2Vec2ForSequenceClassification, "
        "BertForSequenceClassification)."
    )


def _model(auto: Any, config: Any, folder: Path, with_weights: bool) -> nn.Module:
    # Said here, and not by the config: it may name a program to download and run.
    try:
        return _checked(auto, config, folder, with_weights, "sdpa")
    except (ValueError, ImportError):  # a model that has attention of its own only
        return _checked(auto, config, folder, with_weights, "eager")


def _checked(auto: Any, config: Any, folder: Path, with_weights: bool, attention: str) -> nn.Module:
    check_size(lambda: _made(auto, config, None, attention), folder)
    return _made(auto, config, folder if with_weights else None, attention)


def _made(auto: Any, config: Any, folder: Path | None, attention: str) -> nn.Module:
    """The model with the weights in the folder, or with random ones."""
    options = {
        "attn_implementation": attention,
        "dtype": torch.float32,
        "trust_remote_code": False,
    }
    made: nn.Module
    if folder is None:
        made = auto.from_config(config, **options)
        return made
    made, info = auto.from_pretrained(
        folder,
        config=config,
        local_files_only=True,
        use_safetensors=True,
        output_loading_info=True,
        **options,
    )
    lacking = sorted(map(str, (*info["missing_keys"], *info["mismatched_keys"])))
    if lacking:
        raise ArtifactError(
            f"{folder} lacks weights of its model, or has them in another shape: "
            f"{', '.join(lacking[:3])}. Is it a classifier that was trained?"
        )
    return made


def _classes(config: Any) -> tuple[str, ...]:
    """In the order of the logits; none where they are only numbered, as transformers does it."""
    labels = getattr(config, "id2label", None) or {}
    names = [labels.get(number) for number in range(len(labels))]
    if not all(isinstance(name, str) for name in names):
        return ()
    if names == [f"LABEL_{number}" for number in range(len(names))]:
        return ()
    return tuple(map(str, names))


def _own_preprocess(folder: Path, name: str) -> OwnPreprocess | None:
    """What the folder's files say; ``None`` where they say nothing, as those of text."""
    with _readable(folder):
        config = _processor(folder)
        if config is None:
            return None
        if "feature_extractor_type" in config and "image_processor_type" not in config:
            kind = config.text("feature_extractor_type")
            if not kind.endswith("ImageProcessor") and "image_mean" not in config:
                return _sound(config, kind, name)
        return from_hugging_face(config, name)


def _sound(config: Manifest, kind: str, name: str) -> PreprocessSound | None:
    if kind != _WAVEFORMS:
        _log.info("%s takes what its %s returns: give goen that, not waveforms.", name, kind)
        return None
    found = PreprocessSound(config.count("sampling_rate"), config.flag("do_normalize", False))
    _log.info("%s takes waveforms of %d Hz; goen does not resample.", name, found.sampling_rate)
    return found


def _processor(folder: Path) -> Manifest | None:
    for file, parts in _PROCESSORS:
        if (folder / file).is_file():
            content = Manifest(json_object(folder / file))
            within = [content.part(part) for part in parts if part in content]
            if within or not parts:
                return within[0] if within else content
    return None


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """Whatever is wrong with the folder is one error that names it."""
    try:
        yield
    except (ArtifactError, UsageError):
        raise
    except ImportError as error:
        raise missing_library("transformers", "hf", error) from error
    except Exception as error:  # of files that are something else, transformers raises anything
        if "torchvision::" in str(error):
            raise missing_library("transformers", "hf", error) from error
        reason = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        hint = ""
        if "safetensors" in reason and not [*folder.glob("*.safetensors")]:
            hint = (
                " It has no .safetensors file, the only one that goen reads weights from: save the "
                "model again with save_pretrained."
            )
        raise ArtifactError(
            f"{folder} cannot be opened: {reason.strip()[:300].rstrip('.')}.{hint}"
        ) from error


@contextmanager
def _quiet(transformers: ModuleType) -> Iterator[None]:
    """Without the messages and progress bars of transformers."""
    logging = transformers.utils.logging
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
