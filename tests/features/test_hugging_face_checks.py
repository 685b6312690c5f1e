"""A folder from Hugging Face runs no code, opens no file outside itself and sends nothing."""

import json
import pickle
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import goen
from goen.errors import ArtifactError
from goen.features.hugging_face import open_hugging_face
from goen.features.hugging_face_checks import check_config, check_numbers, offline
from tests.features.test_hugging_face import change_config
from tests.features.tiny_models import labelled, saved, transformers

pytestmark = pytest.mark.xdist_group("transformers")
NAME = "resnet10t"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Addresses that were looked up or connected to; none can be reached."""
    found: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        found.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return found


def timm_folder(folder: Path, **fields: object) -> Path:
    """As the hub has timm's own models: their config has no model_type."""
    transformers()
    import timm

    torch.manual_seed(0)
    folder.mkdir()
    save_file(timm.create_model(NAME, num_classes=3).state_dict(), folder / "model.safetensors")
    config = {
        "architecture": NAME,
        "num_classes": 3,
        "label_names": ["wide", "middle", "narrow"],
        "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.25] * 3, "input_size": [3, 32, 32]},
        "architectures": ["TimmWrapperForImageClassification"],
    }
    (folder / "config.json").write_text(json.dumps(config | fields))
    return folder


class _Canary:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_classifier_of_timm_opens(tmp_path: Path, requests: list[object]) -> None:
    folder = timm_folder(tmp_path / "own", model_args={"drop_rate": 0.1, "channels": [8, 8, 8, 8]})
    import timm

    torch.manual_seed(0)
    options = {"num_classes": 3, "channels": [8, 8, 8, 8]}
    network = timm.create_model(NAME, **options).eval()
    save_file(network.state_dict(), folder / "model.safetensors")
    opened = goen.load_model(f"hf:{folder}")
    assert opened.classes == ("wide", "middle", "narrow")
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(opened.model(images).logits, network(images), atol=1e-5)
    assert requests == []


@pytest.mark.parametrize("num_classes", [None, 3])
def test_no_pickle_of_a_classifier_of_timm_is_opened(
    num_classes: int | None, tmp_path: Path, requests: list[object]
) -> None:
    ran = tmp_path / "ran"
    pickled = tmp_path / "weights.pth"
    pickled.write_bytes(pickle.dumps(_Canary(ran)))
    arguments = {"checkpoint_path": str(pickled)}
    folder = timm_folder(tmp_path / "evil", model_args=arguments)
    with pytest.raises(ArtifactError, match="has a field checkpoint_path"):
        open_hugging_face(folder, num_classes=num_classes)
    assert not ran.exists()
    assert requests == []


@pytest.mark.parametrize(
    "architecture",
    ["hf-hub:nobody/nothing", "hf_hub:nobody/nothing", "local-dir:/tmp", "no_such_net", 3],
)
def test_other_architectures_than_timms_own_are_refused(
    architecture: object, tmp_path: Path, requests: list[object]
) -> None:
    folder = timm_folder(tmp_path / "evil", architecture=architecture)
    with pytest.raises(ArtifactError, match=r"names the architecture|cannot be opened"):
        open_hugging_face(folder)
    assert requests == []


@pytest.mark.parametrize(
    "value", ["a/path", {"file": "x"}, [["x"]]], ids=["text", "object", "text in a list"]
)
def test_arguments_of_timm_are_numbers_and_switches(value: object, tmp_path: Path) -> None:
    folder = timm_folder(tmp_path / "evil", model_args={"pretrained_cfg": value})
    with pytest.raises(ArtifactError, match="numbers and switches alone"):
        open_hugging_face(folder)


def test_a_network_of_timm_within_another_config_is_refused(tmp_path: Path) -> None:
    library = transformers()

    class Holder(library.PretrainedConfig):  # type: ignore[misc, name-defined]
        model_type = "holder"
        sub_configs = {"vision_config": library.TimmWrapperConfig}  # noqa: RUF012

    holder = Holder()
    holder.vision_config = library.TimmWrapperConfig(architecture="hf-hub:nobody/nothing")
    with pytest.raises(ArtifactError, match="a network of timm inside"):
        check_config(holder, tmp_path)
    with pytest.raises(ArtifactError, match="a network of timm inside"):
        check_config(library.TimmBackboneConfig(), tmp_path)


