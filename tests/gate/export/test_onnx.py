import json
import resource
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

import goen
from goen.errors import ArtifactError, StorageError, UsageError
from goen.extraction import extract
from goen.features.preprocess import Preprocess
from goen.gate import Gate, HeldOut
from goen.gate.export.comparison import as_outputs
from goen.gate.export.traceable import TraceableGate, output_names
from goen.gate.threshold import engine_tolerance
from tests.features.architectures import CASES, build
from tests.gate.storage.test_network import ensemble_gate
from tests.gate.test_gate import make_gate
from tests.own_model import LAYERS, DigitNet, digits, ood, preprocess, trained
from tests.test_docs import EXAMPLE, ROOT


def own_gate(**changes: object) -> Gate:
    settings: dict[str, Any] = {"layers": LAYERS, "preprocess": preprocess, **changes}
    model = settings.pop("model", None) or trained()
    return Gate.fit(model, digits().train, digits().validation, **settings)


def goen_gate() -> Gate:
    """A gate of ``goen run``: its cue ``similarity`` is unusual where it is low."""
    gate = make_gate()
    cues = gate.detector.cues(extract(gate.network, digits().validation))
    scores = gate.detector.score_cues(cues)
    return replace(gate, held_out=HeldOut(scores.numpy(), cues=cues.numpy()))


GATES: dict[str, Callable[[], Gate]] = {
    "goen": goen_gate,
    "goen-m": lambda: own_gate(ood=ood()),
    "per class": lambda: own_gate(false_alarm_rate=0.25).with_per_class(),
    "ensemble": ensemble_gate,
}


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options)


def outputs(path: Path, images: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
    one = session(path)
    names = [output.name for output in one.get_outputs()]
    return dict(zip(names, one.run(None, {"images": images}), strict=True))


@pytest.fixture(scope="module", params=GATES)
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Gate, Path]:
    gate = GATES[request.param]()
    path = tmp_path_factory.mktemp("exported") / "gate.onnx"
    gate.export(path)
    return gate, path


def thousand() -> NDArray[np.uint8]:
    """ID images that nothing was fitted on, the held-out images, and OOD images."""
    p = digits()
    ood_images = [o.images.read(range(min(len(o.images), 200))) for o in p.evaluation.values()]
    images = np.concatenate([p.test.read(), p.validation.read(), *ood_images])
    assert len(images) >= 1000
    return images


def one_count(gate: Gate) -> float:
    """By how much one held-out image more changes a p-value."""
    fewest = np.bincount(gate.held_out.labels).min() if gate.per_class else len(gate.held_out)
    return 1 / (1 + int(fewest))


def test_a_thousand_images_get_the_outputs_of_the_gate(
    exported: tuple[Gate, Path],
) -> None:
    gate, path = exported
    images = thousand()
    expected, found = as_outputs(gate.predict(images)), outputs(path, images)
    assert tuple(found) == output_names(gate)
    assert set(found) == set(expected)
    assert np.array_equal(found["label"], expected["label"])
    for name in {"confidence", "probability"} & found.keys():
        assert np.allclose(found[name], expected[name], rtol=1e-5, atol=1e-5)
    # Ten times closer than the export asks for; the network's own rounding is in it.
    close = 0.1 * engine_tolerance(gate.held_out.scores)
    assert np.allclose(found["score"], expected["score"], rtol=1e-5, atol=close)
    assert np.allclose(found["cues"], expected["cues"], rtol=1e-5, atol=1e-5)
    # A p-value is a count: once in hundreds an image lies as close to a held-out one as rounding.
    difference = np.abs(found["p_value"] - expected["p_value"])
    assert difference.max() <= one_count(gate) + 1e-9
    assert (difference < 1e-9).mean() > 0.99
    # The held-out images are among these, and each ties with itself.
    difference = np.abs(found["cue_p_values"] - expected["cue_p_values"])
    assert difference.max() <= 2.5 / (1 + len(gate.held_out))
    assert (difference < 1e-9).mean() > 0.8
    assert np.array_equal(found["is_ood"], expected["is_ood"])
    assert 0 < found["is_ood"].mean() < 1


TEN_SIZES = [(16, 16), (31, 33), (32, 32), (32, 80), (48, 40), (64, 64), (97, 61), (120, 160)]
TEN_SIZES += [(240, 135), (427, 640)]


