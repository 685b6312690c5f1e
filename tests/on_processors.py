"""Run the tests, and ``goen check``, as other processors would: ``make test-processors``.

ATEN_CPU_CAPABILITY and ONEDNN_MAX_CPU_ISA keep torch's own kernels and oneDNN's to an older
instruction set, so this machine adds up in the order of another. Each setting is run with one and
with two threads. Arguments choose settings, such as ``avx2`` or, with one thread only, ``avx2/1``;
``--no-check`` leaves out ``goen check``, which needs CIFAR-10 (GOEN_DATA, or fetched before) and
two minutes each time.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

SETTINGS: dict[str, dict[str, str]] = {
    "own": {},
    # Each with all libraries at once: torch, oneDNN, MKL, and numpy's OpenBLAS.
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "oldest": {
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
    },
}
ROOT = Path(__file__).parents[1]
_ASK = "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"


def run(*command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    everything = os.environ | environment
    return subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=everything, capture_output=True, text=True
    )


def offered(environment: dict[str, str]) -> bool:
    """Whether torch on this machine takes the instruction set that is asked for."""
    wanted = environment.get("ATEN_CPU_CAPABILITY")
    return wanted is None or run("-c", _ASK, environment=environment).stdout.strip() == wanted


def main(arguments: list[str]) -> int:
    """Print a line for each setting; 0 if every one passed."""
    chosen = [argument for argument in arguments if not argument.startswith("-")]
    failed = 0
    for name, _, only in (argument.partition("/") for argument in chosen or SETTINGS):
        if not offered(SETTINGS[name]):
            print(f"{name:<13} not offered by this machine", flush=True)
            continue
        for threads in only or "12":
            count = {"GOEN_TEST_THREADS": threads, "OMP_NUM_THREADS": threads}
            environment = SETTINGS[name] | count
            started = time.monotonic()
            # Two threads in each of two processes would wait for each other on two cores.
            workers = "2" if threads == "1" else "1"
            command = ("-m", "pytest", "-n", workers, "--dist", "loadgroup")
            tests = run(*command, environment=environment)
            failed += tests.returncode != 0
            summary = re.findall(r"^=+ (.*) =+$", tests.stdout, re.MULTILINE)
            line = summary[-1] if summary else f"exit code {tests.returncode}"
            print(f"{name:<13} {threads} threads   tests: {line}", flush=True)
            if tests.returncode:
                print(tests.stdout[-5000:] + tests.stderr[-2000:], flush=True)
            if "--no-check" not in arguments:
                check = run("-m", "goen", "check", environment=environment)
                failed += check.returncode != 0
                verdict = (check.stdout or check.stderr).strip().splitlines()[-1]
                print(f"{'':<13} {threads} threads   check: {verdict}", flush=True)
            print(f"{'':<13} {time.monotonic() - started:.0f} s", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
