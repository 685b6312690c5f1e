"""Artifacts on disk: tensors as safetensors, everything else as JSON beside them, no pickle."""

import json
from collections.abc import Mapping
from hashlib import file_digest
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from goen.errors import ArtifactError
from goen.files import Own, whole_folder
from goen.runs.manifest import JsonObject
from goen.runs.provenance import versions
from goen.runs.recognise import json_object

FORM = 2
_TENSORS, _MANIFEST = "tensors.safetensors", "manifest.json"
_FIT_REPORT = "report.txt"
FIT_REPORT_TITLE = "A gate for "


def saved(kind: str) -> Own:
    """How to recognise an artefact of this kind with nothing in its folder that saving would lose.

    Beside the artefact there may be the report of ``goen fit``, which is written anew with it.
    """
    parts = frozenset({_TENSORS, _MANIFEST, _FIT_REPORT})

    def recognise(folder: Path) -> bool:
        found = {file.name: file for file in folder.iterdir()}
        report = found.get(_FIT_REPORT)
        if not found.keys() <= parts or not all(file.is_file() for file in found.values()):
            return False
        if report is not None and not report.read_text("utf-8").startswith(FIT_REPORT_TITLE):
            return False
        manifest = json_object(folder / _MANIFEST)
        return manifest["kind"] == kind and {"form", "tensors_sha256"} <= manifest.keys()

    return Own(f"a saved {kind}", recognise, parts)


def save_artifact(
    folder: Path, kind: str, tensors: Mapping[str, Tensor], manifest: JsonObject
) -> None:
    """Write an artefact, whole or not at all, in place of an earlier one of its kind.

    Args:
        folder: becomes the artefact; a link to a folder stays a link.
        kind: what it is, such as ``gate``; loading asks for it.
        tensors: by name.
        manifest: what JSON can hold; the hash of the tensors and the versions are added.

    Raises:
        UsageError: something else lies there.
    """
    with whole_folder(folder, saved(kind)) as temporary:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(plain, temporary / _TENSORS)
        with (temporary / _TENSORS).open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        content = {
            "kind": kind,
            "form": FORM,
            "tensors_sha256": digest,
            "versions": versions(),
            **manifest,
        }
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (temporary / _MANIFEST).write_text(text + "\n", encoding="utf-8")


def load_artifact(folder: Path, kind: str) -> tuple[dict[str, Tensor], JsonObject]:
    """The tensors and the manifest of an artefact, checked to be whole and of this kind.

    Raises:
        ArtifactError: it is not there, not whole, of another kind or of another version's form.
    """
    path = folder / _MANIFEST
    if not path.is_file():
        found = "not a folder" if not folder.is_dir() else f"a folder without {_MANIFEST}"
        raise ArtifactError(
            f"{folder} is {found}, so no saved {kind} is there. `goen run` makes one; name the "
            "run's folder, or the gate/ in it."
        )
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        form, found_kind = manifest["form"], manifest["kind"]
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{path} is damaged ({error}). Save the {kind} again.") from error
    if found_kind != kind:
        raise ArtifactError(f"{folder} holds a {found_kind}; a {kind} was asked for.")
    if form != FORM:
        by = manifest.get("versions", {}).get("goen", "of unknown version")
        raise ArtifactError(
            f"{folder} has form {form}, this goen reads form {FORM}. It was saved by goen {by}: "
            "use that, or make it again."
        )
    tensors = folder / _TENSORS
    try:
        with tensors.open("rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
        if digest != manifest.get("tensors_sha256"):
            expected = str(manifest.get("tensors_sha256"))
            raise ArtifactError(
                f"{tensors} does not belong to its manifest (SHA-256 {digest[:12]}…, expected "
                f"{expected[:12]}…). It is damaged or was exchanged; copy the folder again."
            )
        return load_file(tensors), manifest
    except (OSError, SafetensorError) as error:
        raise ArtifactError(f"{tensors} cannot be read: {error}.") from error


def part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names begin with ``prefix``, without it."""
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file of a finished stage.

    Raises:
        ArtifactError: it is damaged; the message names the folder to delete.
    """
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ArtifactError(
            f"{path} cannot be read: {error}. Delete {path.parent}; it will be made again."
        ) from error
