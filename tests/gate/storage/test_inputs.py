"""Gates of inputs that are no colour images: from the fit to an update, and their manifests."""

import tracemalloc
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch import Tensor, nn

import goen
from goen.batch import Inputs, count_of, take
from goen.data.images.pixel_format import PixelFormat
from goen.data.input_spec import ImageInputs, InputSpec, TensorInputs, TensorPart
from goen.errors import LeakError, UsageError
from goen.gate import Gate
from goen.gate.export.traceable import input_names
from goen.gate.storage.inputs import check_inputs, inputs_manifest, read_inputs
from goen.io.manifest import Manifest
from tests.gate.false_alarms import flags_allowed

CLASSES = 3


class Case(NamedTuple):
    """A task: inputs of a class, inputs unlike all, a model, and what its gate takes."""

    draw: Callable[[np.random.Generator, np.ndarray], Any]
    unlike: Callable[[np.random.Generator, int], Any]
    model: Callable[[], nn.Module]
    inputs: InputSpec
    settings: dict[str, object]


def waves(rng: np.random.Generator, pitch: np.ndarray, length: int = 200) -> np.ndarray:
    time = np.arange(length) / length
    phase = rng.uniform(0, 2 * np.pi, (len(pitch), 1))
    tone = np.sin(2 * np.pi * pitch[:, None] * time + phase)
    return (tone + 0.1 * rng.normal(size=tone.shape)).astype(np.float32)


def texts(rng: np.random.Generator, topic: np.ndarray) -> dict[str, np.ndarray]:
    lengths = rng.integers(5, 13, len(topic))
    words = 1 + 10 * topic[:, None] + rng.integers(0, 10, (len(topic), 12))
    mask = (np.arange(12) < lengths[:, None]).astype(np.int64)
    return {"input_ids": words * mask, "attention_mask": mask}


def stripes(rng: np.random.Generator, label: np.ndarray, bands: int, dtype: type) -> np.ndarray:
    across = np.sin(np.arange(12) * (label[:, None] + 1) * 0.5) / 2 + 0.5
    maps = np.broadcast_to(across[:, None, None, :], (len(label), bands, 10, 12))
    noisy = np.clip(maps + 0.1 * rng.normal(size=maps.shape), 0, 1)
    most = 1 if dtype is np.float32 else np.iinfo(dtype).max
    return (noisy * most).astype(dtype)


class Text(nn.Module):
    """A transformer whose forward needs two arguments by name."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(60, 16)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, CLASSES)

    def forward(self, *, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        x = self.block(self.embedding(input_ids), src_key_padding_mask=attention_mask == 0)
        counted = attention_mask[:, :, None].float()
        return {"logits": self.head((x * counted).sum(1) / counted.sum(1))}


class Two(nn.Module):
    """A model of a table and numbers of categories, as two arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.category = nn.Embedding(4, 4)
        self.body = nn.Sequential(nn.Linear(9, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.head = nn.Linear(16, CLASSES)

    def forward(self, numbers: Tensor, category: Tensor) -> Tensor:
        return self.head(self.body(torch.cat([numbers, self.category(category)], 1)))


def small_cnn(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def audio_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, -1)), nn.Conv1d(1, 8, 9, 2), nn.ReLU(), nn.Conv1d(8, 16, 9, 2),
        nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(16, CLASSES),
    )  # fmt: skip


