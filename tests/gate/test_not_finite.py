"""What is not finite is flagged: by the gate, by the ONNX file, by goen score."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from goen.detectors import Detector
from goen.gate import Gate
from goen.outputs import Outputs
from goen.scoring.pipeline import ScoreSettings, score
from goen.scoring.rows import all_columns
from goen.scoring.sinks import RowSink, open_writer
from goen.scoring.sources import Sources
from tests.own_model import LAYERS, digits, ood, trained


def per_image(x: Tensor) -> Tensor:
    """Divides by the image's own deviation: 0 / 0 for an image of one colour."""
    return (x - x.mean((1, 2, 3), keepdim=True)) / x.std((1, 2, 3), keepdim=True)


class PerImage(nn.Module):
    """The classifier of digits, with that preprocessing."""

    def __init__(self) -> None:
        super().__init__()
        self.model = trained()

    def forward(self, x: Tensor) -> Tensor:
        return self.model(per_image(x) + 0.1)["logits"]


LAYER_NAMES = tuple(f"model.{layer}" for layer in LAYERS)


@pytest.fixture(scope="module", params=["plain", "with OOD, per class"])
def gate(request: pytest.FixtureRequest) -> Gate:
    plain = request.param == "plain"
    fitted = Gate.fit(
        PerImage(),
        digits().train,
        digits().validation,
        layers=LAYER_NAMES,
        ood=None if plain else ood(),
        false_alarm_rate=0.05 if plain else 0.25,
    )
    return fitted if plain else fitted.with_per_class()


def images() -> np.ndarray:
    """Three digits, and between them a black frame and a white one."""
    rows = digits().test.read(range(5)).copy()
    rows[1], rows[3] = 0, 255
    return rows


def test_the_gate_flags_them_and_loses_no_other(gate: Gate) -> None:
    p = gate.predict(images())
    rest = gate.predict(images()[[0, 2, 4]])
    assert p.is_ood[[1, 3]].all()
    assert (p.score[[1, 3]] == np.inf).all()
    assert (p.confidence[[1, 3]] == 0).all()
    least = 1 / (1 + p.num_held_out)
    assert p.p_value[[1, 3]] == pytest.approx(least) or gate.per_class
    assert (p.p_value[[1, 3]] <= gate.false_alarm_rate).all()
    for values in p.cue_p_values.values():
        assert values[[1, 3]] == pytest.approx(1 / (1 + len(gate.held_out)))
    if p.probability is not None:
        assert (p.probability[[1, 3]] == 1).all()
    assert np.allclose(p.score[[0, 2, 4]], rest.score, rtol=1e-5)
    assert (p.label[[0, 2, 4]] == rest.label).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["logits", *LAYER_NAMES])
def test_one_value_is_enough(gate: Gate, where: str, bad: float) -> None:
    outputs = Outputs(
        torch.zeros(3, 7), {LAYER_NAMES[0]: torch.ones(3, 16), LAYER_NAMES[1]: torch.ones(3, 24)}
    )
    part = outputs.logits if where == "logits" else outputs.features[where]
    part[1, 2] = bad
    p = gate.predict_outputs(outputs)
    assert p.is_ood[1]
    assert np.isfinite(p.score).tolist() == [True, False, True]


def test_the_onnx_file_flags_them(gate: Gate, tmp_path: Path) -> None:
    gate.export(tmp_path / "gate.onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(tmp_path / "gate.onnx"), options)
    names = [output.name for output in session.get_outputs()]
    found = dict(zip(names, session.run(None, {"images": images()}), strict=True))
    p = gate.predict(images())
    assert found["is_ood"].tolist() == p.is_ood.tolist()
    assert found["p_value"][[1, 3]] == pytest.approx(p.p_value[[1, 3]])
    assert not np.isfinite(found["score"][[1, 3]]).any()
    assert np.isfinite(found["score"][[0, 2, 4]]).all()
    assert (found["confidence"][[1, 3]] == 0).all()
    assert (found["cues"][[1, 3]] == np.inf).all()
    assert (found["cue_p_values"][[1, 3]] == 1 / (1 + len(gate.held_out))).all()
    assert p.probability is None or (found["probability"][[1, 3]] == 1).all()


def test_goen_score_gives_every_file_its_row(
    gate: Gate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, image in enumerate(images()):
        Image.fromarray(image.transpose(1, 2, 0)).save(tmp_path / f"{number}.png")
    (tmp_path / "5.png").write_text("no picture")
    rows: list[dict] = []
    sources = Sources([str(tmp_path), str(tmp_path / "missing.png")], gate)
    with open_writer(tmp_path / "rows.jsonl", "jsonl", all_columns(gate)) as write:
        counts = score(gate, sources, RowSink(write), ScoreSettings()).counts
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [row["error"] is None for row in rows] == [True, False, True, False, True, False, False]
    assert "outputs are NaN or infinite; flagged" in rows[1]["error"]
    assert rows[1]["is_ood"] is True
    assert rows[1]["score"] is None
    assert rows[6]["error"].endswith("missing.png does not exist.")
    assert (counts.scored, counts.unreadable) == (5, 2)


class Cosine(Detector):
    """A detector whose score is NaN for a row of zeros."""

    name = "cosine"

    def __init__(self, *, feature: str | None = None) -> None:
        self.feature = feature

    def _fit(self, outputs: Outputs, labels: Tensor) -> None:
        self.mean_ = self.feature_rows(outputs).mean(dim=0)

    def _score(self, outputs: Outputs) -> Tensor:
        rows = self.feature_rows(outputs)
        return -(rows @ self.mean_) / rows.norm(dim=1)


def test_a_score_of_nan_is_flagged_as_its_p_value_says() -> None:
    rng = np.random.default_rng(0)
    train, held_out, new = (rng.normal(size=(n, 4)).astype(np.float32) for n in (50, 99, 5))
    new[2] = 0
    gate = Gate.fit_outputs(train, None, held_out, detector=Cosine(), false_alarm_rate=0.1)
    found = gate.predict_outputs(new)
    assert np.isnan(found.score[2])
    assert found.is_ood[2]
    assert (found.is_ood == (found.p_value <= 0.1)).all()
