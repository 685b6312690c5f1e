"""``goen serve``: a gate as an HTTP service, with a page."""

import os
import re
from collections.abc import Sequence
from ipaddress import ip_address
from logging import ERROR, INFO, StreamHandler
from pathlib import Path
from typing import Annotated

import tyro

from goen.cli.options.model import RateOptions
from goen.cli.options.types import Device, OptionalFolder, OptionalPath, several
from goen.cli.output.console import logged_to, note, warn
from goen.errors import ExtraMissing, UsageError
from goen.gate import DEFAULT_GATE
from goen.gate.engine import EngineOption
from goen.models.placement import find_device

TOKEN = "GOEN_SERVE_TOKEN"
_TOKEN_BYTES = 1 << 12
_NAMES = ("127.0.0.1", "::1", "localhost")


def serve_command(
    gates: Annotated[tuple[str, ...], tyro.conf.Positional, several("[NAME=]GATE")] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    options: Annotated[RateOptions, tyro.conf.arg(name="")] = RateOptions(),  # noqa: B008
    device: Device = "cpu",
    engine: EngineOption = "auto",
    token_file: OptionalPath = None,
    state: OptionalFolder = None,
    restart: bool = False,
    keep_flagged: OptionalFolder = None,
    keep_most: int = 1000,
    alarm_probability: float = 0.01,
    batch_size: int = 64,
    wait_ms: float = 5.0,
    queue: int = 512,
    max_mb: int = 32,
    max_pixels: int = 50_000_000,
    max_images: int = 64,
    quiet: bool = False,
) -> int:
    """Serve gates over HTTP: a page for people, an interface for programs.

    The page is at the address that is printed. Programs send an image to /score and get the row of
    goen score, or speak the Open Inference Protocol (/v2), as to Triton or KServe; /openapi.json
    describes it all, /metrics is for Prometheus. Images are not kept. A token that clients must
    send is read from --token-file, or from the environment: GOEN_SERVE_TOKEN. SIGTERM and Ctrl-C
    answer what was accepted, within 30 seconds, and end. docs/serve.md has examples.

    For example: goen serve
                 goen serve runs/digits --port 9000 --state runs/serve
                 goen serve animals=cifar10 digits=runs/digits
                 curl --data-binary @photo.jpg http://127.0.0.1:8000/score

    Args:
        gates: Folders of gates or runs, or names of bundled gates (default: cifar10); NAME is
            that of the gate in addresses. The first is the one that /score means.
        host: Address to listen on. By default only programs on this machine can connect.
        port: Port to listen on; 0 takes a free one.
        options: The gate's own model and its false-alarm rate.
        device: Device of the network: cpu, or cuda (cuda:1 is the second GPU).
        engine: Engine of the network: onnxruntime, which is up to twice as fast on a CPU
            (goen[onnx]), torch, or auto: onnxruntime where it is installed and predicts as torch
            does.
        token_file: File with the token that clients must send.
        state: Folder that keeps the monitors over restarts.
        restart: Restart the tests of the monitors in --state, after an alarm.
        keep_flagged: Folder that keeps flagged images.
        keep_most: Maximum number of flagged images to keep; the oldest are removed.
        alarm_probability: Maximum probability that a monitor ever raises an alarm without a change
            of the images.
        batch_size: Maximum number of images that pass through the network together.
        wait_ms: Maximum milliseconds that a batch waits for images that are being decoded.
        queue: Maximum number of images of a gate in the service at once; beyond it requests are
            answered with 503.
        max_mb: Maximum request size in MB.
        max_pixels: Maximum number of pixels of an image.
        max_images: Maximum number of images in a request.
        quiet: Write no line for each request.
    """
    try:
        from goen.serve.server import address, open_socket, serve
        from goen.serve.service import Service
        from goen.serve.settings import MEGABYTE, BatchLimits, Limits, ServeSettings
    except ImportError as error:
        raise ExtraMissing(f"goen serve needs {error.name}: pip install 'goen[serve]'.") from error
    token = _token(token_file)
    settings = ServeSettings(
        batches=BatchLimits(batch_size, wait_ms / 1000, queue),
        limits=Limits(body=max_mb * MEGABYTE, pixels=max_pixels, images=max_images),
        token=token,
        hosts=(*_NAMES, host) if token is None and _is_loopback(host) else (),
        state=state,
        restart=restart,
        keep_flagged=keep_flagged,
        keep_most=keep_most,
        alarm_probability=alarm_probability,
    )
    named = _named(gates or (DEFAULT_GATE,))
    if len(named) > 1 and (options.model or options.preprocess):
        raise UsageError("--model and --preprocess go with one gate.")
    place = find_device(device)
    opened = {name: options.open(gate) for name, gate in named.items()}
    for name, gate in opened.items():
        gate.network.to(place)
        opened[name] = gate.with_engine(engine)
    service = Service(opened, settings)
    served = ", ".join(f"{name}: {gate.engine}" for name, gate in opened.items())
    with (
        open_socket(host, port) as listening,
        # The line of each request as it is: it is JSON already.
        logged_to(StreamHandler(), "goen.serve.requests", ERROR if quiet else INFO),
        # Their warnings are of requests that are malformed, which the client is told.
        logged_to(StreamHandler(), "uvicorn", ERROR),
        logged_to(StreamHandler(), "python_multipart", ERROR),
    ):
        if settings.token is None and not _is_loopback(host):
            warn(f"whoever reaches {address(listening)} can use it: there is no token.")
        is_saved = serve(service, listening, lambda url: note(f"ready: {url}  ({served})"))
    return int(not is_saved)


def _is_loopback(host: str) -> bool:
    """Whether only programs on this machine can connect to this address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost"


def _named(gates: Sequence[str]) -> dict[str, str]:
    """The gates by the names under which they are served: those of their folders in an address."""
    found: dict[str, str] = {}
    for given in gates:
        name, separator, gate = given.rpartition("=")
        if not separator:
            folder = Path(given).name
            name = re.sub(r"[^A-Za-z0-9._-]+", "-", folder).lstrip("._-")[:64] or folder
        if name in found:
            raise UsageError(f"Two gates have the name {name}. Give them others: NAME=GATE.")
        found[name] = gate
    return found


def _token(file: Path | None) -> str | None:
    if file is None:
        token = os.environ.get(TOKEN)
        if token is not None and not token.strip():
            raise UsageError(
                f"{TOKEN} is set and empty, so that nobody would need a token. Give it one "
                "(`openssl rand -hex 32` makes one), or unset it."
            )
        return token
    with file.open("rb") as opened:
        content = opened.read(_TOKEN_BYTES + 1)  # /dev/zero has no end
    if len(content) > _TOKEN_BYTES or not content.isascii():
        raise UsageError(
            f"{file} should hold a token: printable ASCII on one line. `openssl rand -hex 32` "
            "makes one."
        )
    return content.decode("ascii").strip()
