"""Batches: what is gathered, who waits for whom, and what happens when there is no room."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import numpy as np
import pytest

from goen.data.imageset import Pixels
from goen.gate import Prediction
from goen.serve.batching import BatchQueue, batch_sizes
from goen.serve.rejection import Rejected
from goen.serve.settings import BatchLimits
from goen.serve.threads import DecodingThreads

SECONDS = 120
Counted = Callable[[Prediction, float], None]


def image(value: int) -> Pixels:
    return np.full((3, 2, 2), value, np.uint8)


def makers(*values: int) -> list[Callable[[], Pixels]]:
    return [lambda value=value: image(value) for value in values]  # type: ignore[misc]


def prediction(images: Pixels) -> Prediction:
    """The score of an image is its value."""
    score = images[:, 0, 0, 0].astype(np.float64)
    none = np.zeros(len(images), np.int64)
    return Prediction(none, score, score, score, None, score > 5, {}, ("a",))


class Network:
    """A network that is busy until it is told otherwise, and remembers its batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.free = threading.Event()
        self.begun = threading.Semaphore(0)

    def __call__(self, images: Pixels) -> Prediction:
        self.batches.append(images[:, 0, 0, 0].tolist())
        self.begun.release()
        assert self.free.wait(SECONDS)
        return prediction(images)


