import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from goen.data import ImageSet
from goen.errors import ArtifactError
from goen.models import CLASSIFIERS, ClassifierKind, NetworkConfig, ResNet18
from goen.training import EpochRow, TrainingConfig, train_backbone
from goen.training.backbone import _begin
from goen.training.checkpoint import load_checkpoint
from tests.training.colours import CONFIG, FAST, NETWORK, same


class KilledError(Exception):
    pass


def check_resume(
    network: NetworkConfig, config: TrainingConfig, images: ImageSet, path: Path, stop_after: int
) -> None:
    """Stopped after so many epochs and gone on with, a training ends with the same bytes."""
    whole, rows = train_backbone(network, config, images, images)

    def stop(row: EpochRow) -> None:
        if row.epoch + 1 == stop_after:
            raise KilledError

    with pytest.raises(KilledError):
        train_backbone(network, config, images, images, checkpoint=path, on_epoch=stop)
    seen: list[int] = []
    resumed, again = train_backbone(
        network,
        config,
        images,
        images,
        checkpoint=path,
        on_epoch=lambda row: seen.append(row.epoch),
    )
    assert seen == list(range(stop_after, config.epochs))
    assert same(whole, resumed)
    for a, b in zip(rows, again, strict=True):
        assert dataclasses.replace(a, seconds=0) == dataclasses.replace(b, seconds=0)


@pytest.mark.parametrize("stop_after", [1, 3])
@pytest.mark.parametrize("center_loss", [0.0, 0.01])
def test_a_resumed_training_ends_with_the_same_bytes(
    images: ImageSet, tmp_path: Path, stop_after: int, center_loss: float
) -> None:
    config = dataclasses.replace(CONFIG, center_loss=center_loss, patience=3)
    check_resume(NETWORK, config, images, tmp_path / "checkpoint", stop_after)


@pytest.mark.parametrize("stop_after", [1, 2, 3])
def test_a_fast_training_resumes_with_the_same_bytes(
    images: ImageSet, tmp_path: Path, stop_after: int
) -> None:
    network = NetworkConfig(num_classes=3, width=2, architecture="fast_cnn")
    # Four steps an epoch: the average is taken in the middle of epochs.
    check_resume(network, FAST, images, tmp_path / "checkpoint", stop_after)


@pytest.mark.parametrize("stop_after", [1, 3])
def test_a_training_with_rotations_and_mixtures_resumes_with_the_same_bytes(
    images: ImageSet, tmp_path: Path, stop_after: int
) -> None:
    config = dataclasses.replace(FAST, rotation_loss=0.5, pixmix=0.5, logit_norm=0.1)
    network = dataclasses.replace(NETWORK, rotations=True)
    check_resume(network, config, images, tmp_path / "checkpoint", stop_after)


def test_a_training_without_momentum_resumes_with_the_same_bytes(
    images: ImageSet, tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, epochs=2, momentum=0.0)
    check_resume(NETWORK, config, images, tmp_path / "checkpoint", 1)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_every_classifier_resumes_with_the_same_bytes(
    images: ImageSet, tmp_path: Path, kind: ClassifierKind
) -> None:
    network = dataclasses.replace(NETWORK, classifier=kind)
    config = dataclasses.replace(CONFIG, epochs=2, batch_size=32, center_loss=0.01)
    check_resume(network, config, images, tmp_path / "checkpoint", 1)


def test_what_is_frozen_stays_and_carries_no_momentum(images: ImageSet, tmp_path: Path) -> None:
    network = dataclasses.replace(NETWORK, classifier="epinet")
    config = dataclasses.replace(CONFIG, epochs=2, weight_decay=0.1)
    path = tmp_path / "checkpoint"
    trained, _ = train_backbone(network, config, images, images, checkpoint=path)
    torch.manual_seed(config.seed)
    fresh = ResNet18(network).classifier.state_dict()
    kept = {
        name
        for name, tensor in trained.classifier.state_dict().items()
        if torch.equal(tensor, fresh[name])
    }
    assert kept == {name for name in fresh if name.startswith("prior") or name == "indices"}
    saved = set(load_file(path))
    assert {name for name in saved if "prior" in name} == {
        f"network.classifier.{name}" for name in fresh if name.startswith("prior")
    } | {f"best.classifier.{name}" for name in fresh if name.startswith("prior")}
    assert "momentum.classifier.epinet.first.weight" in saved


@pytest.mark.filterwarnings("ignore:.*copying from a non-meta parameter")
def test_the_average_of_look_ahead_goes_on_where_the_network_is(
    images: ImageSet, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    train_backbone(NETWORK, FAST, images, images, checkpoint=path)
    elsewhere = _begin(NETWORK, FAST, images, torch.device("meta"))
    with safe_open(path, framework="pt") as file:
        elsewhere.settings = file.metadata()["settings"]
    load_checkpoint(path, elsewhere)
    assert elsewhere.average is not None
    assert {str(values.device) for values in elsewhere.average.values()} == {"meta"}


def test_a_checkpoint_of_another_network_is_refused(images: ImageSet, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    train_backbone(NETWORK, CONFIG, images, images, checkpoint=path)
    other = NetworkConfig(num_classes=3, width=2)
    with pytest.raises(ArtifactError, match="cannot be continued"):
        train_backbone(other, CONFIG, images, images, checkpoint=path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ArtifactError, match="Delete it to start"):
        train_backbone(NETWORK, CONFIG, images, images, checkpoint=path)


def test_a_damaged_checkpoint_is_refused(images: ImageSet, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    train_backbone(NETWORK, CONFIG, images, images, checkpoint=path)
    tensors = load_file(path)
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    narrow = {**tensors, "best.bn1.weight": torch.zeros(2)}
    for content, written, message in (
        (narrow, metadata, "its tensor best.bn1.weight should be float32"),
        (tensors, None, "cannot be continued"),
        (tensors, {**metadata, "history": "[1]"}, "its history should be an object, got '1'"),
        (tensors, {**metadata, "history": "[" * 5000}, "cannot be continued"),
    ):
        save_file(content, path, metadata=written)
        with pytest.raises(ArtifactError, match=message):
            train_backbone(NETWORK, CONFIG, images, images, checkpoint=path)


@pytest.mark.parametrize("change", [{"seed": 7}, {"learning_rate": 0.07}, {"epochs": 3}])
def test_a_checkpoint_of_another_training_is_refused(
    images: ImageSet, tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "checkpoint"
    train_backbone(NETWORK, CONFIG, images, images, checkpoint=path)
    with pytest.raises(ArtifactError, match="a training with other settings or images"):
        train_backbone(
            NETWORK, dataclasses.replace(CONFIG, **change), images, images, checkpoint=path
        )
    part = images.take(range(len(images) - 1))
    for train, validation in ((part, images), (images, part)):
        with pytest.raises(ArtifactError, match="a training with other settings or images"):
            train_backbone(NETWORK, CONFIG, train, validation, checkpoint=path)


def test_the_settings_of_a_checkpoint_name_the_representation_as_manifests_do(
    images: ImageSet, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    train_backbone(NETWORK, dataclasses.replace(CONFIG, epochs=1), images, images, checkpoint=path)
    with safe_open(path, framework="pt") as file:
        network, training, *fingerprints = json.loads(file.metadata()["settings"])
    assert network == json.loads(json.dumps(NETWORK.to_json()))
    assert network["head"] == "multi_scale"
    assert training["epochs"] == 1
    assert fingerprints == [images.fingerprint, images.fingerprint]
