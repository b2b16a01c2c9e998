"""Refusals of model endpoints (4xx): the problem of one row, or of the whole run.

A wrong key, an exhausted quota or an unknown model is the problem of the run: rows that were refused stay open, and the
run stops early. A prompt that is too long is the problem of its row. A refusal is therefore held back until it is known
which of the two it is: a rollout of the same agent that was sent after the refusal and scored shows that the endpoint
accepts requests; a few identical refusals and no rollout left in flight show that it does not.
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

from nemo_gym.config.instances import server_instances
from nemo_gym.errors import GymError
from nemo_gym.rollouts.outcome import (
    ROW_STATUSES,
    CancelledRollout,
    FailedRollout,
    Failure,
    FailureKind,
    LimitedRollout,
    Outcome,
    ScoredRollout,
)

logger = logging.getLogger("nemo_gym.rollouts")

ENOUGH_REFUSALS = 5
"""Identical refusals after which no further rows are sent until it is known whether the endpoint refuses the run."""
MAX_GROUPS = 64
"""Different refusals that are held back at most; an older one then counts as the problem of its row."""
REPORT_SECONDS = 5.0
"""Time without a decision after which the log says that the run waits for it."""
LONGEST_TEXT = 200

_KINDS_AFTER_ANSWER = frozenset({FailureKind.VERIFIER_ERROR, FailureKind.INVALID_REWARD})
"""Failures of rollouts whose model calls succeeded."""

_WORD_WITH_DIGIT = re.compile(r"\S*\d\S*")
"""Request ids, token counts and times, which differ between refusals for one reason."""
_MESSAGE_FIELD = re.compile(r'"(?:message|detail)\\*":\s*\\*"(.+?)\\*"\s*[,}]', re.DOTALL)
"""The message in an error body, also if the body is escaped once or more as a JSON string."""
INNER_SERVER = "calling an inner server: "
_REASONS = {
    401: "refuses the key",
    402: "reports that the quota of the key is used up",
    403: "refuses access with the key",
    404: "does not know the model or the path",
}
_FIELDS_TO_FIX = {401: ("api_key",), 402: ("api_key",), 403: ("api_key",), 404: ("base_url", "model")}


GroupKey = tuple[str, str, str]
"""Agent, model server, and the text that identical refusals have in common."""


class EndpointRefused(GymError):
    """A model endpoint refuses every request: the run stopped early, and `--resume` runs the rows that are left."""

    exit_status = 3


class RefusedRun(Protocol):
    """The early stop of a run."""

    max_failures: int | None
    failures: int

    def refuse(self, failure: Failure) -> None:
        """Stop the run because a model endpoint refuses it."""


class HeldRefusal(NamedTuple):
    """A refusal that is held back, and when its rollout was sent and refused."""

    outcome: FailedRollout
    sent: float
    refused: float


@dataclass(slots=True)
class RefusalGroup:
    """Identical refusals of one agent that are held back."""

    agent: str
    failure: Failure
    held: list[HeldRefusal] = field(default_factory=list)
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the workers that wait for a decision may continue."""
    is_reported: bool = False

    @property
    def may_be_of_row(self) -> bool:
        """True if the endpoint may refuse the content of a row."""
        return self.failure.refusal_status in ROW_STATUSES

    def unexplained_count(self, answered: float) -> int:
        """Count the refusals that may be of the run; `answered` is when the latest scored rollout was sent.

        A row that was refused although a rollout sent after it was scored may be at fault itself.
        """
        return sum(refusal.sent >= answered for refusal in self.held) if self.may_be_of_row else len(self.held)


