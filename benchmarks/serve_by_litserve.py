"""The gate cifar10-w16 behind LitServe, for benchmarks/serve.py: POST a form with a picture.

    python benchmarks/serve_by_litserve.py PORT

LitServe is not among goen's packages: give `--litserve` the Python of an environment that has it
and goen. Pictures are gathered in batches of up to 64 that wait 5 ms, as in `goen serve`.
"""

import sys
from collections.abc import Sequence
from typing import Any

import litserve
import numpy as np
import torch

import goen


class GateApi(litserve.LitAPI):
    def setup(self, device: str) -> None:
        torch.set_num_threads(1)
        self.gate = goen.load("cifar10-w16").with_engine("auto")

    def decode_request(self, request):  # LitServe reads the annotation: none is a form or JSON
        return goen.read_image(request["picture"].file.read(), self.gate.image_size)

    def batch(self, inputs: Sequence[Any]) -> Any:
        return np.stack(inputs)

    def predict(self, x: Any) -> Any:
        return [*self.gate.predict(x).rows()]

    def unbatch(self, output: Any) -> Any:
        return output

    def encode_response(self, output: Any) -> Any:
        return output


if __name__ == "__main__":
    api = GateApi(max_batch_size=64, batch_timeout=0.005)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(
        port=int(sys.argv[1]), host="127.0.0.1", log_level="error", generate_client_file=False
    )
