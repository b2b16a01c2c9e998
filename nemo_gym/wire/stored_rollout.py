"""The key of a rollout, and a typed view of its stored record.

`RolloutKey` identifies a rollout and its attempt. `StoredRollout` reads the fields of a record from `rollouts.jsonl` or
`rollouts_failures.jsonl`; it never raises on a record of another tool, whose fields may be missing or malformed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_gym.keys import (
    AGENT_REF_KEY_NAME,
    ATTEMPT_INDEX_KEY_NAME,
    NG_FAILURE_CLASS_KEY,
    NG_FAILURE_DETAIL_KEY,
    NG_MODEL_CALL_CAPTURE_KEY,
    NG_NO_PERSIST_KEY,
    NG_PHASES_KEY,
    NG_SECONDS_KEY,
    NG_TERMINAL_KEY,
    NG_TOOL_ERRORS_KEY,
    RESPONSE_KEY_NAME,
    RESPONSES_CREATE_PARAMS_KEY_NAME,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

Row = dict[str, Any]
RolloutId = tuple[int, int]
"""Task index and rollout index: the same for all attempts at a rollout."""

REWARD_KEY = "reward"
COMPONENTS_KEY, WEIGHTS_KEY = "reward_components", "reward_weights"
"""The parts of a reward by name, and the weight of each part."""
LIMIT_CLASS = "limit"
"""The failure class of a rollout that a limit ended."""

COUNTED_KEY = "counted"
"""In the details of a failure: False if it does not count as an attempt."""

_MAX_TOKENS = 2**63 - 1
_EMPTY: Mapping[str, Any] = {}


@dataclass(frozen=True, order=True, slots=True)
class RolloutKey:
    """One attempt at one repeat of one task. `attempt` is 0 unless earlier attempts failed."""

    task: int
    rollout: int
    attempt: int = 0

    def __post_init__(self) -> None:
        if self.task < 0 or self.rollout < 0 or self.attempt < 0:
            raise ValueError(f"task, rollout and attempt count from 0: {self.task}, {self.rollout}, {self.attempt}")

    def __str__(self) -> str:
        """Format as `<task>-<rollout>`, with `-a<attempt>` after a retry: the URL prefix and the capture file."""
        suffix = f"-a{self.attempt}" if self.attempt else ""
        return f"{self.task}-{self.rollout}{suffix}"

    @property
    def rollout_id(self) -> RolloutId:
        """Task index and rollout index, by which a resumed run recognises stored rollouts."""
        return self.task, self.rollout

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "RolloutKey":
        """Read the key of a row or record.

        Raises:
            ValueError: an index is missing or is not a whole number from 0.
        """
        return cls(
            _required_index(row, TASK_INDEX_KEY_NAME),
            _required_index(row, ROLLOUT_INDEX_KEY_NAME),
            _required_index(row, ATTEMPT_INDEX_KEY_NAME) if row.get(ATTEMPT_INDEX_KEY_NAME) is not None else 0,
        )

    def fields(self) -> dict[str, int]:
        """Return the row fields that carry this key; the first attempt is not written."""
        fields = {TASK_INDEX_KEY_NAME: self.task, ROLLOUT_INDEX_KEY_NAME: self.rollout}
        if self.attempt:
            fields[ATTEMPT_INDEX_KEY_NAME] = self.attempt
        return fields


class StoredRollout:
    """A view of one stored record. Fields that are missing or malformed read as None or empty."""

    __slots__ = ("record",)

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.record = record

    @property
    def key(self) -> RolloutKey:
        """The rollout's key; raises ValueError if an index is missing or malformed."""
        return RolloutKey.of(self.record)

    @property
    def agent(self) -> str | None:
        """Name of the agent instance that ran the rollout."""
        name = self._mapping(AGENT_REF_KEY_NAME).get("name")
        return str(name) if name else None

    @property
    def failure_class(self) -> str | None:
        """Kind of the failure, or None for a scored rollout."""
        kind = self.record.get(NG_FAILURE_CLASS_KEY)
        return None if kind is None else str(kind)

    @property
    def failure(self) -> Mapping[str, Any]:
        """Details of the failure: kind, phase, message, server (`whom`), limit or deadline (`which`)."""
        return self._mapping(NG_FAILURE_DETAIL_KEY)

    @property
    def is_terminal(self) -> bool:
        """True if another attempt would fail the same way."""
        return bool(self.record.get(NG_TERMINAL_KEY))

    @property
    def is_counted(self) -> bool:
        """False for a failure that does not count as an attempt, because the rollout did not cause it."""
        return self.failure.get(COUNTED_KEY) is not False

    @property
    def is_cancelled(self) -> bool:
        """True if the agent requested not to store the rollout."""
        return bool(self.record.get(NG_NO_PERSIST_KEY))

    @property
    def reward(self) -> float | None:
        """The finite reward of a scored rollout, else None."""
        return None if self.failure_class is not None else finite_float(self.record.get(REWARD_KEY))

    @property
    def request(self) -> Mapping[str, Any]:
        """The `responses_create_params` of the row."""
        return self._mapping(RESPONSES_CREATE_PARAMS_KEY_NAME)

    @property
    def response(self) -> Mapping[str, Any]:
        return self._mapping(RESPONSE_KEY_NAME)

    @property
    def output(self) -> list[Any]:
        """Items of the response."""
        items = self.response.get("output")
        return items if isinstance(items, list) else []

    @property
    def model_limit(self) -> str | None:
        """The limit that kept the model from its last answer: `context_length`, or None."""
        details = self.response.get("incomplete_details")
        name = details.get("which") if isinstance(details, dict) else None
        return name if isinstance(name, str) else None

    @property
    def usage(self) -> Mapping[str, Any]:
        """Token counts of the response."""
        usage = self.response.get("usage")
        return usage if isinstance(usage, dict) else _EMPTY

    @property
    def total_tokens(self) -> int:
        """Input and output tokens of all model calls; 0 if the record does not count them."""
        response = self.record.get(RESPONSE_KEY_NAME)
        usage = response.get("usage") if type(response) is dict else self.usage
        if type(usage) is not dict:
            return 0
        total = usage.get("total_tokens")
        if type(total) is int and 0 < total < _MAX_TOKENS:
            return total
        if total is None:
            return _token_count(sum(_token_count(usage.get(name)) for name in ("input_tokens", "output_tokens")))
        return _token_count(total)

    @property
    def model(self) -> str:
        """Name of the model as the endpoint reports it; empty if it does not."""
        name = self.response.get("model")
        return name if isinstance(name, str) else ""

    def tokens_by_kind(self) -> dict[str, int]:
        """Return the `input` and `output` tokens of all model calls; `cached` and `reasoning` are parts of these."""
        usage = self.usage
        if not usage:
            return {}
        read, written = usage.get("input_tokens_details"), usage.get("output_tokens_details")
        counts = {
            "input": _token_count(usage.get("input_tokens")),
            "cached": _token_count(read.get("cached_tokens")) if isinstance(read, dict) else 0,
            "output": _token_count(usage.get("output_tokens")),
            "reasoning": _token_count(written.get("reasoning_tokens")) if isinstance(written, dict) else 0,
        }
        return {kind: count for kind, count in counts.items() if count}

    @property
    def tool_errors(self) -> list[Mapping[str, Any]]:
        """Exceptions of tools that the model saw as output: `tool`, `error` (the class) and `at` (file and line)."""
        errors = self.record.get(NG_TOOL_ERRORS_KEY)
        return [error for error in errors if isinstance(error, Mapping)] if isinstance(errors, list) else []

    @property
    def is_truncated(self) -> bool:
        """True if the last answer of the model was cut off, for example by `max_output_tokens`."""
        return self.response.get("status") == "incomplete" or bool(self.response.get("incomplete_details"))

    @property
    def is_refused(self) -> bool:
        """True if the last item of the response is a refusal by the model."""
        item = self.output[-1] if self.output else None
        parts = item.get("content") if isinstance(item, dict) else None
        return isinstance(parts, list) and any(isinstance(part, dict) and part.get("refusal") for part in parts)

    @property
    def capture(self) -> Mapping[str, Any]:
        """The captured model calls and their summary."""
        return self._mapping(NG_MODEL_CALL_CAPTURE_KEY)

    @property
    def captured_calls(self) -> list[Mapping[str, Any]]:
        calls = self.capture.get("calls")
        return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []

    @property
    def phases(self) -> Mapping[str, Any]:
        """Seconds by phase, if the agent measured them."""
        return self._mapping(NG_PHASES_KEY)

    @property
    def seconds(self) -> float | None:
        """Wall time of the rollout, under our name or other tools' names, else the sum of the captured model calls."""
        for name in (NG_SECONDS_KEY, "duration_seconds", "rollout_seconds"):
            seconds = finite_float(self.record.get(name))
            if seconds is not None:
                return seconds
        metrics = self.capture.get("metrics")
        total = metrics.get("latency_total_ms") if isinstance(metrics, dict) else None
        return total / 1000.0 if isinstance(total, int | float) else None

    def _mapping(self, name: str) -> Mapping[str, Any]:
        value = self.record.get(name)
        return value if type(value) is dict or isinstance(value, Mapping) else _EMPTY  # the first check is faster


