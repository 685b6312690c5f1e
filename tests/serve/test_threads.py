"""The threads that decode: each request has its turn, long work leaves a thread, and the end."""

import asyncio
import threading

import numpy as np
import pytest

from goen.serve.batching import BatchQueue
from goen.serve.rejection import Rejected
from goen.serve.settings import BatchLimits
from goen.serve.threads import DecodingThreads, Deferred, PixelBudget
from tests.serve.test_batching import SECONDS, image, prediction


class Long:
    """Work that defers itself, and then lasts until it is told to end."""

    def __init__(self) -> None:
        self.begun, self.end = threading.Event(), threading.Event()

    def __call__(self) -> str:
        raise Deferred(self.rest)

    def rest(self) -> str:
        self.begun.set()
        assert self.end.wait(SECONDS)
        return threading.current_thread().name


def test_long_work_leaves_a_thread_to_short_work() -> None:
    threads = DecodingThreads(2)
    works = [Long() for _ in range(8)]

    async def requests() -> None:
        running = [asyncio.create_task(threads.decode(work)) for work in works]
        while not works[0].begun.is_set():
            await asyncio.sleep(0.01)
        for number in range(20):
            assert await threads.decode(lambda n=number: n) == number  # type: ignore[misc]
        assert [work.begun.is_set() for work in works] == [True] + [False] * 7
        for work in works:
            work.end.set()
        assert all("large images" in name for name in await asyncio.gather(*running))

    asyncio.run(requests())
    threads.shutdown()


def test_a_request_of_many_images_waits_for_others_between_them() -> None:
    """The next request's image is decoded after two of the first one's 64, not after all."""
    threads = DecodingThreads(2)
    order: list[str] = []
    begun, go = threading.Semaphore(0), threading.Event()

    def decoded(name: str) -> np.ndarray:
        begun.release()
        assert go.wait(SECONDS)
        order.append(name)
        return image(1)

    async def requests() -> None:
        queue = BatchQueue(prediction, BatchLimits(), threads)
        many = asyncio.create_task(queue.score([lambda: decoded("many")] * 64))
        for _ in range(2):
            while not begun.acquire(blocking=False):
                await asyncio.sleep(0.001)
        one = asyncio.create_task(queue.score([lambda: decoded("one")]))
        while queue.held < 65:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)  # it is handed to the threads
        go.set()
        await asyncio.gather(many, one)
        queue.stop()

    asyncio.run(requests())
    threads.shutdown()
    assert len(order) == 65
    assert order.index("one") < 5


def test_work_that_has_not_begun_is_refused_at_the_end() -> None:
    threads = DecodingThreads(2)

    async def requests() -> None:
        first, second = Long(), Long()
        running = [asyncio.create_task(threads.decode(work)) for work in (first, second)]
        while not first.begun.is_set():
            await asyncio.sleep(0.01)
        threads.stop_in(0)
        first.end.set()
        assert await running[0]
        with pytest.raises(Rejected, match="The service is stopping"):
            await running[1]
        assert not second.begun.is_set()
        with pytest.raises(Rejected, match="The service is stopping"):
            await threads.decode(lambda: 1)
        assert await threads.run(lambda: 1) == 1  # an answer can still be made

    asyncio.run(requests())
    threads.shutdown()


def test_a_budget_is_used_up_once() -> None:
    budget = PixelBudget(10)
    budget.take(4)
    with pytest.raises(Rejected, match="more than 10 pixels together"):
        budget.take(7)
    budget.take(6)  # what was refused does not count
    with pytest.raises(Rejected):
        budget.take(1)
