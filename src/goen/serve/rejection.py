"""A request that is not answered as asked: its status, a sentence, and a word for the metrics."""

from collections.abc import Mapping

from goen.errors import GoenError

STATUS = {
    "bad_request": 400,
    "broken_image": 422,
    "busy": 503,
    "forbidden": 403,
    "internal": 500,
    "method": 405,
    "not_an_image": 415,
    "not_found": 404,
    "slow": 408,
    "too_large": 413,
    "too_many_images": 413,
    "too_many_pixels": 413,
    "unauthorized": 401,
}
"""The kinds of rejections, and the status of each."""
_HEADERS = {
    "busy": {"connection": "close", "retry-after": "1"},
    "internal": {"connection": "close"},
    "unauthorized": {"www-authenticate": "Bearer"},
}


class Rejected(GoenError):  # noqa: N818  (reads as a sentence in `except Rejected`)
    """Why a request is not answered as asked.

    Attributes:
        kind: one of ``STATUS``.
        status: of the HTTP response.
        headers: of the HTTP response, besides those of every response.

    Example:
        >>> Rejected("busy", "Try again.").headers
        {'connection': 'close', 'retry-after': '1'}
    """

    def __init__(self, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.kind, self.status = kind, STATUS[kind]
        self.headers = headers or _HEADERS.get(kind, {})
