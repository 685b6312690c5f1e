import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from goen.errors import ArtifactError
from goen.features.weights import load_weights, read_weights
from tests.features.test_unwrapping import WRAPPERS


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 2)


@pytest.mark.parametrize("wrapped", [None, "state_dict", "model_state_dict", "model"])
def test_weights_come_from_a_pt_file(model: nn.Module, wrapped: str | None, tmp_path: Path) -> None:
    state = model.state_dict()
    torch.save({wrapped: state, "epoch": 3} if wrapped else state, tmp_path / "w.pt")
    other = nn.Linear(3, 2)
    load_weights(other, tmp_path / "w.pt")
    assert torch.equal(other.weight, model.weight)
    assert torch.equal(other.bias, model.bias)


def test_weights_come_from_a_safetensors_file(model: nn.Module, tmp_path: Path) -> None:
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    assert torch.equal(read_weights(tmp_path / "w.safetensors")["weight"], model.weight)


@pytest.mark.parametrize("saved", WRAPPERS)
@pytest.mark.parametrize("loaded", WRAPPERS)
def test_weights_go_from_a_wrapped_model_to_another(
    model: nn.Module, saved: str, loaded: str, tmp_path: Path
) -> None:
    torch.save(WRAPPERS[saved](model).state_dict(), tmp_path / "w.pt")
    other = nn.Linear(3, 2)
    load_weights(WRAPPERS[loaded](other), tmp_path / "w.pt")
    assert torch.equal(other.weight, model.weight)


def test_a_part_called_module_keeps_its_name(tmp_path: Path) -> None:
    model = nn.ModuleDict({"module": nn.Linear(3, 2)})
    torch.save(model.state_dict(), tmp_path / "w.pt")
    other = nn.ModuleDict({"module": nn.Linear(3, 2)})
    load_weights(other, tmp_path / "w.pt")
    assert torch.equal(other["module"].weight, model["module"].weight)


def test_no_code_is_run_from_a_file(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "harmed",)

    (tmp_path / "w.pt").write_bytes(pickle.dumps(Harm()))
    torch.save(nn.Linear(1, 1), tmp_path / "whole.pt")
    for name in ("w.pt", "whole.pt"):
        with pytest.raises(ArtifactError, match="goen runs no code from files"):
            read_weights(tmp_path / name)
    assert not (tmp_path / "harmed").exists()


def test_files_that_hold_no_fitting_weights_are_refused(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="does not exist"):
        read_weights(tmp_path / "none.pt")
    with pytest.raises(ArtifactError, match="is not a file"):
        read_weights(tmp_path)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ArtifactError, match="holds no weights by name"):
        read_weights(tmp_path / "list.pt")
    (tmp_path / "w.safetensors").write_bytes(b"half")
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_weights(tmp_path / "w.safetensors")
    torch.save(nn.Linear(4, 2).state_dict(), tmp_path / "wide.pt")
    with pytest.raises(ArtifactError, match=r"does not fit this model\. size mismatch for weight"):
        load_weights(model, tmp_path / "wide.pt")
    torch.save(
        nn.Sequential(*(nn.Linear(1, 1) for _ in range(99))).state_dict(), tmp_path / "deep.pt"
    )
    with pytest.raises(ArtifactError, match=r"does not fit this model\. Missing key") as caught:
        load_weights(model, tmp_path / "deep.pt")
    assert '"0.weight", "0.bias"' in str(caught.value)
    assert len(str(caught.value)) < 1000