@pytest.mark.parametrize("field", ["transformers_weights", "cache_dir", "backbone"])
def test_fields_that_name_files_are_refused_at_any_depth(field: str, tmp_path: Path) -> None:
    folder = saved("text", tmp_path / "bert")
    change_config(folder, parts=[{"inner": {field: "../elsewhere"}}])
    with pytest.raises(ArtifactError, match=f"has a field {field}, which makes libraries open"):
        open_hugging_face(folder)
    change_config(folder, parts=[{"inner": {field: None}}])
    open_hugging_face(folder)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/outside.safetensors", "..\\o.safetensors", "a.bin", 3]
)
def test_an_index_names_files_of_its_folder(name: object, tmp_path: Path) -> None:
    folder = saved("text", tmp_path / "bert")
    (folder / "model.safetensors").rename(tmp_path / "outside.safetensors")
    index = {"metadata": {}, "weight_map": {"classifier.bias": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ArtifactError, match=r"index.json names .*in the same folder"):
        open_hugging_face(folder)


def test_an_index_of_parts_opens(tmp_path: Path) -> None:
    folder = saved("text", tmp_path / "bert")
    whole = goen.load_model(f"hf:{folder}")
    whole.model.save_pretrained(folder, max_shard_size="20KB")  # type: ignore[operator]
    (folder / "model.safetensors").unlink(missing_ok=True)
    assert (folder / "model.safetensors.index.json").is_file()
    parts = goen.load_model(f"hf:{folder}")
    inputs, _ = labelled("text", 5, 0)
    given = {name: torch.from_numpy(np.asarray(value)) for name, value in inputs.items()}
    assert torch.equal(parts.model(**given).logits, whole.model(**given).logits)


def test_opening_a_folder_sends_nothing(
    tmp_path: Path, requests: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """huggingface_hub asks once a day for a list of programs that it reports in its requests."""
    folder = saved("text", tmp_path / "bert")
    detection = pytest.importorskip("huggingface_hub.utils._detect_agent")
    monkeypatch.setattr(detection, "_registry", None)
    monkeypatch.setattr(detection.constants, "AGENT_HARNESSES_PATH", str(tmp_path / "list.json"))
    open_hugging_face(folder)
    assert requests == []
    monkeypatch.setattr(detection, "_registry", None)
    monkeypatch.setattr(detection.constants, "HF_HUB_OFFLINE", False)
    detection.detect_agent()
    assert requests  # so the test would have noticed


def test_offline_is_undone() -> None:
    transformers()
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    with pytest.raises(KeyError), offline():
        assert constants.HF_HUB_OFFLINE is True
        raise KeyError
    assert constants.HF_HUB_OFFLINE is before


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_hidden_layers": 2**53}, "num_hidden_layers = 9007199254740992; at most 2,000"),
        ({"intermediate_size": 10**9}, "intermediate_size = 1000000000; at most 20,000,000"),
        ({"intermediate_size": 10**7}, r"a model of [\d,]{11,} bytes, and its weights have"),
        ({"image_size": [20_000, 20_000]}, r"a model of [\d,]{11,} bytes, and its weights have"),
    ],
)
@pytest.mark.parametrize("num_classes", [None, 3])
def test_no_config_asks_for_more_than_its_weights(
    num_classes: int | None, fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    folder = saved("image", tmp_path)
    change_config(folder, **fields)
    with pytest.raises(ArtifactError, match=message):
        open_hugging_face(folder, num_classes=num_classes)


def test_the_base_of_rotary_positions_is_no_size(tmp_path: Path) -> None:
    check_numbers({"rope_theta": 50_000_000, "rope_parameters": {"rope_theta": 10**12}}, tmp_path)
    with pytest.raises(ArtifactError, match="at most 1,000,000,000,000 is read"):
        check_numbers({"rope_theta": 10**400}, tmp_path)


def test_offline_is_for_one_thread_at_a_time() -> None:
    transformers()
    from huggingface_hub import constants

    before, seen = constants.HF_HUB_OFFLINE, []
    inside, leave = threading.Event(), threading.Event()

    def first() -> None:
        with offline():
            inside.set()
            assert leave.wait(60)

    def second() -> None:
        with offline():
            seen.append(constants.HF_HUB_OFFLINE)

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    threads[1].join(0.2)
    assert seen == []
    leave.set()
    for thread in threads:
        thread.join(60)
    assert seen == [True]
    assert constants.HF_HUB_OFFLINE is before
