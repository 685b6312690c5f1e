"""``goen fit``, ``goen score`` and ``goen export``, as an engineer would type them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image
from safetensors.torch import save_file

from goen.cli.main import main
from goen.data import ImageSet
from goen.data.images.data_urls import image_url
from goen.data.images.decoding import read_image
from goen.data.input_spec import ImageInputs
from goen.data.sets.folders import open_image_set
from goen.gate import load
from tests.gate.false_alarms import flags_allowed
from tests.own_model import LAYERS, digits, trained
from tests.report.scored import galleries

ROOT = Path(__file__).parent.parent.parent
MODULE = """
import sys
from tests.own_model import DigitNet

def digit_net():
    return DigitNet()

def prepare(x):
    return (x - 0.3) / 0.35

number = 7

def needs_more(width):
    return DigitNet()

def no_model():
    return 7
"""


class Trap:
    """What runs when a pickle that holds it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def write(images: ImageSet, folder: Path, by_class: bool = True) -> Path:
    for i, (pixels, label) in enumerate(zip(images.read(), images.labels, strict=True)):
        place = folder / f"digit-{images.classes[label]}" if by_class else folder
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.transpose(1, 2, 0)).save(place / f"{i}.png")
    return folder


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as an engineer has it: code, weights, pictures."""
    desk, p = tmp_path_factory.mktemp("desk"), digits()
    (desk / "my_nets.py").write_text(MODULE)
    save_file(trained().state_dict(), desk / "w.safetensors")
    torch.save(trained().state_dict(), desk / "w.pt")
    parallel = {f"module.{k}": v for k, v in trained().state_dict().items()}
    torch.save({"state_dict": parallel, "epoch": 3}, desk / "parallel.pt")
    torch.save({"weight": Trap(desk / "sprung")}, desk / "evil.pt")
    write(p.train.take(range(300)), desk / "train")
    write(p.validation.take(range(120)), desk / "held")
    write(p.calibration_ood["noise"].take(range(40)), desk / "noise", by_class=False)
    write(p.evaluation["photographs"].images.take(range(10)), desk / "photos", by_class=False)
    return desk


@pytest.fixture
def goen(desk: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    monkeypatch.chdir(desk)
    return lambda *words: main([str(word) for word in words])


ARGUMENTS = [
    "fit", "--model", "my_nets:digit_net", "--train", "train", "--held-out", "held",
    "--mean", "0.3", "--std", "0.35", "--false-alarm-rate", "0.1",
]  # fmt: skip


@pytest.mark.parametrize("weights", ["w.safetensors", "w.pt", "parallel.pt"])
def test_fit_then_score_then_export(
    goen: Callable[..., int], weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = tmp_path / "cli gate"
    assert goen(*ARGUMENTS, "--weights", weights, "--layers", *LAYERS, "--ood", "noise",
                "--out", gate) == 0  # fmt: skip
    page, notes = capsys.readouterr()
    assert "A gate for my_nets:digit_net" in page
    assert "at most 0.1 guaranteed" in page
    assert "noise" in page
    assert page.strip() == (gate / "report.txt").read_text().strip()
    assert f"goen score IMAGES --gate '{gate}' --model my_nets:digit_net" in notes
    facts = json.loads((gate / "manifest.json").read_text())["metadata"]
    assert facts["factory"] == "my_nets:digit_net"
    assert facts["held_out_accuracy"] > 0.8

    assert goen("score", "photos", "--gate", gate, "--model", "my_nets:digit_net") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == 10
    assert np.mean([row["is_ood"] for row in rows]) > 0.8
    assert {"cue_early", "cue_late", "cue_entropy", "p_early", "p_entropy"} <= set(rows[0])
    assert rows[0]["label"].startswith("digit-")

    assert goen("score", "photos", "--gate", gate) == 2
    assert "It was made by my_nets:digit_net" in capsys.readouterr().err

    if weights == "w.pt":
        file = tmp_path / "gate.onnx"
        assert goen("export", gate, "--model", "my_nets:digit_net", "--out", file,
                    "--images", "photos") == 0  # fmt: skip
        assert file.stat().st_size > 1000


def test_groups_are_folders_or_a_table(
    goen: Callable[..., int], desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ["path,group"]
    for number, file in enumerate(sorted((desk / "held").glob("*/*.png"))):
        place = tmp_path / "videos" / file.parent.name / f"video-{number % 6}" / file.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(file.read_bytes())
        table.append(f"{place.relative_to(tmp_path / 'videos')},patient {number % 33}")
    (tmp_path / "groups.csv").write_text("\n".join(table) + "\n")
    words = [*ARGUMENTS, "--weights", "w.pt", "--layers", *LAYERS, "--detector", "knn"]
    words[words.index("held")] = str(tmp_path / "videos")
    for groups, count in (("parent", 42), (tmp_path / "groups.csv", 33)):
        gate = tmp_path / f"gate {count}"
        assert goen(*words, "--groups", groups, "--out", gate) == 0
        assert f"from 120 held-out images in {count} groups" in capsys.readouterr().out
        assert f"from 120 images in {count} groups" in (gate / "report.html").read_text()
        guarantee = json.loads((gate / "manifest.json").read_text())["guarantee"]
        assert guarantee["held_out_groups"] == count
    given = "--gate", gate, "--model", "my_nets:digit_net"
    assert goen("score", "photos", *given, "--report", tmp_path / "page.html") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert min(row["p_value"] for row in rows) >= 1 / 34
    assert all(row["is_ood"] == (row["p_value"] <= 0.1) for row in rows)
    assert "33 groups of held-out ID images" in (tmp_path / "page.html").read_text()


def test_held_out_images_that_are_training_images_saved_again_are_named(
    goen: Callable[..., int], desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in sorted((desk / "train").glob("*/*.png"))[::2]:
        place = tmp_path / "again" / file.parent.name / f"again-{file.stem}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.open(file).save(place, quality=95, subsampling=0)
    words = [*ARGUMENTS, "--weights", "w.pt", "--layers", *LAYERS, "--out", tmp_path / "gate"]
    words[words.index("held")] = str(tmp_path / "again")
    assert goen(*words) == 0
    assert "lie nearer to a training image" in " ".join(capsys.readouterr().err.split())
    report = " ".join((tmp_path / "gate" / "report.txt").read_text().split())
    assert "lie nearer to a training image" in report
    assert "Near-copies: " in report
    assert "again-" in report.split("Near-copies: ")[1]


@pytest.mark.parametrize("words", [[], ["--layers", "auto"]])
def test_without_layers_two_are_chosen_and_printed_with_the_others(
    goen: Callable[..., int], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert goen(*ARGUMENTS, *words, "--weights", "w.pt", "--out", tmp_path / "gate") == 0
    notes = capsys.readouterr().err
    assert "Layers chosen by their depth: early and late. The alternatives" in notes
    assert "early.0  Sequential  (N, 12, 16, 16)     12      1" in notes
    manifest = json.loads((tmp_path / "gate" / "manifest.json").read_text())
    assert manifest["network"]["layers"] == [*LAYERS]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--weights", "nowhere.pt"], "nowhere.pt does not exist"),
        (["--weights", "evil.pt"], "goen runs no code from files"),
        (["--model", "my_nets"], "--model is module:function"),
        (["--model", "my_nots:digit_net"], "No module named 'my_nots'"),
        (["--model", "my_nets:digit_not"], "has no attribute 'digit_not'"),
        (["--model", "my_nets:needs_more"], "is called without arguments"),
        (["--model", "my_nets:no_model"], "returned a int, not a torch module"),
        (["--preprocess", "my_nets:prepare"], "Give --preprocess, or --mean and --std, not both"),
        (["--preprocess", "my_nets:number"], "--preprocess my_nets:number is a int"),
        (["--train", "nowhere"], "neither a folder nor a known set"),
        (["--train", "noise"], "has no class folders"),
        (["--ood", "train"], "ood train shares 300 of its 300 images with train"),
        (["--layers"], "Name the layers to measure"),
        (["--layers", "erly"], "no layer 'erly'. Did you mean 'early'"),
        (["--size", "0"], "--size is one number"),
        (["--size", "3000"], "image_size should have at most 4,194,304 pixels, got 3000×3000"),
        (["--device", "cuda"], "There is no device 'cuda' on this machine. Available: cpu"),
        (["--device", "abacus"], "There is no device 'abacus' on this machine. Available: cpu"),
        (["--held-out", "digits"], "has no class"),
        (["--weights", "train"], "train is not a file"),
        (["--weights", "my_nets.py"], "or is damaged"),
        (["--model", "../my_nets.py:digit_net"], "--model ../my_nets.py:digit_net"),
        (["--batch-size", "0"], "at least one image, got a batch size of 0"),
        (["--classes", "digit-0", "digit-0"], "--classes must name each class once"),
        (["--ood", "noise", "./noise"], "shares"),
        (["--ood", "noise", "noise"], "--ood must name each dataset once"),
        (["--train", "digits", "--size", "64"], "has images of 32×32, and 64×64 are needed"),
    ],
)
def test_mistakes_get_a_sentence_and_code_two(
    goen: Callable[..., int],
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if words == ["--device", "cuda"] and torch.cuda.is_available():
        message = ""
    everything = [*ARGUMENTS, "--layers", *LAYERS, "--out", tmp_path / "gate"]
    assert goen(*everything, *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "gate").exists()
    assert not Path("sprung").exists()


def test_fit_leaves_a_page_and_score_shows_the_training_images(
    goen: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate, page = tmp_path / "gate", tmp_path / "page.html"
    fit = [*ARGUMENTS, "--weights", "w.pt", "--layers", *LAYERS, "--out", gate]
    assert goen(*fit) == goen(*fit, "--overwrite") == 0  # with its pages
    assert f"report: {gate / 'report.html'}" in capsys.readouterr().err
    suspicious = galleries(gate / "report.html")["suspicious"]
    assert len(suspicious["cards"]) == 5
    for card in suspicious["cards"]:
        assert card["seen"] == image_url(read_image(Path(card["name"])))
        assert card["name"].startswith(f"held/{suspicious['classes'][card['truth']]}/")
    for number, (name, url) in suspicious["training"].items():
        assert name == str(open_image_set("train", None, None).files()[int(number)])
        assert url == image_url(read_image(Path(name)))

    score = ["score", "photos", "--gate", gate, "--model", "my_nets:digit_net", "--report", page]
    assert goen(*score, "--training-images", "train") == 0
    gallery = galleries(page)["scored-images"]
    assert gallery["training"]
    for name, url in gallery["training"].values():
        assert url == image_url(read_image(Path(name)))
    assert goen(*score, "--overwrite", "--training-images", "held") == 2
    assert "held is not the set that this gate was fitted on" in capsys.readouterr().err


def test_a_folder_that_would_be_lost_is_reported_before_anything_is_fitted(
    goen: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    everything = [*ARGUMENTS, "--layers", *LAYERS, "--out", tmp_path]
    assert goen(*everything, "--weights", "nowhere.pt") == 2
    assert "holds thesis.txt, not a gate folder that goen made" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["thesis.txt", "w.pt", "w.safetensors", "link.pt", "dangling.pt"])
def test_fit_replaces_no_file_and_reports_it_before_anything_is_fitted(
    goen: Callable[..., int],
    desk: Path,
    tmp_path: Path,
    name: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "goen.cli.options.own_model.make_model", lambda *_: pytest.fail("the fit has begun")
    )
    (tmp_path / "thesis.txt").write_text("years of work")
    for weights in ("w.pt", "w.safetensors"):
        (tmp_path / weights).write_bytes((desk / weights).read_bytes())
    (tmp_path / "link.pt").symlink_to("w.pt")
    (tmp_path / "dangling.pt").symlink_to("nothing")
    out = tmp_path / name
    before = out.read_bytes() if out.exists() else None
    words = ["--layers", *LAYERS, "--weights", tmp_path / "w.pt", "--out", out]
    assert goen(*ARGUMENTS, *words) == 2
    assert "Choose another path" in capsys.readouterr().err
    assert (out.read_bytes() if out.exists() else None) == before
    assert out.is_symlink() == (name in ("link.pt", "dangling.pt"))


def test_a_model_may_be_named_by_its_file_and_classes_left_out_are_reported(
    goen: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "held").mkdir()
    for folder in Path("held").resolve().iterdir():
        (tmp_path / "held" / folder.name).symlink_to(folder)
    (tmp_path / "held" / "another").symlink_to(Path("noise").resolve())
    words = ["--model", "./my_nets.py:digit_net", "--held-out", tmp_path / "held"]
    assert goen(*ARGUMENTS, *words, "--weights", "w.pt", "--layers", *LAYERS,
                "--out", tmp_path / "gate") == 0  # fmt: skip
    assert "not among the classes and are left out: another" in capsys.readouterr().err


def test_a_folder_that_goen_splits_and_the_network_of_a_gate(
    goen: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate, again = tmp_path / "gate", tmp_path / "again"
    model = ["--model", "my_nets:digit_net", "--weights", "w.pt", "--layers", *LAYERS]
    # Known to goen: a network of its own, which a gate can be loaded with alone.
    assert goen("run", "--data", "train", "--from-scratch", "--preset", "digits", "--size", "16",
                "--detector", "energy", "--false-alarm-rate", "0.1", "--ood", "photos",
                "--out", tmp_path / "run") == 0  # fmt: skip
    assert goen("fit", "--data", "train", "--model", tmp_path / "run", "--detector", "knn",
                "--false-alarm-rate", "0.1", "--out", gate) == 0  # fmt: skip
    _, notes = capsys.readouterr()
    assert "no OOD images to evaluate on" not in notes  # nothing is evaluated
    run, split = load(tmp_path / "run"), load(gate)
    assert split.image_size == run.image_size == (16, 16)
    assert split.num_held_out == run.num_held_out
    assert (split.image_hashes["held_out"] == run.image_hashes["held_out"]).all()
    assert split.classes == run.classes
    assert "--model" not in notes.partition("next:")[2]
    assert goen("score", "photos", "--gate", gate) == 0  # the next step, as it is printed
    capsys.readouterr()

    # Of a model of one's own; a detector that calibrates has images for that alone.
    assert goen("fit", "--data", "train", *model, "--size", "32", "--mean", "0.3", "--std", "0.35",
                "--false-alarm-rate", "0.1", "--out", again) == 0  # fmt: skip
    notes = capsys.readouterr().err
    assert f"--gate {again} --model my_nets:digit_net" in notes
    hashes = load(again, model=trained()).image_hashes
    assert {*hashes} == {"train", "calibration", "held_out"}

    for words, message in (
        (["--data", "train", "--held-out", "held"], "leave out --held-out and --calibration"),
        (["--data", "train", "--train", "train"], "Give --model with --train and --held-out, or"),
        (["--train", "train"], "Give --held-out: ID images the model was not trained on"),
    ):
        assert goen("fit", *model, *words, "--out", tmp_path / "no") == 2
        assert message in " ".join(capsys.readouterr().err.split())
    assert goen("fit", "--data", "train", "--model", gate, "--weights", "w.pt",
                "--out", tmp_path / "no") == 2  # fmt: skip
    assert "leave out --weights" in capsys.readouterr().err


def test_a_broken_file_is_left_out_and_a_copy_is_named(
    goen: Callable[..., int], desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = tmp_path / "held"
    shutil.copytree(desk / "held", held)
    (held / "digit-3" / "000 broken.png").write_bytes(b"no image")
    words = [*ARGUMENTS, "--weights", "w.pt", "--layers", *LAYERS, "--held-out", held]
    assert goen(*words, "--out", tmp_path / "gate") == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"{held}: 1 file cannot be read and is left out: digit-3/000 broken.png." in said
    copied = next((desk / "train" / "digit-3").iterdir())
    shutil.copy(copied, held / "digit-3" / "000 copy.png")
    assert goen(*words, "--out", tmp_path / "other") == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "shares 1 of its 121 images with train, which has" in said
    assert f"or a choice: {held}/digit-3/000 copy.png." in said


def test_the_bundled_gate_takes_no_model(
    goen: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert goen("score", "photos", "--model", "my_nets:digit_net") == 2
    message = capsys.readouterr().err
    assert message.startswith("goen: This gate contains its own network, so model and preprocess")
    assert "Fit it again" not in message


def test_weights_of_another_model_are_reported(
    goen: Callable[..., int], desk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"other.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    everything = [*ARGUMENTS, "--layers", *LAYERS, "--out", tmp_path / "gate"]
    assert goen(*everything, "--weights", tmp_path / "other.safetensors") == 2
    assert "does not fit this model. Missing key" in capsys.readouterr().err
    torch.save([1, 2], tmp_path / "list.pt")
    assert goen(*everything, "--weights", tmp_path / "list.pt") == 2
    assert "holds no weights by name" in capsys.readouterr().err


def test_preprocessing_can_be_a_function_of_ones_own(
    goen: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate, model = tmp_path / "gate", ["--model", "my_nets:digit_net"]
    own = ["--preprocess", "my_nets:prepare"]
    words = ["--weights", "w.pt", "--train", "train", "--held-out", "held", "--layers", *LAYERS]
    assert goen("fit", *model, *words, *own, "--out", gate) == 0
    assert goen("score", "photos", "--gate", gate, *model) == 2
    assert "a function of your own, prepare: give it" in capsys.readouterr().err
    assert goen("score", "photos", "--gate", gate, *model, *own) == 0


def test_known_sets_can_be_named(
    goen: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    everything = [*ARGUMENTS, "--layers", *LAYERS, "--out", tmp_path / "gate"]
    assert goen(*everything, "--weights", "w.pt", "--ood", "photographs") == 0
    assert "photographs" in capsys.readouterr().out


# -- grey and multi-band images ----------------------------------------------------------------

BANDS_MODULE = """
from torch import nn

