"""What became of a rollout: a reward, or the reason there is none.

On the wire and on disk an outcome is a plain record. A record with `_ng_failure_class` is a failure and belongs in the
failures file; with `_ng_no_persist` it belongs in no file and is run again on resume; anything else has a reward.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nemo_gym.keys import (
    NG_FAILURE_CLASS_KEY,
    NG_FAILURE_DETAIL_KEY,
    NG_FAILURE_JUDGE_ERROR_KEY,
    NG_NO_PERSIST_KEY,
    NG_SECONDS_KEY,
    NG_TERMINAL_KEY,
)
from nemo_gym.rollouts.job import Job, Row
from nemo_gym.rollouts.rules import EVERYBODY, Rule, range_problem, shows_a_model
from nemo_gym.rollouts.usage import total_tokens

REWARD_KEY = "reward"
LIMIT_CLASS = "limit"
LONGEST_MESSAGE = 4000


class FailureKind(StrEnum):
    """The failures we tell apart. Agents may name others of their own in `_ng_failure_class`."""

    MODEL_UNREACHABLE = "model_unreachable"
    MODEL_REFUSED = "model_refused"
    MODEL_BAD_REPLY = "model_bad_reply"
    RATE_LIMITED = "rate_limited"
    AGENT_ERROR = "agent_error"
    TOOL_ERROR = "tool_error"
    VERIFIER_ERROR = "verifier_error"
    JUDGE_FAILED = "judge_failed"
    INVALID_REWARD = "invalid_reward"
    TIMEOUT = "timeout"
    SERVER_DIED = "server_died"
    INTERNAL = "internal"


class Phase(StrEnum):
    """Where in a rollout it happened."""

    DISPATCH = "dispatch"
    """Between the collector and the agent."""
    AGENT = "agent"
    MODEL = "model"
    ENVIRONMENT = "environment"
    VERIFY = "verify"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no reward. `kind` is a `FailureKind` or an agent's own word."""

    kind: str
    phase: str
    message: str
    whom: str
    retryable: bool = True
    which: str | None = None
    """Of a timeout: the deadline that passed (`rollout`, `model_call`, `tool_call`, `verify`, `request`)."""


@dataclass(frozen=True, slots=True)
class Scored:
    """The rollout has a finite reward."""

    job: Job
    record: Row


@dataclass(frozen=True, slots=True)
class Failed:
    """The rollout has no reward; `record` is what the agent answered, if it did."""

    job: Job
    failure: Failure
    record: Row = field(default_factory=dict)
    seconds: float | None = None
    """How long the attempt took."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit set beforehand ended the rollout. That is no error, and trying again would end the same way."""

    job: Job
    which: str
    record: Row = field(default_factory=dict)
    most: int | None = None
    """What the limit was: with a higher one the rollout is worth running again."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The rollout was given up before its end; nothing is known about it and no attempt is counted."""

    job: Job
    record: Row = field(default_factory=dict)


Outcome = Scored | Failed | Limit | Cancelled


def outcome_of(job: Job, result: Any, *, rule: Rule = EVERYBODY, max_tokens: int | None = None) -> Outcome:
    """What an agent's answer to `/run` means. Only what `rule` and `max_tokens` allow is scored."""
    if not isinstance(result, dict):
        message = f"/run answered with {type(result).__name__} instead of an object"
        return Failed(job, Failure(FailureKind.AGENT_ERROR, Phase.AGENT, message, job.agent))
    if result.get(NG_NO_PERSIST_KEY):
        return Cancelled(job, result)
    failure_class = result.get(NG_FAILURE_CLASS_KEY)
    if failure_class == LIMIT_CLASS:
        return Limit(job, str(_detail(result).get("which", LIMIT_CLASS)), result)
    if failure_class is not None:
        return Failed(job, _reported(job, str(failure_class), result), result)
    problem = reward_problem(result.get(REWARD_KEY)) or range_problem(result[REWARD_KEY], rule)
    if problem is not None:
        return Failed(job, Failure(FailureKind.INVALID_REWARD, Phase.VERIFY, problem, job.agent), result)
    if rule.needs_model and not shows_a_model(result):
        message = "no model call succeeded: the response has nothing a model made and counts no tokens"
        return Failed(job, Failure(FailureKind.MODEL_BAD_REPLY, Phase.MODEL, message, job.agent), result)
    if max_tokens is not None and total_tokens(result) > max_tokens:
        return Limit(job, "tokens", result)
    return Scored(job, result)


def reward_problem(reward: Any) -> str | None:
    """Why `reward` cannot be averaged, or None when it can."""
    if reward is None:
        return "the result has no reward"
    if not isinstance(reward, int | float):
        return f"the reward is {type(reward).__name__}, not a number"
    return None if math.isfinite(reward) else f"the reward is {reward}, which is not finite"


def record_of(outcome: Outcome) -> Row:
    """The outcome as it is stored and handed on. Only a scored one has a reward."""
    if isinstance(outcome, Scored):
        return outcome.job.stamped(outcome.record)
    rest = {name: value for name, value in outcome.record.items() if name != REWARD_KEY}
    if isinstance(outcome, Cancelled):
        return outcome.job.stamped({**rest, NG_NO_PERSIST_KEY: True})
    if isinstance(outcome, Limit):
        said: Row = {
            NG_FAILURE_CLASS_KEY: LIMIT_CLASS,
            NG_TERMINAL_KEY: True,
            NG_FAILURE_DETAIL_KEY: {"which": outcome.which, **({"most": outcome.most} if outcome.most else {})},
        }
        return outcome.job.stamped({**rest, **said})
    failure = outcome.failure
    detail: Row = {
        "kind": failure.kind,
        "phase": failure.phase,
        "retryable": failure.retryable,
        "message": failure.message[:LONGEST_MESSAGE],
        "whom": failure.whom,
    }
    if failure.which is not None:
        detail["which"] = failure.which
    if outcome.seconds is not None:
        detail["seconds"] = round(outcome.seconds, 3)
    said = {NG_FAILURE_CLASS_KEY: failure.kind, NG_FAILURE_DETAIL_KEY: detail}
    if outcome.seconds is not None:
        said[NG_SECONDS_KEY] = outcome.seconds // 1e-6 / 1e6
    if not failure.retryable:
        said[NG_TERMINAL_KEY] = True
    return outcome.job.stamped({**rest, **said})


def _reported(job: Job, failure_class: str, result: Row) -> Failure:
    """The failure an agent reported itself."""
    detail = _detail(result)
    judge = failure_class == FailureKind.JUDGE_FAILED
    return Failure(
        kind=failure_class,
        phase=str(detail.get("phase") or (Phase.VERIFY if judge else Phase.AGENT)),
        message=str(detail.get("message") or result.get(NG_FAILURE_JUDGE_ERROR_KEY) or "reported by the agent"),
        whom=str(detail.get("whom") or job.agent),
        retryable=not result.get(NG_TERMINAL_KEY),
    )


def _detail(result: Row) -> Mapping[str, Any]:
    detail = result.get(NG_FAILURE_DETAIL_KEY)
    return detail if isinstance(detail, Mapping) else {}
