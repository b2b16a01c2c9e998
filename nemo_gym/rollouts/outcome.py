"""Jobs and their outcomes: a rollout ends scored, failed, limited or cancelled.

On the wire and on disk an outcome is a plain record. A record with `_ng_failure_class` is a failure and belongs in the
failures file; a record with `_ng_no_persist` is not stored and is run again on resume; any other record has a reward.
"""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

from nemo_gym.errors import GymError
from nemo_gym.keys import (
    AGENT_REF_KEY_NAME,
    ATTEMPT_INDEX_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    NG_FAILURE_DETAIL_KEY,
    NG_FAILURE_JUDGE_ERROR_KEY,
    NG_NO_PERSIST_KEY,
    NG_SECONDS_KEY,
    NG_TERMINAL_KEY,
    ROLLOUT_ID_KEY_NAME,
    SKILLS_REF_KEY_NAME,
)
from nemo_gym.wire.stored_rollout import COUNTED_KEY, LIMIT_CLASS, REWARD_KEY, RolloutKey, Row, StoredRollout

LONGEST_MESSAGE = 4000
LARGEST_REWARD = 1e100
"""Largest reward of a server that declares no range; a larger one is a bug that would hide all other rewards."""
NOT_FINITE_TEXTS = ("NaN", "Infinity", "-Infinity")
"""Rewards that are not finite, as JSON contains them."""
ROW_STATUSES = frozenset({400, 413, 422})
"""Statuses with which a model endpoint may refuse the content of a row; others concern the key, account or address."""

INVALID_ANSWER = 200
"""Status of a refusal that is no error status: an answer that is not one of a model, such as a login page."""

UNREACHABLE = 0
"""Status of a refusal without an answer: the endpoint cannot be connected to, or breaks its connections off."""

REFUSAL_STATUS = "status"

_COPIED_FIELDS = (AGENT_REF_KEY_NAME, SKILLS_REF_KEY_NAME, ATTEMPT_INDEX_KEY_NAME, ROLLOUT_ID_KEY_NAME)
_NOT_FROM_A_MODEL = ("function_call_output", "computer_call_output", "local_shell_call_output", "mcp_approval_response")
_ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True)
class Job:
    """A rollout ready to be sent to `/run`: a row with its key written into it."""

    key: RolloutKey
    row: Row

    @classmethod
    def of(cls, row: Row) -> "Job":
        """Build the job of a row that contains its key; raises ValueError if the row has no key."""
        return cls(RolloutKey.of(row), row)

    @property
    def agent(self) -> str:
        """Name of the agent instance that runs the job."""
        return str(self.row[AGENT_REF_KEY_NAME]["name"])

    def with_attempt(self, attempt: int) -> "Job":
        """Return the job of the same rollout with attempt number `attempt`, counted from 0."""
        if not attempt:
            return self
        key = replace(self.key, attempt=attempt)
        return Job(key, {**self.row, **key.fields()})

    def with_key(self, record: Row) -> Row:
        """Return a copy of `record` with the fields that identify this job: key, agent and, if set, skills and ids."""
        copied = {name: self.row[name] for name in _COPIED_FIELDS if self.row.get(name) is not None}
        return {**record, **self.key.fields(), **copied}


class FailureKind(StrEnum):
    """The kinds of failures that the collector assigns. Agents may report other kinds in `_ng_failure_class`."""

    MODEL_UNREACHABLE = "model_unreachable"
    MODEL_REFUSED = "model_refused"
    MODEL_BAD_REPLY = "model_bad_reply"
    MODEL_ANSWER_TOO_LARGE = "model_answer_too_large"
    RATE_LIMITED = "rate_limited"
    AGENT_ERROR = "agent_error"
    TOOL_ERROR = "tool_error"
    VERIFIER_ERROR = "verifier_error"
    JUDGE_FAILED = "judge_failed"
    INVALID_REWARD = "invalid_reward"
    TIMEOUT = "timeout"
    SERVER_DIED = "server_died"
    INTERNAL = "internal"


FAILURE_KINDS = frozenset(FailureKind)


