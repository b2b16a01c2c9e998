"""Report an endpoint that keeps rejecting calls: the run makes no progress although nothing has failed yet."""

import logging
import time
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import ClientResponseError

from nemo_gym.transport.error_causes import innermost_cause
from nemo_gym.transport.retries import MODEL_CALL

logger = logging.getLogger("nemo_gym.net")

FIRST_NOTICE_SECONDS = 5.0
"""A call that waits longer than this because of rejections is reported; shorter waits are ordinary."""
NOTICE_INTERVAL_SECONDS = 60.0
ANSWER_SECONDS = 1.0
"""Added to the pause after a rejection, so that the reason does not flicker while the call is sent again."""
LONGEST_MESSAGE = 200


_rejections: dict[str, tuple[float, str]] = {}
"""Instance name of a model server -> until when a rejected call waits (`time.monotonic()`), and why."""


def rejection_text(callee: str) -> str:
    """Return why calls to a model server wait, as ` (429: rate limited)`; empty if no rejected call waits."""
    until, reason = _rejections.get(callee, (0.0, ""))
    return f" ({reason})" if time.monotonic() < until else ""


def note_rejection(callee: str, status: int, pause: float) -> None:
    """Record that a call to a model server waits `pause` seconds because its endpoint rejected it."""
    reason = f"{status}: rate limited" if status == HTTPStatus.TOO_MANY_REQUESTS else f"{status}: overloaded"
    _rejections[callee] = (time.monotonic() + pause + ANSWER_SECONDS, reason)


class RejectionNotice:
    """Logs why the calls to one endpoint wait, at most once a minute."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_at = 0.0

    def record(self, callee: str, rejection: ClientResponseError, seconds: float) -> None:
        """Record a rejection of a call that will have waited for `seconds` when it is sent again."""
        now = self._clock()
        if seconds < FIRST_NOTICE_SECONDS or now < self._next_at:
            return
        self._next_at = now + NOTICE_INTERVAL_SECONDS
        is_rate = rejection.status == HTTPStatus.TOO_MANY_REQUESTS
        reason = "limits the rate of requests" if is_rate else "is overloaded"
        body = getattr(rejection, "response_content", b"") or b""
        message = innermost_cause(body.decode(errors="replace"))[:LONGEST_MESSAGE] or rejection.message
        logger.warning(
            "%s: the endpoint %s (%d: %s); each call is sent again for up to %d min. "
            "A lower --concurrency sends fewer calls at once",
            callee,
            reason,
            rejection.status,
            " ".join(message.split()),
            MODEL_CALL.budget_seconds // 60,
        )