def photographs(size: tuple[int, int]) -> NDArray[np.uint8]:
    """Parts of a real photograph, and enlarged digits with noise, of one size, ``(N, 3, H, W)``."""
    photograph = Image.open(str(resources.files("sklearn.datasets.images") / "china.jpg"))
    rng = np.random.default_rng(1)
    height, width = size
    crops = []
    for _ in range(4):
        top, left = rng.integers(0, 428 - height), rng.integers(0, 641 - width)
        crops.append(photograph.crop((left, top, left + width, top + height)))
    for pixels in digits().test.read(range(12)):
        enlarged = Image.fromarray(pixels.transpose(1, 2, 0)).resize((width, height), 3)
        noisy = np.asarray(enlarged) + rng.normal(0, 6, (height, width, 3))
        crops.append(Image.fromarray(noisy.round().clip(0, 255).astype(np.uint8)))
    return np.stack([np.asarray(crop).transpose(2, 0, 1) for crop in crops])


def test_photographs_of_ten_sizes_get_the_decisions_of_the_gate(
    exported: tuple[Gate, Path],
) -> None:
    gate, path = exported
    flagged = []
    for size in TEN_SIZES:
        images = photographs(size)
        pictures = [Image.fromarray(image.transpose(1, 2, 0)) for image in images]
        own = np.stack([goen.read_image(picture, gate.image_size) for picture in pictures])
        expected, found = as_outputs(gate.predict(own)), outputs(path, images)
        assert np.array_equal(found["label"], expected["label"])
        assert np.array_equal(found["is_ood"], expected["is_ood"])
        assert np.allclose(found["score"], expected["score"], rtol=1e-5, atol=1e-4)
        assert np.abs(found["p_value"] - expected["p_value"]).max() <= one_count(gate) + 1e-9
        flagged.append(found["is_ood"])
    assert 0 < np.concatenate(flagged).mean() < 1


def test_no_images_give_no_rows(exported: tuple[Gate, Path]) -> None:
    gate, path = exported
    for size in ((32, 32), (480, 640)):
        found = outputs(path, np.zeros((0, 3, *size), np.uint8))
        cues = len(gate.detector.cue_names)
        assert {name: values.shape for name, values in found.items()} == {
            name: (0, cues) if name.startswith("cue") else (0,) for name in output_names(gate)
        }


def test_the_threshold_is_an_input_that_may_be_left_out(exported: tuple[Gate, Path]) -> None:
    gate, path = exported
    run, images = session(path).run, digits().test.read(range(50))
    score, by_default = run(["score", "is_ood"], {"images": images})
    fitted = gate.class_thresholds if gate.per_class else np.array(gate.threshold)
    given = run(None, {"images": images, "threshold": fitted})[4]
    assert np.array_equal(given, by_default)
    middle = np.full_like(fitted, (np.sort(score)[24] + np.sort(score)[25]) / 2)
    moved = run(None, {"images": images, "threshold": middle})
    assert np.array_equal(moved[4], score > middle.flat[0])
    assert moved[4].sum() == 25


def test_the_file_has_its_metadata(exported: tuple[Gate, Path]) -> None:
    gate, path = exported
    one = session(path)
    stored = one.get_modelmeta().custom_metadata_map
    assert json.loads(stored["classes"]) == list(gate.classes)
    assert float(stored["false_alarm_rate"]) == gate.false_alarm_rate
    assert json.loads(stored["versions"])["torch"] == torch.__version__
    (images,) = one.get_inputs()
    assert (images.name, images.type) == ("images", "tensor(uint8)")
    assert images.shape == ["N", 3, "height", "width"]
    assert [o.name for o in one.get_outputs()] == json.loads(stored["outputs"])
    assert json.loads(stored["cues"]) == list(gate.detector.cue_names)
    assert json.loads(stored["image_reading"]) == {
        "decode": "rgb-8-bit",
        "resize": "bilinear-antialiased",
    }
    for count in (1, 2, 65):
        found = one.run(None, {"images": digits().test.read(range(count))})
        assert {len(values) for values in found} == {count}


def test_a_file_for_one_size_takes_no_other(tmp_path: Path) -> None:
    gate, images = own_gate(), digits().test.read(range(5))
    gate.export(tmp_path / "gate.onnx", any_size=False)
    assert session(tmp_path / "gate.onnx").get_inputs()[0].shape == ["N", 3, 32, 32]
    found = outputs(tmp_path / "gate.onnx", images)
    assert np.array_equal(found["is_ood"], gate.predict(images).is_ood)
    with pytest.raises(Exception, match=r"Got: 31 Expected: 32"):
        outputs(tmp_path / "gate.onnx", images[:, :, 1:])