def table(rng: np.random.Generator, label: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.eye(5, dtype=np.float64)[label] * 4 + rng.normal(size=(len(label), 5))
    return numbers, rng.integers(0, 4, len(label))


def noise(bands: int) -> Callable[[np.random.Generator, int], np.ndarray]:
    return lambda rng, n: rng.integers(0, 256, (n, bands, 10, 12), dtype=np.uint8)


def digits_of(rng: np.random.Generator, label: np.ndarray) -> np.ndarray:
    """Handwritten digits of scikit-learn, a little brighter or darker, so that no two are equal."""
    digits = load_digits()
    by_class = [np.flatnonzero(digits.target == number) for number in range(CLASSES)]
    rows = [rng.choice(by_class[number]) for number in label]
    bright = digits.images[rows] * 14 + rng.normal(0, 4, (len(label), 8, 8))
    return bright.clip(0, 255).astype(np.uint8)[:, None]


CASES = {
    "grey digits": Case(
        digits_of, lambda rng, n: rng.integers(0, 256, (n, 1, 8, 8), dtype=np.uint8),
        lambda: small_cnn(1), ImageInputs(1, 8, 8), {},
    ),
    "grey": Case(
        lambda rng, label: stripes(rng, label, 1, np.uint8), noise(1), lambda: small_cnn(1),
        ImageInputs(1, 10, 12), {},
    ),
    "thirteen bands of 16 bits": Case(
        lambda rng, label: stripes(rng, label, 13, np.uint16), noise(13), lambda: small_cnn(13),
        ImageInputs(13, 10, 12, 16), {"preprocess": goen.Preprocess((0.5,), (0.3,))},
    ),
    "sound": Case(
        lambda rng, label: waves(rng, 5.0 + 10 * label),
        lambda rng, n: waves(rng, np.full(n, 70.0)), audio_cnn,
        TensorInputs("tensor", {"": TensorPart("float", (200,))}), {},
    ),
    "text": Case(
        texts, lambda rng, n: texts(rng, rng.integers(3, 5, n)), Text,
        TensorInputs(
            "dict",
            {"input_ids": TensorPart("int", (12,)), "attention_mask": TensorPart("int", (12,))},
        ),
        {},
    ),
    "two arguments": Case(
        table, lambda rng, n: (8 * rng.normal(size=(n, 5)), rng.integers(0, 4, n)), Two,
        TensorInputs("tuple", {"0": TensorPart("float", (5,)), "1": TensorPart("int", ())}), {},
    ),
}  # fmt: skip


def tensors(arrays: Any) -> Any:
    if isinstance(arrays, dict):
        return {name: torch.from_numpy(part) for name, part in arrays.items()}
    if isinstance(arrays, tuple):
        return tuple(map(torch.from_numpy, arrays))
    return torch.from_numpy(arrays)


def as_the_model_takes_it(case: Case, inputs: Inputs) -> Inputs:
    if not isinstance(case.inputs, ImageInputs):
        return goen.batch.map_parts(lambda p: p.float() if p.is_floating_point() else p, inputs)
    assert isinstance(inputs, Tensor)
    scaled = inputs.float() / (255 if inputs.dtype == torch.uint8 else 65535)
    preprocess = case.settings.get("preprocess")
    return scaled if preprocess is None else preprocess(scaled)  # type: ignore[operator]


def called(model: nn.Module, inputs: Inputs) -> Tensor:
    if isinstance(inputs, dict):
        output = model(**inputs)
    else:
        output = model(inputs) if isinstance(inputs, Tensor) else model(*inputs)
    return output["logits"] if isinstance(output, dict) else output


def labelled(name: str, count: int, seed: int) -> tuple[Any, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, CLASSES, count)
    return CASES[name].draw(rng, labels), labels


@cache
def model_of(name: str) -> nn.Module:
    """Trained for a moment on a task that a moment is enough for."""
    case = CASES[name]
    torch.manual_seed(0)
    model = case.model()
    inputs, labels = labelled(name, 300, 0)
    given, truth = as_the_model_takes_it(case, tensors(inputs)), torch.from_numpy(labels)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(80):
        optimiser.zero_grad()
        nn.functional.cross_entropy(called(model, given), truth).backward()
        optimiser.step()
    return model.eval()


@cache
def gate_of(name: str) -> Gate:
    settings = CASES[name].settings
    return Gate.fit(
        model_of(name), labelled(name, 300, 0), labelled(name, 400, 1),
        false_alarm_rate=0.1, **settings,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_any_inputs_from_the_fit_to_an_update(name: str, tmp_path: Path) -> None:
    gate, (inputs, labels) = gate_of(name), labelled(name, 500, 2)
    assert gate.inputs == CASES[name].inputs
    found = gate.predict(inputs)
    assert (found.label == labels).mean() > 0.9
    fewest, most = flags_allowed(gate, 500)
    assert fewest <= found.is_ood.sum() <= most
    unlike = CASES[name].unlike(np.random.default_rng(3), 200)
    assert gate.predict(unlike).is_ood.mean() > 0.8
    expected = called(gate.network.model, as_the_model_takes_it(CASES[name], tensors(inputs)))  # type: ignore[arg-type]
    assert np.allclose(found.confidence, expected.softmax(1).amax(1).detach(), atol=1e-5)

    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=CASES[name].model())
    assert loaded.inputs == gate.inputs
    assert np.allclose(loaded.predict(inputs).score, found.score, atol=1e-5)

    # A tuple of two arrays would be inputs and their labels.
    other = (unlike, np.zeros(200, np.int64)) if isinstance(unlike, tuple) else unlike
    change = loaded.update(held_out=labelled(name, 300, 4), ood={"other": other})
    updated = change.gate
    assert change.after["auroc/other"] > 0.9
    assert updated.predict(inputs).probability is not None


@pytest.mark.parametrize("name", CASES)
def test_whole_arrays_and_batches_are_the_same(name: str) -> None:
    gate, (inputs, labels) = gate_of(name), labelled(name, 50, 2)

    def batches(with_labels: bool) -> Iterator[Any]:
        whole = tensors(inputs)
        for start in range(0, 50, 20):
            rows = slice(start, start + 20)
            part = take(whole, rows)
            yield (part, torch.from_numpy(labels[rows])) if with_labels else part

    expected = gate.predict(inputs).score
    assert np.allclose(gate.predict(batches(with_labels=True)).score, expected, atol=1e-5)
    if not isinstance(inputs, tuple):  # (a, b) would be inputs and their labels
        assert np.allclose(gate.predict(batches(with_labels=False)).score, expected, atol=1e-5)
    none = gate.predict(take(tensors(inputs), slice(0)))
    assert len(none) == 0


@pytest.mark.parametrize("name", CASES)
def test_an_input_in_two_sets_is_found(name: str) -> None:
    train, labels = labelled(name, 300, 0)
    held_out, _ = labelled(name, 400, 1)
    whole, given = tensors(held_out), tensors(train)
    mixed = goen.batch.join_batches([whole, take(given, slice(7, 10))])
    with pytest.raises(LeakError, match="held_out shares 3 of its 403 images with train"):
        Gate.fit(model_of(name), (train, labels), (mixed, np.zeros(403, np.int64)))
    with pytest.raises(LeakError, match="3 images of held_out are in the gate's train already"):
        gate_of(name).update(held_out=(mixed, np.zeros(403, np.int64)))


@pytest.mark.parametrize("name", CASES)
def test_exported_files_give_the_decisions_of_the_gate(name: str, tmp_path: Path) -> None:
    from onnxruntime import InferenceSession

    gate, (inputs, _) = gate_of(name), labelled(name, 90, 2)
    given = None if name.startswith("grey") else inputs
    gate.export(tmp_path / "gate.onnx", given)
    session = InferenceSession(tmp_path / "gate.onnx")
    names = [value.name for value in session.get_inputs()]
    assert names == [*input_names(gate)]  # the threshold may be left out
    whole = gate.inputs.check(tensors(inputs), name)
    single = goen.batch.map_parts(lambda p: p.float() if p.dtype == torch.float64 else p, whole)
    arrays = [part.numpy() for part in goen.batch.parts_of(single).values()]
    feed = dict(zip(names, arrays, strict=True))
    decision, score = session.run(["is_ood", "score"], feed)
    expected = gate.predict(inputs)
    assert np.allclose(score, expected.score, atol=1e-3)
    assert (decision == expected.is_ood).all()
    if name == "text":  # of another length
        (shorter,) = session.run(["score"], {key: part[:, :7] for key, part in feed.items()})
        own = gate.predict({key: part[:, :7] for key, part in inputs.items()})
        assert np.allclose(shorter, own.score, atol=1e-3)


def test_a_file_needs_inputs_to_compare_on(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot make up inputs of this kind \(tensors float"):
        gate_of("sound").export(tmp_path / "gate.onnx")
    with pytest.raises(UsageError, match="takes uint8 images"):
        gate_of("grey").export(tmp_path / "gate.onnx", np.zeros((4, 1, 10, 12), np.float32))
    assert not [*tmp_path.iterdir()]


def test_labels_may_be_among_the_inputs() -> None:
    inputs, labels = labelled("text", 300, 0)
    batch = tensors(inputs) | {"labels": torch.from_numpy(labels)}
    gate = Gate.fit(
        model_of("text"), [batch], tensors(labelled("text", 400, 1)[0]), false_alarm_rate=0.1
    )
    some = labelled("text", 20, 2)[0]
    assert np.allclose(gate.predict(some).score, gate_of("text").predict(some).score, atol=1e-5)
    assert np.allclose(
        gate.predict({**some, "labels": labels[:20]}).score, gate.predict(some).score
    )


def test_padding_changes_nothing() -> None:
    inputs = labelled("text", 40, 2)[0]
    longer = {name: np.pad(part, ((0, 0), (0, 9))) for name, part in inputs.items()}
    gate = gate_of("text")
    assert np.allclose(gate.predict(longer).score, gate.predict(inputs).score, atol=1e-4)


def test_what_the_model_does_not_take_is_a_sentence() -> None:
    with pytest.raises(UsageError, match=r"The model does not take inputs of shape 0 \(4, 6\), 1"):
        gate_of("two arguments").predict((np.zeros((4, 6)), np.zeros(4, np.int64)))
    with pytest.raises(UsageError, match="Inputs lack attention_mask; they have input_ids"):
        gate_of("text").predict({"input_ids": np.ones((2, 3), np.int64)})
    with pytest.raises(UsageError, match="takes no images: its inputs are tensors"):
        gate_of("sound").image_size  # noqa: B018
    with pytest.raises(UsageError, match="takes no images: its inputs are tensors"):
        gate_of("sound").pixel_format  # noqa: B018
    with pytest.raises(UsageError, match="Only images can be averaged over flips"):
        Gate.fit(
            model_of("sound"), labelled("sound", 300, 0), labelled("sound", 400, 1)[0],
            flip_averaging=True,
        )  # fmt: skip


def test_not_finite_inputs_are_flagged_and_the_others_kept() -> None:
    waves, _ = labelled("sound", 6, 2)
    waves[2, 5] = np.nan
    found = gate_of("sound").predict(waves)
    assert found.is_ood[2]
    assert np.isinf(found.score[2])
    assert np.isfinite(np.delete(found.score, 2)).all()


# Manifests

KINDS = [case.inputs for case in CASES.values()] + [ImageInputs(3, 32, 32)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_manifest_gives_the_inputs_back(kind: InputSpec) -> None:
    assert read_inputs(Manifest(dict(inputs_manifest(kind)))) == kind


def test_gates_of_colour_images_are_written_as_before() -> None:
    fields = inputs_manifest(ImageInputs(3, 8, 9))
    assert [*fields] == ["image_size", "image_reading"]
    assert fields["image_size"] == [8, 9]


ONE = {"name": "", "dtype": "float", "sizes": [4]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"image_size": [4]}, "should be a height and a width"),
        ({"image_size": [4, 4], "channels": 0}, "channels should be"),
        ({"image_size": [2048, 2048], "channels": 5}, "at most 16,777,216 values"),
        ({"inputs": {"form": "list", "parts": [ONE]}}, "should be a tensor, tuple or dict"),
        ({"inputs": {"form": "tensor", "parts": []}}, "should be a tensor, tuple or dict"),
        ({"inputs": {"form": "dict", "parts": []}}, "should be a tensor, tuple or dict"),
        ({"inputs": {"form": "tuple", "parts": [ONE]}}, "should be a tensor, tuple or dict"),
        ({"inputs": {"form": "tensor", "parts": [{**ONE, "dtype": "text"}]}}, "float, int or bool"),
        ({"inputs": {"form": "tensor", "parts": [{**ONE, "sizes": [-1]}]}}, "sizes should be"),
        ({"inputs": {"form": "tensor", "parts": [{**ONE, "sizes": [2**25]}]}}, "at most"),
        ({"inputs": {"form": "tensor", "parts": [{**ONE, "more": 1}]}}, "more"),
    ],
)
def test_a_forged_manifest_is_refused(fields: dict, message: str) -> None:
    with pytest.raises((ValueError, UsageError), match=message):
        read_inputs(Manifest(fields))


def test_inputs_that_could_not_be_loaded_are_not_saved() -> None:
    check_inputs(TensorInputs("tensor", {"": TensorPart("float", (1 << 24,))}), Manifest({}))
    with pytest.raises(UsageError, match="at most 16,777,216 values, got tensors float"):
        check_inputs(
            TensorInputs("tensor", {"": TensorPart("float", (1 + (1 << 24),))}), Manifest({})
        )
    assert count_of(TensorInputs("tensor", {"": TensorPart("float", (3,))}).pattern()) == 2
    check_inputs(ImageInputs(3, 8, 8), Manifest({"members": 16, "width": 2}))
    with pytest.raises(UsageError, match="at most 16 networks, got 17"):
        check_inputs(ImageInputs(3, 8, 8), Manifest({"members": 17, "width": 2}))


# -- pictures ----------------------------------------------------------------------------------


def test_pictures_are_read_in_the_channels_and_bits_of_the_gate() -> None:
    inputs = labelled("grey", 20, 2)[0]
    gate = gate_of("grey")
    pictures = [Image.fromarray(image[0]) for image in inputs]
    expected = gate.predict(inputs).score
    assert np.allclose(gate.predict(pictures).score, expected, atol=1e-5)
    colour = [picture.convert("RGB") for picture in pictures]
    assert np.allclose(gate.predict(colour).score, expected, atol=1e-5)
    assert gate.pixel_format == PixelFormat(1)
    assert gate_of("thirteen bands of 16 bits").pixel_format == PixelFormat(13, 16)


def test_an_exported_grey_gate_resizes_as_pictures_are(tmp_path: Path) -> None:
    from onnxruntime import InferenceSession

    gate = gate_of("grey")
    gate.export(tmp_path / "gate.onnx")
    session = InferenceSession(tmp_path / "gate.onnx")
    large = np.random.default_rng(0).integers(0, 256, (4, 1, 33, 29), dtype=np.uint8)
    own = np.stack([goen.read_image(Image.fromarray(i[0]), (10, 12), pixel_format=gate.pixel_format)
                    for i in large])  # fmt: skip
    (score,) = session.run(["score"], {"images": large})
    assert np.allclose(score, gate.predict(own).score, atol=1e-4)


def test_manifests_name_channels_and_bits() -> None:
    colour, bands = ImageInputs(3, 8, 9), ImageInputs(13, 8, 9, 16)
    assert inputs_manifest(colour) == {
        "image_size": [8, 9],
        "image_reading": {"decode": "rgb-8-bit", "resize": "bilinear-antialiased"},
    }
    written = inputs_manifest(bands)
    assert (written["channels"], written["bits"]) == (13, 16)
    for inputs in (colour, bands, ImageInputs(1, 8, 9), ImageInputs(3, 8, 9, 16)):
        assert read_inputs(Manifest(inputs_manifest(inputs))) == inputs
    # Earlier gates of grey images said how colour is read.
    earlier = {
        **inputs_manifest(ImageInputs(1, 8, 9)),
        "image_reading": inputs_manifest(colour)["image_reading"],
    }
    assert read_inputs(Manifest(earlier)) == ImageInputs(1, 8, 9)
    with pytest.raises(ValueError, match="8 or 16 bits, got 12"):
        read_inputs(Manifest({**written, "bits": 12}))
    with pytest.raises(ValueError, match="not known here"):
        read_inputs(Manifest({**written, "image_reading": {"decode": "raw", "resize": "none"}}))


def test_memory_stays_flat_over_a_stream() -> None:
    gate, image = gate_of("thirteen bands of 16 bits"), labelled("grey", 1, 0)[0][0]

    def stream(batches: int) -> Iterator[np.ndarray]:
        for number in range(batches):
            yield np.full((64, 13, 10, 12), number % 200, np.uint16)

    peaks = []
    for batches in (4, 40):
        tracemalloc.start()
        found = gate.predict(stream(batches))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(found) == 64 * batches
    # The predictions of 36 more batches, some ten numbers each, and none of their images.
    assert peaks[1] - peaks[0] < 36 * 64 * 300 < 36 * 64 * image.nbytes * 13 * 2
