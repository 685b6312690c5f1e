"""``python -m tests.fuzz``: many cases of the fuzzers, on all cores, with a summary at the end."""

import argparse
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.case import Fuzzer, Result
from tests.fuzz.run import run_cases, work


def fuzzers() -> dict[str, type[Fuzzer]]:
    """By name; imported when they are needed, as that takes seconds."""
    from tests.fuzz.detectors import DetectorFuzzer
    from tests.fuzz.folders import FolderFuzzer
    from tests.fuzz.gates import GateFuzzer
    from tests.fuzz.names import NameFuzzer
    from tests.fuzz.pictures import PictureFuzzer
    from tests.fuzz.runs import RunFuzzer
    from tests.fuzz.sources import ParquetFuzzer, TarFuzzer, UrlFuzzer

    models = (GateFuzzer, DetectorFuzzer, RunFuzzer, FolderFuzzer)
    all_of_them = (*models, PictureFuzzer, NameFuzzer, TarFuzzer, ParquetFuzzer, UrlFuzzer)
    return {fuzzer.name: fuzzer for fuzzer in all_of_them}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--kind", nargs="*", help="which fuzzers; all if not given")
    parser.add_argument("--count", type=int, default=1000, help="cases of each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    known = fuzzers()
    kinds = options.kind or list(known)
    if options.worker is not None:
        warnings.simplefilter("ignore")
        numbers = range(options.first, options.first + options.count)
        work(known[kinds[0]](options.worker), options.seed, numbers)
        return 0
    return max(_fuzz(known[kind], options) for kind in kinds)


def _fuzz(fuzzer: type[Fuzzer], options: argparse.Namespace) -> int:
    """All cases of one fuzzer; 1 if one of them failed."""
    step = -(-options.count // options.workers)
    end = options.first + options.count
    parts = [range(start, min(start + step, end)) for start in range(options.first, end, step)]
    results: list[Result] = []

    def collect(numbers: range) -> None:
        for result in run_cases(fuzzer.name, options.seed, numbers):
            results.append(result)
            if result.failure:
                where = f"{fuzzer.name} {result.number}"
                print(f"{where}: {result.failure}\n    {result.what[:400]}", flush=True)
            if len(results) % 1000 == 0:
                print(f"{fuzzer.name}: {len(results)} cases done", flush=True)

    with ThreadPoolExecutor(len(parts)) as pool:
        list(pool.map(collect, parts))
    failed = [r for r in results if r.failure]
    outcomes = Counter(r.outcome for r in results if r.outcome)
    print(
        f"{fuzzer.name}: {len(results)} cases with seed {options.seed}: "
        f"{', '.join(f'{n} {word}' for word, n in outcomes.most_common())}, {len(failed)} failed; "
        f"slowest {max(r.seconds for r in results):.2f} s of at most {fuzzer.seconds:g}, "
        f"largest {max(r.megabytes for r in results):.0f} MB of at most {fuzzer.megabytes:g}",
        flush=True,
    )
    return 1 if failed or len(results) < options.count else 0


if __name__ == "__main__":
    sys.exit(main())
