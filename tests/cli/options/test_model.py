"""The option --model: another library's models for fits and for gates."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import goen
from goen.cli.main import main
from goen.cli.options.model import GateOptions, make_model
from goen.errors import ExtraMissing, UsageError
from goen.gate import Gate
from tests.torchvision_import import import_torchvision


@pytest.mark.xdist_group("transformers")
def test_a_gate_of_timm_is_opened_with_as_many_classes_as_it_has(tmp_path: Path) -> None:
    import_torchvision()
    import timm

    torch.manual_seed(0)
    model = timm.create_model("test_resnet", num_classes=4).eval()
    images = np.random.default_rng(0).integers(0, 256, (120, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(60) % 4
    gate = Gate.fit(model, (images[:60], labels), images[60:], layers=("layer2", "layer4"))
    gate.save(tmp_path / "gate")
    opened = GateOptions(model="timm:test_resnet").open(str(tmp_path / "gate"))
    assert np.allclose(opened.predict(images).score, gate.predict(images).score, atol=1e-5)
    with pytest.raises(goen.errors.ArtifactError, match="no saved gate is there"):
        GateOptions(model="timm:test_resnet").open(str(tmp_path / "nothing"))


@pytest.mark.xdist_group("transformers")
def test_torchvision_by_factory(tmp_path: Path) -> None:
    models = import_torchvision().models
    torch.manual_seed(0)
    # Called as the published file is.
    weights = tmp_path / Path(models.SqueezeNet1_1_Weights.IMAGENET1K_V1.url).name
    torch.save(models.squeezenet1_1().state_dict(), weights)
    opened = make_model("torchvision.models:squeezenet1_1", weights)
    assert len(opened.classes) == 1000
    assert opened.preprocess(images=True) == goen.Preprocess(
        (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 256, 224
    )
    mine = weights.rename(tmp_path / "mine.pth")
    other = make_model("torchvision.models:squeezenet1_1", mine)
    assert (other.classes, other.preprocess(images=True)) == ((), None)
    x = torch.rand(1, 3, 64, 64)
    assert torch.equal(opened.model.eval()(x), other.model.eval()(x))


def test_a_torchvision_that_does_not_import_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = "raise RuntimeError('operator torchvision::nms does not exist')"
    (tmp_path / "broken_torchvision.py").write_text(broken)
    (tmp_path / "my_nets_of_it.py").write_text("import broken_torchvision")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ExtraMissing, match="because torchvision cannot: operator torchvision::nms"):
        make_model("my_nets_of_it:net")


@pytest.mark.parametrize("library", ["timm", "transformers"])
def test_a_missing_extra_is_named(
    library: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / "config.json").write_text("{}")
    torch.save(nn.Linear(2, 2).state_dict(), tmp_path / "w.pt")
    model = {"timm": ["timm:resnet18", "--weights", f"{tmp_path}/w.pt"]}
    words = ["--train", "digits", "--held-out", "digits", "--out", str(tmp_path / "gate")]
    assert main(["fit", "--model", *model.get(library, [f"hf:{tmp_path}"]), *words]) == 2
    extra = {"timm": "timm", "transformers": "hf"}[library]
    assert f"pip install 'goen[{extra}]'" in " ".join(capsys.readouterr().err.split())


def test_another_form_lists_all_forms() -> None:
    forms = "such as my_nets:small_net, hf:FOLDER, timm:NAME or the folder of a run"
    with pytest.raises(UsageError, match=forms):
        make_model("resnet18")
