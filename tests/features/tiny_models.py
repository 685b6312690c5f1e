"""Tiny classifiers of transformers, trained for a moment, and the inputs that they are for."""

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from goen.batch import Inputs, take
from goen.features.preprocess import Preprocess, PreprocessSound
from tests.torchvision_import import import_torchvision

CLASSES = ("wide", "middle", "narrow")
SIZE = 16
_ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "id2label": dict(enumerate(CLASSES)),
    "label2id": {name: number for number, name in enumerate(CLASSES)},
}
SOUND = {
    "feature_extractor_type": "Wav2Vec2FeatureExtractor",
    "sampling_rate": 8000,
    "do_normalize": True,
}
IMAGE = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": SIZE, "width": SIZE},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.25, 0.25, 0.25],
}


def transformers() -> Any:
    import_torchvision()  # transformers imports it if it is installed
    import transformers

    return transformers


class Kind(NamedTuple):
    """A model, inputs of a class, inputs unlike all, and the preprocessing in its config."""

    model: Callable[[], nn.Module]
    draw: Callable[[np.random.Generator, np.ndarray], Any]
    unlike: Callable[[np.random.Generator, int], Any]
    config: dict[str, Any] | None
    preprocess: Callable[[Any], Any] | None


def vit() -> nn.Module:
    library = transformers()
    return library.ViTForImageClassification(
        library.ViTConfig(image_size=SIZE, patch_size=4, **_ENCODER)
    )


def bert() -> nn.Module:
    library = transformers()
    return library.BertForSequenceClassification(
        library.BertConfig(vocab_size=60, max_position_embeddings=32, **_ENCODER)
    )


def wav2vec2() -> nn.Module:
    library = transformers()
    return library.Wav2Vec2ForSequenceClassification(
        library.Wav2Vec2Config(
            conv_dim=(16, 16),
            conv_stride=(5, 4),
            conv_kernel=(10, 8),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=8,
            num_conv_pos_embedding_groups=2,
            classifier_proj_size=32,
            vocab_size=8,
            layerdrop=0.0,
            apply_spec_augment=False,
            **_ENCODER,
        )
    )


def spectrogram_transformer() -> nn.Module:
    library = transformers()
    return library.ASTForAudioClassification(
        library.ASTConfig(
            max_length=32,
            num_mel_bins=16,
            patch_size=8,
            frequency_stride=8,
            time_stride=8,
            **_ENCODER,
        )
    )


def stripes(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    across = np.sin(np.arange(SIZE) * (label[:, None] + 1) * 0.5) / 2 + 0.5
    maps = np.broadcast_to(across[:, None, None, :], (len(label), 3, SIZE, SIZE))
    noisy = np.clip(maps + 0.15 * rng.normal(size=maps.shape), 0, 1)
    return (255 * noisy).astype(np.uint8)


def noise(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 256, (count, 3, SIZE, SIZE), dtype=np.uint8)


def texts(rng: np.random.Generator, topic: np.ndarray) -> dict[str, np.ndarray]:
    lengths = rng.integers(5, 13, len(topic))
    # One word in ten is of any topic.
    own = 1 + 10 * topic[:, None] + rng.integers(0, 10, (len(topic), 12))
    words = np.where(rng.random(own.shape) < 0.1, rng.integers(1, 31, own.shape), own)
    mask = (np.arange(12) < lengths[:, None]).astype(np.int64)
    return {"input_ids": words * mask, "attention_mask": mask}


def other_words(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    drawn = texts(rng, np.zeros(count, np.int64))
    mask = drawn["attention_mask"]
    return {"input_ids": rng.integers(31, 60, mask.shape) * mask, "attention_mask": mask}


def tones(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    pitch = 6 + 12 * label + rng.uniform(-4, 4, len(label))
    turns = pitch[:, None] * np.arange(400) / 400 + rng.random((len(label), 1))
    loudness = rng.uniform(0.5, 2, (len(label), 1))
    waves = np.sin(2 * np.pi * turns) + 0.3 * rng.normal(size=turns.shape)
    return (loudness * waves).astype(np.float32)


def hiss(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.normal(size=(count, 400)).astype(np.float32)


def bands(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    """Spectrograms: time by frequency, with energy where the class has it."""
    spectrum = np.exp(-(((np.arange(16) - 3 - 5 * label[:, None]) / 2) ** 2))
    return (spectrum[:, None, :] + 0.3 * rng.normal(size=(len(label), 32, 16))).astype(np.float32)


KINDS = {
    "image": Kind(vit, stripes, noise, IMAGE, Preprocess((0.5,) * 3, (0.25,) * 3, (SIZE, SIZE))),
    "text": Kind(bert, texts, other_words, None, None),
    "sound": Kind(wav2vec2, tones, hiss, SOUND, PreprocessSound(8000)),
    "spectrogram": Kind(
        spectrogram_transformer, bands,
        lambda rng, n: rng.normal(size=(n, 32, 16)).astype(np.float32),
        {"feature_extractor_type": "ASTFeatureExtractor", "do_normalize": True}, None,
    ),
}  # fmt: skip


def labelled(name: str, count: int, seed: int) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(CLASSES), count)
    return KINDS[name].draw(rng, labels), labels


def as_the_model_takes_it(name: str, inputs: Any) -> Inputs:
    if isinstance(inputs, dict):
        return {part: torch.from_numpy(array) for part, array in inputs.items()}
    tensor = torch.from_numpy(inputs)
    tensor = tensor / 255 if tensor.dtype == torch.uint8 else tensor
    preprocess = KINDS[name].preprocess
    return tensor if preprocess is None else preprocess(tensor)


def logits(model: nn.Module, inputs: Inputs) -> Tensor:
    output = model(**inputs) if isinstance(inputs, dict) else model(inputs)
    found: Tensor = output.logits
    return found


@cache
def _trained(name: str) -> dict[str, Tensor]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = KINDS[name].model().train()
        inputs, labels = labelled(name, 300, 0)
        given, truth = as_the_model_takes_it(name, inputs), torch.from_numpy(labels)
        optimiser = torch.optim.Adam(model.parameters(), 3e-3)
        for step in range(90):
            rows = slice(60 * (step % 5), 60 * (step % 5) + 60)
            optimiser.zero_grad()
            nn.functional.cross_entropy(logits(model, take(given, rows)), truth[rows]).backward()
            optimiser.step()
    return model.state_dict()


def trained(name: str) -> Any:
    """A fresh copy of the trained model, in evaluation mode."""
    model = KINDS[name].model()
    model.load_state_dict({key: value.clone() for key, value in _trained(name).items()})
    return model.eval()


def saved(name: str, folder: Path) -> Path:
    """The folder that ``save_pretrained`` writes, with the config of its preprocessing."""
    library = transformers()
    library.utils.logging.disable_progress_bar()
    trained(name).save_pretrained(folder)
    config = KINDS[name].config
    if config is not None:
        (folder / "preprocessor_config.json").write_text(json.dumps(config))
    return folder
