"""Refusals of model endpoints (an error, a redirect, a page): the problem of one row, or of the whole run.

A wrong key, an exhausted quota or an unknown model is the problem of the run: the run stops early, and a resumed run
tries the refused rows again. A prompt that is too long is the problem of its row. A refusal is held back until it is
known which of the two it is. A rollout of the same agent that was sent after the refusal and got an answer shows that
the endpoint accepts requests. A few identical refusals and no rollout left in flight suggest that it does not. If the
content of the rows may still be the reason (status 400), a rollout that was answered before is sent once more, to know.
"""

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from nemo_gym.config.instances import server_instances
from nemo_gym.errors import GymError
from nemo_gym.rollouts.outcome import (
    INVALID_ANSWER,
    ROW_STATUSES,
    UNREACHABLE,
    AnsweredJob,
    CancelledRollout,
    FailedRollout,
    Failure,
    Job,
    Outcome,
    has_model_answer,
)
from nemo_gym.transport.error_causes import innermost_cause
from nemo_gym.transport.event_loop import is_cancelled

logger = logging.getLogger("nemo_gym.rollouts")

ATTEMPTS_TO_REACH = 4
"""Attempts of an answered rollout before a run whose endpoint cannot be reached is stopped.

Each attempt has another rollout id, which may choose another endpoint of a server with several.
"""
ENOUGH_REFUSALS = 5
"""Identical refusals after which no further rows are sent until it is known whether the endpoint refuses the run."""
MAX_GROUPS = 64
"""Maximum groups of identical refusals that are held back; if there are more, the oldest counts as problems of rows."""
REPORT_SECONDS = 5.0
"""Time without a decision after which the log says that the run waits for it."""
LONGEST_TEXT = 200

_CODE_OF_ROW = re.compile(
    r"\b(?:context_length_exceeded|exceed_context_size_error|(?:string|array)_above_max_length|tokens_limit_reached"
    r"|content_policy_violation|content_filter|ResponsibleAIPolicyViolation|invalid_prompt|request_too_large"
    r"|invalid_image\w*|image_(?:parse_error|too_large|too_small))\b"
)
"""Error codes of endpoints that refuse the content of a row: its length, or what it says or shows."""
_TEXT_OF_ROW = re.compile(
    r"context (?:length|size|window)|(?:prompt|input|messages?|conversation)\b[^.\"]{0,60}(?:too long|longer than)"
    r"|input token count|content (?:policy|filter)",
    re.IGNORECASE,
)
"""What the messages of endpoints without error codes say about such a row."""
_WORD_WITH_DIGIT = re.compile(r"\S*\d\S*")
"""Request ids, token counts and times, which differ between refusals for one reason."""
_MESSAGE_FIELD = re.compile(r'"(?:message|detail)\\*":\s*\\*"(.+?)\\*"\s*[,}]', re.DOTALL)
"""The message in an error body, also if the body is escaped once or more as a JSON string."""
_ENDPOINT_ANSWERED = re.compile(r"^(?:the endpoint|/run of \S+) answered \d+(?:: |$)")
_CODE_AT_END = re.compile(r" \([a-z]\w+\)$")
RESPONSES_SERVERS = frozenset({"openai_model", "azure_openai_model"})
"""Model servers that need an endpoint with the Responses API, which many endpoints lack."""
_REDIRECTS, _SERVER_ERRORS = range(300, 400), range(500, 600)
_REASONS = {
    401: "refuses the key",
    402: "reports that the quota of the key is used up",
    403: "refuses access with the key",
    404: "does not know the model or the path",
    **dict.fromkeys(_REDIRECTS, "redirects the requests to another page"),
    **dict.fromkeys(_SERVER_ERRORS, "answers every request with the same error"),
    INVALID_ANSWER: "does not answer as a model does",
    UNREACHABLE: "cannot be reached, or breaks its connections off",
}
_FIELDS_TO_FIX = {
    401: ("api_key",),
    402: ("api_key",),
    403: ("api_key",),
    404: ("base_url", "model"),
    **dict.fromkeys(_REDIRECTS, ("base_url",)),
    INVALID_ANSWER: ("base_url", "api_key"),
}


