from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from goen.errors import UsageError
from goen.features.extractor import FeatureExtractor
from goen.features.layers import list_layers
from goen.outputs import Outputs
from tests.features.architectures import (
    CASES,
    build,
    pictures,
)
from tests.features.comparing import close, hooks_of


def test_no_hook_stays_behind() -> None:
    model, images = build("resnet"), pictures("resnet")
    seen = []
    model.judge.register_forward_hook(lambda m, i, o: seen.append(len(o)))
    before = hooks_of(model)
    extractor = FeatureExtractor(model, CASES["resnet"].layers)
    extractor(images)
    list_layers(model, images)
    assert hooks_of(model) == before
    assert seen == [3, 3]
    with pytest.raises(UsageError):
        FeatureExtractor(model, ["drop", "backbone.trunk.0.act"])(images)
    assert hooks_of(model) == before


def test_threads_do_not_hear_each_other() -> None:
    extractor = FeatureExtractor(build("resnet"), CASES["resnet"].layers)
    batches = [pictures("resnet", 2, seed=seed) for seed in range(40)]
    with torch.no_grad():
        expected = [extractor(batch) for batch in batches]

    def run(batch: Tensor) -> Outputs:
        with torch.no_grad():
            return extractor(batch)

    with ThreadPoolExecutor(4) as pool:
        for one, other in zip(pool.map(run, batches), expected, strict=True):
            assert close(one.logits, other.logits)
            for layer in one.features:
                assert close(one.features[layer], other.features[layer])
    assert not any(hooks_of(extractor))
