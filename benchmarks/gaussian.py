"""Streaming Gaussian statistics against bare X^T X, and nearest-class scoring against one product.

    python benchmarks/gaussian.py                 1,000,000 x 512 float32 rows, about a minute
    python benchmarks/gaussian.py --rows 50000    a quick look

What is measured:
- Time. For each chunk in turn, `ClassStatistics.update` on the float32 chunk, and `product +=
  X.T @ X` on the same chunk already in float64. The two alternate, and so does which goes first;
  a repeat compares the median chunk of each. The goal is held against the product alone: the
  conversion to float64, which `update` does inside, is timed apart and shown.
- Memory. In a process of its own: the highest resident size during the updates less the resident
  size before them, when the chunk exists already. The statistics, every temporary and the
  buffers of the matrix library count.
- Scoring. `Whitening.nearest` on 10,000 float32 rows against its two products in float64, of rows
  ready for them: (N, D) x (D, D), which whitens, and (N, D) x (D, C), which compares with C means.
  With 1,000 classes and D = 512 the second has twice the operations of the first.

Goals: at most 2 x the time of the products, at most 64 MB above the chunk.

Measured on two cores of an AMD EPYC (KVM), Python 3.11.7, torch 2.13.0+cpu, beside other work: time
1.31 x (five repeats, 1.29 to 1.34), memory 25.8 MB. Scoring, by processor time on one thread: 1.27
x with 10 classes, 1.03 x with 1,000, of which the two products have 2.95 times the operations of
the first alone.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from goen.functional.gaussian import ClassStatistics
from goen.functional.whitening import whitener
from timing import header

TIME_GOAL = 2.0
MEMORY_GOAL_MB = 64.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--chunk", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory-probe", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_probe:
        print(memory_above_chunk(args.rows, args.dim, args.classes, args.chunk))
        return 0

    header()
    print(
        f"{args.rows:,} x {args.dim} float32 rows in chunks of {args.chunk}, {args.classes} classes"
    )
    chunks_per_repeat = max(args.rows // args.chunk // args.repeats, 1)
    ratios, with_conversion = [], []
    for repeat in range(args.repeats):
        update, convert, product = time_chunks(
            chunks_per_repeat, args.dim, args.classes, args.chunk
        )
        ratios.append(update / product)
        with_conversion.append(update / (convert + product))
        print(
            f"  repeat {repeat + 1}: per chunk, update {update * 1e3:.1f} ms, X^T X "
            f"{product * 1e3:.1f} ms, conversion {convert * 1e3:.1f} ms; ratio {ratios[-1]:.3f}"
        )
    ratio = median(ratios)
    memory = probe_in_subprocess(args)
    print(
        f"time:    {ratio:.3f} x the products (repeats {min(ratios):.3f} to {max(ratios):.3f}); "
        f"{median(with_conversion):.3f} x with the conversion counted in both"
    )
    print(f"memory:  {memory:.1f} MB above the chunk")
    for classes in (args.classes, 1000):
        score_ratio = median(time_scoring(args.dim, classes) for _ in range(args.repeats))
        print(
            f"scoring: {score_ratio:.3f} x its two products, 10,000 x {args.dim}, {classes} classes"
        )
    time_met, memory_met = ratio <= TIME_GOAL, memory <= MEMORY_GOAL_MB
    print(f"{verdict(time_met)} time ratio {ratio:.3f} <= {TIME_GOAL}")
    print(f"{verdict(memory_met)} memory {memory:.1f} MB <= {MEMORY_GOAL_MB:.0f} MB")
    return 0 if time_met and memory_met else 1


def verdict(met: bool) -> str:
    return "PASS" if met else "FAIL"


def make_chunk(num_rows: int, dim: int, num_classes: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(num_rows, dim, generator=generator)
    return features, torch.randint(0, num_classes, (num_rows,), generator=generator)


def time_chunks(
    num_chunks: int, dim: int, num_classes: int, chunk_rows: int
) -> tuple[float, float, float]:
    """Seconds for the median chunk of the update, of the conversion and of the product."""
    pool = [make_chunk(chunk_rows, dim, num_classes, seed) for seed in range(4)]
    streamed = ClassStatistics(num_classes, dim)
    scatter = torch.zeros(dim, dim, dtype=torch.float64)
    update, convert, product = [], [], []
    for i in range(num_chunks + 2):
        features, labels = pool[i % len(pool)]
        for what in ("update", "product") if i % 2 else ("product", "update"):
            start = perf_counter()
            if what == "update":
                streamed.update(features, labels)
                update.append(perf_counter() - start)
            else:
                wide = features.double()
                middle = perf_counter()
                scatter.addmm_(wide.T, wide)
                product.append(perf_counter() - middle)
                convert.append(middle - start)
                del wide
    # The first two rounds warm up.
    return median(update[2:]), median(convert[2:]), median(product[2:])


def time_scoring(dim: int, num_classes: int, num_rows: int = 10_000) -> float:
    """Time of the nearest class of every row, over that of the products with (D, D) and (D, C)."""
    features, _ = make_chunk(num_rows, dim, num_classes, seed=0)
    means, _ = make_chunk(num_classes, dim, 1, seed=1)
    whitening = whitener(means, torch.eye(dim))
    wide = features.double()
    scored, product = [], []
    for _ in range(6):
        start = perf_counter()
        whitening.nearest(features)
        middle = perf_counter()
        wide @ whitening.precision_chol
        wide @ whitening.whitened_means.mT
        stop = perf_counter()
        scored.append(middle - start)
        product.append(stop - middle)
    return median(scored[1:]) / median(product[1:])


def memory_above_chunk(rows: int, dim: int, num_classes: int, chunk_rows: int) -> float:
    """Megabytes by which the resident size rises over what it was once the chunk existed."""
    features, labels = make_chunk(chunk_rows, dim, num_classes, seed=0)
    reset_peak()
    before = resident_mb("VmRSS")
    streamed = ClassStatistics(num_classes, dim)
    for _ in range(max(rows // chunk_rows, 1)):
        streamed.update(features, labels)
    return resident_mb("VmHWM") - before


def reset_peak() -> None:
    """Forget the peak that importing torch has left (Linux)."""
    clear = Path("/proc/self/clear_refs")
    if clear.exists():
        clear.write_text("5")


def resident_mb(field: str) -> float:
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) / 1024
    # Elsewhere only the peak since the start is known: kilobytes, or bytes on macOS.
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def probe_in_subprocess(args: argparse.Namespace) -> float:
    command = [sys.executable, __file__, "--memory-probe"]
    for name in ("rows", "dim", "classes", "chunk"):
        command += [f"--{name}", str(getattr(args, name))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
