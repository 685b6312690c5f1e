"""The network of a saved gate: rebuilt, and compared with what it was."""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import goen
from goen.data.input_spec import ImageInputs
from goen.detectors import KNN, Detector, GoenM, Uncertainty
from goen.errors import ArtifactError, UsageError
from goen.extraction import extract
from goen.features.preprocess import Preprocess, PreprocessSound
from goen.gate import Gate, HeldOut
from goen.io.artifacts import load_artifact, save_artifact
from goen.models import NetworkConfig, ResNet18
from goen.models.efficientnet_lite import EfficientNetLite
from goen.models.ensemble import LogitEnsemble
from goen.models.flip_averaging import FlipAveraged
from goen.models.half_precision import round_to_half
from goen.models.rotated import Rotated
from goen.models.seeding import seeded
from goen.outputs import Outputs
from tests.features.test_unwrapping import WRAPPERS
from tests.own_model import LAYERS, DigitNet, digits, ood, preprocess, trained


def fit(**changes: object) -> Gate:
    settings: dict = {"layers": LAYERS, "preprocess": Preprocess((0.3,), (0.35,)), **changes}
    model = settings.pop("model") if "model" in settings else trained()
    return Gate.fit(model, digits().train, digits().validation, **settings)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Gate, Path]:
    gate, folder = fit(ood=ood()), tmp_path_factory.mktemp("gates") / "gate"
    gate.save(folder)
    return gate, folder


class Renamed(DigitNet):
    def __init__(self) -> None:
        super().__init__()
        self.extra = nn.Linear(2, 2)


class Leaky(DigitNet):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": -super().forward(x)["logits"]}


def test_another_model_is_noticed(saved: tuple[Gate, Path]) -> None:
    _, folder = saved
    with pytest.raises(ArtifactError, match=r"does not fit the weights .*extra"):
        goen.load(folder, model=Renamed())
    with pytest.raises(ArtifactError, match="same weights but is built differently"):
        goen.load(folder, model=Leaky())


def test_preprocessing_of_ones_own_must_be_brought_along(tmp_path: Path) -> None:
    gate = fit(preprocess=preprocess)
    gate.save(tmp_path / "gate")
    with pytest.raises(ArtifactError, match="a function of your own, preprocess: give it"):
        goen.load(tmp_path / "gate", model=DigitNet())
    loaded = goen.load(tmp_path / "gate", model=DigitNet(), preprocess=preprocess)
    images = digits().test.read(range(5))
    assert np.array_equal(gate.predict(images).score, loaded.predict(images).score)
    with pytest.raises(ArtifactError, match="built differently"):
        goen.load(tmp_path / "gate", model=DigitNet(), preprocess=lambda x: x * 5)


@pytest.mark.parametrize(
    "settings",
    [
        Preprocess(size=16),
        Preprocess(mean=(0.3,)),
        Preprocess(std=(0.35,), size=(16, 16)),
        Preprocess(size=(28, 30), crop=24),
        Preprocess(crop=(20, 24)),
        Preprocess(),
    ],
    ids=["size", "mean", "std", "size and crop", "crop", "nothing"],
)
def test_parts_of_a_preprocessing_are_kept(tmp_path: Path, settings: Preprocess) -> None:
    gate = fit(preprocess=settings)
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=DigitNet())
    images = digits().test.read(range(5))
    assert np.array_equal(gate.predict(images).score, loaded.predict(images).score)
    assert loaded.network.preprocess == settings


@pytest.mark.parametrize("normalise", [True, False])
def test_the_preprocessing_of_sound_is_kept(tmp_path: Path, normalise: bool) -> None:
    waves = np.random.default_rng(0).normal(size=(200, 30))
    model = nn.Sequential(nn.Linear(30, 8), nn.ReLU(), nn.Linear(8, 3))
    settings = PreprocessSound(8000, normalise)
    gate = Gate.fit(model, (waves[:100], np.arange(100) % 3), waves[100:], preprocess=settings)
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=model)
    assert loaded.network.preprocess == settings
    scaled, score = gate.predict(3 * waves[:5]).score, gate.predict(waves[:5]).score
    assert np.allclose(scaled, score, atol=1e-3) is normalise