class Phase(StrEnum):
    """The part of a rollout in which a failure happened."""

    DISPATCH = "dispatch"
    """Between the collector and the agent."""
    AGENT = "agent"
    MODEL = "model"
    ENVIRONMENT = "environment"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason for a missing reward. `kind` is a `FailureKind` or a kind that the agent defines."""

    kind: str
    phase: str
    message: str
    server: str
    """The instance that the failure is attributed to."""
    retryable: bool = True
    refusal_status: int | None = None
    """Only for a refusal: the status (5xx, 4xx, 3xx, 200) that the model endpoint answered, 0 without an answer."""
    is_counted: bool = True
    """False for a failure that the rollout did not cause (a wrong key, a server ended by another rollout)."""
    is_incomplete: bool = False
    """True if an answer broke off: with the crash of its process, the failure is a `server_died`."""
    deadline_name: str | None = None
    """Only for a timeout: the deadline that passed (`rollout`, `model_call`, `tool_call`, `verify`, `request`)."""

    def __post_init__(self) -> None:
        if self.refusal_status is not None and not self.may_be_of_row:
            object.__setattr__(self, "is_counted", False)

    @property
    def is_repeatable(self) -> bool:
        """True for a refusal that may be an outage: the same request may be answered in the same run."""
        status = self.refusal_status
        return status is not None and (status >= 500 or status in (INVALID_ANSWER, UNREACHABLE))

    @property
    def may_be_of_row(self) -> bool:
        """True for a refusal that the content of a row can cause."""
        return self.refusal_status in ROW_STATUSES or self.is_repeatable


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """A rollout with a finite reward."""

    job: Job
    record: Row


@dataclass(frozen=True, slots=True)
class FailedRollout:
    """A rollout without a reward; `record` is the agent's answer, if it gave one."""

    job: Job
    failure: Failure
    record: Row = field(default_factory=dict)
    seconds: float | None = None
    """Duration of the attempt."""


@dataclass(frozen=True, slots=True)
class LimitedRollout:
    """A rollout that a configured limit ended. It is not an error and is not retried with the same limit."""

    job: Job
    limit_name: str
    record: Row = field(default_factory=dict)
    limit_value: int | None = None
    """The limit that ended the rollout; a resumed run with a higher limit runs it again."""


@dataclass(frozen=True, slots=True)
class CancelledRollout:
    """A rollout that was abandoned before its end. It is not stored and does not count as an attempt."""

    job: Job
    record: Row = field(default_factory=dict)


Outcome = ScoredRollout | FailedRollout | LimitedRollout | CancelledRollout

_KINDS_AFTER_ANSWER = frozenset({FailureKind.VERIFIER_ERROR, FailureKind.INVALID_REWARD})
"""Failures of rollouts whose model calls succeeded."""


def has_model_answer(outcome: Outcome) -> bool:
    """Return whether the model calls of a rollout succeeded."""
    if isinstance(outcome, FailedRollout):
        return outcome.failure.kind in _KINDS_AFTER_ANSWER and outcome.failure.refusal_status is None
    return not isinstance(outcome, CancelledRollout)


class AnsweredJob(NamedTuple):
    """A job whose model calls succeeded, and when it was sent."""

    job: Job
    sent_at: float


@dataclass(frozen=True, slots=True)
class ScoringRule:
    """Conditions that the results of one agent must meet to be scored."""

    reward_range: tuple[float, float] | None = None
    """Lowest and highest reward, as the resources server declares (`reward_range: [0, 1]`)."""
    needs_model: bool = True
    """Fail a result that shows no successful model call (`needs_model: false` on the agent turns this off)."""
    judges: frozenset[str] = frozenset()
    """Models that only the resources server calls."""
    verifier: str | None = None
    """The resources server that computes the reward."""


DEFAULT_RULE = ScoringRule()


