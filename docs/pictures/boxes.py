"""Draws docs/pictures/boxes.png from the example of docs/boxes.md:
.venv/bin/python docs/pictures/boxes.py"""

import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

HERE = Path(__file__).parent
BLUE, RED = "#0072B2", "#D55E00"


def main() -> None:
    page = (HERE.parent / "boxes.md").read_text(encoding="utf-8")
    example = re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert example is not None
    made: dict[str, Any] = {}
    exec(compile(example[1], "boxes.md", "exec"), made)
    boxes, prediction = made["boxes"], made["prediction"]
    figure, panels = plt.subplots(2, 3, figsize=(9, 2.9), layout="constrained")
    for number, axes in enumerate(panels.flat):
        axes.imshow(made["scenes"][number], cmap="Greys", vmax=20)
        for row in np.flatnonzero(boxes.image == number):
            left, top, right, bottom = (boxes.corners[row] - 0.5).tolist()
            flagged = bool(prediction.is_ood[row])
            axes.add_patch(
                plt.Rectangle(
                    (left, top), right - left, bottom - top, fill=False,
                    color=RED if flagged else BLUE, lw=2.2 if flagged else 1.2,
                )
            )  # fmt: skip
            label = f"p = {prediction.p_value[row]:.2f}"
            axes.text(left, 17.5, label, color=RED if flagged else BLUE, fontsize=7, va="top")
        axes.set_axis_off()
    figure.savefig(HERE / "boxes.png", dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