class Tied(nn.Module):
    """Two names for one weight, and half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 7, 3, 4), nn.ReLU())
        self.one = nn.Linear(7, 7)
        self.two = nn.Linear(7, 7)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(self.body(x).mean((2, 3))))


@pytest.mark.needs("bfloat16 convolution")
def test_tied_weights_and_half_precision_are_kept(tmp_path: Path) -> None:
    torch.manual_seed(0)
    gate = fit(model=Tied().bfloat16(), layers="body")
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=Tied())
    images = digits().test.read(range(5))
    assert np.array_equal(gate.predict(images).score, loaded.predict(images).score)


class Mixed(nn.Module):
    """A body in half precision and a head that reads and computes in single."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 7, 3, 4), nn.BatchNorm2d(7), nn.ReLU()).bfloat16()
        self.head = nn.Linear(7, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.bfloat16()).mean((2, 3)).float())


@pytest.mark.needs("bfloat16 convolution")
def test_each_part_keeps_its_precision(tmp_path: Path) -> None:
    torch.manual_seed(0)
    gate = fit(model=Mixed().eval(), layers="body")
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=Mixed().float())
    images = digits().test.read(range(5))
    assert np.array_equal(gate.predict(images).score, loaded.predict(images).score)


class Loud(DigitNet):
    """Logits much larger than its features."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": 1000 + super().forward(x)["logits"]}


def test_small_features_are_compared_by_their_own_size(tmp_path: Path) -> None:
    model = Loud()
    model.load_state_dict(trained().state_dict())
    gate = fit(model=model.eval(), preprocess=None)
    gate.save(tmp_path / "gate")
    manifest = tmp_path / "gate" / "manifest.json"
    goen.load(tmp_path / "gate", model=Loud())
    changed = json.loads(manifest.read_text())
    changed["network"]["preprocess"] = {"mean": [0.1], "std": [1.0], "size": None}
    manifest.write_text(json.dumps(changed))
    with pytest.raises(ArtifactError, match="built differently"):
        goen.load(tmp_path / "gate", model=Loud())


def test_only_networks_that_can_be_built_again_are_saved(
    saved: tuple[Gate, Path], tmp_path: Path
) -> None:
    class Wrapped(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> goen.Outputs:
            return self.inner(x)

    gate, _ = saved
    with pytest.raises(UsageError, match=r"Wrap it: goen.FeatureExtractor"):
        replace(gate, network=Wrapped(gate.network)).save(tmp_path / "gate")


@pytest.mark.parametrize("flipped_too", [False, True])
@pytest.mark.parametrize(
    ("layers", "detector", "read"),
    [
        (("layer2", "layer4"), "goen_m", ("layer2", "layer4")),
        ("auto", "goen_m", ("layer2", "z")),
        ("auto", "knn", ("z",)),
        ("auto", "vim", ("z",)),
        (("layer2",), "knn", ("layer2",)),
        ("auto", KNN(feature="layer1"), ("layer1",)),
        ("auto", "energy", ()),
    ],
)
def test_a_gate_of_goens_own_network_needs_no_model_to_be_loaded(
    tmp_path: Path,
    flipped_too: bool,
    layers: str | tuple[str, ...],
    detector: str | Detector,
    read: tuple[str, ...],
) -> None:
    torch.manual_seed(0)
    network = ResNet18(NetworkConfig(num_classes=7, width=4)).eval()
    p = digits()
    gate = Gate.fit(
        network,
        p.train,
        p.validation,
        layers=layers,
        detector=detector,
        flip_averaging=flipped_too,
    )
    assert gate.detector.features == read
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate")
    images = p.test.read(range(12))
    expected, found = gate.predict(images), loaded.predict(images)
    assert np.array_equal(found.score, expected.score)
    flipped = loaded.predict(images[..., ::-1].copy())
    assert np.allclose(flipped.score, found.score, rtol=0.02, atol=1e-5) == flipped_too


def ensemble_gate() -> Gate:
    """Of two networks of goen's own, flip-averaged, with weights of half precision."""
    p = digits()
    members = []
    for seed in range(2):
        torch.manual_seed(seed)
        members.append(ResNet18(NetworkConfig(num_classes=7, width=4)).eval())
        round_to_half(members[-1])
    network = FlipAveraged(LogitEnsemble(members)).eval()
    detector = GoenM(("layer2", "layer4"), logit_cues=("entropy", "energy"))
    fitted_on, validation = extract(network, p.train), extract(network, p.validation)
    detector.fit(fitted_on, torch.from_numpy(p.train.labels), held_out=validation)
    cues = detector.cues(validation)
    held_out = HeldOut.from_cues(detector, cues, rounding=1e-6)
    return Gate(network, detector, held_out, 0.05, p.train.classes, ImageInputs(3, 32, 32))


