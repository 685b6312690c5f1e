"""Gates that come with the package, by name."""

from pathlib import Path

GATES = Path(__file__).parent
DEFAULT_GATE = "cifar10-w16"


def shipped() -> tuple[str, ...]:
    """The names of the gates in the package, sorted."""
    return tuple(sorted(manifest.parent.name for manifest in GATES.glob("*/manifest.json")))


def shipped_folder(name: str) -> Path | None:
    """Where the gate of this name lies; ``None`` if none of that name is shipped."""
    return GATES / name if name in shipped() else None
