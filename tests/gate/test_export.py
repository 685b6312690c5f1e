import json
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from goen.errors import ArtifactError, UsageError
from goen.gate import Gate, export
from goen.models.tapping.preprocess import Preprocess

from ..models.tapping.architectures import CASES, build
from ..own_model import LAYERS, DigitNet, digits, ood, preprocess, trained
from ..test_docs import EXAMPLE, ROOT
from .test_gate import make_gate


def own_gate(**changes: object) -> Gate:
    settings: dict[str, Any] = {"layers": LAYERS, "preprocess": preprocess, **changes}
    model = settings.pop("model", None) or trained()
    return Gate.fit(model, digits().train, digits().validation, **settings)


GATES: dict[str, Callable[[], Gate]] = {
    "goen": make_gate,
    "goen-m": lambda: own_gate(ood=ood()),
    "per class": lambda: own_gate(false_alarm_rate=0.25).with_per_class(),
}


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options)


@pytest.fixture(scope="module", params=GATES)
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Gate, Path]:
    gate = GATES[request.param]()
    path = tmp_path_factory.mktemp("exported") / "gate.onnx"
    export.to_onnx(gate, path)
    return gate, path


def thousand() -> NDArray[np.uint8]:
    """ID images that nothing was fitted on, the held-out images, and OOD images."""
    p = digits()
    ood_images = [o.images.read(range(min(len(o.images), 200))) for o in p.evaluation.values()]
    images = np.concatenate([p.test.read(), p.validation.read(), *ood_images])
    assert len(images) >= 1000
    return images


def test_a_thousand_images_get_the_outputs_of_the_gate(
    exported: tuple[Gate, Path],
) -> None:
    gate, path = exported
    images = thousand()
    expected = gate.predict(images)
    label, confidence, score, p_value, is_ood = session(path).run(None, {"images": images})
    assert np.array_equal(label, expected.label)
    assert np.allclose(confidence, expected.confidence, rtol=1e-5, atol=1e-5)
    # Ten times closer than the export asks for; the network's own rounding is in it.
    close = 0.1 * export.default_tolerance(gate)
    assert np.allclose(score, expected.score, rtol=1e-5, atol=close)
    # A p-value is a count: once in hundreds an image lies as close to a held-out one as rounding.
    one_more = 1 / (
        1 + np.bincount(gate.held_out.labels).min()
        if gate.per_class
        else 1 + len(gate.held_out.scores)
    )
    assert np.abs(p_value - expected.p_value).max() <= one_more + 1e-9
    assert (np.abs(p_value - expected.p_value) < 1e-9).mean() > 0.99
    assert np.array_equal(is_ood, expected.is_ood)
    assert 0 < is_ood.mean() < 1


def test_the_threshold_is_an_input_that_may_be_left_out(exported: tuple[Gate, Path]) -> None:
    gate, path = exported
    run, images = session(path).run, digits().test.read(range(50))
    _, _, score, _, by_default = run(None, {"images": images})
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
    assert (images.name, images.shape, images.type) == ("images", ["N", 3, 32, 32], "tensor(uint8)")
    assert [o.name for o in one.get_outputs()] == list(export.OUTPUTS)
    for count in (1, 2, 65):
        found = one.run(None, {"images": digits().test.read(range(count))})
        assert [len(values) for values in found] == [count] * 5


def test_a_tie_with_the_threshold_is_not_flagged() -> None:
    gate, images = own_gate(), torch.from_numpy(digits().test.read(range(4)))
    deployed = export.TraceableGate(gate).eval()
    with torch.no_grad():
        score = deployed(images, torch.tensor(0.0, dtype=torch.float64))[2]
        for i in range(4):
            assert not deployed(images, score[i])[4][i]
            assert deployed(images, score[i] - 1e-3)[4][i]


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
    assert len(script.strip().splitlines()) <= 12
    if gate.per_class:
        script = script.replace("np.array(9.0)", "np.full(7, 9.0)")
    script += "\nassert 'torch' not in sys.modules\nprint(score.tolist())"
    printed = run_without_goen(script, path.parent).strip().splitlines()[-1]
    expected = gate.predict(np.zeros((2, 3, 32, 32), np.uint8)).score
    assert np.allclose(json.loads(printed), expected, rtol=1e-5, atol=1e-5)