def finite_float(value: Any) -> float | None:
    """Return `value` as a float if it is a finite number, else None."""
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer beyond the range of a float
        return None


def _required_index(row: Mapping[str, Any], name: str) -> int:
    value = row.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be a whole number from 0, not {value!r}")
    return value


def _token_count(value: Any) -> int:
    return min(value, _MAX_TOKENS) if type(value) is int and value > 0 else 0  # not a bool


def mark_invalid_reward(record: Row) -> Row:
    """Return a record as a failure of kind `invalid_reward` if it has a reward that is not a number."""
    reward = record.get(REWARD_KEY, 0.0)
    if type(reward) is float or finite_float(reward) is not None:  # `journal` marks floats that are not finite
        return record
    return with_invalid_reward(record, f"{type(reward).__name__}, not a number")


def with_invalid_reward(row: Row, problem: str) -> Row:
    """Return a row without its reward and with a failure that says why, unless it already reports a failure."""
    if row.get(NG_FAILURE_CLASS_KEY) is not None:
        return row
    message = f"the reward is {problem}"
    detail = {"kind": "invalid_reward", "phase": "verify", "retryable": False, "message": message}
    fields = {name: value for name, value in row.items() if name != REWARD_KEY}
    return fields | {NG_FAILURE_CLASS_KEY: detail["kind"], NG_FAILURE_DETAIL_KEY: detail}
