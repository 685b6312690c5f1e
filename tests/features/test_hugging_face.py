"""Classifiers of transformers from the fit to the exported file, and folders of them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnxruntime import InferenceSession
from scipy.stats import betabinom

import goen
from goen.errors import ArtifactError, UsageError
from goen.features.extractor import FeatureExtractor
from goen.features.hugging_face import describe_hugging_face, open_hugging_face
from goen.features.loaded_model import LoadedModel
from goen.features.pooling import Tokens
from goen.features.preprocess import PreprocessSound
from goen.gate import Gate
from goen.gate.export.traceable import input_names
from goen.outputs import check_classifier
from tests.features.tiny_models import (
    CLASSES,
    IMAGE,
    KINDS,
    SIZE,
    as_the_model_takes_it,
    labelled,
    logits,
    saved,
    trained,
    transformers,
)

RATE = 0.1
# One process imports transformers, not each of them.
pytestmark = pytest.mark.xdist_group("transformers")


@cache
def gate_of(name: str) -> Gate:
    opened = LoadedModel(trained(name), classes=CLASSES, read_preprocess=lambda: own(name))
    return Gate.fit(opened, labelled(name, 300, 0), labelled(name, 400, 1), false_alarm_rate=RATE)


def own(name: str) -> Any:
    return KINDS[name].preprocess


LAYERS = {
    "image": ("vit.layers.0", "vit"),
    "text": ("bert.encoder.layer.0", "bert"),
    "sound": ("wav2vec2.encoder.layers.0", "projector"),
    "spectrogram": ("audio_spectrogram_transformer.layers.0", "classifier.layernorm"),
}
# It classifies the class token, and LAYERS has the mean of all.
CHOSEN = {"image": ("vit.layers.0", "classifier:input")}


@pytest.mark.parametrize(
    ("name", "tokens", "reads"),
    [
        ("image", "mean", None),  # it classifies the class token
        ("image", "class", "vit"),
        ("text", "mean", None),  # and this one a layer after it
        ("sound", "mean", "projector"),
        ("spectrogram", "mean", "classifier.layernorm"),
    ],
)
def test_the_linear_classifier_is_found(name: str, tokens: Tokens, reads: str | None) -> None:
    extractor = FeatureExtractor(trained(name), LAYERS[name], tokens=tokens, inputs="tensors")
    outputs = extractor(as_the_model_takes_it(name, labelled(name, 50, 4)[0]))
    assert (outputs.classifier and check_classifier(outputs).feature) == reads


def test_a_pooler_is_what_a_classifier_of_text_reads() -> None:
    extractor = FeatureExtractor(trained("text"), ["bert", "bert.pooler"], inputs="tensors")
    outputs = extractor(as_the_model_takes_it("text", labelled("text", 50, 4)[0]))
    assert check_classifier(outputs).feature == "bert.pooler"


@pytest.mark.parametrize("name", KINDS)
def test_from_the_fit_to_the_exported_file(name: str, tmp_path: Path) -> None:
    gate, (inputs, labels) = gate_of(name), labelled(name, 600, 2)
    assert gate.network.layers == CHOSEN.get(name, LAYERS[name])
    assert gate.classes == CLASSES
    found = gate.predict(inputs)
    assert (found.label == labels).mean() > 0.9
    expected = logits(trained(name), as_the_model_takes_it(name, inputs)).softmax(1).amax(1)
    assert np.allclose(found.confidence, expected.detach(), atol=1e-4)
    # Of a gate with n held-out scores the flags among m new inputs are beta-binomial.
    n = len(gate.held_out)
    k = int(RATE * (n + 1))
    limits = betabinom(600, k, n + 1 - k).ppf([0.001, 0.999])
    assert limits[0] <= found.is_ood.sum() <= limits[1]
    unlike = KINDS[name].unlike(np.random.default_rng(3), 200)
    assert gate.predict(unlike).is_ood.mean() > 0.8

    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=KINDS[name].model())
    assert np.allclose(loaded.predict(inputs).score, found.score, atol=1e-5)
    report = loaded.update(held_out=labelled(name, 300, 4), ood={"unlike": unlike})
    assert report.after["auroc/unlike"] > 0.9
    updated = report.gate

    updated.export(tmp_path / "gate.onnx", None if name == "image" else inputs)
    session = InferenceSession(tmp_path / "gate.onnx")
    arrays = inputs if isinstance(inputs, dict) else {input_names(updated)[0]: inputs}
    decision, score = session.run(["is_ood", "score"], arrays)
    after = updated.predict(inputs)
    assert np.allclose(score, after.score, atol=1e-2)
    assert (decision == after.is_ood).mean() > 0.995


# Folders


def test_a_folder_brings_its_weights_preprocessing_and_classes(tmp_path: Path) -> None:
    folder = saved("image", tmp_path / "vit")
    opened = goen.load_model(f"hf:{folder}")
    images, labels = labelled("image", 300, 0)
    given = as_the_model_takes_it("image", images)
    with torch.no_grad():
        assert torch.equal(opened.model(given).logits, trained("image")(given).logits)
    assert not opened.model.training
    assert opened.classes == CLASSES
    assert opened.preprocess(images=True) == KINDS["image"].preprocess
    assert opened.preprocess(images=False) is None
    held_out = labelled("image", 400, 1)
    gate = Gate.fit(opened, (images, labels), held_out, false_alarm_rate=RATE)
    # A model that the user loaded from there says the same about itself.
    model = transformers().ViTForImageClassification.from_pretrained(folder)
    other = Gate.fit(model, (images, labels), held_out, false_alarm_rate=RATE)
    expected = gate_of("image").predict(images).score
    assert np.allclose(gate.predict(images).score, expected, atol=1e-5)
    assert np.allclose(other.predict(images).score, expected, atol=1e-5)
    assert gate.classes == other.classes == CLASSES
    # What is given replaces what the folder says.
    plain = Gate.fit(model, (images, labels), held_out, preprocess=goen.Preprocess())
    assert plain.network.preprocess == goen.Preprocess()

    gate.save(tmp_path / "gate")
    without = open_hugging_face(folder, num_classes=len(CLASSES))
    assert not torch.equal(without.model(given).logits, opened.model(given).logits)
    loaded = goen.load(tmp_path / "gate", model=without)
    assert np.allclose(loaded.predict(images).score, expected, atol=1e-5)


def test_sound_is_standardised_as_its_config_says(tmp_path: Path) -> None:
    opened = goen.load_model(f"hf:{saved('sound', tmp_path / 'wav2vec2')}")
    assert opened.preprocess(images=False) == PreprocessSound(8000)
    assert opened.preprocess(images=True) is None
    extract = transformers().Wav2Vec2FeatureExtractor(do_normalize=True, sampling_rate=8000)
    waves, _ = labelled("sound", 5, 0)
    expected = extract(list(waves), sampling_rate=8000, return_tensors="pt")["input_values"]
    assert torch.allclose(PreprocessSound(8000)(torch.from_numpy(waves)), expected, atol=1e-5)  # type: ignore[arg-type]


def test_what_fills_waveforms_up_is_left_out_of_the_means() -> None:
    """Of a model that uses its mask, as those with layer norms in their convolutions do."""
    library = transformers()
    torch.manual_seed(0)
    settings = {"feat_extract_norm": "layer", "do_stable_layer_norm": True}
    config = library.Wav2Vec2Config(**trained("sound").config.to_dict() | settings)
    model = library.Wav2Vec2ForSequenceClassification(config).eval()
    extractor = goen.FeatureExtractor(
        model, LAYERS["sound"], inputs="tensors", preprocess=PreprocessSound(8000)
    )
    waves = torch.from_numpy(labelled("sound", 6, 0)[0])
    alone = extractor(
        {"input_values": waves, "attention_mask": torch.ones(6, 400, dtype=torch.long)}
    )
    longer = {
        "input_values": torch.nn.functional.pad(waves, (0, 240), value=9.0),
        "attention_mask": (torch.arange(640) < 400).long().expand(6, -1),
    }
    for layer, features in extractor(longer).features.items():
        apart = (features - alone.features[layer]).norm() / alone.features[layer].norm()
        assert apart < 0.1  # the last frame in twenty


def test_spectrograms_and_texts_go_in_as_they_are(tmp_path: Path) -> None:
    for name in ("spectrogram", "text"):
        opened = goen.load_model(f"hf:{saved(name, tmp_path / name)}")
        assert opened.read_preprocess() is None
        assert opened.classes == CLASSES


def test_what_tokenizers_return_is_a_batch() -> None:
    gate, (inputs, _) = gate_of("text"), labelled("text", 20, 2)
    encoded = transformers().BatchEncoding({k: torch.from_numpy(v) for k, v in inputs.items()})
    assert np.allclose(gate.predict(encoded).score, gate.predict(inputs).score, atol=1e-5)


def test_numbered_classes_are_no_names() -> None:
    library = transformers()
    config = library.ViTConfig(
        image_size=16,
        patch_size=8,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        num_labels=4,
    )
    found = describe_hugging_face(library.ViTForImageClassification(config))
    assert found is not None
    assert found.classes == ()
    assert describe_hugging_face(torch.nn.Linear(2, 2)) is None


def test_classes_of_a_set_in_another_order_are_refused(small_set: goen.data.ImageSet) -> None:
    opened = LoadedModel(torch.nn.Flatten(), classes=("b", "a", "c"))
    with pytest.raises(UsageError, match=r"small numbers its classes a, b, c, \.\.\., but the"):
        Gate.fit(opened, small_set, np.zeros((100, 3, 8, 8), np.uint8))


# What a folder may not do


def change_config(folder: Path, **fields: object) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_no_code_of_a_folder_runs(tmp_path: Path) -> None:
    folder = saved("text", tmp_path / "bert")
    ran = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(ran)!r}, 'w')\nclass Evil: pass\n")
    change_config(
        folder,
        auto_map={
            "AutoConfig": "evil.Evil",
            "AutoModelForSequenceClassification": "evil.Evil",
        },
        attn_implementation="nobody/kernel",  # transformers would download and run it
        _attn_implementation="nobody/kernel",
    )
    for num_classes in (None, 2):
        model = open_hugging_face(folder, num_classes=num_classes).model
        assert type(model).__name__ == "BertForSequenceClassification"
        assert model.config._attn_implementation == "sdpa"
    change_config(folder, model_type="evil")
    with pytest.raises(ArtifactError, match=r"bert cannot be opened: .*custom code"):
        open_hugging_face(folder)
    assert not ran.exists()


def test_weights_come_from_safetensors_alone(tmp_path: Path) -> None:
    folder = saved("text", tmp_path / "bert")
    torch.save(trained("text").state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ArtifactError, match=r"no .safetensors file.*save_pretrained"):
        open_hugging_face(folder)


def test_only_weights_in_another_file_are_said_to_be(tmp_path: Path) -> None:
    damaged = saved("text", tmp_path / "safetensors")
    weights = (damaged / "model.safetensors").read_bytes()
    (damaged / "model.safetensors").write_bytes(weights[:1000])  # the error names the folder
    other = saved("text", tmp_path / "bert")
    (other / "model.safetensors").unlink()
    change_config(other, model_type="no-such")
    for folder in (damaged, other):
        with pytest.raises(ArtifactError, match="cannot be opened") as caught:
            open_hugging_face(folder)
        assert "no .safetensors file" not in str(caught.value)


def test_weights_that_are_missing_are_not_drawn_at_random(tmp_path: Path) -> None:
    folder = saved("text", tmp_path / "bert")
    state = {k: v for k, v in trained("text").state_dict().items() if "classifier" not in k}
    from safetensors.torch import save_file

    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ArtifactError, match=r"lacks weights of its model.*classifier.bias"):
        open_hugging_face(folder)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"architectures": ["BertModel"]}, UsageError, "holds BertModel, which transformers does"),
        ({"architectures": None}, UsageError, "holds a model without a name"),
        ({"quantization_config": {"bits": 4}}, UsageError, "are quantised"),
        ({"model_type": "no-such"}, ArtifactError, "bert cannot be opened"),
        ({"hidden_size": "wide"}, ArtifactError, "bert cannot be opened"),
        ({"hidden_size": 48}, ArtifactError, "bert cannot be opened|in another shape"),
    ],
)
def test_other_folders_are_one_error(
    fields: dict[str, object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    folder = saved("text", tmp_path / "bert")
    change_config(folder, **fields)
    with pytest.raises(error, match=message):
        open_hugging_face(folder)


def test_damaged_files_and_adapters_are_one_error(tmp_path: Path) -> None:
    folder = saved("text", tmp_path / "bert")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:1000])
    with pytest.raises(ArtifactError, match="bert cannot be opened"):
        open_hugging_face(folder)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(UsageError, match="holds an adapter"):
        open_hugging_face(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ArtifactError, match="not a JSON object"):
        open_hugging_face(folder)
    with pytest.raises(UsageError, match=r"goen downloads no models.*hf download"):
        goen.load_model("hf:google/vit-base-patch16-224")


def test_a_damaged_processor_is_one_error(tmp_path: Path) -> None:
    folder = saved("image", tmp_path / "vit")
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGE | {"image_std": "wide"}))
    opened = goen.load_model(f"hf:{folder}")  # who gives another preprocessing needs none of this
    with pytest.raises(ArtifactError, match="vit cannot be opened: its image_std should be a list"):
        opened.preprocess(images=True)
    nested = {"image_processor": IMAGE}
    (folder / "preprocessor_config.json").unlink()
    (folder / "processor_config.json").write_text(json.dumps(nested))
    found = goen.load_model(f"hf:{folder}").preprocess(images=True)
    assert isinstance(found, goen.Preprocess)
    assert found.size == (SIZE, SIZE)
