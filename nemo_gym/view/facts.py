"""What the table shows of one stored record. Pure, and forgiving: a record of another tool has fewer facts."""

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
    NG_PHASES_KEY,
    NG_SECONDS_KEY,
    ROLLOUT_INDEX_KEY_NAME,
    TASK_INDEX_KEY_NAME,
)

SCORED, FAILED, LIMIT = "scored", "failed", "limit"
EXPECTED_NAMES = ("expected_answer", "expected", "answer", "ground_truth", "target", "label")
EXTRACTED_NAMES = ("extracted_answer", "extracted", "model_answer", "predicted_answer", "prediction", "parsed_answer")
RULE_NAMES = ("extraction_rule", "rule", "verdict_rule")
NOT_SHOWN = frozenset({"responses_create_params", "response", "reward"})
LONGEST_CELL = 300
PHASES = ("queue", "seed_session", "model", "tools", "verify", "agent")
"""What a rollout waits for, in the order in which it does; each is a column `seconds_<phase>`."""
MADE_BY_A_MODEL = frozenset({"function_call", "reasoning"})
_NOTHING: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Facts:
    """One row of the table."""

    task: int
    rollout: int
    attempt: int
    outcome: str
    kind: str
    whom: str
    message: str
    agent: str
    reward: float | None
    turns: int
    tool_calls: int
    tokens_in: int
    tokens_out: int
    seconds: float | None
    seconds_queue: float | None
    seconds_seed_session: float | None
    seconds_model: float | None
    seconds_tools: float | None
    seconds_verify: float | None
    seconds_agent: float | None
    expected: str
    extracted: str
    rule: str
    answer: str
    """The beginning of the last thing the model said."""
    question: str
    """The beginning of what was asked last before the model spoke."""


def facts_of(record: Mapping[str, Any], number: int) -> Facts:
    """The facts of a record; `number` stands in for the task of a record that names none."""
    output = _list(_mapping(record.get("response")).get("output"))
    failure = _mapping(record.get(NG_FAILURE_DETAIL_KEY))
    usage = _mapping(_mapping(record.get("response")).get("usage"))
    kind = record.get(NG_FAILURE_CLASS_KEY)
    reward = record.get("reward")
    scored = isinstance(reward, int | float) and math.isfinite(reward) and kind is None
    return Facts(
        task=_whole(record.get(TASK_INDEX_KEY_NAME), number),
        rollout=_whole(record.get(ROLLOUT_INDEX_KEY_NAME), 0),
        attempt=_whole(record.get(ATTEMPT_INDEX_KEY_NAME), 0),
        outcome=SCORED if scored else LIMIT if kind == LIMIT else FAILED,
        kind=_text(failure.get("which") if kind == LIMIT else kind) or ("" if scored else "no reward"),
        whom=_text(failure.get("whom")),
        message=_text(failure.get("message")),
        agent=_text(_mapping(record.get(AGENT_REF_KEY_NAME)).get("name")),
        reward=float(reward) if scored and reward is not None else None,
        turns=_turns(output),
        tool_calls=sum(_mapping(item).get("type") == "function_call" for item in output),
        tokens_in=_whole(usage.get("input_tokens"), 0),
        tokens_out=_whole(usage.get("output_tokens"), 0),
        seconds=_seconds(record),
        **{f"seconds_{name}": value for name, value in phases_of(record).items()},
        expected=_first(record, EXPECTED_NAMES),
        extracted=_first(record, EXTRACTED_NAMES),
        rule=_first(record, RULE_NAMES),
        answer=_last_said(output),
        question=_question(_mapping(record.get("responses_create_params")).get("input")),
    )


def components_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Numbers the verifier gave beside the reward."""
    found = {}
    for name, value in record.items():
        if name.startswith("_ng_") or name in NOT_SHOWN:
            continue
        inner = value if isinstance(value, dict) and "reward" in name else {name: value}
        for key, number in inner.items():
            if isinstance(number, int | float) and math.isfinite(number):
                found[str(key)] = float(number)
    return found


def phases_of(record: Mapping[str, Any]) -> dict[str, float | None]:
    """How long the rollout waited for each phase; None where nobody measured it."""
    spent = _mapping(record.get(NG_PHASES_KEY))
    return {name: _finite(spent.get(name)) for name in PHASES}


def text_of(content: Any) -> str:
    """The text of a message's content, whatever form it has."""
    if isinstance(content, str):
        return content
    parts = [_mapping(part) for part in _list(content)]
    return "\n".join(str(part.get("text") or part.get("refusal") or "") for part in parts).strip()


def _turns(output: list[Any]) -> int:
    """How often the model spoke: each unbroken run of its items is one turn."""
    turns, before = 0, False
    for item in output:
        facts = _mapping(item)
        now = facts.get("type") in MADE_BY_A_MODEL or facts.get("role") == "assistant"
        turns += now and not before
        before = now
    return turns


def _last_said(output: list[Any]) -> str:
    for item in reversed(output):
        facts = _mapping(item)
        if facts.get("role") == "assistant" and (said := text_of(facts.get("content"))):
            return _cut(said)
    return ""


def _question(asked: Any) -> str:
    if isinstance(asked, str):
        return _cut(asked)
    for item in reversed(_list(asked)):
        facts = _mapping(item)
        if facts.get("role") == "user" and (said := text_of(facts.get("content"))):
            return _cut(said)
    return ""


def _seconds(record: Mapping[str, Any]) -> float | None:
    """How long the rollout took, where anybody measured it."""
    for name in (NG_SECONDS_KEY, "duration_seconds", "rollout_seconds"):
        value = record.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    metrics = _mapping(_mapping(record.get(NG_MODEL_CALL_CAPTURE_KEY)).get("metrics"))
    total = metrics.get("latency_total_ms")
    return total / 1000.0 if isinstance(total, int | float) else None


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((_cut(_text(record[name])) for name in names if record.get(name) is not None), "")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else _NOTHING


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else default


def _text(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"
