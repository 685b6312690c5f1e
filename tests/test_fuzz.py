"""A few cases of every fuzzer; ``make fuzz`` runs many."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from goen.errors import ArtifactError
from tests.fuzz.__main__ import fuzzers
from tests.fuzz.case import Broken, Fuzzer, Result, generator
from tests.fuzz.gates import check_message
from tests.fuzz.json_damage import damaged_json
from tests.fuzz.names import hostile_file_name
from tests.fuzz.run import collect_results, run_case, run_cases
from tests.fuzz.runs import RunFuzzer

# How many cases, and what must have come of some of them: a fuzzer whose cases all fail early, or
# that damages nothing, tests little.
COUNTS = {
    "gates": (150, {"refused", "loaded"}),
    "detectors": (150, {"refused", "scored"}),
    "runs": (10, {"refused", "reported"}),
    "pictures": (300, {"refused", "read"}),
    "names": (12, {"scored", "written"}),
    "folders": (60, {"refused", "opened"}),
    "tars": (40, {"refused", "read"}),
    "parquet": (40, {"refused", "read"}),
    "urls": (15, {"read"}),
}


@pytest.mark.parametrize("kind", COUNTS)
def test_nothing_but_clean_answers(kind: str, tmp_path: Path) -> None:
    made = fuzzers()[kind]
    fuzzer = made(tmp_path, with_training=False) if made is RunFuzzer else made(tmp_path)  # type: ignore[call-arg]
    count, expected = COUNTS[kind]
    results = [run_case(fuzzer, 0, number) for number in range(count)]
    assert [result for result in results if result.failure] == []
    assert expected <= Counter(result.outcome for result in results).keys()


# -- the fuzzers notice what they are for --------------------------------------------------------


class Misbehaving(Fuzzer):
    """Does what goen must not do."""

    name = "misbehaving"
    seconds = 0.2
    megabytes = 100.0

    def run(self, draw: random.Random) -> str:
        self.what = str(draw.randrange(4))
        if self.what == "0":
            raise KeyError("raw")
        if self.what == "1":
            end = time.process_time() + 0.3
            while time.process_time() < end:
                pass
        if self.what == "2":
            return f"{len(bytearray(3 * 10**8))} bytes"
        return "fine"


def test_raw_errors_slow_and_large_cases_are_failures(tmp_path: Path) -> None:
    results = [run_case(Misbehaving(tmp_path), 0, number) for number in range(12)]
    failures = {result.what: result.failure.partition(" ")[0] for result in results}
    assert failures == {"0": "KeyError:", "1": "took", "2": "took", "3": ""}
    assert all(result.outcome == ("fine" if result.what == "3" else "") for result in results)
    again = [run_case(Misbehaving(tmp_path), 0, number).what for number in range(12)]
    assert again == [result.what for result in results]


def pretend(tmp_path: Path, script: str) -> tuple[list[Result], range]:
    """What is collected of a process that prints what a worker would, and the cases left."""
    left = range(0)

    def collect() -> "list[Result]":
        nonlocal left
        found = []
        results = collect_results(process, range(5, 9), tmp_path / "log", wall=6.0)
        while True:
            try:
                found.append(next(results))
            except StopIteration as end:
                left = end.value
                return found

    (tmp_path / "log").write_text("ImportError: no goen")
    command = [sys.executable, "-c", f"import os, time\n{script}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            return collect(), left
        finally:
            process.kill()


def test_a_process_that_dies_or_hangs_costs_one_case(tmp_path: Path) -> None:
    fine = Result(5, "refused", "", "x", 0.1, 1.0)
    begin = f"print(5); print({json.dumps(asdict(fine))!r}); "
    assert pretend(tmp_path, begin) == ([fine], range(9, 9))
    died, left = pretend(tmp_path, begin + "print(6, flush=True); os._exit(7)")
    assert died == [fine, Result(6, "", "the process died with code 7", "", 0.0, 0.0)]
    assert left == range(7, 9)
    hung, left = pretend(tmp_path, begin + "print(6, flush=True); time.sleep(60)")
    assert hung == [fine, Result(6, "", "no answer in 6 s", "", 0.0, 0.0)]
    assert left == range(7, 9)
    with pytest.raises(RuntimeError, match=r"could not start: .* code 3\nImportError: no goen"):
        pretend(tmp_path, "os._exit(3)")


def test_cases_run_in_processes_of_their_own() -> None:
    results = list(run_cases("pictures", 0, range(3, 6)))
    assert [(r.number, r.failure) for r in results] == [(3, ""), (4, ""), (5, "")]


def test_a_hidden_allocation_is_noticed() -> None:
    check_message(ArtifactError("a sentence of the usual length"))
    hidden = ArtifactError("a sentence of the usual length")
    hidden.__cause__ = RuntimeError("can't allocate memory: you tried to allocate 19 GB")
    for error in (hidden, ArtifactError("short"), ArtifactError("x" * 5000)):
        with pytest.raises(Broken):
            check_message(error)


def test_no_drawn_name_is_that_of_a_hidden_file() -> None:
    names = [hostile_file_name(generator("names", 0, number)) for number in range(2000)]
    assert not any(name.startswith(b".") for name in names)
    assert len({*names}) > 1500


def test_a_case_depends_on_its_number_alone() -> None:
    content = {"a": [1, 2], "b": {"c": "d"}}
    texts = [damaged_json(generator("x", 0, number), content) for number in range(50)]
    assert texts == [damaged_json(generator("x", 0, number), content) for number in range(50)]
    assert len({text for text, _ in texts}) > 30
    assert content == {"a": [1, 2], "b": {"c": "d"}}
