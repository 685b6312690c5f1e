from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from goen.data import ImageSet, load_set
from goen.detectors import KNN
from goen.errors import DataError, UsageError
from goen.extraction import extract, stream
from goen.features.extractor import FeatureExtractor
from goen.features.loaded_model import LoadedModel
from goen.features.preprocess import Preprocess
from goen.models import NetworkConfig, ResNet18
from goen.outputs import Outputs, check_classifier
from tests.features.architectures import CASES, build, pictures


@pytest.fixture
def network() -> ResNet18:
    torch.manual_seed(0)
    return ResNet18(NetworkConfig(width=2))


@pytest.fixture
def images() -> ImageSet:
    return load_set("digits").take(range(0, 330, 11))


def test_it_is_what_the_network_says_in_evaluation_mode(
    network: ResNet18, images: ImageSet
) -> None:
    outputs = extract(network, images, batch_size=7)
    network.eval()
    with torch.no_grad():
        direct = network(torch.from_numpy(images.read()))
    assert torch.allclose(outputs.logits, direct.logits, atol=1e-5)
    for name, feature in direct.features.items():
        assert torch.allclose(outputs.features[name], feature, atol=1e-5), name


def test_the_network_is_left_as_it_was_found(network: ResNet18, images: ImageSet) -> None:
    network.train()
    network.bn1.eval()
    before = {k: v.clone() for k, v in network.state_dict().items()}
    extract(network, images)
    assert network.training
    assert network.layer1.training
    assert not network.bn1.training
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_it_is_left_as_found_even_after_an_error(network: ResNet18, images: ImageSet) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError

    network.layer3.register_forward_hook(fail)
    with pytest.raises(RuntimeError):
        extract(network, images)
    assert network.training


def test_streaming_holds_one_batch_at_a_time(network: ResNet18, images: ImageSet) -> None:
    sizes = [len(outputs) for outputs in stream(network, images, batch_size=8)]
    assert sizes == [8, 8, 8, 6]


def test_outputs_can_be_cut_and_joined() -> None:
    whole = Outputs(torch.arange(12.0).view(6, 2), {"z": torch.arange(6.0).view(6, 1)})
    joined = Outputs.concatenate([whole[:2], whole[torch.tensor([2, 3])], whole[4:]])
    assert len(joined) == 6
    assert torch.equal(joined.logits, whole.logits)
    assert torch.equal(joined.features["z"], whole.features["z"])


def test_no_images_are_an_error(network: ResNet18, images: ImageSet) -> None:
    with pytest.raises(DataError, match="has no images"):
        extract(network, images.take([]))


