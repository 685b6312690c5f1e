"""Batches: what is gathered, who waits for whom, and what happens when there is no room."""

import threading
from concurrent.futures import Future
from itertools import pairwise

import numpy as np
import pytest

from goen.data.imageset import Pixels
from goen.gate import Prediction
from goen.serve.batching import BatchQueue, ScoredImage, batch_sizes
from goen.serve.rejection import Rejected
from goen.serve.settings import BatchLimits

SECONDS = 120


def image(value: int) -> Pixels:
    return np.full((3, 2, 2), value, np.uint8)


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


def score(scored: ScoredImage) -> float:
    return float(scored.prediction.score[scored.place])


def test_images_that_come_while_the_network_works_are_the_next_batches() -> None:
    network = Network()
    counted: list[int] = []
    queue = BatchQueue(network, BatchLimits(4, 0, 100), lambda p, seconds: counted.append(len(p)))
    queue.start()
    slots = queue.reserve(8)
    futures = [slots[0].fill(image(0))]
    assert network.begun.acquire(timeout=SECONDS)
    futures += [slot.fill(image(n)) for n, slot in enumerate(slots[1:], 1)]
    assert queue.held == 8
    network.free.set()
    assert [score(future.result(SECONDS)) for future in futures] == list(range(8))
    queue.stop()
    assert network.batches == [[0], [1, 2, 3, 4], [5, 6, 7]]
    assert counted == [1, 4, 3]
    assert queue.held == 0


def test_batches_have_few_sizes_and_lose_no_image() -> None:
    network = Network()
    queue = BatchQueue(network, BatchLimits(20, 0, 100))
    slots = queue.reserve(50)
    futures = [slot.fill(image(n)) for n, slot in enumerate(slots)]
    network.free.set()
    queue.start()
    assert [score(future.result(SECONDS)) for future in futures] == list(range(50))
    queue.stop()
    assert [len(batch) for batch in network.batches] == [20, 20, 8, 2]
    for most in (1, 2, 5, 64, 100):
        sizes = batch_sizes(most)
        assert (sizes[0], sizes[-1]) == (1, most)
        assert all(b <= max(a + 1, 1.5 * a) for a, b in pairwise(sizes))


def test_a_batch_waits_for_images_that_are_being_decoded() -> None:
    network = Network()
    network.free.set()
    queue = BatchQueue(network, BatchLimits(2, 3600, 100))
    queue.start()
    first, second = queue.reserve(2)
    futures = [first.fill(image(1))]
    assert not network.begun.acquire(timeout=0.05)  # it waits, for an hour if need be
    futures.append(second.fill(image(2)))
    assert [score(future.result(SECONDS)) for future in futures] == [1, 2]
    queue.stop()
    assert network.batches == [[1, 2]]


def test_a_batch_does_not_wait_for_a_client_that_left() -> None:
    network = Network()
    network.free.set()
    queue = BatchQueue(network, BatchLimits(2, 3600, 100))
    queue.start()
    first, second = queue.reserve(2)
    future = first.fill(image(1))
    second.leave()
    second.leave()  # again changes nothing
    assert score(future.result(SECONDS)) == 1
    assert second.fill(image(2)).cancelled()  # decoded too late: nobody waits for it
    assert queue.held == 0
    queue.stop()
    assert network.batches == [[1]]


def test_a_batch_waits_no_longer_than_it_may() -> None:
    queue = BatchQueue(prediction, BatchLimits(2, 0.01, 100))
    queue.start()
    first, second = queue.reserve(2)
    assert score(first.fill(image(1)).result(SECONDS)) == 1
    second.leave()
    queue.stop()


def test_a_full_queue_is_refused_at_once_and_has_room_again() -> None:
    queue = BatchQueue(prediction, BatchLimits(4, 0, 3))
    slots = queue.reserve(2)
    with pytest.raises(Rejected, match="2 images are waiting, and there is room for 3") as refused:
        queue.reserve(2)
    assert refused.value.status == 503
    assert refused.value.headers()["retry-after"] == "1"
    slots += queue.reserve(1)
    for slot in slots:
        slot.leave()
    assert len(queue.reserve(3)) == 3


def test_more_images_than_there_is_room_for_are_refused_for_good() -> None:
    queue = BatchQueue(prediction, BatchLimits(1, 0, 3))
    with pytest.raises(
        Rejected, match="room for 3 images, got 4; send several requests"
    ) as refused:
        queue.reserve(4)
    assert refused.value.status == 413  # to try again, as after a 503, would not help
    assert len(queue.reserve(3)) == 3


def test_an_error_of_the_network_reaches_its_requests_and_the_next_batch_is_scored() -> None:
    def fails_once(images: Pixels) -> Prediction:
        if images.max() == 1:
            raise MemoryError("too large")
        return prediction(images)

    queue = BatchQueue(fails_once, BatchLimits(1, 0, 10))
    queue.start()
    first: Future[ScoredImage] = queue.reserve(1)[0].fill(image(1))
    assert isinstance(first.exception(SECONDS), MemoryError)
    assert score(queue.reserve(1)[0].fill(image(2)).result(SECONDS)) == 2
    queue.stop()
    assert queue.held == 0


def test_an_error_while_counting_does_not_end_the_queue() -> None:
    def count(prediction: Prediction, seconds: float) -> None:
        raise OSError("no space left")

    queue = BatchQueue(prediction, BatchLimits(1, 0, 10), count)
    queue.start()
    for value in (1, 2):
        assert score(queue.reserve(1)[0].fill(image(value)).result(SECONDS)) == value
    queue.stop()


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

    queue = BatchQueue(predict, BatchLimits(1, 0, 10), lambda p, seconds: counted.append(len(p)))
    queue.start()
    first = queue.reserve(1)[0].fill(image(1))
    assert begun.wait(SECONDS)
    assert first.cancel()  # as the end of the service does, after its time to answer
    free.set()
    assert score(queue.reserve(1)[0].fill(image(2)).result(SECONDS)) == 2
    queue.stop()
    assert counted == [1] * (1 if fails else 2)
    assert queue.held == 0


def test_stop_finishes_what_is_in_the_queue() -> None:
    network = Network()
    queue = BatchQueue(network, BatchLimits(1, 0, 10))
    futures = [slot.fill(image(n)) for n, slot in enumerate(queue.reserve(3))]
    queue.start()
    network.free.set()
    queue.stop()
    assert [score(future.result(0)) for future in futures] == [0, 1, 2]
