"""Images of many requests, gathered into batches for one network."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from logging import getLogger
from typing import cast

import numpy as np

from goen.data.imageset import Pixels
from goen.gate import Prediction
from goen.serve.rejection import Rejected
from goen.serve.settings import BatchLimits
from goen.serve.threads import DecodingThreads

_log = getLogger(__name__)


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
    """A bounded queue of images that pass through ``predict`` in batches.

    A batch begins when the network is free. It takes what has come, and waits only while images
    that were accepted are still being decoded, at most ``limits.wait`` seconds: a single image
    never waits. All but decoding and the network itself runs in the event loop.

    Args:
        predict: takes images ``(N, 3, H, W)``.
        limits: of batches and of the queue.
        threads: decode; each request has its turn.
        finished: is told of each batch after its images were answered: the prediction, and the
            seconds that it took.

    Attributes:
        held: images that were accepted and are not yet answered.
    """

    def __init__(
        self,
        predict: Callable[[Pixels], Prediction],
        limits: BatchLimits,
        threads: DecodingThreads,
        finished: Callable[[Prediction, float], None] = lambda prediction, seconds: None,
    ) -> None:
        self.limits = limits
        self.sizes = batch_sizes(limits.most)
        self.held = 0
        self._predict, self._threads, self._finished = predict, threads, finished
        self._network = ThreadPoolExecutor(1, "goen batches")
        self._waiting: deque[tuple[Pixels, asyncio.Future[Prediction]]] = deque()
        self._coming = 0
        self._changed = asyncio.Event()
        self._work: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """End, after the batch that is being predicted and counted."""
        self._network.shutdown()

    async def score(
        self, makers: Sequence[Callable[[], Pixels]]
    ) -> "list[tuple[Pixels, Prediction] | Rejected]":
        """The images ``(3, H, W)`` that these return and the gate's prediction of each.

        In place of an image that is refused: why.

        Raises:
            Rejected: there is no room for so many images, now or ever.
        """
        count, capacity = len(makers), self.limits.capacity
        if count > capacity:
            raise Rejected(
                "too_many_images",
                f"There is room for {capacity} images, got {count}; send several requests.",
            )
        if self.held + count > capacity:
            raise Rejected(
                "busy",
                f"{self.held} images are waiting, and there is room for {capacity}. Try again in a "
                "second.",
            )
        self.held += count
        turns = asyncio.Semaphore(self._threads.most)
        try:
            # All of them, also after an error: what is still decoded or waiting stays counted.
            found = await asyncio.gather(
                *(self._score(make, turns) for make in makers), return_exceptions=True
            )
        finally:
            self.held -= count
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, Rejected):
                raise one
        return cast("list[tuple[Pixels, Prediction] | Rejected]", found)

    async def _score(
        self, make: Callable[[], Pixels], turns: asyncio.Semaphore
    ) -> tuple[Pixels, Prediction]:
        loop = asyncio.get_running_loop()
        self._coming += 1
        try:
            async with turns:
                image = await self._threads.decode(make)
        finally:
            self._coming -= 1
            self._changed.set()
        answer: asyncio.Future[Prediction] = loop.create_future()
        self._waiting.append((image, answer))
        if self._work is None:
            self._work = loop.create_task(self._score_batches())
        return image, await answer

    async def _score_batches(self) -> None:
        """Until no image is waiting."""
        self._changed = asyncio.Event()  # of the loop that runs now
        try:
            while self._waiting:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.limits.wait):
                        while self._coming and len(self._waiting) < self.limits.most:
                            self._changed.clear()
                            await self._changed.wait()
                count = max(n for n in self.sizes if n <= len(self._waiting))
                await self._score_batch([self._waiting.popleft() for _ in range(count)])
        finally:
            self._work = None

    async def _score_batch(
        self, batch: Sequence[tuple[Pixels, "asyncio.Future[Prediction]"]]
    ) -> None:
        images, answers = zip(*batch, strict=True)
        loop = asyncio.get_running_loop()
        try:
            found, seconds = await loop.run_in_executor(self._network, self._timed, images)
            each = [found.take([place]) for place in range(len(batch))]
        except Exception as error:  # of a network that is not goen's: its requests get the error
            for answer in answers:
                if not answer.done():
                    answer.set_exception(error)
            return
        for answer, one in zip(answers, each, strict=True):
            if not answer.done():  # else its request was given up
                answer.set_result(one)
        self._network.submit(self._count, found, seconds)

    def _timed(self, images: Sequence[Pixels]) -> tuple[Prediction, float]:
        start = time.perf_counter()
        return self._predict(np.stack(images)), time.perf_counter() - start

    def _count(self, prediction: Prediction, seconds: float) -> None:
        try:
            self._finished(prediction, seconds)
        except Exception:  # the next batch must be answered in any case
            _log.exception("A batch was answered, but not counted.")
