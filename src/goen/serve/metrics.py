"""What a service counts, in Prometheus' form and for its page."""

import time
from collections import deque
from functools import partial

import numpy as np
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from goen.io.manifest import JsonObject

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Of the last so many requests the page shows latencies; and a point every two seconds, for as long.
_RECENT = 2000
_MOST_MOMENTS = 450


class Metrics:
    """Counters of a service, each in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        counter = partial(Counter, registry=self.registry)
        histogram = partial(Histogram, registry=self.registry)
        gauge = partial(Gauge, registry=self.registry)
        self.requests = counter("goen_requests", "Requests answered.", ["endpoint", "status"])
        self.rejected = counter("goen_errors", "Requests not answered as asked.", ["kind"])
        waited = "From the headers of a request to its answer."
        self.latency = histogram("goen_request_seconds", waited, ["endpoint"], buckets=_SECONDS)
        self.images = counter("goen_images", "Images scored.", ["gate", "decision"])
        in_batch = "Images in a batch."
        self.batches = histogram("goen_batch_images", in_batch, ["gate"], buckets=_IMAGES)
        took = "Time of a batch."
        self.predicting = histogram("goen_batch_seconds", took, ["gate"], buckets=_SECONDS)
        runs = "1 for what runs the network."
        self.engines = gauge("goen_engine", runs, ["gate", "engine"])
        held = "Images accepted and not yet answered."
        self.held = gauge("goen_queue_images", held, ["gate"])
        share = "Share flagged among the last 1,000 images."
        self.flagged_share = gauge("goen_flagged_share", share, ["gate"])
        largest = "Largest log e-value of the monitor."
        self.log_e_value = gauge("goen_log_e_value", largest, ["gate"])
        line = "Log e-value at which the alarm is raised."
        self.alarm_line = gauge("goen_alarm_line", line, ["gate"])
        self.alarm = gauge("goen_alarm", "1 after an alarm.", ["gate"])
        unsaved = "1 while the monitor's state cannot be saved."
        self.unsaved = gauge("goen_state_unsaved", unsaved, ["gate"])
        self.activity = Activity()

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)


class Activity:
    """Latency and throughput of the last minutes, for the page."""

    def __init__(self) -> None:
        self._latencies: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        self._images = self._before = 0
        self._at = time.monotonic()
        self.moments: deque[JsonObject] = deque(maxlen=_MOST_MOMENTS)

    def answered(self, seconds: float, images: int) -> None:
        """A request that was answered with so many images."""
        self._latencies.append((time.monotonic(), seconds))
        self._images += images

    def tick(self, waiting: int) -> None:
        """Add a point: the rate since the last one, and latencies of the last ten seconds."""
        now = time.monotonic()
        rate = (self._images - self._before) / max(now - self._at, 1e-3)
        recent = [seconds for at, seconds in [*self._latencies] if now - at <= 10]
        median, high = np.quantile(recent, (0.5, 0.99)).tolist() if recent else (None, None)
        self._before, self._at = self._images, now
        self.moments.append(
            {
                "seconds": time.time(),
                "images_per_second": rate,
                "median_seconds": median,
                "p99_seconds": high,
                "waiting": waiting,
            }
        )
