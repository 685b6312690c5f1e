import os
import subprocess
import sys
from pathlib import Path

_SCRIPT = """
from goen.gate.export.conversion import load_onnxruntime
import os
before = dict(os.environ)
onnxruntime = load_onnxruntime()
assert dict(os.environ) == before
assert onnxruntime.SessionOptions() is not None
"""


def test_onnxruntime_is_imported_without_its_telemetry(tmp_path: Path) -> None:
    hidden = ("ORT_DISABLE_TELEMETRY", "CI", "ORT_RUNNING_UNIT_TESTS")
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", _SCRIPT], env={**kept, **home}, check=True, timeout=300)
    assert not list(tmp_path.rglob("*deviceid*"))
    assert not list(tmp_path.rglob("*onnxruntime*"))
