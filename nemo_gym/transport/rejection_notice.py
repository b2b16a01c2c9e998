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
LONGEST_MESSAGE = 200


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
