"""A step of training in bfloat16 against one in float32.

    python benchmarks/precision.py            two minutes on two idle cores

Forward, loss, backward and the update of the networks of presets fast and cpu on noise, by turns,
with one thread and with two, on images of 24 and 32 pixels. On a processor without instructions
for bfloat16 expect ratios far above 1.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from goen.data import ImageSet
from goen.studies.presets import PRESETS
from goen.training.backbone import _begin, _step
from goen.training.batches import TrainingBatch
from goen.training.precision import multiplies_bfloat16
from timing import header, interleave, ratio

REPEATS = 5


def main() -> None:
    header()
    print(f"instructions for bfloat16: {'yes' if multiplies_bfloat16() else 'no'}")
    rng = np.random.default_rng(0)
    for preset in ("fast", "cpu"):
        settings = PRESETS[preset]
        count, classes = settings.training.batch_size, tuple(map(str, range(10)))
        labels = np.arange(count) % 10
        pixels = rng.integers(0, 256, (count, 3, 32, 32), np.uint8)
        train = ImageSet("noise", pixels, labels, classes)
        for side in (24, 32):
            images = torch.from_numpy(pixels[:, :, :side, :side].copy())
            batch = TrainingBatch(
                images, torch.from_numpy(labels), torch.zeros(count, dtype=torch.int64), 0
            )
            for threads in (1, 2):
                torch.set_num_threads(threads)
                actions = {}
                for precision in ("float32", "bfloat16"):
                    config = replace(settings.training, precision=precision, learning_rate=1e-3)
                    state = _begin(settings.network, config, train, torch.device("cpu"))
                    actions[precision] = partial(_step, state, state.loss, batch, 0.5)
                taken = interleave(actions, REPEATS)
                seconds = min(taken["bfloat16"])
                print(
                    f"{preset:5} {side} pixels, {threads} threads: bfloat16 takes "
                    f"{ratio(taken, 'bfloat16', 'float32'):.2f} of the time, "
                    f"{count / seconds:.0f} images/s"
                )


if __name__ == "__main__":
    main()
