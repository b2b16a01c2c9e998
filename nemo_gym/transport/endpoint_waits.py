"""Waits of model calls for a slow endpoint: a retry after a rejection (429, 503), or a free slot.

While a call of a rollout waits, it is listed as the pending call of that rollout, with the reason after a comma:
`policy_model /v1/responses, rate limited (429), retry 2 after 8 s`. So the terminal and the live page of the viewer,
which show the pending calls, name the endpoint that holds the run up.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from nemo_gym.transport.call_timing import call_numbers, current_rollout, pending_calls

_REJECTED = re.compile(r"(?:rate limited|overloaded) \((\d{3})\)")


@contextmanager
def reporting_wait(server: str, path: str, reason: str) -> Iterator[None]:
    """List a model call as pending for this reason while the block runs; do nothing outside a rollout."""
    rollout = current_rollout()
    if rollout is None:
        yield
        return
    number = next(call_numbers)
    pending_calls[number] = (rollout, server, f"/v1/{path}, {reason}")
    try:
        yield
    finally:
        del pending_calls[number]


def retry_reason(status: int, rejections: int, pause: float) -> str:
    """Return why a call waits `pause` seconds after its latest rejection."""
    return f"{_rejection_text(status)}, retry {rejections} after {max(1, round(pause))} s"


def slot_reason(status: int | None) -> str:
    """Return why a call waits for a slot; `status` is that of the rejection that lowered the number of slots."""
    return "waits for a slot" if status is None else f"{_rejection_text(status)}, waits for a slot"


def _rejection_text(status: int) -> str:
    return f"{'rate limited' if status == HTTPStatus.TOO_MANY_REQUESTS else 'overloaded'} ({status})"


def split_reason(text: str) -> tuple[str, str]:
    """Split a pending call into server and path, and the reason of its wait; the reason may be empty."""
    call, _, reason = text.partition(", ")
    return call, reason


def rejection_status(reason: str) -> int | None:
    """Return the status of the rejection in the reason of a wait; None if the endpoint rejected nothing."""
    match = _REJECTED.match(reason)
    return int(match[1]) if match else None
