"""``goen fit --model hf:FOLDER``: what the model's config says, and the options that replace it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch import nn

from goen.cli.main import main
from goen.cli.options.own_model import ModelOptions, OwnModel
from goen.errors import UsageError
from goen.features.loaded_model import LoadedModel
from goen.features.preprocess import Preprocess, PreprocessSound
from tests.features.tiny_models import CLASSES, SIZE, labelled, noise, saved

OWN = Preprocess((0.5,), (0.2,), (24, 24), (20, 20))


def write(folder: Path, images: np.ndarray, labels: np.ndarray | None = None) -> Path:
    for number, pixels in enumerate(images):
        place = folder if labels is None else folder / CLASSES[labels[number]]
        place.mkdir(parents=True, exist_ok=True)
        # Twice as large: the model's config says what they are resized to.
        picture = Image.fromarray(pixels.transpose(1, 2, 0)).resize((2 * SIZE, 2 * SIZE), 0)
        picture.save(place / f"{number}.png")
    return folder


@pytest.mark.xdist_group("transformers")
def test_a_folder_of_hugging_face_needs_no_other_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = f"hf:{saved('image', tmp_path / 'vit')}"
    train = write(tmp_path / "train", *labelled("image", 150, 0))
    held_out = write(tmp_path / "held", *labelled("image", 150, 1))
    words = ["fit", "--model", model, "--train", train, "--held-out", held_out]
    out = tmp_path / "gate"
    assert main([*map(str, words), "--false-alarm-rate", "0.1", "--out", str(out)]) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["classes"] == list(CLASSES)  # the order of the logits, not of the alphabet
    assert manifest["image_size"] == [SIZE, SIZE]
    assert manifest["network"]["preprocess"]["std"] == [0.25] * 3
    assert manifest["metadata"]["held_out_accuracy"] > 0.9
    assert manifest["metadata"]["factory"] == model
    assert f"--model {model}" in capsys.readouterr().err

    unlike = write(tmp_path / "unlike", noise(np.random.default_rng(2), 20))
    assert main(["score", str(unlike), "--gate", str(out), "--model", model]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert np.mean([row["is_ood"] for row in rows]) > 0.8
    assert main(["score", str(unlike), "--gate", str(out)]) == 2
    assert f"It was made by {model}" in capsys.readouterr().err

    (train / "wide").rename(train / "broad")
    assert main([*map(str, words), "--out", str(tmp_path / "other")]) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "Only the model has: wide. Only the images have: broad." in message
    assert "--classes" in message


def opened(own: Preprocess | PreprocessSound | None, *classes: str) -> LoadedModel:
    return LoadedModel(nn.Identity(), "hf:x", classes, lambda: own)


def options(model: LoadedModel, **given: Any) -> OwnModel:
    return OwnModel(model, ModelOptions(**given))


def test_options_replace_parts_of_the_config() -> None:
    model = opened(OWN)
    assert OwnModel(model).preprocess(images=True) == OWN
    assert OwnModel(model).reading.preprocess == OWN
    other = options(model, mean=(0.1,))
    assert other.preprocess(images=True) == Preprocess((0.1,), (0.2,), (24, 24), (20, 20))
    sized = options(model, std=(0.3,), size=(8,))
    assert sized.preprocess(images=True) == Preprocess((0.5,), (0.3,))
    assert sized.reading.size == (8, 8)
    assert options(model, size=(1, 9)).reading.size == (1, 9)
    for size in ((8, 8, 8), (0,), (8, -1)):
        with pytest.raises(UsageError, match=f"height and width, got {' '.join(map(str, size))}"):
            _ = options(model, size=size).reading
    assert options(model, preprocess="builtins:abs").preprocess(images=True) is abs
    with pytest.raises(UsageError, match="Give --preprocess, or --mean and --std, not both"):
        options(model, preprocess="builtins:abs", std=(0.3,)).preprocess(images=True)


def test_models_that_say_nothing_take_the_options() -> None:
    assert OwnModel(opened(None)).preprocess(images=True) is None
    given = options(opened(None), mean=(0.1,))
    assert given.preprocess(images=True) == Preprocess((0.1,))
    sound = PreprocessSound(8000)
    assert OwnModel(opened(sound)).preprocess(images=False) == sound
    assert OwnModel(opened(sound)).preprocess(images=True) is None


def test_all_options_together_need_no_config() -> None:
    def unreadable() -> Preprocess:
        raise UsageError("a step that goen does not have")

    model = LoadedModel(nn.Identity(), "hf:x", (), unreadable)
    every = options(model, mean=(0.1,), std=(0.2,), size=(8,))
    assert every.preprocess(images=True) == Preprocess((0.1,), (0.2,))
    with pytest.raises(UsageError, match="a step"):
        options(model, mean=(0.1,)).preprocess(images=True)
