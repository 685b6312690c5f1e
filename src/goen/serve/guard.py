"""What surrounds every request: its number, the token, errors, counts and a log.

No error leaves as a traceback, and nothing of a request but its JSON-escaped path is logged.
"""

import hmac
import json
import re
import secrets
import time
from datetime import UTC, datetime
from logging import getLogger

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from goen.serve.rejection import Rejected
from goen.serve.service import Service
from goen.serve.settings import ServeSettings

REQUESTS = getLogger("goen.serve.requests")
"""A line of JSON for each request."""
_log = getLogger(__name__)

RESERVED = "reserved"
"""In the state of a connection beyond the limit: only the health of the service is answered."""
_HEALTH = "/v2/health/"
# What needs no token: the page itself, which asks for one, and the health of the service.
_OPEN = ("/static/", _HEALTH)
_REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LONGEST_PATH = 200
_GONE = 499  # the client left before its answer; nginx's number for it

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Of every answer; uvicorn adds them."""


class Guard:
    """Surrounds an application.

    One middleware of our own: Starlette's ``TrustedHostMiddleware`` does not know IPv6 addresses,
    it has none for tokens, and its handlers of exceptions see only what is raised behind every
    middleware, while a refusal here needs the same answer, count and line in the log.

    Args:
        app: the routes; they find the service in ``scope["service"]``.
        service: counts and settings.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service
        self.accepted = self.answered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        assert scope["type"] == "http"  # the server has neither a lifespan nor websockets
        self.accepted += 1
        exchange = _Exchange(scope, receive, send)
        scope["app"], scope["service"], scope["exchange"] = self, self.service, exchange
        try:
            check_room(scope)
            check_token(scope, self.service.settings.token)
            check_origin(scope, self.service.settings)
            await self.app(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            exchange.status = _GONE
        except Exception as error:
            await exchange.reject(_rejection(error, exchange.id))
        finally:
            self.answered += 1
            self._count(exchange)

    def _count(self, exchange: "_Exchange") -> None:
        metrics = self.service.metrics
        # The function that answered; none if no address fits.
        name = getattr(exchange.scope.get("endpoint"), "__name__", "none")
        seconds = time.perf_counter() - exchange.start
        metrics.requests.labels(name, str(exchange.status)).inc()
        if exchange.kind:
            metrics.rejected.labels(exchange.kind).inc()
        metrics.latency.labels(name).observe(seconds)
        if exchange.images:
            metrics.activity.answered(seconds, exchange.images)
        REQUESTS.info("%s", exchange.line(seconds))


def _rejection(error: Exception, request: str) -> Rejected:
    """What a client is told of an error: Starlette's in our words, and nothing of our own ones."""
    if isinstance(error, Rejected):
        return error
    if isinstance(error, HTTPException) and error.status_code == 405:
        text = "This address takes another method; see /openapi.json."
        return Rejected("method", text, error.headers)
    if isinstance(error, HTTPException):
        return Rejected("not_found", "Nothing is at this address; /openapi.json lists what is.")
    _log.error("request %s failed", request, exc_info=error)
    return Rejected(
        "internal", f"Something failed here, not with you; the log has request {request}."
    )


def check_room(scope: Scope) -> None:
    """Keep the connections beyond the limit for probes of the service's health.

    Raises:
        Rejected: it is something else that is asked there.
    """
    if scope.get("state", {}).get(RESERVED) and not scope["path"].startswith(_HEALTH):
        raise Rejected("busy", "Too many connections. Try again in a second.")


def check_token(scope: Scope, token: str | None) -> None:
    """Compare the token of a request with the service's, in constant time.

    Raises:
        Rejected: it is missing or another one.
    """
    if token is None or scope["path"] == "/" or scope["path"].startswith(_OPEN):
        return
    scheme, _, given = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
    is_right = hmac.compare_digest(given.strip(b" "), token.encode())
    if scheme.lower() != b"bearer" or not is_right:
        raise Rejected("unauthorized", "Send the service's token: Authorization: Bearer TOKEN.")


def check_origin(scope: Scope, settings: ServeSettings) -> None:
    """Refuse what a page from elsewhere makes the user's browser ask.

    Without a token whoever can connect may ask, and the browser of somebody here can. It says
    where a page is from; the name under which it asks is compared because the owner of a name may
    let it point to this machine.

    Raises:
        Rejected: another name than the service's, or a page of another origin.
    """
    if settings.token is not None:
        return
    headers = {name: value.decode("latin-1").lower() for name, value in scope["headers"]}
    host = headers.get(b"host", "")
    if settings.hosts and _without_port(host) not in settings.hosts:
        raise Rejected(
            "forbidden",
            f"This service has no token, so it answers only to {', '.join(settings.hosts)}. To be "
            "asked under another name it needs one: --token-file.",
        )
    origin = headers.get(b"origin")
    site = headers.get(b"sec-fetch-site")
    if site is None and origin is not None:
        site = "same-origin" if origin.partition("://")[2] == host else "cross-site"
    navigates = scope["method"] == "GET" and headers.get(b"sec-fetch-mode") == "navigate"
    if site not in (None, "none", "same-origin") and not navigates:
        raise Rejected("forbidden", "A page of another address may not use this service.")


def _without_port(host: str) -> str:
    name = host.rpartition(":")[0] if re.search(r":\d*$", host) else host
    return name.strip("[]")


class _Exchange:
    """One request and its response.

    Attributes:
        id: in the response and in the log: the client's, if it is harmless, else a random one.
        status: of the response.
        kind: of the error, if there was one.
        images: how many were scored.
        flagged: how many of these were flagged.

    Args:
        scope: of the request.
        receive: from the client.
        send: to the client.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"").decode("latin-1")
        self.id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)
        self.start = time.perf_counter()
        self.status = 0
        self.kind = ""
        self.images = self.flagged = 0
        self._receive, self._send = receive, send
        self._unread = (
            b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0"
        )

    async def receive(self) -> Message:
        """The next message of the client."""
        message = await self._receive()
        self._unread = self._unread and message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        """Pass a message on; a connection whose body was not read to its end is closed behind it.

        uvicorn would read the rest, without limit.
        """
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(raw=message["headers"])
            headers["x-request-id"] = self.id
            if self._unread:
                headers["connection"] = "close"
        await self._send(message)

    async def reject(self, error: Rejected) -> None:
        """Answer with an error, unless the answer has begun."""
        self.kind = error.kind
        if not self.status:
            response = JSONResponse({"error": str(error)}, error.status, error.headers)
            await response(self.scope, self.receive, self.send)

    def line(self, seconds: float) -> str:
        """For the log."""
        line: dict[str, str | int | float] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request": self.id,
            "method": self.scope["method"][:16],
            "path": self.scope["path"][:_LONGEST_PATH],
            "status": self.status,
            "milliseconds": round(1000 * seconds, 1),
        }
        if self.images:
            line |= {"images": self.images, "flagged": self.flagged}
        if self.kind:
            line["error"] = self.kind
        return json.dumps(line)
