"""Images of many requests, gathered into batches for one network."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from logging import getLogger
from threading import Condition, Thread

import numpy as np

from goen.data.imageset import Pixels
from goen.gate import Prediction
from goen.serve.rejection import Rejected
from goen.serve.settings import BatchLimits

_log = getLogger(__name__)


@dataclass(frozen=True)
class ScoredImage:
    """One image: its batch's prediction, and its place there."""

    prediction: Prediction
    place: int


class Slot:
    """A place in a queue for one image, which is yet to be decoded.

    It is filled or left, by whichever thread is first: a client may leave while its image is
    decoded.
    """

    def __init__(self, queue: "BatchQueue") -> None:
        self._queue = [queue]  # taking the one item of a list is atomic

    def fill(self, image: Pixels) -> "Future[ScoredImage]":
        """Put the image ``(3, H, W)`` into the place; what the gate finds comes later."""
        try:
            return self._queue.pop()._put(image)
        except IndexError:
            nobody_waits: Future[ScoredImage] = Future()
            nobody_waits.cancel()
            return nobody_waits

    def leave(self) -> None:
        """Give the place back if it was not filled."""
        with suppress(IndexError):
            self._queue.pop()._free(1, coming=True)


def batch_sizes(most: int) -> list[int]:
    """The sizes of batches: each at most half as large again as the one before.

    torch keeps buffers for every size that it has met: 64 sizes would take 230 MB with the bundled
    gate, these 40 MB, and they can all be met before the first request.

    Example:
        >>> batch_sizes(20)
        [1, 2, 3, 4, 6, 8, 12, 16, 20]
    """
    powers = [1 << n for n in range(most.bit_length())]
    return sorted({n for p in powers for n in (p, p + p // 2) if n <= most} | {most})


class BatchQueue:
    """A bounded queue of images, and a thread that passes them to ``predict`` in batches.

    A batch begins when the network is free. It takes what has come, and waits only while images
    that were accepted are still being decoded, at most ``limits.wait`` seconds: a single image
    never waits.

    Args:
        predict: takes images ``(N, 3, H, W)``.
        limits: of batches and of the queue.
        finished: is told of each batch after its images were answered: the prediction, and the
            seconds that it took.
    """

    def __init__(
        self,
        predict: Callable[[Pixels], Prediction],
        limits: BatchLimits,
        finished: Callable[[Prediction, float], None] = lambda prediction, seconds: None,
    ) -> None:
        self.limits = limits
        self.sizes = batch_sizes(limits.most)
        self._predict, self._finished = predict, finished
        self._waiting: deque[tuple[Pixels, Future[ScoredImage]]] = deque()
        self._changed = Condition()
        self._held = self._coming = 0
        self._stopping = False
        self._thread = Thread(target=self._work, name="goen batches", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self) -> None:
        """Finish what is in the queue, and end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join()

    @property
    def held(self) -> int:
        """Images that were accepted and are not yet answered."""
        return self._held

    def reserve(self, count: int) -> list[Slot]:
        """Places for so many images.

        Raises:
            Rejected: there are not so many, now or ever.
        """
        if count > self.limits.capacity:
            raise Rejected(
                "too_many_images",
                f"There is room for {self.limits.capacity} images, got {count}; send several "
                "requests.",
            )
        with self._changed:
            if self._held + count > self.limits.capacity:
                raise Rejected(
                    "busy",
                    f"{self._held} images are waiting, and there is room for "
                    f"{self.limits.capacity}. Try again in a second.",
                )
            self._held += count
            self._coming += count
        return [Slot(self) for _ in range(count)]

    def _put(self, image: Pixels) -> "Future[ScoredImage]":
        future: Future[ScoredImage] = Future()
        with self._changed:
            self._coming -= 1
            self._waiting.append((image, future))
            self._changed.notify_all()
        return future

    def _free(self, count: int, *, coming: bool = False) -> None:
        with self._changed:
            self._held -= count
            if coming:
                self._coming -= count
            self._changed.notify_all()

    def _work(self) -> None:
        while batch := self._next():
            self._score(batch)

    def _next(self) -> list[tuple[Pixels, "Future[ScoredImage]"]]:
        """The next batch; empty when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            self._changed.wait_for(
                lambda: len(self._waiting) >= self.limits.most or not self._coming,
                timeout=self.limits.wait,
            )
            count = max((n for n in self.sizes if n <= len(self._waiting)), default=0)
            return [self._waiting.popleft() for _ in range(count)]

    def _score(self, batch: Sequence[tuple[Pixels, "Future[ScoredImage]"]]) -> None:
        start = time.perf_counter()
        try:
            prediction = self._predict(np.stack([image for image, _ in batch]))
        except Exception as error:  # of a network that is not goen's: its requests get the error
            self._free(len(batch))
            for _, future in batch:
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            return
        seconds = time.perf_counter() - start
        self._free(len(batch))
        for place, (_, future) in enumerate(batch):
            if future.set_running_or_notify_cancel():  # else its request was given up
                future.set_result(ScoredImage(prediction, place))
        try:
            self._finished(prediction, seconds)
        except Exception:  # the next batch must be answered in any case
            _log.exception("A batch was answered, but not counted.")