def test_a_network_that_predicts_rotations_is_saved_with_its_score(tmp_path: Path) -> None:
    p = digits()
    settings = NetworkConfig(num_classes=7, width=4, temperature=0.2, rotations=True)
    torch.manual_seed(0)
    network = ResNet18(settings).eval()
    round_to_half(network)
    few, rotated = p.train.take(range(200)), Rotated(network).eval()
    outputs = extract(rotated, p.validation)
    detector = Uncertainty()
    detector.fit_training(outputs, torch.from_numpy(p.validation.labels))  # its classes alone
    held_out = HeldOut.from_cues(detector, detector.cues(outputs), rounding=1e-6)
    gate = Gate(rotated, detector, held_out, 0.05, few.classes, ImageInputs(3, 32, 32))
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate")
    assert isinstance(loaded.network, Rotated)
    images = p.test.read(range(12))
    expected, found = gate.predict(images), loaded.predict(images)
    assert np.allclose(found.score, expected.score, rtol=1e-5)
    assert np.array_equal(found.is_ood, expected.is_ood)
    manifest = json.loads((tmp_path / "gate" / "manifest.json").read_text())["network"]
    assert [manifest[n] for n in ("temperature", "rotations", "rotated")] == [0.2, True, True]
    forge(tmp_path / "gate", rotations=False)
    with pytest.raises(ArtifactError, match="no classifier of rotations"):
        goen.load(tmp_path / "gate")
    # Without the wrapper it is a network like any other.
    plain = goen.Gate.fit(network, few, p.validation, detector="knn")
    plain.save(tmp_path / "plain")
    again = goen.load(tmp_path / "plain")
    assert again.network.config == settings  # type: ignore[attr-defined]
    assert np.allclose(again.predict(images).score, plain.predict(images).score, atol=1e-6)


def test_an_ensemble_is_saved_in_half_precision_and_is_the_same_again(tmp_path: Path) -> None:
    gate = ensemble_gate()
    gate.save(tmp_path / "gate")
    tensors, manifest = load_artifact(tmp_path / "gate", "gate")
    assert manifest.part("network").count("members") == 2
    weights = tensors.part("network.members.1.")
    assert weights["conv1.weight"].dtype == torch.float16
    assert tensors["detector.bank.unit.0"].dtype == torch.float32
    loaded = goen.load(tmp_path / "gate")
    assert {parameter.dtype for parameter in loaded.network.parameters()} == {torch.float32}
    images = digits().test.read(range(12))
    expected, found = gate.predict(images), loaded.predict(images)
    assert np.array_equal(found.score, expected.score)
    assert np.array_equal(found.p_value, expected.p_value)
    loaded.save(tmp_path / "again")
    files = [(tmp_path / name / "tensors.safetensors").read_bytes() for name in ("gate", "again")]
    assert files[0] == files[1]


