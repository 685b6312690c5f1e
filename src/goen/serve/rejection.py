"""A request that is not answered as asked: its status, a sentence, and a word for the metrics."""

from typing import Literal

from goen.errors import GoenError

RejectionKind = Literal[
    "bad_request",
    "broken_image",
    "busy",
    "forbidden",
    "method",
    "not_an_image",
    "not_found",
    "slow",
    "too_large",
    "too_many_images",
    "too_many_pixels",
    "unauthorized",
]

_STATUS: dict[RejectionKind, int] = {
    "bad_request": 400,
    "broken_image": 422,
    "busy": 503,
    "forbidden": 403,
    "method": 405,
    "not_an_image": 415,
    "not_found": 404,
    "slow": 408,
    "too_large": 413,
    "too_many_images": 413,
    "too_many_pixels": 413,
    "unauthorized": 401,
}


class Rejected(GoenError):  # noqa: N818  (reads as a sentence in `except Rejected`)
    """Why a request is not answered as asked.

    Example:
        >>> Rejected("busy", "Try again.").headers()
        {'connection': 'close', 'retry-after': '1'}
    """

    def __init__(self, kind: RejectionKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def status(self) -> int:
        """Of the HTTP response."""
        return _STATUS[self.kind]

    def headers(self) -> dict[str, str]:
        """Of the HTTP response, besides those of every response."""
        found = {
            "busy": {"connection": "close", "retry-after": "1"},
            "unauthorized": {"www-authenticate": "Bearer"},
        }
        return found.get(self.kind, {})