def cnn(channels):
    return nn.Sequential(
        nn.Conv2d(channels, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3),
    )

def grey():
    return cnn(1)

def colour():
    return cnn(3)

def bands():
    return cnn(13)
"""
WHITE = {np.uint8: 255, np.uint16: 65535}


def stripes(count: int, bands: int, dtype: type, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images ``(N, C, 10, 12)`` of three kinds of stripes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    across = np.sin(np.arange(12) * (labels[:, None] + 1) * 0.5) / 2 + 0.5
    maps = np.broadcast_to(across[:, None, None, :], (count, bands, 10, 12))
    noisy = np.clip(maps + 0.1 * rng.normal(size=maps.shape), 0, 1)
    return (noisy * WHITE[dtype]).astype(dtype), labels


def write_one(image: np.ndarray, file: Path) -> None:
    if file.suffix == ".npy":
        np.save(file, image)
    elif len(image) == 1:
        Image.fromarray(image[0]).save(file)
    else:
        tifffile.imwrite(file, image, photometric="minisblack", planarconfig="separate")


def write_images(folder: Path, images: np.ndarray, labels: np.ndarray | None, suffix: str) -> str:
    for number, image in enumerate(images):
        place = folder if labels is None else folder / f"kind-{labels[number]}"
        place.mkdir(parents=True, exist_ok=True)
        write_one(image, place / f"{number:03}{suffix}")
    return str(folder)


def stripes_model(bands: int, dtype: type, file: Path) -> None:
    """A trained classifier of the stripes, as weights for ``BANDS_MODULE``."""
    module: dict[str, Any] = {}
    exec(BANDS_MODULE, module)
    torch.manual_seed(0)
    model = module["cnn"](bands)
    images, labels = stripes(240, bands, dtype, 0)
    x, y = torch.from_numpy(images / np.float32(WHITE[dtype])).float(), torch.from_numpy(labels)
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(80):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    save_file(model.state_dict(), file)


@pytest.mark.parametrize(
    ("bands", "dtype", "suffix", "factory"),
    [
        (1, np.uint8, ".png", "grey"),
        (1, np.uint16, ".png", "grey"),
        (13, np.uint16, ".tif", "bands"),
        (13, np.uint8, ".npy", "bands"),
    ],
    ids=["grey", "grey of 16 bits", "TIFF of 13 bands", "NPY of 13 bands"],
)
def test_grey_and_bands_from_the_fit_to_a_file(
    bands: int,
    dtype: type,
    suffix: str,
    factory: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from onnxruntime import InferenceSession

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "band_nets.py").write_text(BANDS_MODULE)
    stripes_model(bands, dtype, tmp_path / "w.safetensors")
    train = write_images(tmp_path / "train", *stripes(240, bands, dtype, 0), suffix)
    held = write_images(tmp_path / "held", *stripes(300, bands, dtype, 1), suffix)
    new = write_images(tmp_path / "new", stripes(200, bands, dtype, 2)[0], None, suffix)
    rng = np.random.default_rng(3)
    noise = rng.integers(0, WHITE[dtype] + 1, (40, bands, 10, 12)).astype(dtype)
    unlike = write_images(tmp_path / "unlike", noise, None, suffix)
    model = ["--model", f"band_nets:{factory}"]
    command = ["fit", *model, "--weights", "w.safetensors", "--train", train, "--held-out", held]
    assert main([*command, "--false-alarm-rate", "0.1", "--out", "gate"]) == 0
    capsys.readouterr()
    gate = load("gate", model=__import__("band_nets").cnn(bands))
    assert gate.inputs == ImageInputs(bands, 10, 12, 8 if dtype is np.uint8 else 16)
    assert gate.metadata["held_out_accuracy"] == 1.0

    def scores(*paths: str) -> list[dict[str, Any]]:
        page = ["--report", "page.html", "--overwrite"]
        assert main(["score", *paths, "--gate", "gate", *model, *page]) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    known = scores(new)
    shown = "the mean of the channels is shown" in Path("page.html").read_text()
    assert shown == (bands == 13 or dtype is np.uint16)
    fewest, most = flags_allowed(gate, 200)
    assert fewest <= sum(row["is_ood"] for row in known) <= most
    # What is read of the files is what the gate takes in Python.
    expected = gate.predict(stripes(200, bands, dtype, 2)[0])
    assert np.allclose([row["score"] for row in known], expected.score, atol=1e-4)
    assert np.mean([row["is_ood"] for row in scores(unlike)]) > 0.8
    if (bands, dtype) not in ((1, np.uint8), (13, np.uint16)):
        return  # one file of each depth: exporting takes seconds
    assert main(["export", "gate", *model, "--out", "gate.onnx", "--images", new]) == 0
    session = InferenceSession("gate.onnx")
    (decision,) = session.run(["is_ood"], {"images": stripes(200, bands, dtype, 2)[0]})
    assert np.array_equal(decision, expected.is_ood)


def test_a_stack_with_labels_from_the_fit_to_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "band_nets.py").write_text(BANDS_MODULE)
    stripes_model(13, np.uint16, tmp_path / "w.safetensors")
    for name, count, seed in (("train", 240, 0), ("held", 300, 1), ("new", 50, 2)):
        images, labels = stripes(count, 13, np.uint16, seed)
        np.savez_compressed(tmp_path / f"{name}.npz", images=images, labels=labels)
    command = ["fit", "--model", "band_nets:bands", "--weights", "w.safetensors"]
    command += ["--train", "train.npz", "--held-out", "held.npz", "--out", "gate"]
    assert main(command) == 0
    capsys.readouterr()
    score = ["score", "new.npz", "--gate", "gate", "--model", "band_nets:bands"]
    assert main(score) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["path"] for row in rows[:2]] == ["new.npz#0", "new.npz#1"]
    assert [row["label"] for row in rows] == [str(n % 3) for n in range(50)]
    assert main([*score, "--copy-flagged", "flagged"]) == 0
    flagged = [f"{row['path']}.png" for row in rows if row["is_ood"]]
    assert flagged
    assert sorted(p.name for p in Path("flagged").glob("*.png")) == sorted(flagged)


def test_the_model_decides_how_grey_pictures_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "band_nets.py").write_text(BANDS_MODULE)
    train = write_images(tmp_path / "train", *stripes(60, 1, np.uint8, 0), ".png")
    held = write_images(tmp_path / "held", *stripes(60, 1, np.uint8, 1), ".png")
    for factory, channels in (("colour", 3), ("grey", 1)):
        out = str(tmp_path / factory)
        command = ["fit", "--model", f"band_nets:{factory}", "--train", train, "--held-out", held]
        assert main([*command, "--out", out]) == 0
        noted = "The model takes images of grey: pictures are read as such."
        assert (noted in capsys.readouterr().err) == (channels == 1)
        model = getattr(__import__("band_nets"), factory)()
        assert load(out, model=model).inputs == ImageInputs(channels, 10, 12)
        # A colour photograph is converted for a grey gate, a file of 13 bands is refused.
        Image.new("RGB", (30, 20), (200, 100, 50)).save("photo.png")
        write_one(np.zeros((13, 10, 12), np.uint16), tmp_path / "tile.tif")
        score = ["score", "photo.png", "tile.tif", "--gate", out]
        assert main([*score, "--model", f"band_nets:{factory}"]) == 1
        photo, tile = (json.loads(line) for line in capsys.readouterr().out.splitlines())
        assert photo["error"] is None
        assert f"tile.tif has 13 channels; {channels} are needed" in tile["error"]


def test_an_unknown_detector_is_said_before_anything_is_read(
    goen: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--model", "nowhere:net", "--train", "nowhere", "--held-out", "nowhere"]
    assert goen("fit", *words, "--detector", "knnn", "--out", tmp_path / "gate") == 2
    assert "Did you mean 'knn'?" in capsys.readouterr().err