class Slow:
    """An image whose decoding ends when it is told to."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.decoded = threading.Event()

    def __call__(self) -> Pixels:
        assert self.decoded.wait(SECONDS)
        return image(self.value)


@contextmanager
def queue_of(
    predict: Callable[[Pixels], Prediction],
    limits: BatchLimits,
    finished: Counted = lambda p, seconds: None,
) -> Iterator[BatchQueue]:
    threads = DecodingThreads(4)
    queue = BatchQueue(predict, limits, threads, finished)
    yield queue
    threads.shutdown()
    queue.stop()
    assert queue.held == 0


async def scores(queue: BatchQueue, *values: int) -> list[float]:
    return scores_of(await queue.score(makers(*values)))


def scores_of(found: list[tuple[Pixels, Prediction] | Rejected]) -> list[float]:
    return [float(one[1].score[0]) for one in found if not isinstance(one, Rejected)]


async def until(condition: Callable[[], object]) -> None:
    for _ in range(100 * SECONDS):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came true")


def run(work: Awaitable[None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work, SECONDS)

    asyncio.run(bounded())


def test_images_that_come_while_the_network_works_are_the_next_batches() -> None:
    network = Network()
    counted: list[int] = []
    limits = BatchLimits(4, 0, 100)

    async def requests() -> None:
        first = asyncio.create_task(scores(queue, 0))
        await until(lambda: network.begun.acquire(blocking=False))
        others = asyncio.create_task(scores(queue, *range(1, 8)))
        await until(lambda: len(queue._waiting) == 7)
        assert queue.held == 8
        network.free.set()
        assert [*await first, *await others] == list(range(8))

    with queue_of(network, limits, lambda p, seconds: counted.append(len(p))) as queue:
        run(requests())
    assert [len(batch) for batch in network.batches] == [1, 4, 3]
    assert sorted(n for batch in network.batches for n in batch) == list(range(8))
    assert counted == [1, 4, 3]


def test_batches_have_few_sizes_and_lose_no_image() -> None:
    network = Network()
    network.free.set()

    async def requests() -> None:
        assert await scores(queue, *range(50)) == list(range(50))

    with queue_of(network, BatchLimits(20, 3600, 100)) as queue:
        run(requests())
    assert [len(batch) for batch in network.batches] == [20, 20, 8, 2]
    for most in (1, 2, 5, 64, 100):
        sizes = batch_sizes(most)
        assert (sizes[0], sizes[-1]) == (1, most)
        assert all(b <= max(a + 1, 1.5 * a) for a, b in pairwise(sizes))


def test_a_batch_waits_for_images_that_are_being_decoded() -> None:
    network, slow = Network(), Slow(2)
    network.free.set()

    async def requests() -> None:
        work = asyncio.create_task(queue.score([*makers(1), slow]))
        await asyncio.sleep(0.05)
        assert not network.batches  # it waits, for an hour if need be
        slow.decoded.set()
        assert scores_of(await work) == [1, 2]

    with queue_of(network, BatchLimits(2, 3600, 100)) as queue:
        run(requests())
    assert network.batches == [[1, 2]]


@pytest.mark.parametrize("left", [True, False])
def test_a_batch_does_not_wait_for_a_client_that_left_or_an_image_that_is_refused(
    left: bool,
) -> None:
    network, slow = Network(), Slow(2)
    network.free.set()

    def refused() -> Pixels:
        slow()
        raise Rejected("broken_image", "cut short")

    async def requests() -> None:
        other = asyncio.create_task(queue.score([slow if left else refused]))
        first = asyncio.create_task(scores(queue, 1))
        await until(lambda: queue._waiting)
        assert not network.batches
        if left:
            other.cancel()
        else:
            slow.decoded.set()
        assert await first == [1]
        if not left:
            (found,) = await other
            assert isinstance(found, Rejected)
        slow.decoded.set()  # too late: nobody waits for it

    with queue_of(network, BatchLimits(2, 3600, 100)) as queue:
        run(requests())
    assert network.batches == [[1]]


def test_a_batch_waits_no_longer_than_it_may() -> None:
    slow = Slow(2)

    async def requests() -> None:
        other = asyncio.create_task(queue.score([slow]))
        assert await scores(queue, 1) == [1]
        slow.decoded.set()
        assert scores_of(await other) == [2]

    with queue_of(prediction, BatchLimits(2, 0.01, 100)) as queue:
        run(requests())


def test_the_network_works_on_one_batch_at_a_time_and_counts_it_before_the_next() -> None:
    """What is counted is the state of a monitor: two threads would mix it up."""
    threads: set[str] = set()

    def predict(images: Pixels) -> Prediction:
        threads.add(threading.current_thread().name)
        return prediction(images)

    def count(found: Prediction, seconds: float) -> None:
        predict(images=np.zeros((1, 3, 2, 2), np.uint8))

    async def requests() -> None:
        assert await scores(queue, *range(20)) == list(range(20))

    with queue_of(predict, BatchLimits(1, 0, 100), count) as queue:
        run(requests())
    assert threads == {"goen batches_0"}


def test_a_full_queue_is_refused_at_once_and_has_room_again() -> None:
    slow = [Slow(1), Slow(2)]

    async def requests() -> None:
        held = asyncio.create_task(queue.score(slow))
        await until(lambda: queue.held == 2)
        with pytest.raises(Rejected, match="2 images are waiting, and there is room for 3") as full:
            await scores(queue, 3, 4)
        assert full.value.status == 503
        assert full.value.headers["retry-after"] == "1"
        assert await scores(queue, 3) == [3]
        for one in slow:
            one.decoded.set()
        assert scores_of(await held) == [1, 2]
        assert await scores(queue, 5, 6, 7) == [5, 6, 7]

    with queue_of(prediction, BatchLimits(4, 0, 3)) as queue:
        run(requests())


def test_more_images_than_there_is_room_for_are_refused_for_good() -> None:
    async def requests() -> None:
        with pytest.raises(Rejected, match="room for 3 images, got 4; send several") as refused:
            await scores(queue, 1, 2, 3, 4)
        assert refused.value.status == 413  # to try again, as after a 503, would not help
        assert await scores(queue, 1, 2, 3) == [1, 2, 3]

    with queue_of(prediction, BatchLimits(1, 0, 3)) as queue:
        run(requests())


@pytest.mark.parametrize("raises", [True, False])
def test_an_error_of_the_network_reaches_its_requests_and_the_next_batch_is_scored(
    raises: bool,
) -> None:
    def fails_once(images: Pixels) -> Prediction:
        if images.max() == 1 and raises:
            raise MemoryError("too large")
        return prediction(images[1:] if images.max() == 1 else images)

    async def requests() -> None:
        with pytest.raises((MemoryError, IndexError)):
            await scores(queue, 1)
        assert await scores(queue, 2) == [2]

    with queue_of(fails_once, BatchLimits(1, 0, 10)) as queue:
        run(requests())


def test_an_error_while_counting_does_not_end_the_queue() -> None:
    def count(prediction: Prediction, seconds: float) -> None:
        raise OSError("no space left")

    async def requests() -> None:
        for value in (1, 2):
            assert await scores(queue, value) == [value]

    with queue_of(prediction, BatchLimits(1, 0, 10), count) as queue:
        run(requests())


@pytest.mark.parametrize("fails", [False, True])
def test_a_request_that_is_given_up_does_not_end_the_queue(fails: bool) -> None:
    begun, free = threading.Event(), threading.Event()
    counted: list[int] = []

    def predict(images: Pixels) -> Prediction:
        begun.set()
        assert free.wait(SECONDS)
        if fails and images.max() == 1:
            raise MemoryError("too large")
        return prediction(images)

    async def requests() -> None:
        first = asyncio.create_task(scores(queue, 1))
        await until(begun.is_set)
        first.cancel()  # as the end of the service does, after its time to answer
        await until(lambda: queue.held == 0)
        free.set()
        assert await scores(queue, 2) == [2]

    limits = BatchLimits(1, 0, 10)
    with queue_of(predict, limits, lambda p, seconds: counted.append(len(p))) as queue:
        run(requests())
    assert counted == [1] * (1 if fails else 2)


def test_images_of_a_failed_request_are_counted_until_they_are_done() -> None:
    """Else requests that fail could fill the memory behind the limit of the queue."""
    slow = Slow(1)

    def broken() -> Pixels:
        raise ValueError("no image")

    async def requests() -> None:
        failing = asyncio.create_task(queue.score([broken, slow]))
        await until(lambda: queue._coming == 1)
        await asyncio.sleep(0.05)
        held = queue.held
        slow.decoded.set()
        assert held == 2
        with pytest.raises(ValueError, match="no image"):
            await failing
        assert await scores(queue, 4) == [4]

    with queue_of(prediction, BatchLimits(2, 0, 2)) as queue:
        run(requests())