def test_a_program_of_torch_export_runs_where_goen_is_not(tmp_path: Path) -> None:
    gate = own_gate()
    export.to_program(gate, tmp_path / "gate.pt2")
    script = """
import json, torch
extra = {"gate.json": ""}
program = torch.export.load("gate.pt2", extra_files=extra).module()
threshold = torch.tensor(json.loads(extra["gate.json"])["threshold"], dtype=torch.float64)
images = torch.zeros(3, 3, 32, 32, dtype=torch.uint8)
label, confidence, score, p_value, is_ood = program(images, threshold)
print(json.dumps([score.tolist(), p_value.tolist(), is_ood.tolist()]))
"""
    found = json.loads(run_without_goen(script, tmp_path))
    expected = gate.predict(np.zeros((3, 3, 32, 32), np.uint8))
    assert np.allclose(found[0], expected.score, rtol=1e-5, atol=1e-5)
    assert np.allclose(found[1], expected.p_value)
    assert found[2] == expected.is_ood.tolist()


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
    export.to_onnx(gate, tmp_path / "gate.onnx", images, tolerance=1e-3)
    found, expected = (
        session(tmp_path / "gate.onnx").run(None, {"images": images}),
        gate.predict(images),
    )
    assert np.allclose(found[1], expected.confidence, rtol=1e-5, atol=1e-6)
    assert np.allclose(found[2], expected.score, rtol=1e-3, atol=1e-3)
    assert np.array_equal(found[4], expected.is_ood)


def test_a_file_with_other_outputs_is_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = export.TraceableGate.forward

    def wrong(self: nn.Module, images: Tensor, threshold: Tensor) -> tuple[Tensor, ...]:
        label, confidence, score, p_value, is_ood = honest(self, images, threshold)
        return label, confidence, score + 1e-2, p_value, is_ood

    monkeypatch.setattr(export.TraceableGate, "forward", wrong)
    with pytest.raises(ArtifactError, match=r"score differs .* Nothing was written"):
        export.to_program(own_gate(), tmp_path / "gate.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("label", lambda v: 6 - v, "label differs from the gate's"),
        ("confidence", lambda v: v + 2e-4, "confidence differs from the gate's by 0.0002"),
        ("score", lambda v: v * np.nan, "score is finite where"),
        ("score", lambda v: v + 0.02, "score differs"),
        ("p_value", lambda v: v + 0.1, "p-value differs from the gate's"),
        ("p_value", lambda v: v - 0.1, "p-value differs from the gate's"),
        ("is_ood", np.logical_not, "decision differs from the gate's"),
    ],
)
def test_every_output_is_compared(
    name: str, change: Callable[[NDArray[Any]], NDArray[Any]], message: str
) -> None:
    gate, images = own_gate(), digits().test.read(range(70))

    def honest(batch: NDArray[np.uint8]) -> export.ExportOutputs:
        return {key: getattr(gate.predict(batch), key) for key in export.OUTPUTS}

    def wrong(batch: NDArray[np.uint8]) -> export.ExportOutputs:
        found = honest(batch)
        return {**found, name: change(found[name])}

    slack = export.measure_differences(gate, honest, images)
    assert slack < 1e-9
    export.check_decisions(gate, honest, images, slack)
    with pytest.raises(ArtifactError, match=f"{message}.*Nothing was written"):
        export.check_decisions(gate, wrong, images, export.measure_differences(gate, wrong, images))


class Branching(DigitNet):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return super().forward(x if x.sum() > -1e9 else x * 2)


def test_models_and_machines_that_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Branching()
    model.load_state_dict(trained().state_dict())
    gate = own_gate(model=model.eval())
    for write in (export.to_onnx, export.to_program):
        with pytest.raises(UsageError, match=r"torch.export cannot trace this model"):
            write(gate, tmp_path / "gate")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(UsageError, match=r"pip install 'goen\[onnx\]'"):
        export.to_onnx(gate, tmp_path / "gate.onnx")
    assert not list(tmp_path.iterdir())