GroupKey = tuple[str, str, str]
"""Agent, model server, and the text that identical refusals have in common."""


class EndpointRefused(GymError):
    """A model endpoint refuses every request: the run stopped early, and `--resume` runs the rows that are left."""

    exit_status = 3


class RefusedRun(Protocol):
    """The part of `collect.StopCondition` that refusals need."""

    max_failures: int | None
    failures: int
    reason: str | None
    answers: dict[str, AnsweredJob]

    def record_answer(self, job: Job, sent_at: float) -> None:
        """Record a rollout whose model calls succeeded."""

    def refuse(self, failure: Failure) -> None:
        """Stop the run because a model endpoint refuses it."""


class HeldRefusal(NamedTuple):
    """A refusal that is held back, and when its rollout was sent and refused."""

    outcome: FailedRollout
    sent_at: float
    refused_at: float


@dataclass(slots=True)
class RefusalGroup:
    """Identical refusals of one agent that are held back."""

    agent: str
    failure: Failure
    held: list[HeldRefusal] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the workers that wait for a decision may continue."""
    is_reported: bool = False

    def possible_run_refusals(self, answered_sent_at: float) -> int:
        """Count the refusals that may be the problem of the run.

        `answered_sent_at` is when the latest rollout that got an answer was sent. If rows may be at fault, refusals of
        rollouts that were sent earlier do not count: the endpoint has accepted a later request.
        """
        if not self.failure.may_be_of_row:
            return len(self.held)
        return sum(refusal.sent_at >= answered_sent_at for refusal in self.held)


class RefusalBreaker:
    """Holds refusals back until it is known whether the endpoint refuses rows or the run.

    `finish` receives the outcomes once that is known; `cancel` receives those that are abandoned before. `send` makes
    an attempt whose outcome is not stored.
    """

    def __init__(
        self,
        stop: RefusedRun,
        in_flight: Sized,
        finish: Callable[[Outcome], None],
        cancel: Callable[[Outcome], None],
        send: Callable[[Job], Awaitable[Outcome]],
    ) -> None:
        self._stop = stop
        self._in_flight = in_flight
        self._finish = finish
        self._cancel = cancel
        self._send = send
        self.groups: dict[GroupKey, RefusalGroup] = {}
        """The refusals that are held back."""

    def hold(self, outcome: Outcome, sent_at: float, *, is_final: bool = True) -> RefusalGroup | None:
        """Hold back a refusal of a rollout sent at `sent_at` and return its group; None for any other outcome.

        A refusal that may be an outage is held back only if it `is_final`: otherwise the rollout is sent again.
        """
        if has_model_answer(outcome):
            self._finish_before(outcome.job.agent, sent_at)
        if not isinstance(outcome, FailedRollout) or outcome.failure.refusal_status is None:
            return None
        failure, agent = outcome.failure, outcome.job.agent
        if _is_reason_in_row(failure) or (failure.is_repeatable and not is_final):
            return None
        key = (agent, failure.server, _refusal_signature(failure))
        if key not in self.groups:
            if len(self.groups) >= MAX_GROUPS:
                self._close_group(next(iter(self.groups)))
            self.groups[key] = RefusalGroup(agent, failure)
        group = self.groups[key]
        group.held.append(HeldRefusal(outcome, sent_at, time.monotonic()))
        max_failures = self._stop.max_failures
        if max_failures is not None and self._stop.failures + len(group.held) >= max_failures:  # stops in any case
            self._stop_run(key)
        return group

    async def wait(self, group: RefusalGroup) -> None:
        """Wait until it is known whose problem the refusals are, if there are enough of them to stop the run."""
        await self.check()
        if not self._has_enough_refusals(group):
            return
        waiting = asyncio.ensure_future(group.released.wait())
        try:
            if not (await asyncio.wait({waiting}, timeout=REPORT_SECONDS))[0] and not group.is_reported:
                group.is_reported = True
                text = "%s: %s; the run waits for its rollouts in flight (%d) to decide whether to go on"
                logger.warning(text, group.failure.server, refusal_reason(group.failure), len(self._in_flight))
            await waiting
        finally:
            waiting.cancel()

    async def check(self) -> None:
        """Stop the run if enough refusals are identical and no rollout that could disprove them is in flight."""
        if not self.groups:
            return
        for key, group in list(self.groups.items()):
            if not len(self._in_flight) and key in self.groups and self._has_enough_refusals(group):
                await self._stop_if_refused(key)

    async def close(self) -> None:
        """Decide about the refusals that are still held back at the end of the run."""
        for key, group in list(self.groups.items()):
            sent_at, count = self._answered_sent_at(group.agent), len(group.held)
            if key not in self.groups:
                continue  # the answer to a rollout that was sent again has decided about this group, too
            if group.failure.may_be_of_row and sent_at and (count == 1 or group.possible_run_refusals(sent_at) < count):
                # The endpoint answered other rollouts, and either refused a single row or answered after a refusal.
                self._close_group(key)
            elif group.failure.may_be_of_row and group.agent not in self._stop.answers:
                self._close_group(key, of_run=True)
            else:
                await self._stop_if_refused(key)

    def abandon(self) -> None:
        """End every rollout that is held back, with the outcome cancelled."""
        for group in self.groups.values():
            for refusal in group.held:
                self._cancel(CancelledRollout(refusal.outcome.job))
        self.groups.clear()

    def _has_enough_refusals(self, group: RefusalGroup) -> bool:
        return group.possible_run_refusals(self._answered_sent_at(group.agent)) >= ENOUGH_REFUSALS

    def _answered_sent_at(self, agent: str) -> float:
        """Return when the latest rollout whose model calls succeeded was sent; 0 without one in this run."""
        answer = self._stop.answers.get(agent)
        return 0.0 if answer is None else answer.sent_at

    def _finish_before(self, agent: str, sent_at: float) -> None:
        """Finish the refusals before `sent_at`, when a rollout was sent that got an answer: their rows are at fault."""
        for key, group in list(self.groups.items()):
            if group.agent == agent:
                earlier = [refusal for refusal in group.held if refusal.refused_at < sent_at]
                group.held = [refusal for refusal in group.held if refusal.refused_at >= sent_at]
                if not group.held:
                    del self.groups[key]
                if not self._has_enough_refusals(group):
                    group.released.set()
                    group.released = asyncio.Event()  # for workers that wait from now on
                for refusal in earlier:
                    self._finish(refusal.outcome)

    def _close_group(self, key: GroupKey, *, of_run: bool = False) -> RefusalGroup:
        """Record the refusals of a group as failures of their rows; if `of_run`, these do not count as attempts."""
        group = self.groups.pop(key)
        group.released.set()
        for outcome, _, _ in group.held:
            failure = replace(outcome.failure, retryable=True, is_counted=False) if of_run else outcome.failure
            self._finish(replace(outcome, failure=failure))
        return group

    def _stop_run(self, key: GroupKey) -> None:
        """Stop the run because the endpoint refuses it; a resumed run tries the rollouts of the group again."""
        self._stop.refuse(self._close_group(key, of_run=True).failure)

    async def _stop_if_refused(self, key: GroupKey) -> None:
        """Stop the run, unless rows may be at fault and the endpoint answers a rollout that it answered before."""
        group = self.groups[key]
        answer = self._stop.answers.get(group.agent)
        if group.failure.may_be_of_row and answer is not None and self._stop.reason is None:
            attempts = ATTEMPTS_TO_REACH if group.failure.refusal_status == UNREACHABLE else 1
            for number in range(1, attempts + 1):
                is_answered = await self._is_answered_again(answer.job, number)
                if is_answered is not False or self._stop.reason is not None or self.groups.get(key) is not group:
                    break
        if self.groups.get(key) is group:
            self._stop_run(key)

    async def _is_answered_again(self, job: Job, number: int) -> bool | None:
        """Return whether a rollout that was answered before is answered again; None if the run ends and sends nothing.

        An answer shows that the rows of earlier refusals are at fault, and finishes these.
        """
        sent_at = time.monotonic()
        try:
            outcome = await self._send(job.with_attempt(job.key.attempt + number))
        except asyncio.CancelledError:
            if is_cancelled():  # otherwise the run ends and sends nothing more
                raise
            return None
        if not has_model_answer(outcome):
            return False
        self._stop.record_answer(job, sent_at)
        self._finish_before(job.agent, sent_at)
        return True


def _is_reason_in_row(failure: Failure) -> bool:
    """Return whether a refusal says that the content of the row is its reason."""
    if failure.refusal_status not in ROW_STATUSES:
        return False
    # Some endpoints repeat the request in the body, so not every text in it is theirs.
    return bool(_CODE_OF_ROW.search(failure.message) or _TEXT_OF_ROW.search(_endpoint_message(failure.message)))


def _refusal_signature(failure: Failure) -> str:
    """Return the text that identical refusals have in common: the status and, if a row may be at fault, the message."""
    if not failure.may_be_of_row or failure.refusal_status == UNREACHABLE:  # whose messages describe the moment
        return str(failure.refusal_status)
    return f"{failure.refusal_status} {_WORD_WITH_DIGIT.sub('#', failure.message)}"


def refusal_reason(failure: Failure) -> str:
    """Describe a refusal, for example `the endpoint refuses the key (401: Incorrect API key provided)`."""
    status = failure.refusal_status or UNREACHABLE
    reason = _REASONS.get(status, "refuses the requests")
    message = _endpoint_message(failure.message)
    if status == UNREACHABLE:
        return f"the endpoint {reason} ({message})"
    return f"the endpoint {reason} ({status}: {message})" if message else f"the endpoint {reason} ({status})"


def _endpoint_message(text: str) -> str:
    """Return the endpoint's own message from the message of a failure, in one line, without its code."""
    text = innermost_cause(_ENDPOINT_ANSWERED.sub("", text))
    match = _MESSAGE_FIELD.search(text)  # in a body that was cut
    line = _CODE_AT_END.sub("", " ".join((match[1] if match else text).split()))
    return line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]}…"


