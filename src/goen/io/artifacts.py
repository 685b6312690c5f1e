"""Artifacts on disk: tensors as safetensors, everything else as JSON beside them, no pickle."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from goen.errors import ArtifactError, GoenError, UsageError
from goen.io.files import file_sha256, whole_folder
from goen.io.json_files import json_object
from goen.io.limits import JSON_BYTES
from goen.io.manifest import JsonObject, Manifest
from goen.io.provenance import versions
from goen.io.tensors import Tensors, read_tensors

FORM = 2
_TENSORS, _MANIFEST = "tensors.safetensors", "manifest.json"
# Seconds in which a folder that is replaced is there again; two renames take a millisecond.
_BETWEEN_RENAMES = 0.05
FIELDS = ("kind", "form", "tensors_sha256", "versions")
"""The fields of every manifest; what else there is depends on its kind."""


def artifact_files(folder: Path) -> list[Path]:
    """The files of an artefact in this folder, without reports beside them."""
    return [folder / _TENSORS, folder / _MANIFEST]


def save_artifact(
    folder: Path,
    kind: str,
    tensors: Mapping[str, Tensor],
    manifest: JsonObject,
    *,
    overwrite: bool = False,
) -> None:
    """Write an artefact, whole or not at all.

    Args:
        folder: becomes the artefact; a link to a folder stays a link.
        kind: what it is, such as ``gate``; loading asks for it.
        tensors: by name.
        manifest: what JSON can hold; the hash of the tensors and the versions are added.
        overwrite: whether an earlier one of its kind may be replaced.

    Raises:
        UsageError: what is there may not be replaced, or the manifest is larger than can be
            loaded.
    """
    with whole_folder(folder, kind, overwrite=overwrite) as temporary:
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        save_file(plain, temporary / _TENSORS)
        content = {
            "kind": kind,
            "form": FORM,
            "tensors_sha256": file_sha256(temporary / _TENSORS),
            "versions": versions(),
            **manifest,
        }
        (temporary / _MANIFEST).write_bytes(_as_bytes(content, kind))


def _as_bytes(manifest: JsonObject, kind: str) -> bytes:
    """The manifest as the content of its file."""
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(
            f"A name in this {kind} is not Unicode: {text[error.start - 20 : error.end]!r}. Rename "
            "the class or the file that it comes from."
        ) from error
    if len(data) > JSON_BYTES:
        raise UsageError(
            f"The manifest of this {kind} would have {len(data):,} bytes; at most {JSON_BYTES:,} "
            "are loaded. Shorten the names of the classes, or what was added to the facts."
        )
    return data


def load_artifact(folder: Path, kind: str) -> tuple[Tensors, Manifest]:
    """The tensors and the manifest of an artefact, checked to be whole and of this kind.

    One that was replaced while it was read is read again, once.

    Raises:
        ArtifactError: it is not there, not whole, of another kind or of another version's form.
    """
    before = _identity(folder)
    try:
        return _read_artifact(folder, kind)
    except ArtifactError:
        if before is not None and before == _identity(folder):
            raise
    time.sleep(_BETWEEN_RENAMES)
    return _read_artifact(folder, kind)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Another one for another folder of this name; ``None`` if there is none."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _read_artifact(folder: Path, kind: str) -> tuple[Tensors, Manifest]:
    manifest, path = read_manifest(folder, kind), folder / _TENSORS
    try:
        return read_tensors(path, manifest.text("tensors_sha256")), manifest
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} cannot be read: {error}.") from error


def read_manifest(folder: Path, kind: str) -> Manifest:
    """The manifest of an artefact of this kind, without its tensors.

    Raises:
        ArtifactError: it is not there, damaged, of another kind or of another version's form.
    """
    path = folder / _MANIFEST
    if not path.is_file():
        found = "not a folder" if not folder.is_dir() else f"a folder without {_MANIFEST}"
        raise ArtifactError(
            f"{folder} is {found}, so no saved {kind} is there. `goen fit` makes one for your own "
            "model, `goen run` trains one: name the folder."
        )
    try:
        manifest = Manifest(json_object(path))
        found_kind, form = manifest.text("kind"), manifest.integer("form")
        part = manifest.part("versions")
        saved_by = {name: part.text(name) for name in part.content}
        manifest.text("tensors_sha256")
    except (OSError, ValueError) as error:
        raise ArtifactError(f"{path} is damaged: {error}. Save the {kind} again.") from error
    if found_kind != kind:
        raise ArtifactError(f"{folder} holds a {found_kind[:80]}; a {kind} was asked for.")
    if form != FORM:
        raise ArtifactError(
            f"{folder} has form {str(form)[:80]}, this goen reads form {FORM}. It was saved by "
            f"goen {saved_by.get('goen', 'of unknown version')[:80]}: use that, or make it again."
        )
    return manifest


@contextmanager
def reading_stage(folder: Path) -> Iterator[None]:
    """Read the files of a finished stage in this block: what is wrong with them is one error.

    Raises:
        ArtifactError: a file is damaged; the message names the folder to delete.
    """
    try:
        yield
    except (GoenError, OSError, ValueError, LookupError, RuntimeError, TypeError) as error:
        raise ArtifactError(
            f"{folder} is damaged: {error}. Delete {folder}; it will be made again."
        ) from error