def forge(folder: Path, **fields: object) -> None:
    """Change fields of the network in a saved gate's manifest."""
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    size = fields.pop("image_size", manifest["image_size"])
    manifest["network"] |= fields
    file.write_text(json.dumps({**manifest, "image_size": size}))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        (1, "two or more networks of the same settings, got 1"),
        (3, r"it has no tensor network\.members\.2\."),
        (10**9, "at most 16 networks, got 1000000000"),
        (0, "its network.members should be a whole number above 0"),
        ("2", "its network.members should be a whole number above 0"),
    ],
)
def test_a_forged_number_of_members_is_refused(
    tmp_path: Path, members: object, message: str
) -> None:
    ensemble_gate().save(tmp_path / "gate")
    forge(tmp_path / "gate", members=members)
    with pytest.raises(ArtifactError, match=message):
        goen.load(tmp_path / "gate")


def test_an_ensemble_pays_for_all_its_members(tmp_path: Path) -> None:
    gate = ensemble_gate()
    gate.save(tmp_path / "gate")
    forge(tmp_path / "gate", image_size=[1024, 1024])
    message = "at most 524,288 pixels with 2 networks of width 4, got 1024×1024"
    with pytest.raises(ArtifactError, match=message):
        goen.load(tmp_path / "gate")
    with pytest.raises(UsageError, match=message):
        replace(gate, inputs=ImageInputs(3, 1024, 1024)).save(tmp_path / "large")


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    gate = ensemble_gate()
    network = ResNet18(NetworkConfig(num_classes=7, width=2)).eval()
    with pytest.raises(UsageError, match="at most 16 networks, got 17"):
        replace(gate, network=LogitEnsemble([network] * 17)).save(tmp_path / "gate")
    half = replace(gate, network=copy.deepcopy(network).half())
    with pytest.raises(UsageError, match=r"saved in float32; conv1.weight is torch.float16"):
        half.save(tmp_path / "gate")
    assert not (tmp_path / "gate").exists()


def test_an_ensemble_with_a_forged_classifier_is_refused(tmp_path: Path) -> None:
    ensemble_gate().save(tmp_path / "gate")
    forge(tmp_path / "gate", classifier="evidential")
    with pytest.raises(ArtifactError, match="classifier evidential have their own uncertainty"):
        goen.load(tmp_path / "gate")


def lite_gate(model: nn.Module, preprocess: object = None) -> Gate:
    return fit(model=model, layers=["head"], detector="energy", preprocess=preprocess)


def lite() -> EfficientNetLite:
    with seeded(0):
        network = EfficientNetLite("efficientnet-lite0", len(digits().train.classes))
        for part in network.modules():  # torch's own start makes all images alike
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight)
        return network


def test_a_network_that_goen_knows_by_name_needs_no_model(tmp_path: Path) -> None:
    gate = lite_gate(lite(), preprocess)
    gate.save(tmp_path / "gate")
    images = digits().test.read(range(5))
    loaded = goen.load(tmp_path / "gate", preprocess=preprocess)  # a function is brought along
    assert np.array_equal(gate.predict(images).score, loaded.predict(images).score)
    with pytest.raises(ArtifactError, match="contains its own network"):
        goen.load(tmp_path / "gate", model=lite(), preprocess=preprocess)
    with pytest.raises(ArtifactError, match="a function of your own, preprocess: give it"):
        goen.load(tmp_path / "gate")
    for name, message in (
        ("resnet999", "architecture 'resnet999' is unknown"),
        ("efficientnet-lite2", "does not fit the weights"),
        (5, "architecture should be text, got '5'"),
    ):
        forge(tmp_path / "gate", architecture=name)
        with pytest.raises(ArtifactError, match=message):
            goen.load(tmp_path / "gate", preprocess=preprocess)


def test_a_changed_relative_of_it_is_a_users_own_model(tmp_path: Path) -> None:
    model = lite()
    model.pool = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.BatchNorm1d(1280))
    lite_gate(model).save(tmp_path / "gate")
    with pytest.raises(ArtifactError, match="needs your model"):
        goen.load(tmp_path / "gate")
    assert goen.load(tmp_path / "gate", model=copy.deepcopy(model))