def endpoint_refused(failure: Failure, config: Mapping[str, Any], counts: str) -> EndpointRefused:
    """Build the error of a run that a model endpoint refuses; `counts` tells how many rollouts are left."""
    names = " and ".join(_keys_to_fix(failure, config)) or f"the configuration of {failure.server}"
    change = "start it again or correct its address" if failure.refusal_status == UNREACHABLE else f"fix {names}"
    fix = f"{change} and run the same command with --resume"
    instance = server_instances(config).get(failure.server)
    if failure.refusal_status == 404 and instance is not None and instance.implementation in RESPONSES_SERVERS:
        fix += "; for an endpoint without /v1/responses, use --model-type chat_completions_model"
    if failure.refusal_status in ROW_STATUSES:  # no rollout of this run or an earlier one shows that rows are at fault
        fix += "; if the message is about the content of the rows, correct them and start a run with another --output"
    return EndpointRefused(f"{refusal_reason(failure)}: {counts}", where=failure.server, fix=fix)


def _keys_to_fix(failure: Failure, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys that set the refused fields: a top-level key with the same value, else the key of the field."""
    instance = server_instances(config).get(failure.server)
    fields = instance.fields if instance is not None else {}
    for ending in _FIELDS_TO_FIX.get(failure.refusal_status or 0, ()):
        for name, value in fields.items():
            if str(name).endswith(ending) and isinstance(value, str):
                global_keys = (str(key) for key in config if config.get(key) == value)
                yield next(global_keys, f"{failure.server}.{name}")