def classify_result(
    job: Job, result: Any, *, rule: ScoringRule = DEFAULT_RULE, max_tokens: int | None = None
) -> Outcome:
    """Return the outcome of a job from the agent's answer to `/run`."""
    if not isinstance(result, dict):
        message = f"/run answered with {type(result).__name__} instead of an object"
        return FailedRollout(job, Failure(FailureKind.AGENT_ERROR, Phase.AGENT, message, job.agent))
    stored = StoredRollout(result)
    if stored.is_cancelled:
        return CancelledRollout(job, result)
    failure_class = stored.failure_class
    if failure_class == LIMIT_CLASS:
        return LimitedRollout(job, str(stored.failure.get("which", LIMIT_CLASS)), result)
    if failure_class is None and stored.model_limit is not None:
        return LimitedRollout(job, stored.model_limit, result)  # scored by an agent that does not know the limit
    if failure_class is not None:
        return FailedRollout(job, _reported_failure(job, failure_class, stored), result)
    problem = reward_problem(result.get(REWARD_KEY)) or _range_problem(result[REWARD_KEY], rule)
    if problem is not None:
        server = rule.verifier or job.agent
        return FailedRollout(job, Failure(FailureKind.INVALID_REWARD, Phase.VERIFY, problem, server), result)
    if rule.needs_model and not shows_model_call(stored):
        message = "no model call succeeded: the response has no model output and counts no tokens"
        return FailedRollout(job, Failure(FailureKind.MODEL_BAD_REPLY, Phase.MODEL, message, job.agent), result)
    if max_tokens is not None and stored.total_tokens > max_tokens:
        return LimitedRollout(job, "tokens", result)
    return ScoredRollout(job, result)


def reward_problem(reward: Any) -> str | None:
    """Describe the problem of a reward that is missing or not a finite number; None for a finite number."""
    if reward is None:
        return "the result has no reward"
    if reward in NOT_FINITE_TEXTS:
        return f"the reward is {reward}, which is not finite"
    if not isinstance(reward, int | float):
        return f"the reward is {type(reward).__name__}, not a number"
    try:
        is_finite = math.isfinite(reward)
    except OverflowError:  # an integer of more than 308 digits
        return "the reward is an integer too large for a float"
    return None if is_finite else f"the reward is {reward}, which is not finite"


def _range_problem(reward: float, rule: ScoringRule) -> str | None:
    """Describe a reward outside the declared range, or too large for statistics if no range is declared."""
    low, high = rule.reward_range or (-LARGEST_REWARD, LARGEST_REWARD)
    if low <= reward <= high:
        return None
    name = "the declared range" if rule.reward_range else "the largest range (declare reward_range to allow it)"
    return f"the reward is {reward:g}, outside {name} {low:g} to {high:g}"


def shows_model_call(stored: StoredRollout) -> bool:
    """Return whether a record shows a successful model call: model output, a token count or a captured reply.

    Model output is every item of `response.output` except outputs of tools and messages of other roles.
    """
    return (
        any(map(_is_model_output, stored.output))
        or stored.total_tokens > 0
        or any(call.get("response") for call in stored.captured_calls)
    )


def _is_model_output(item: Any) -> bool:
    if not isinstance(item, dict):
        return False
    kind = item.get("type", "message")
    return (item.get("role") or _ASSISTANT) == _ASSISTANT if kind == "message" else kind not in _NOT_FROM_A_MODEL


def outcome_record(outcome: Outcome) -> Row:
    """Return the record of an outcome, to store or to return. Only the record of a scored rollout has a reward."""
    if isinstance(outcome, ScoredRollout):
        return outcome.job.with_key(outcome.record)
    record = {name: value for name, value in outcome.record.items() if name != REWARD_KEY}
    if isinstance(outcome, CancelledRollout):
        record[NG_NO_PERSIST_KEY] = True
    elif isinstance(outcome, LimitedRollout):
        limit = {"which": outcome.limit_name, **({"most": outcome.limit_value} if outcome.limit_value else {})}
        record |= {NG_FAILURE_CLASS_KEY: LIMIT_CLASS, NG_TERMINAL_KEY: True, NG_FAILURE_DETAIL_KEY: limit}
    else:
        record |= _failure_fields(outcome.failure, outcome.seconds)
    return outcome.job.with_key(record)