class Plain(nn.Module):
    """A model of floats, as most are, that returns its logits alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 32 * 32, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.linear(x.flatten(1))
        return logits


def test_a_plain_model_is_to_be_wrapped_to_be_streamed(images: ImageSet) -> None:
    plain = Plain()
    with pytest.raises(
        UsageError, match=r"^Plain cannot take .*goen\.FeatureExtractor\(model, layers\)"
    ):
        next(stream(plain, images))
    plain.register_forward_pre_hook(lambda module, given: (given[0].float(),))
    with pytest.raises(UsageError, match=r"Plain returns Tensor\. .*goen\.FeatureExtractor"):
        next(stream(plain, images))


def test_a_network_of_the_users_own_that_returns_outputs_is_taken_as_it_is(
    images: ImageSet,
) -> None:
    plain = Plain()
    plain.register_forward_pre_hook(lambda module, given: (given[0].float(),))
    plain.register_forward_hook(lambda module, given, logits: Outputs(logits, {"own": logits}))
    outputs = extract(plain, images)
    assert len(outputs) == len(images)
    assert list(outputs.features) == ["own"]
    with pytest.raises(UsageError, match=r"Plain returns goen\.Outputs, .* of its own"):
        extract(plain, images, layers=["linear"])


def test_images_in_any_form_give_the_same_with_their_labels(
    network: ResNet18, images: ImageSet
) -> None:
    pixels, labels = images.read(), images.labels
    pairs = TensorDataset(torch.from_numpy(pixels), torch.from_numpy(labels))
    whole = extract(network, images)
    for given in (
        (pixels, labels),
        (torch.from_numpy(pixels), torch.from_numpy(labels)),
        DataLoader(pairs, batch_size=4),
        ((pixels[i : i + 7], labels[i : i + 7]) for i in range(0, 30, 7)),
    ):
        found = extract(network, given)
        assert found.labels is not None
        assert found.labels.tolist() == labels.tolist() == whole.labels.tolist()  # type: ignore[union-attr]
        assert torch.allclose(found.logits, whole.logits, atol=1e-5)
    for given in (pixels, [pixels[:9], pixels[9:]]):
        found = extract(network, given)
        assert found.labels is None
        assert torch.allclose(found.features["z"], whole.features["z"], atol=1e-5)


def test_a_plain_model_is_extracted_as_a_gate_is_fitted_to_it() -> None:
    case, model, pixels = CASES["resnet"], build("resnet"), pictures("resnet", 5)
    logits, features = case.by_hand(model, pixels.float() / 255)
    assert list(extract(model, pixels).features) == ["backbone.trunk.0", "backbone.trunk.2"]
    layers = list(case.layers)
    for given in (model, nn.DataParallel(model), LoadedModel(model)):
        outputs = extract(given, (pixels, torch.arange(5)), layers=layers, batch_size=2)
        assert list(outputs.features) == layers
        assert torch.allclose(outputs.logits, logits, atol=1e-5)
        for name in layers:
            assert torch.allclose(outputs.features[name], features[name], atol=1e-5)
        assert check_classifier(outputs).feature == "backbone.trunk.2"
        assert outputs.labels is not None
    tapped = FeatureExtractor(model, ["drop"])
    assert list(extract(tapped, pixels).features) == ["drop"]
    with pytest.raises(UsageError, match="FeatureExtractor holds its own layers"):
        extract(tapped, pixels, layers=layers)


def test_settings_reach_the_model() -> None:
    model, pixels = build("vit"), pictures("vit", 3)
    outputs = extract(model, pixels, tokens="class", preprocess=Preprocess(std=(0.5,)))
    logits, _ = CASES["vit"].by_hand(model, pixels.float() / 255 / 0.5)
    assert torch.allclose(outputs.logits, logits, atol=1e-4)
    assert check_classifier(outputs).feature == "norm"
    loaded = LoadedModel(model, read_preprocess=lambda: Preprocess(std=(0.5,)))
    assert torch.allclose(extract(loaded, pixels).logits, logits, atol=1e-4)


def test_other_inputs_than_images() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    x = torch.randn(20, 4)
    outputs = extract(model, {"input": x, "labels": torch.arange(20) % 3})
    assert torch.allclose(outputs.logits, model(x), atol=1e-6)
    assert outputs.labels is not None
    assert outputs.labels.tolist() == [n % 3 for n in range(20)]
    assert check_classifier(outputs).feature == "1"


def test_the_classifier_is_that_of_the_extraction(network: ResNet18, images: ImageSet) -> None:
    outputs = extract(network, images)
    with torch.no_grad():
        network.get_parameter("classifier.weight").zero_()
    check_classifier(outputs)
    with pytest.raises(UsageError, match="does not reproduce"):
        check_classifier(replace(outputs, classifier=network.linear_classifier()))


def test_a_detector_is_fitted_to_what_was_extracted(network: ResNet18, images: ImageSet) -> None:
    outputs = extract(network, images)
    assert outputs.labels is not None
    assert len(KNN(k=3).fit(outputs, outputs.labels).score(outputs)) == len(images)


@pytest.mark.parametrize("given", [b"images", None, 3, {"images": "digits"}])
def test_what_holds_no_images_is_refused(network: ResNet18, given: Any) -> None:
    with pytest.raises(UsageError, match=r"images is an ImageSet, .*got"):
        extract(network, given)


def test_a_folder_is_extracted_with_the_labels_of_its_class_folders(
    network: ResNet18, images: ImageSet, tmp_path: Path
) -> None:
    for number, (image, label) in enumerate(zip(images.read(), images.labels, strict=True)):
        place = tmp_path / str(label)
        place.mkdir(exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(place / f"{number}.png")
    found = extract(network, tmp_path)
    order = [int(file.stem) for file in sorted(tmp_path.glob("*/*.png"))]
    assert found.labels is not None
    assert found.labels.tolist() == images.labels[order].tolist()
    assert torch.allclose(found.logits, extract(network, images).logits[order], atol=1e-5)
    few = extract(network, sorted(tmp_path.glob("*/*.png"))[:3])
    assert few.labels is None
    assert torch.allclose(few.logits, found.logits[:3], atol=1e-5)


def test_loaders_of_normalised_tensors_are_extracted_as_they_are() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).train()
    tensors, labels = torch.randn(10, 3, 8, 8), torch.arange(10) % 5
    loader = DataLoader(TensorDataset(tensors, labels), batch_size=4)
    with pytest.raises(UsageError, match=r"Float images lie in \[0, 1\]"):
        extract(model, loader)
    found = extract(model, loader, inputs="tensors")
    with torch.no_grad():
        assert torch.allclose(found.logits, model(tensors), atol=1e-5)
    assert found.labels is not None
    assert found.labels.tolist() == labels.tolist()
    assert model.training
