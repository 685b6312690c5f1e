"""Damaged and forged folders of Hugging Face: refused with a sentence, or a model comes of them.

Whatever their files say, no address is asked, no file beside the folder is opened, and none is
written. The hook that sees this stays in the process; it looks only while a case runs.
"""

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from goen.errors import ArtifactError, UsageError
from goen.features.hugging_face import open_hugging_face
from tests.features.tiny_models import IMAGE, bert, vit, wav2vec2
from tests.fuzz.case import Broken, Fuzzer
from tests.fuzz.gates import check_message
from tests.fuzz.json_damage import damaged_json

_INDEX = "model.safetensors.index.json"
# Fields that libraries have read names of files, modules or addresses from, or may.
_FIELDS = (
    *("_name_or_path", "auto_map", "backbone", "backbone_config", "base_model_name_or_path"),
    *("cache_dir", "checkpoint_path", "config_file", "custom_pipelines", "feature_extractor_type"),
    *("image_processor_type", "kernel_config", "model_args", "model_type", "pretrained_cfg"),
    *("pretrained_cfg_overlay", "processor_class", "quantization_config", "tokenizer_class"),
    *("transformers_weights", "use_timm_backbone", "vocab_file", "weight_map", "architecture"),
    *("_commit_hash", "torch_dtype", "attn_implementation", "_attn_implementation", "dtype"),
    *("architectures", "code_revision", "trust_remote_code", "token", "subfolder", "revision"),
)
_CONNECTING = ("socket.connect", "socket.getaddrinfo", "socket.sendto", "urllib.Request")
_STARTING = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "pickle.find_class")

_seen: list[str] | None = None
_outside = _inside = ""
_hooked = False


def _look(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what no folder may bring about."""
    if _seen is None:
        return
    if event in (*_CONNECTING, *_STARTING):
        _seen.append(f"{event} {arguments!r:.200}")
    elif event == "open" and isinstance(arguments[0], (str, bytes)):
        path, flags = os.path.realpath(os.fsdecode(arguments[0])), arguments[2]
        writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR)
        if path.startswith(_outside) or (writes and not path.startswith((_inside, "/dev/"))):
            _seen.append(f"opened {path} {arguments[1:]}")


@contextmanager
def _watched(inside: Path, outside: Path) -> Iterator[list[str]]:
    global _seen, _inside, _outside, _hooked
    if not _hooked:
        sys.addaudithook(_look)
        _hooked = True
    _inside, _outside = os.path.realpath(inside), os.path.realpath(outside)
    _seen = found = []
    try:
        yield found
    finally:
        _seen = None


def _timm() -> tuple[dict[str, Any], nn.Module]:
    import timm

    config = {
        "architecture": "resnet10t",
        "num_classes": 3,
        "label_names": ["a", "b", "c"],
        "model_args": {"channels": [8, 8, 8, 8]},
        "pretrained_cfg": {"mean": [0.5] * 3, "std": [0.25] * 3, "input_size": [3, 32, 32]},
        "architectures": ["TimmWrapperForImageClassification"],
    }
    model: nn.Module = timm.create_model("resnet10t", num_classes=3, channels=[8, 8, 8, 8])
    return config, model


class FolderFuzzer(Fuzzer):
    """Damages config.json, the index of weights and preprocessor_config.json of four models."""

    name = "folders"
    seconds = 10.0
    megabytes = 600.0

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._bases = []
        for number, make in enumerate((vit, bert, wav2vec2)):
            base = folder / f"base-{number}"
            make().save_pretrained(base, max_shard_size="40KB")  # type: ignore[operator]
            (base / "preprocessor_config.json").write_text(json.dumps(IMAGE))
            self._bases.append(base)
        from safetensors.torch import save_file

        config, model = _timm()
        base = folder / "base-3"
        base.mkdir()
        (base / "config.json").write_text(json.dumps(config))
        save_file(model.state_dict(), base / "model.safetensors")
        self._bases.append(base)
        self._outside = folder / "outside"
        self._outside.mkdir()
        for name in ("weights.pth", "weights.safetensors", "config.json", "net.py"):
            (self._outside / name).write_text("{}")

    def run(self, draw: random.Random) -> str:
        base, case = draw.choice(self._bases), self.folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(base, case)
        names = ["config.json", "config.json", "preprocessor_config.json", _INDEX]
        name = draw.choice([n for n in names if (case / n).is_file()])
        content = json.loads((case / name).read_text())
        self.what = f"{base.name} {name}"
        if draw.random() < 0.6:
            self._forge(draw, content)
        text = json.dumps(content).encode()
        if draw.random() < 0.7 or self.what == f"{base.name} {name}":
            text, how = damaged_json(draw, content)
            self.what += f": {how}"
        (case / name).write_bytes(text)
        with _watched(case, self._outside) as seen:
            outcome = self._open(case, num_classes=None if draw.random() < 0.7 else 3)
        if seen:
            raise Broken(f"a folder made the process do this: {seen[:3]}")
        return outcome

    def _forge(self, draw: random.Random, content: dict[str, Any]) -> None:
        """Put a name of something elsewhere into a field, at any depth."""
        place: Any = content
        while draw.random() < 0.4:
            inner = [part for part in place.values() if isinstance(part, dict)]
            if not inner:
                break
            place = draw.choice(inner)
        out = str(self._outside)
        value: Any = draw.choice(
            (
                *(f"{out}/weights.pth", f"{out}/weights.safetensors", f"{out}/config.json", out),
                *("../outside/weights.pth", "../outside", "file:///etc/passwd"),
                *("http://127.0.0.1:9/x", "hf-hub:nobody/none", "local-dir:/tmp", "nobody/none"),
                *("net.Net", "nobody/none--net.Net", "timm_wrapper", "timm_backbone", "vit"),
                *("kernels-community/flash-attn", "flash_attention_2", "float8", True, 10**6),
            )
        )
        value = draw.choice((value, value, [value], {"AutoConfig": value}, {"a": value}))
        field = draw.choice((*_FIELDS, *place)) if place else draw.choice(_FIELDS)
        place[field] = value
        self.what += f" {field}={value!r}"

    def _open(self, folder: Path, *, num_classes: int | None) -> str:
        try:
            loaded = open_hugging_face(folder, num_classes=num_classes)
            loaded.preprocess(images=True)
        except (ArtifactError, UsageError) as error:  # and ExtraMissing
            check_message(error)
            return "refused"
        return "opened"