def _failure_fields(failure: Failure, seconds: float | None) -> Row:
    """Return the record fields that describe a failure and the duration of its attempt."""
    detail: Row = {
        "kind": failure.kind,
        "phase": failure.phase,
        "retryable": failure.retryable,
        "message": failure.message[:LONGEST_MESSAGE],
        "whom": failure.server,
    }
    fields: Row = {NG_FAILURE_CLASS_KEY: failure.kind, NG_FAILURE_DETAIL_KEY: detail}
    if failure.refusal_status is not None:
        detail[REFUSAL_STATUS] = failure.refusal_status
    if not failure.is_counted:
        detail[COUNTED_KEY] = False
    if failure.deadline_name is not None:
        detail["which"] = failure.deadline_name
    if seconds is not None:
        detail["seconds"] = round(seconds, 3)
        fields[NG_SECONDS_KEY] = truncate_to_microseconds(seconds)
    if not failure.retryable:
        fields[NG_TERMINAL_KEY] = True
    return fields


def is_terminal_failure(record: Row) -> bool:
    """Return whether a failure record says that no further attempt can succeed."""
    return record.get(NG_TERMINAL_KEY) is True


def truncate_to_microseconds(seconds: float) -> float:
    """Round down to whole microseconds, so that the sum of a rollout's phases never exceeds its duration."""
    return seconds // 1e-6 / 1e6


def _reported_failure(job: Job, failure_class: str, stored: StoredRollout) -> Failure:
    """Return the failure that the agent reported."""
    detail = stored.failure
    is_judge = failure_class == FailureKind.JUDGE_FAILED
    message = detail.get("message") or stored.record.get(NG_FAILURE_JUDGE_ERROR_KEY) or "reported by the agent"
    return Failure(
        kind=failure_class,
        phase=str(detail.get("phase") or (Phase.VERIFY if is_judge else Phase.AGENT)),
        message=str(message),
        server=str(detail.get("whom") or job.agent),
        retryable=not stored.is_terminal,
    )


class OutcomeCounts:
    """An observer that counts outcomes."""

    def __init__(self) -> None:
        self.scored = 0
        self.failed: Counter[str] = Counter()
        self.limits: Counter[str] = Counter()
        self.cancelled = 0
        self.retried = 0
        """Rollouts that were scored after more than one attempt."""
        self.stop_reason: str | None = None
        """Reason for an early stop; None if there was none."""
        self.not_run = 0
        """Rollouts that were never sent because of the early stop."""
        self.refused = 0
        """Failed rollouts whose refusal does not count as an attempt."""
        self.problem: GymError | None = None
        """The error to report for the early stop, if a model endpoint caused it."""

    def __call__(self, outcome: Outcome) -> None:
        if isinstance(outcome, ScoredRollout):
            self.scored += 1
            self.retried += bool(outcome.job.key.attempt)
        elif isinstance(outcome, FailedRollout):
            self.failed[outcome.failure.kind] += 1
            self.refused += outcome.failure.refusal_status is not None and not outcome.failure.is_counted
        elif isinstance(outcome, LimitedRollout):
            self.limits[outcome.limit_name] += 1
        else:
            self.cancelled += 1

    def stop(self, reason: str, to_run: int) -> None:
        """Record that the run stopped early; `to_run` is the number of rollouts it was to run."""
        self.stop_reason = reason
        self.not_run = max(0, to_run - self.total)

    @property
    def total(self) -> int:
        return self.scored + self.failed.total() + self.limits.total() + self.cancelled

    def __str__(self) -> str:
        """Format as `117 scored (3 retried) · 2 failed (timeout 2) · 1 limit (tokens 1)`, without zero counts."""
        parts = [f"{self.scored} scored" + (f" ({self.retried} retried)" if self.retried else "")]
        for name, counts in (("failed", self.failed), ("limit", self.limits)):
            if counts:
                kinds = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
                parts.append(f"{counts.total()} {name} ({kinds})")
        if self.cancelled:
            parts.append(f"{self.cancelled} cancelled")
        if self.not_run:
            parts.append(f"{self.not_run} not run")
        return " · ".join(parts)
