"""``goen run`` on a tiny scale: complete, with the origin of every number, safe to kill."""

import contextlib
import hashlib
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_tensors
from safetensors.torch import save_file
from torch import Tensor

import goen
from goen.data import ImageSet, Protocol
from goen.data.protocols.generated import VALIDATION_SEED
from goen.errors import ArtifactError, FitError, GoenWarning, LeakError, UsageError
from goen.io.results import read_results
from goen.io.stages import Stages
from goen.models.placement import find_device
from goen.report import write_report
from goen.report.summary import read_summary
from goen.studies import (
    METHODS,
    PRESETS,
    AblateConfig,
    BenchConfig,
    RobustConfig,
    RunConfig,
    ablate,
    bench,
    geometry,
    robust,
    run,
    seeds,
)
from goen.training import TrainingConfig
from tests.tiny import TINY, tiny_protocol


@pytest.fixture(scope="module")
def protocol() -> Protocol:
    return tiny_protocol()


@pytest.fixture(scope="module")
def finished(protocol: Protocol, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and its stages; not to be changed."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "tiny", TINY)  # type: ignore[arg-type]
        run(RunConfig(preset="tiny"), protocol, folder / "run")
    return folder


@pytest.fixture(scope="module")
def stages(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Stages:
    """A copy of the stages of the finished run, to which tests may add others."""
    return Stages(shutil.copytree(finished / "stages", tmp_path_factory.mktemp("all") / "stages"))


@pytest.fixture(autouse=True)
def _tiny_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "tiny", TINY)  # type: ignore[arg-type]


def digest(folder: Path) -> dict[str, str]:
    """The content of what a run and its stages leave, but for the wall-clock seconds."""

    def content(path: Path) -> bytes:
        if path.name != "outputs.safetensors":
            return path.read_bytes()
        tensors = load_tensors(path)
        return b"".join(
            name.encode() + tensors[name].numpy().tobytes()
            for name in sorted(tensors.keys() - {"seconds"})
        )

    return {
        str(path.relative_to(folder)): hashlib.sha256(content(path)).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name != "training.jsonl"
        and path.suffix != ".lock"
        and ".tmp" not in str(path)
    }


def test_a_run_is_complete_and_every_number_has_its_origin(
    protocol: Protocol, tmp_path: Path
) -> None:
    gate = run(RunConfig(preset="tiny"), protocol, tmp_path / "run")
    results = read_results(tmp_path / "run" / "results.jsonl")
    named = {
        i.name: f"{i.name}:{i.fingerprint}"
        for i in (protocol.train, protocol.calibration_id, protocol.held_out)
    }
    train, calibration, held_out = named.values()
    found = {(r.method, r.dataset) for r in results}
    sets = set(protocol.evaluation)
    methods = {"max_softmax", "goen_distance", "goen", "gate"}
    assert found == {(m, s) for m in methods for s in sets} | {
        (m, "test") for m in (*methods, "classifier")
    }
    for r in results:
        assert r.fitted_on == (train,)
        assert np.isfinite(r.value)
        assert (r.low is not None) == (r.metric in ("auroc", "error_auroc"))
        if r.method == "goen":
            assert calibration in r.calibrated_on
            assert held_out not in r.calibrated_on
            assert r.seen_in_calibration == (r.dataset not in ("unseen-digits", "test"))
        if r.method in ("max_softmax", "goen_distance", "classifier"):
            assert r.calibrated_on == ()
            assert not r.seen_in_calibration
        if r.method == "gate":
            assert held_out in r.calibrated_on
    assert gate.metadata["splits"]["train"]["fingerprint"] == protocol.train.fingerprint
    assert goen.load(tmp_path / "run").threshold == gate.threshold


def test_the_numbers_are_those_of_the_scores(protocol: Protocol, tmp_path: Path) -> None:
    gate = run(RunConfig(preset="tiny"), protocol, tmp_path / "run")
    scores = load_file(tmp_path / "run" / "scores.safetensors")
    by_key = {
        (r.method, r.dataset, r.metric): r.value
        for r in read_results(tmp_path / "run" / "results.jsonl")
    }
    for name, ood in protocol.evaluation.items():
        a, b = scores["test/goen"], scores[f"{name}/goen"]
        wins = (b[:, None] > a).mean() + 0.5 * (b[:, None] == a).mean()
        assert np.isclose(by_key["goen", name, "auroc"], wins)
        p = gate.predict(ood.images)
        assert np.isclose(by_key["gate", name, "flagged"], p.is_ood.mean())
    labels = protocol.test.labels
    assert (
        by_key["classifier", "test", "accuracy"]
        == (scores["test/logits"].argmax(1) == labels).mean()
    )


def test_the_second_run_repeats_nothing_and_changes_nothing(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(RunConfig(preset="tiny"), protocol, tmp_path / "run")
    before = digest(tmp_path)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("done again")

    monkeypatch.setattr("goen.studies.networks.train_backbone", never)
    monkeypatch.setattr("goen.studies.networks.stream", never)
    run(RunConfig(preset="tiny"), protocol, tmp_path / "run")
    assert digest(tmp_path) == before
    with pytest.raises(AssertionError, match="done again"):
        run(RunConfig(preset="tiny", seed=1), protocol, tmp_path / "run")


def test_another_calibration_shares_the_network(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(RunConfig(preset="tiny"), protocol, tmp_path / "run")
    monkeypatch.setattr("goen.studies.networks.train_backbone", None)
    monkeypatch.setattr("goen.studies.networks.stream", None)  # of the evaluation sets
    noise_alone = {"noise": protocol.calibration_ood["noise"]}
    chosen = replace(protocol, calibration_ood=noise_alone)
    noise = run(RunConfig(preset="tiny"), chosen, tmp_path / "run")
    rows = read_results(tmp_path / "run" / "results.jsonl")
    assert {r.dataset for r in rows if r.seen_in_calibration} == {"noise"}
    assert noise.detector.has_probability
    assert read_summary(tmp_path / "run").calibration_ood == {"noise"}
    chosen = replace(protocol, calibration_ood={})
    none = run(RunConfig(preset="tiny"), chosen, tmp_path / "run")
    rows = read_results(tmp_path / "run" / "results.jsonl")
    assert not none.detector.has_probability
    assert not any(r.seen_in_calibration for r in rows)
    assert {r.method for r in rows} == {"classifier", "gate", "max_softmax", "goen_distance"}
    with pytest.raises(UsageError, match=r"goen-m, fitted with OOD is fitted with OOD images, and"):
        run(RunConfig(preset="tiny", detector="goen_m_ood"), chosen, tmp_path / "other")


GATES = [
    key
    for key, method in METHODS.items()
    if method.network in ("standard", "goen")
    and method.section != "tuned"
    and not str(method.forward_mode).startswith("last_map")
]

ALONE = {key for key, m in METHODS.items() if m.section != "tuned"} - {*GATES}


@pytest.mark.parametrize("detector", GATES)
def test_a_run_makes_a_gate_of_any_detector(
    stages: Stages, protocol: Protocol, tmp_path: Path, detector: str
) -> None:
    config = RunConfig(preset="tiny", detector=detector)
    run(config, protocol, tmp_path / "run", stages)
    scores = load_file(tmp_path / "run" / "scores.safetensors")
    gate = goen.load(tmp_path / "run")
    for name, ood in protocol.evaluation.items():
        prediction = gate.predict(ood.images)
        assert np.allclose(prediction.score, scores[f"{name}/{detector}"], rtol=1e-4, atol=1e-4)
        assert (prediction.is_ood == scores[f"{name}/is_ood"]).all()


@pytest.mark.parametrize("detector", ["max_softmax", "odin", "goen_m_ood"])
def test_the_report_of_a_run_with_any_detector(
    stages: Stages,
    protocol: Protocol,
    tmp_path: Path,
    detector: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("goen.report.figures.style.FORMS", ("svg",))
    config = RunConfig(preset="tiny", detector=detector)
    run(config, protocol, tmp_path / "run", stages)
    text = write_report(tmp_path / "run").read_text(encoding="utf-8")
    assert METHODS[detector].title in text


def test_parameters_that_ood_images_choose_are_no_detector_of_a_run() -> None:
    with pytest.raises(UsageError, match="Unknown detector 'knn_tuned'"):
        RunConfig(detector="knn_tuned")


@pytest.mark.parametrize("detector", sorted(ALONE))
def test_a_detector_with_a_network_of_its_own_is_refused(detector: str) -> None:
    with pytest.raises(UsageError, match="has a network of its own"):
        RunConfig(detector=detector)


def test_what_stopped_the_training_is_named_in_every_row(
    protocol: Protocol, tmp_path: Path
) -> None:
    run(RunConfig(preset="tiny", budget="paper", false_alarm_rate=0.1), protocol, tmp_path / "run")
    images = protocol.validation  # all of them; the threshold comes from test images
    results = read_results(tmp_path / "run" / "results.jsonl")
    for row in results:
        assert f"{images.name}:{images.fingerprint}" in row.fitted_on
    gate = goen.load(tmp_path / "run")
    held_out = protocol.test.split({"x": len(protocol.test) // 5}, VALIDATION_SEED)["x"]
    assert len(gate.held_out) == len(held_out)
    others = protocol.test.without(held_out)
    flagged = gate.predict(others.read()).is_ood.mean()
    assert flagged == next(r.value for r in results if r.metric == "false_alarm_rate")


def test_an_interrupted_second_run_cannot_be_mixed_with_the_first(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(RunConfig(preset="tiny"), protocol, tmp_path / "run")
    write_report(tmp_path / "run")

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("goen.studies.gate_evaluation.find_mistakes", killed)
    with pytest.raises(KeyboardInterrupt):
        run(RunConfig(preset="tiny"), replace(protocol, calibration_ood={}), tmp_path / "run")
    assert not (tmp_path / "run" / "report.html").exists()
    with pytest.raises(ArtifactError, match="does not hold a finished run"):
        write_report(tmp_path / "run")


@pytest.mark.parametrize("name", ["gate/thesis.txt", "results.jsonl", "notes.txt"])
def test_what_goen_did_not_write_is_found_before_anything_is_trained(
    protocol: Protocol, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.studies.experiment.train", lambda *_: pytest.fail("it has begun"))
    (tmp_path / "run" / name).parent.mkdir(parents=True)
    (tmp_path / "run" / name).write_text("years of work")
    with pytest.raises(UsageError, match="goen leaves it as it is"):
        run(RunConfig(preset="tiny"), protocol, tmp_path / "run")
    assert (tmp_path / "run" / name).read_text() == "years of work"


def test_a_mistake_or_a_stopped_training_leaves_the_earlier_run_whole(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(RunConfig(preset="tiny"), protocol, tmp_path / "run")
    write_report(tmp_path / "run")
    before = digest(tmp_path)
    with pytest.raises(FitError):
        run(RunConfig(preset="tiny", false_alarm_rate=0.001), protocol, tmp_path / "run")

    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("goen.studies.networks.train_backbone", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(RunConfig(preset="tiny", seed=1), protocol, tmp_path / "run")
    assert digest(tmp_path) == before


def test_a_stopped_evaluation_leaves_the_earlier_run_whole(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(RunConfig(preset="tiny"), protocol, tmp_path / "run")
    before = digest(tmp_path)

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("goen.studies.gate_evaluation._results", stopped)
    with pytest.raises(KeyboardInterrupt):
        run(RunConfig(preset="tiny"), protocol, tmp_path / "run")
    assert digest(tmp_path) == before


def test_bad_values_are_found_before_anything_is_trained(
    protocol: Protocol, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goen.studies.networks.train_backbone", None)
    with pytest.raises(FitError, match="needs at least 999 held-out scores, got 48"):
        run(RunConfig(preset="tiny", false_alarm_rate=0.001), protocol, tmp_path / "run")
    for bad in ({"seed": -1}, {"seed": 10**20}, {"center_loss": -0.1}):
        with pytest.raises(UsageError):
            run(RunConfig(preset="tiny", **bad), protocol, tmp_path / "run")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"budget": "ful"}, "Unknown budget 'ful'. Did you mean 'full'"),
        ({"representation": "plane"}, "Did you mean 'plain'"),
        ({"center_loss": float("nan")}, "center_loss must be a number, at least 0; got nan"),
        ({"head_epochs": -1}, "head_epochs must be an integer, at least 0; got -1"),
    ],
)
def test_an_invalid_choice_is_an_error(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        RunConfig(**wrong)


def test_the_representation_is_the_presets_unless_another_is_asked_for(protocol: Protocol) -> None:
    def chosen(**options: str) -> str:
        return RunConfig(**options).preset_for(protocol).network.representation  # type: ignore[arg-type]

    assert chosen(preset="cpu") == chosen(preset="fast", representation="multi_scale")
    assert chosen(preset="cpu") == "multi_scale"
    assert chosen(preset="fast") == chosen(preset="cpu", representation="plain") == "plain"


def test_the_head_trains_as_long_as_asked(protocol: Protocol) -> None:
    assert RunConfig(preset="cpu").preset_for(protocol).head.epochs == 20
    assert RunConfig(preset="cpu", head_epochs=10).preset_for(protocol).head.epochs == 10


@pytest.mark.parametrize("representation", ["single_scale", "concat", "plain"])
def test_the_variants_run(protocol: Protocol, tmp_path: Path, representation: str) -> None:
    config = RunConfig(preset="tiny", representation=representation, center_loss=0.01)
    gate = run(config, protocol, tmp_path / "run")
    assert gate.network.config.representation == representation
    assert np.isfinite(gate.held_out.scores).all()


def test_validation_images_are_split_into_calibration_and_held_out(protocol: Protocol) -> None:
    calibration, held_out = protocol.calibration_id, protocol.held_out
    assert (len(calibration), len(held_out)) == (72, 48)
    assert calibration.overlap(held_out) == 0


SCRIPT = """
import sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from goen.studies import RunConfig, run
from goen.report import write_report
from tests.tiny import register, tiny_protocol
register()
config = RunConfig(preset="tiny", budget="paper", center_loss=0.01, false_alarm_rate=0.1)
out = Path(sys.argv[1], "run")
run(config, tiny_protocol(), out)
write_report(out)
"""


def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    def start(folder: Path) -> subprocess.Popen[bytes]:
        root = Path(__file__).parents[2]
        command = [sys.executable, "-c", SCRIPT, str(folder)]
        return subprocess.Popen(command, cwd=root, stderr=subprocess.DEVNULL)

    assert start(tmp_path / "whole").wait(120) == 0
    moments = random.Random(0)
    for _ in range(3):
        process = start(tmp_path / "killed")
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moments.uniform(2, 5))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(tmp_path / "killed").wait(120) == 0
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")


Config = RunConfig | AblateConfig | BenchConfig | RobustConfig
STUDIES: list[tuple[Callable[..., object], Config]] = [
    (run, RunConfig(preset="tiny")),
    (seeds, RunConfig(preset="tiny")),
    (ablate, AblateConfig(preset="tiny")),
    (geometry, AblateConfig(preset="tiny")),
    (bench, BenchConfig(("goen",), preset="tiny")),
    (robust, RobustConfig(("goen",), preset="tiny")),
]


@pytest.mark.parametrize(
    ("study", "config"), STUDIES, ids=lambda value: getattr(value, "__name__", "")
)
def test_every_study_trains_on_the_device_that_was_asked_for(
    study: Callable[..., object],
    config: Config,
    protocol: Protocol,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def training(*_: object, device: object, **__: object) -> None:
        raise AssertionError(f"training on {device}")

    monkeypatch.setattr("goen.studies.networks.train_backbone", training)
    for asked, found in (("cpu:0", "cpu:0"), ("auto", find_device("auto"))):
        with pytest.raises(AssertionError, match=f"training on {found}$"):
            study(replace(config, device=asked), protocol, tmp_path / "run")
    with pytest.raises(UsageError, match="no device 'gpu' on this machine"):
        study(replace(config, device="gpu"), protocol, tmp_path / "run")


@pytest.mark.parametrize(
    ("study", "config"), STUDIES, ids=lambda value: getattr(value, "__name__", "")
)
def test_every_study_trains_in_the_precision_that_was_asked_for(
    study: Callable[..., object],
    config: Config,
    protocol: Protocol,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def training(_: object, settings: TrainingConfig, *__: object, **___: object) -> None:
        raise AssertionError(f"training in {settings.precision}")

    monkeypatch.setattr("goen.studies.networks.train_backbone", training)
    for asked, found in (("auto", "float32"), ("bfloat16", "bfloat16")):
        with pytest.raises(AssertionError, match=f"training in {found}$"):
            study(replace(config, device="cpu", precision=asked), protocol, tmp_path / "run")
    with pytest.raises(UsageError, match="Unknown precision 'half'"):
        study(replace(config, precision="half"), protocol, tmp_path / "run")
    monkeypatch.setattr("goen.studies.experiment.find_device", torch.device)
    for capability, found in (((7, 5), "float32"), ((8, 0), "bfloat16")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, has=capability: has)
        with pytest.raises(AssertionError, match=f"training in {found}$"):
            study(replace(config, device="cuda"), protocol, tmp_path / "run")


@pytest.mark.parametrize(
    ("file", "harm"),
    [
        ("backbone-*/network.safetensors", {"conv1.weight": torch.zeros(1)}),
        ("backbone-*/training.jsonl", "[1]\n"),
        ("backbone-*/training.jsonl", "[" * 2000),
        ("outputs-*/outputs.safetensors", {"feature.z": torch.zeros(3, 3)}),
        ("outputs-*/outputs.safetensors", {}),
    ],
)
def test_a_damaged_stage_is_one_sentence_that_says_what_to_delete(
    finished: Path, protocol: Protocol, tmp_path: Path, file: str, harm: dict[str, Tensor] | str
) -> None:
    shutil.copytree(finished, tmp_path / "all")
    (path, *_) = (tmp_path / "all" / "stages").glob(file)
    if isinstance(harm, str):
        path.write_text(harm)
    else:
        save_file({**(load_tensors(path) if harm else {}), **harm}, path)
    with pytest.raises(
        ArtifactError, match=rf"is damaged: .* Delete .*{path.parent.name}; it will"
    ):
        run(RunConfig(preset="tiny"), protocol, tmp_path / "all" / "run")


def test_the_folder_may_be_a_text(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Unknown preset 'none'"):  # after the folder was made
        run(RunConfig(preset="none"), tiny_protocol(), str(tmp_path / "out"))
    assert (tmp_path / "out").is_dir()


def test_an_update_of_its_gate_notices_the_images_of_the_run(
    finished: Path, protocol: Protocol
) -> None:
    gate = goen.load(finished / "run")
    for images, role in ((protocol.validation, "calibration"), (protocol.train, "train")):
        rows = images.take(range(1, len(images)))  # not the set itself, which has a fingerprint
        with pytest.raises(LeakError, match=f"images of held_out are in the gate's {role} already"):
            gate.update(held_out=rows)
    again = gate.update(held_out=protocol.held_out).gate
    assert again.threshold == pytest.approx(gate.threshold)
    kind = {"other": protocol.evaluation["unseen-digits"].images}
    with pytest.raises(UsageError, match="every kind of OOD images again: noise, photographs"):
        gate.update(held_out=protocol.held_out, ood=kind)


def test_one_class_and_the_choice_of_a_detector_are_refused_before_anything(tmp_path: Path) -> None:
    p = tiny_protocol()
    one = [images.of_classes(("0",), images.name) for images in (p.train, p.validation, p.test)]
    alone = Protocol.from_sets(*one, {"far": {"noise": p.evaluation["noise"].images}})
    with pytest.raises(UsageError, match=r"has one class \(0\), and a classifier needs two"):
        run(RunConfig(preset="tiny"), alone, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UsageError, match="goen bench on the same images names the best one"):
        RunConfig(detector="best")


def test_held_out_images_that_are_near_copies_of_training_images_are_a_warning(
    protocol: Protocol, tmp_path: Path
) -> None:
    originals = protocol.train.take(range(120))
    darker = np.where(originals.read() > 1, originals.read() - 1, 0).astype(np.uint8)
    copies = ImageSet("copies", darker, originals.labels, originals.classes)
    copied = replace(protocol, validation=copies)
    config = RunConfig(preset="tiny", detector="goen_m")
    with pytest.warns(GoenWarning, match="held-out images lie nearer to a training image"):
        run(config, copied, tmp_path / "copied")
