from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from time import sleep

import pytest

from goen.data.images.byte_budget import ByteBudget


def test_large_images_are_decoded_one_at_a_time() -> None:
    budget, most, lock = ByteBudget(10), [0], Lock()

    def decode(needed: int) -> None:
        with budget.hold(needed):
            with lock:
                most[0] = max(most[0], budget.used)
            sleep(0.002)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(decode, [3, 4, 25, 2, 9, 1, 30, 5] * 5))
    assert budget.used == 0
    assert most[0] == 30  # alone; never 30 and anything else
    with pytest.raises(KeyError), budget.hold(7):
        raise KeyError
    assert budget.used == 0
