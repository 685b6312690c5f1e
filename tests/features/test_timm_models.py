"""Models of timm by name, with weights from a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession
from safetensors.torch import save_file
from torch import nn

import goen
from goen.errors import ArtifactError, UsageError
from goen.features.extractor import as_extractor
from goen.features.loading import open_architecture
from goen.features.preprocess import Preprocess
from goen.features.timm_models import from_timm, open_timm
from goen.gate import Gate
from goen.io.manifest import Manifest
from goen.outputs import check_classifier
from tests.features.tiny_models import labelled, noise
from tests.torchvision_import import import_torchvision

pytestmark = pytest.mark.xdist_group("transformers")
NAME = "resnet10t"  # the smallest of its kind


@pytest.fixture
def timm() -> Any:
    import_torchvision()
    import timm

    return timm


@pytest.fixture
def weights(timm: Any, tmp_path: Path) -> Path:
    torch.manual_seed(0)
    save_file(timm.create_model(NAME, num_classes=3).state_dict(), tmp_path / "r.safetensors")
    return tmp_path / "r.safetensors"


def test_a_model_brings_the_preprocessing_of_timm(timm: Any, weights: Path) -> None:
    opened = goen.load_model(f"timm:{NAME}", weights)
    assert opened.model.num_classes == 3  # as many as the weights are for
    assert not opened.model.training
    found = opened.preprocess(images=True)
    data = timm.data.resolve_model_data_config(opened.model)
    assert found == Preprocess(data["mean"], data["std"], (201, 201), (176, 176))
    steps = timm.data.create_transform(**data | {"interpolation": "bilinear"}, is_training=False)
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels)
    ours = found(torch.from_numpy(goen.read_image(picture, found.read_image_size))[None] / 255)
    theirs = steps(picture)[None]
    assert ours.shape == theirs.shape
    # Pillow may take the height first, and rounds between the two.
    assert (ours - theirs).abs().max() <= 1.01 / 255 / min(data["std"])


@pytest.mark.parametrize(
    ("name", "reads"),
    [
        ("test_resnet", "layer4"),
        ("test_convnext", "head.norm"),
        ("test_vit", "head_drop"),
        ("test_efficientnet", "bn2"),
        ("test_nfnet", "final_act"),
    ],
)
def test_the_linear_classifier_is_found(timm: Any, name: str, reads: str) -> None:
    model = timm.create_model(name, num_classes=5).eval()
    images = torch.randint(256, (3, *model.pretrained_cfg["input_size"]), dtype=torch.uint8)
    extractor = as_extractor(
        model, "auto", logits=None, preprocess=None, tokens="mean", layout="auto", example=images
    )
    assert check_classifier(extractor(images)).feature == reads


def test_from_the_fit_to_the_exported_file(timm: Any, tmp_path: Path) -> None:
    """On images of its own size, with the weights of a training of a few steps."""
    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=3)
    images, labels = labelled("image", 200, 0)
    preprocess = Preprocess((0.5,) * 3, (0.25,) * 3, crop=14)
    given, truth = preprocess(torch.from_numpy(images) / 255), torch.from_numpy(labels)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(15):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(given), truth).backward()
        optimiser.step()
    gate = Gate.fit(
        model.eval(), (images, labels), labelled("image", 300, 1), preprocess=preprocess,
        false_alarm_rate=0.1,
    )  # fmt: skip
    new, truth_of_new = labelled("image", 300, 2)
    found = gate.predict(new)
    assert (found.label == truth_of_new).mean() > 0.9
    assert found.is_ood.mean() < 0.2
    assert gate.predict(noise(np.random.default_rng(3), 100)).is_ood.mean() > 0.8
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=open_architecture("timm:test_resnet", 3))
    assert np.allclose(loaded.predict(new).score, found.score, atol=1e-5)
    loaded.export(tmp_path / "gate.onnx", new)
    (score,) = InferenceSession(tmp_path / "gate.onnx").run(["score"], {"images": new})
    assert np.allclose(score, found.score, atol=1e-2)


def test_layers_are_those_of_the_stages(timm: Any) -> None:
    model = open_timm("test_vit", num_classes=3).model
    table = goen.list_layers(model, (3, 160, 160))
    assert [info.name for info in table if "block" in info.name]
    resnet = goen.list_layers(open_timm(NAME, num_classes=3).model, (3, 64, 64))
    assert {"layer1", "layer2", "layer3", "layer4"} <= {info.name for info in resnet}


def test_unknown_names_and_other_weights_are_errors(timm: Any, weights: Path) -> None:
    with pytest.raises(UsageError, match=r"timm has no model 'resnet181'. Did you mean resnet18"):
        open_timm("resnet181")
    with pytest.raises(UsageError, match=r"timm has no model 'resnet18.no'. Did you mean resnet"):
        open_timm("resnet18.no")
    with pytest.raises(UsageError, match=r"has no weights, and goen downloads none.*--weights"):
        goen.load_model("timm:resnet18")
    with pytest.raises(ArtifactError, match="does not fit this model"):
        open_timm("resnet18", weights)
    with pytest.raises(ArtifactError, match="does not exist"):
        open_timm("resnet18", weights.with_name("other.pt"))


def test_configs_that_goen_cannot_follow_are_refused() -> None:
    config = {"input_size": [3, 8, 8], "mean": [0.5], "std": [0.5]}
    with pytest.raises(UsageError, match="a model takes 1 channels"):
        from_timm(Manifest({**config, "input_size": [1, 8, 8]}), "a model")
    with pytest.raises(UsageError, match=r"a model pads pictures \(border\)"):
        from_timm(Manifest({**config, "crop_mode": "border"}), "a model")
    stretched = from_timm(Manifest({**config, "crop_mode": "squash", "crop_pct": 1.0}), "a model")
    assert stretched == Preprocess((0.5,), (0.5,), (8, 8))
