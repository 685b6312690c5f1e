"""The limits and options of a service."""

from dataclasses import dataclass
from pathlib import Path

from goen.checks import check_number
from goen.data.images.limits import MAX_PIXELS
from goen.errors import UsageError
from goen.monitor.state import Guarantee

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class BatchLimits:
    """How images are gathered for the network.

    Attributes:
        most: images in a batch.
        wait: seconds that a batch waits for images that were accepted and are being decoded.
        capacity: images of a gate that may be in the service at once; more are answered with 503.
    """

    most: int = 64
    wait: float = 0.005
    capacity: int = 512


@dataclass(frozen=True)
class Limits:
    """The most that a client may send, and how long it may take.

    Attributes:
        body: bytes of a request.
        bodies: bytes of all requests together that are held in memory.
        pixels: of an image, checked before it is decoded.
        images: in one request.
        images_at_full_size: that one request may hold; together its images have at most so many
            times ``pixels``.
        connections: open at once.
        connections_per_address: of one client, or of one proxy.
        header_seconds: until the headers of a request have come.
        body_seconds: until its body has come, and for the client to read each part of the answer.
        idle_seconds: between two requests on one connection.
        drain_seconds: for accepted requests to be answered after SIGTERM.
    """

    body: int = 32 * MEGABYTE
    bodies: int = 256 * MEGABYTE
    pixels: int = 50_000_000
    images: int = 64
    images_at_full_size: int = 16
    connections: int = 512
    connections_per_address: int = 256
    header_seconds: float = 10.0
    body_seconds: float = 30.0
    idle_seconds: int = 30
    drain_seconds: int = 30


@dataclass(frozen=True)
class ServeSettings:
    """All that a service can be told.

    Attributes:
        batches: how images are gathered.
        limits: of requests.
        token: that clients must send as ``Authorization: Bearer TOKEN``; none if not given.
        hosts: the names under which it may be asked (``Host`` of a request); any if none is given.
            A page from elsewhere can make a browser ask this machine under a name of its own.
        state: the folder in which monitors are kept over restarts.
        restart: restart the tests of the kept monitors, after an alarm.
        keep_flagged: the folder for flagged images; none are kept if not given.
        keep_most: flagged images in it; the oldest are removed.
        alarm_probability: the monitors' bound on ever raising an alarm without a change.
    """

    batches: BatchLimits = BatchLimits()
    limits: Limits = Limits()
    token: str | None = None
    hosts: tuple[str, ...] = ()
    state: Path | None = None
    restart: bool = False
    keep_flagged: Path | None = None
    keep_most: int = 1000
    alarm_probability: float = 0.01

    def __post_init__(self) -> None:
        counts = {
            "images in a batch": self.batches.most,
            "images in the service": self.batches.capacity,
            "bytes of a request": self.limits.body,
            "bytes of all requests": self.limits.bodies,
            "pixels of an image": self.limits.pixels,
            "images in a request": self.limits.images,
            "images of full size in a request": self.limits.images_at_full_size,
            "connections": self.limits.connections,
            "connections of an address": self.limits.connections_per_address,
            "flagged images to keep": self.keep_most,
        }
        for name, value in counts.items():
            check_number(f"The maximum number of {name}", value, whole=True, at_least=1)
        check_number("The seconds that a batch waits", self.batches.wait, at_least=0, at_most=1)
        for name in ("header_seconds", "body_seconds"):
            check_number(name, getattr(self.limits, name), above=0)
        for name in ("idle_seconds", "drain_seconds"):
            check_number(name, getattr(self.limits, name), whole=True, at_least=0)
        Guarantee(self.alarm_probability)  # a probability, or an error
        if isinstance(self.hosts, str):  # any part of it would be a name
            raise UsageError(f"hosts must be a tuple of names; got the text {self.hosts!r}.")
        if self.limits.pixels > MAX_PIXELS:
            raise UsageError(f"Images have at most {MAX_PIXELS:,} pixels, whatever is asked.")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise UsageError("A token is printable ASCII on one line.")
        if self.token is not None and not 16 <= len(self.token) <= 4096:
            raise UsageError("A token has 16 to 4,096 characters: long enough not to be guessed.")
