"""The gates that come with the package, by name."""

from pathlib import Path

_FOLDER = Path(__file__).parent
DEFAULT_GATE = "cifar10"
# Names that stay when a better gate comes.
_BEST = {"cifar10": "cifar10-ensemble"}


def bundled_gates() -> tuple[str, ...]:
    """The names of the bundled gates, sorted; ``cifar10`` is the best one for CIFAR-10."""
    folders = {manifest.parent.name for manifest in _FOLDER.glob("*/manifest.json")}
    return tuple(sorted(folders | {name for name, best in _BEST.items() if best in folders}))


def bundled_folder(name: str) -> Path | None:
    """The folder of the bundled gate of this name; ``None`` if there is none."""
    return _FOLDER / _BEST.get(name, name) if name in bundled_gates() else None
