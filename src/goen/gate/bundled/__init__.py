"""The gates that come with the package, by name."""

from pathlib import Path

_FOLDER = Path(__file__).parent
DEFAULT_GATE = "cifar10-w16"


def bundled_gates() -> tuple[str, ...]:
    """The names of the bundled gates, sorted."""
    return tuple(sorted(manifest.parent.name for manifest in _FOLDER.glob("*/manifest.json")))


def bundled_folder(name: str) -> Path | None:
    """The folder of the bundled gate of this name; ``None`` if there is none."""
    return _FOLDER / name if name in bundled_gates() else None
