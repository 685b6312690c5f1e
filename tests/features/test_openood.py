from pathlib import Path

import pytest
import torch

from goen.errors import ArtifactError, UsageError
from goen.features.openood import load_openood_checkpoint, openood_resnet18


def write_checkpoint(path: Path, seed: int = 0) -> dict[str, torch.Tensor]:
    """Weights under the names of OpenOOD's ResNet18_32x32, saved as its trainer saves them."""
    torch.manual_seed(seed)
    state = openood_resnet18("cifar10").state_dict()
    theirs = {name.replace("classifier.", "fc."): value for name, value in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(theirs, path)
    return theirs


def test_a_checkpoint_is_loaded_into_goens_own_network(tmp_path: Path) -> None:
    theirs = write_checkpoint(tmp_path / "best.ckpt")
    assert len(theirs) == 122
    assert {"fc.weight", "fc.bias", "conv1.weight", "layer4.0.shortcut.1.running_var"} <= {*theirs}
    assert theirs["conv1.weight"].shape == (64, 3, 3, 3)
    network = load_openood_checkpoint(tmp_path / "best.ckpt", "cifar10")
    assert not network.training
    image = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    outputs = network(image)
    linear = outputs.features["z"] @ theirs["fc.weight"].T + theirs["fc.bias"]
    assert torch.allclose(outputs.logits, linear, atol=1e-4)
    # A black image is normalised by the mean and std of the benchmark.
    first = network._normalised(image)[0, :, 0, 0]
    expected = -torch.tensor([0.4914, 0.4822, 0.4465]) / torch.tensor([0.2470, 0.2435, 0.2616])
    assert torch.allclose(first, expected)


def test_other_checkpoints_are_refused(tmp_path: Path) -> None:
    theirs = write_checkpoint(tmp_path / "best.ckpt")
    with pytest.raises(ArtifactError, match=r"does not fit this model.* fc\.weight"):
        load_openood_checkpoint(tmp_path / "best.ckpt", "cifar100")
    del theirs["fc.bias"]
    torch.save(theirs, tmp_path / "less.ckpt")
    with pytest.raises(ArtifactError, match=r'does not fit this model.*"fc\.bias"'):
        load_openood_checkpoint(tmp_path / "less.ckpt", "cifar10")
    with pytest.raises(UsageError, match=r"imagenet are of torchvision's networks: give --model"):
        openood_resnet18("imagenet")