def test_flip_averaging_of_a_users_own_model(tmp_path: Path) -> None:
    p = digits()
    gate = Gate.fit(
        trained(), p.train, p.validation, layers=LAYERS, preprocess=preprocess, flip_averaging=True
    )
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=trained(), preprocess=preprocess)
    images = p.test.read(range(12))
    found = loaded.predict(images)
    assert np.array_equal(found.score, gate.predict(images).score)
    flipped = loaded.predict(images[..., ::-1].copy())
    assert np.allclose(flipped.score, found.score, atol=1e-3)


def test_a_relative_of_goens_own_network_is_not_taken_for_it(tmp_path: Path) -> None:
    class Relative(ResNet18):
        def forward(self, images: Tensor) -> Outputs:
            return super().forward(images.flip(2))

    torch.manual_seed(0)
    config = NetworkConfig(num_classes=7, width=4)
    p = digits()
    gate = Gate.fit(Relative(config).eval(), p.train, p.validation, layers=("layer2", "layer4"))
    gate.save(tmp_path / "gate")
    loaded = goen.load(tmp_path / "gate", model=Relative(config))
    images = p.test.read(range(6))
    assert np.array_equal(loaded.predict(images).score, gate.predict(images).score)


# Wrapped models


@pytest.mark.parametrize("loaded", WRAPPERS)
@pytest.mark.parametrize("fitted", WRAPPERS)
def test_a_gate_goes_from_a_wrapped_model_to_another(
    fitted: str, loaded: str, tmp_path: Path
) -> None:
    gate = fit(model=WRAPPERS[fitted](trained()))
    gate.save(tmp_path / "gate")
    again = goen.load(tmp_path / "gate", model=WRAPPERS[loaded](DigitNet()))
    images = digits().test.read(range(5))
    expected = fit().predict(images)
    for prediction in (gate.predict(images), again.predict(images)):
        assert np.array_equal(prediction.score, expected.score)
    manifest = json.loads((tmp_path / "gate" / "manifest.json").read_text())
    assert manifest["network"]["model"] == "tests.own_model:DigitNet"


def test_a_gate_that_was_saved_with_the_wrappers_names_loads(tmp_path: Path) -> None:
    gate = fit(layers=["module.early", "module.late"], model=nn.DataParallel(trained()))
    gate.save(tmp_path / "gate")
    tensors, manifest = load_artifact(tmp_path / "gate", "gate")
    renamed = {re.sub(r"^network\.", "network.module.", k): v for k, v in tensors.items()}
    rest = {k: v for k, v in manifest.content.items() if k != "tensors_sha256"}
    save_artifact(tmp_path / "old", "gate", renamed, rest)
    again = goen.load(tmp_path / "old", model=DigitNet())
    images = digits().test.read(range(5))
    assert np.array_equal(again.predict(images).score, gate.predict(images).score)
    assert list(again.predict(images).cues) == ["module.early", "module.late", "entropy"]


def test_goens_own_network_in_a_wrapper_is_still_goens_own(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = nn.DataParallel(ResNet18(NetworkConfig(num_classes=7, width=2))).eval()
    gate = fit(model=network, layers=("layer2", "layer4"), preprocess=None)
    gate.save(tmp_path / "gate")
    images = digits().test.read(range(5))
    again = goen.load(tmp_path / "gate")
    assert np.array_equal(again.predict(images).score, gate.predict(images).score)


def test_a_tapped_model_may_be_wrapped() -> None:
    extractor = goen.FeatureExtractor(trained(), LAYERS, preprocess=Preprocess((0.3,), (0.35,)))
    gate = Gate.fit(nn.DataParallel(extractor), digits().train, digits().validation)
    assert gate.network is extractor


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_models_that_cannot_be_tapped_get_a_sentence(saved: tuple[Gate, Path]) -> None:
    _, folder = saved
    scripted = torch.jit.script(nn.Sequential(nn.Flatten()))
    empty = DigitNet().to("meta")
    for model, words in ((scripted, "Give the model that was scripted"), (empty, "meta device")):
        with pytest.raises(UsageError, match=words):
            fit(model=model)
        with pytest.raises(ArtifactError, match=words) as error:
            goen.load(folder, model=model)
        assert "Fit it again" not in str(error.value)