class RefusalBreaker:
    """Holds refusals back until it is known whether the endpoint refuses rows or the run.

    `finish` receives the outcomes once that is known; `cancel` receives those that are abandoned before.
    """

    def __init__(
        self, stop: RefusedRun, in_flight: Sized, finish: Callable[[Outcome], None], cancel: Callable[[Outcome], None]
    ) -> None:
        self._stop = stop
        self._in_flight = in_flight
        self._finish = finish
        self._cancel = cancel
        self._groups: dict[GroupKey, RefusalGroup] = {}
        self._answered: dict[str, float] = {}
        """For every agent with a rollout whose model calls succeeded: when the latest of them was sent."""

    def hold(self, outcome: Outcome, sent: float) -> RefusalGroup | None:
        """Hold back a refusal and return its group; None for any other outcome. `sent` is when the rollout was sent."""
        if not isinstance(outcome, FailedRollout):
            if isinstance(outcome, ScoredRollout | LimitedRollout):
                self._record_answer(outcome.job.agent, sent)
            return None
        if outcome.failure.refusal_status is None:
            if outcome.failure.kind in _KINDS_AFTER_ANSWER:
                self._record_answer(outcome.job.agent, sent)
            return None
        failure, agent = outcome.failure, outcome.job.agent
        key = (agent, failure.server, _refusal_signature(failure))
        if key not in self._groups:
            if len(self._groups) >= MAX_GROUPS:
                self._settle(next(iter(self._groups)))
            self._groups[key] = RefusalGroup(agent, failure)
        group = self._groups[key]
        group.held.append(HeldRefusal(outcome, sent, time.monotonic()))
        most = self._stop.max_failures
        if most is not None and self._stop.failures + len(group.held) >= most:
            self._refuse(key)
        return group

    async def wait(self, group: RefusalGroup) -> None:
        """Wait for the decision if there are enough identical refusals."""
        self.check()
        if not self._is_enough(group):
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

    def check(self) -> None:
        """Stop the run if enough refusals are identical and no rollout that could disprove them is in flight."""
        if self._groups and not len(self._in_flight):
            for key in [key for key, group in self._groups.items() if self._is_enough(group)]:
                self._refuse(key)

    def close(self) -> None:
        """Decide about refusals at the end of the run, when there are too few for a decision."""
        for key, group in list(self._groups.items()):
            answered = self._answered.get(group.agent)
            if not group.may_be_of_row:
                self._refuse(key)
            elif answered and (len(group.held) == 1 or group.unexplained_count(answered) < len(group.held)):
                self._settle(key)
            else:
                self._leave_open(key)

    def abandon(self) -> None:
        """Report the rollouts that are held back as cancelled."""
        for group in self._groups.values():
            for refusal in group.held:
                self._cancel(CancelledRollout(refusal.outcome.job))
        self._groups.clear()

    def _is_enough(self, group: RefusalGroup) -> bool:
        return group.unexplained_count(self._answered.get(group.agent, 0.0)) >= ENOUGH_REFUSALS

    def _record_answer(self, agent: str, sent: float) -> None:
        """Record a rollout whose model calls succeeded: refusals before it was sent are those of rows."""
        self._answered[agent] = max(sent, self._answered.get(agent, sent))
        for key, group in list(self._groups.items()):
            if group.agent == agent:
                later = [refusal for refusal in group.held if refusal.refused >= sent]
                earlier = [refusal for refusal in group.held if refusal.refused < sent]
                group.held = later
                if not later:
                    del self._groups[key]
                if not self._is_enough(group):
                    group.released.set()
                    group.released = asyncio.Event()
                for refusal in earlier:
                    self._finish(refusal.outcome)

    def _settle(self, key: GroupKey) -> None:
        """Record the refusals of a group as failures of their rollouts."""
        group = self._groups.pop(key)
        group.released.set()
        for refusal in group.held:
            self._finish(refusal.outcome)

    def _leave_open(self, key: GroupKey) -> None:
        """Record the refusals of a group as failures that a resumed run tries again."""
        group = self._groups.pop(key)
        group.released.set()
        for outcome, _, _ in group.held:
            self._finish(replace(outcome, failure=replace(outcome.failure, retryable=True)))

    def _refuse(self, key: GroupKey) -> None:
        """Stop the run because the endpoint refuses it."""
        failure = self._groups[key].failure
        self._leave_open(key)
        self._stop.refuse(failure)


def _refusal_signature(failure: Failure) -> str:
    """Return the text that identical refusals have in common; only the status if no row can be at fault."""
    if failure.refusal_status not in ROW_STATUSES:
        return str(failure.refusal_status)
    return f"{failure.refusal_status} {_WORD_WITH_DIGIT.sub('#', failure.message)}"


def refusal_reason(failure: Failure) -> str:
    """Describe a refusal, for example `the endpoint refuses the key (401: Incorrect API key provided)`."""
    status = failure.refusal_status or 0
    reason = _REASONS.get(status, "refuses the requests")
    return f"the endpoint {reason} ({status}: {_endpoint_message(failure.message)})"


def _endpoint_message(text: str) -> str:
    """Return the endpoint's own message from the text of nested errors, in one line."""
    match = _MESSAGE_FIELD.search(text)
    line = " ".join((match[1] if match else text.rpartition(INNER_SERVER)[2]).split())
    return line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]}…"


def endpoint_refused(failure: Failure, config: Mapping[str, Any], counts: str) -> EndpointRefused:
    """Build the error of a run that a model endpoint refuses; `counts` tells how many rollouts are left."""
    names = " and ".join(_keys_to_fix(failure, config)) or f"the configuration of {failure.server}"
    return EndpointRefused(
        f"{refusal_reason(failure)}: {counts}",
        where=failure.server,
        fix=f"fix {names} and run the same command with --resume",
    )


def _keys_to_fix(failure: Failure, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the keys of the refused settings: the top-level key with the same value, else that of the server block."""
    instance = server_instances(config).get(failure.server)
    for ending in _FIELDS_TO_FIX.get(failure.refusal_status or 0, ()) if instance else ():
        for name, value in instance.fields.items() if instance else ():
            if str(name).endswith(ending) and isinstance(value, str):
                same = (key for key in config if isinstance(config.get(key), str) and config.get(key) == value)
                yield next(map(str, same), f"{failure.server}.{name}")