ALONE = """
import importlib.util, sys
sys.path[:] = [p for p in sys.path if "site-packages" not in p] + [sys.argv[1]]
assert importlib.util.find_spec("goen") is None
"""


def run_without_goen(script: str, folder: Path) -> str:
    """Run it by an interpreter that knows the installed packages but not goen.

    goen is installed for development by a .pth file, which -S leaves unread.
    """
    packages = sysconfig.get_paths()["purelib"]
    command = [sys.executable, "-I", "-S", "-c", ALONE + script, packages]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_about_deployment_runs_where_goen_is_not(exported: tuple[Gate, Path]) -> None:
    gate, path = exported
    page = (ROOT / "docs" / "deploy.md").read_text()
    (script,) = (block for block in EXAMPLE.findall(page) if "onnxruntime.Inference" in block)
    assert len(script.strip().splitlines()) <= 16
    photograph = resources.files("sklearn.datasets.images") / "flower.jpg"
    (path.parent / "photo.jpg").write_bytes(photograph.read_bytes())
    if gate.per_class:
        script = script.replace("np.array(2.5)", "np.full(7, 2.5)")
    script += (
        "\nassert 'torch' not in sys.modules\n"
        "print(json.dumps({name: values.tolist() for name, values in found.items()}))"
    )
    found = json.loads(run_without_goen(script, path.parent).strip().splitlines()[-1])
    image = goen.read_image(path.parent / "photo.jpg", gate.image_size)
    expected = as_outputs(gate.predict(image))
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert np.allclose(found[name], values, rtol=1e-5, atol=1e-4), name


def test_a_file_too_large_for_the_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    gate = own_gate()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name, write in (
        ("gate.onnx", gate.export),
        ("gate", gate.save),
    ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            with pytest.raises(StorageError, match=f"Cannot write .*{name}: file too large"):
                write(tmp_path / name)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["vit", "channels_last"])
def test_other_architectures_with_resizing_inside(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    preprocess = Preprocess((0.4, 0.5, 0.6), (0.2, 0.3, 0.4), case.size)
    p = digits()
    gate = Gate.fit(
        build(name), (p.train.read(range(100)), p.train.labels[:100] % case.classes),
        p.validation.read(range(60)), layers=case.layers[:2], preprocess=preprocess,
    )  # fmt: skip
    images = p.test.read(range(20))
    # What was never trained hardly varies from image to image, so that distances in units of that
    # variation magnify the rounding of float32.
    gate.export(tmp_path / "gate.onnx", images, tolerance=1e-3)
    found, expected = outputs(tmp_path / "gate.onnx", images), gate.predict(images)
    assert np.allclose(found["confidence"], expected.confidence, rtol=1e-5, atol=1e-6)
    assert np.allclose(found["score"], expected.score, rtol=1e-3, atol=1e-3)
    assert np.array_equal(found["is_ood"], expected.is_ood)
    assert outputs(tmp_path / "gate.onnx", images[:0])["cues"].shape == (0, 3)


def test_a_file_with_other_outputs_is_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = TraceableGate.forward

    def wrong(self: TraceableGate, images: Tensor, threshold: Tensor) -> tuple[Tensor, ...]:
        label, confidence, score, *rest = honest(self, images, threshold)
        return label, confidence, score + 1e-2, *rest

    monkeypatch.setattr(TraceableGate, "forward", wrong)
    with pytest.raises(ArtifactError, match=r"score differs .* Nothing was written"):
        own_gate().export(tmp_path / "gate.onnx")
    assert not list(tmp_path.iterdir())


class Branching(DigitNet):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return super().forward(x if x.sum() > -1e9 else x * 2)


def test_models_and_machines_that_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Branching()
    model.load_state_dict(trained().state_dict())
    gate = own_gate(model=model.eval())
    with pytest.raises(UsageError, match=r"torch.export cannot trace this model"):
        gate.export(tmp_path / "gate.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UsageError, match=r"pip install 'goen\[onnx\]'"):
        gate.export(tmp_path / "gate.onnx")
    assert not list(tmp_path.iterdir())
