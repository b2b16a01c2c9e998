"""Extract the columns of the viewer's table from a stored record. Missing or unusual fields become empty columns."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nemo_gym.keys import ATTEMPT_INDEX_KEY_NAME, MASK_SAMPLE_KEY, ROLLOUT_INDEX_KEY_NAME, TASK_INDEX_KEY_NAME
from nemo_gym.metrics.answer_totals import EXTRACTED_NAMES
from nemo_gym.wire.stored_rollout import LIMIT_CLASS, REWARD_KEY, WEIGHTS_KEY, StoredRollout, finite_float

SCORED, FAILED, LIMIT = "scored", "failed", LIMIT_CLASS
# Fields in which verifiers store the expected answer and the rule: the first one counts.
EXPECTED_NAMES = ("expected_answer", "expected", "answer", "ground_truth", "target", "label")
RULE_NAMES = ("extraction_rule", "rule", "verdict_rule")
LABEL_NAMES = (
    "difficulty", "level", "subset", "category", "subject", "topic", "domain", "language", "task_type", "problem_type",
    "dataset", "source", "split", "skill",
)  # fmt: skip
"""Fields of a row, or of its `METADATA_NAMES`, by which its tasks are grouped into subsets."""
NOT_COMPONENTS = frozenset(
    {
        "responses_create_params",
        "response",
        REWARD_KEY,
        WEIGHTS_KEY,
        MASK_SAMPLE_KEY,
        *EXPECTED_NAMES,
        *EXTRACTED_NAMES,
        *LABEL_NAMES,
    }
)
_LABEL_SET = frozenset(LABEL_NAMES)
METADATA_NAMES = ("verifier_metadata", "metadata", "extra_info")
MODEL_LABEL = "model"
LONGEST_LABEL = 60
LONGEST_CELL = 300
LONGEST_ENDING = 400
"""Characters at the end of the last message in which the expected answer is looked for."""
SHORTEST_ANSWER = 2
_GOES_ON_BEFORE, _GOES_ON_AFTER = re.compile(r"(?:\w|\d[.,]|-)\Z"), re.compile(r"\w|[.,]\d")
PHASES = ("queue", "seed_session", "model", "tools", "verify", "agent")
"""The phases of a rollout in their order; each is a column `seconds_<phase>`."""
TEXT_COLUMNS = ("message", "expected", "extracted", "rule", "answer", "question")
"""Columns with longer texts; the others hold numbers and short names."""
MODEL_ITEMS = ("function_call", "reasoning")
MAX_TOKENS = 2**40
"""A larger count of tokens is no count; sums of millions of rollouts stay below the 64 bits of the database."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """The columns of one row of the table."""

    task: int
    rollout: int
    attempt: int
    outcome: str
    kind: str
    """Kind of failure, or the limit that was reached; empty if the rollout was scored."""
    whom: str
    """The server that failed."""
    message: str
    agent: str
    reward: float | None
    turns: int
    tool_calls: int
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    """Part of `tokens_in` that the provider had cached."""
    tokens_reasoning: int
    """Part of `tokens_out` that is reasoning."""
    cut_off: int
    """1 if the last answer was cut off, for example by `max_output_tokens`; 0 if not. The next four are alike."""
    refused: int
    no_answer: int
    """1 if the verifier extracted no answer."""
    has_expected: int
    """1 if the end of the model's last message contains the expected answer."""
    tool_errors: int
    """Number of exceptions of tools that the model saw."""
    masked: int
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
    """The beginning of the model's last message."""
    question: str
    """The beginning of the last user message of the request."""


def build_table_row(record: Mapping[str, Any], number: int) -> TableRow:
    """Build the row of a record; `number` replaces a missing task index."""
    stored = StoredRollout(record)
    kind, reward, output = stored.failure_class, stored.reward, stored.output
    is_scored = reward is not None
    request_input, tokens = stored.request.get("input"), stored.tokens_by_kind()
    answer, expected = _last_message(output, "assistant"), _first_text(record, EXPECTED_NAMES)
    return TableRow(
        task=_whole_number(record.get(TASK_INDEX_KEY_NAME), number),
        rollout=_whole_number(record.get(ROLLOUT_INDEX_KEY_NAME), 0),
        attempt=_whole_number(record.get(ATTEMPT_INDEX_KEY_NAME), 0),
        outcome=SCORED if is_scored else LIMIT if kind == LIMIT else FAILED,
        kind=_text(stored.failure.get("which") if kind == LIMIT else kind) or ("" if is_scored else "no reward"),
        whom=_text(stored.failure.get("whom")),
        message=_text(stored.failure.get("message")),
        agent=stored.agent or "",
        reward=reward,
        turns=_count_turns(output),
        tool_calls=sum(_mapping(item).get("type") == "function_call" for item in output),
        tokens_in=min(tokens.get("input", 0), MAX_TOKENS),
        tokens_out=min(tokens.get("output", 0), MAX_TOKENS),
        tokens_cached=min(tokens.get("cached", 0), MAX_TOKENS),
        tokens_reasoning=min(tokens.get("reasoning", 0), MAX_TOKENS),
        cut_off=int(stored.is_truncated),
        refused=int(stored.is_refused),
        no_answer=int(is_scored and _has_no_answer(record)),
        has_expected=int(is_scored and _contains_answer(answer[-LONGEST_ENDING:], expected)),
        tool_errors=len(stored.tool_errors),
        masked=int(record.get(MASK_SAMPLE_KEY) is True),
        seconds=stored.seconds,
        **{f"seconds_{name}": value for name, value in phase_seconds(stored).items()},
        expected=expected,
        extracted=_first_text(record, EXTRACTED_NAMES),
        rule=_first_text(record, RULE_NAMES),
        answer=_cut(answer),
        question=_cut(request_input if isinstance(request_input, str) else _last_message(request_input, "user")),
    )


def reward_components(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that the verifier stored beside the reward, also those inside of fields such as `rewards`."""
    components: dict[str, float] = {}
    for name, value in record.items():
        if name.startswith("_ng_") or name in NOT_COMPONENTS:
            continue
        for key, part in (value if isinstance(value, dict) and REWARD_KEY in name else {name: value}).items():
            number = finite_float(part)
            if number is not None:
                components[str(key)] = number
    return components


def row_labels(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the names by which a rollout is grouped: its model, and fields of its row such as `difficulty`."""
    labels = {MODEL_LABEL: model[:LONGEST_LABEL]} if (model := StoredRollout(record).model) else {}
    for source in (record, *(record[name] for name in METADATA_NAMES if isinstance(record.get(name), dict))):
        for name in _LABEL_SET.intersection(source):
            value = source[name]
            if name not in labels and isinstance(value, str | int) and 0 < len(text := str(value)) <= LONGEST_LABEL:
                labels[name] = text
    return labels


def phase_seconds(stored: StoredRollout) -> dict[str, float | None]:
    """Return the seconds of each phase; None for a phase that was not measured."""
    return {name: finite_float(stored.phases.get(name)) for name in PHASES}


def content_text(content: Any) -> str:
    """Return the text of a message's content, which is a text or a list of parts."""
    if isinstance(content, str):
        return content
    parts = [_mapping(part) for part in content] if isinstance(content, list) else []
    return "\n".join(str(part.get("text") or part.get("refusal") or "") for part in parts).strip()


def _count_turns(output: list[Any]) -> int:
    """Count the model's turns: each unbroken sequence of model items is one turn."""
    turns, was_from_model = 0, False
    for item in map(_mapping, output):
        is_from_model = item.get("type") in MODEL_ITEMS or item.get("role") == "assistant"
        turns += is_from_model and not was_from_model
        was_from_model = is_from_model
    return turns


def _last_message(items: Any, role: str) -> str:
    """Return the last message of a role that has text; empty if no message has."""
    for item in map(_mapping, reversed(items if isinstance(items, list) else [])):
        if item.get("role") == role and (text := content_text(item.get("content"))):
            return text
    return ""


def _contains_answer(text: str, expected: str) -> bool:
    """Return whether a text contains an answer as whole words: "42", but not "142", "4.42" or "42.5".

    One character is no sign of an answer: it is found in most texts.
    """
    start = text.find(expected) if len(expected) >= SHORTEST_ANSWER else -1
    while start >= 0:
        end = start + len(expected)
        is_open_before = expected[0].isalnum() and _GOES_ON_BEFORE.search(text[max(0, start - 2) : start])
        is_open_after = expected[-1].isalnum() and _GOES_ON_AFTER.match(text[end : end + 2])
        if not is_open_before and not is_open_after:
            return True
        start = text.find(expected, end)
    return False


def _first_text(record: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((_cut(_text(record[name])) for name in names if record.get(name) is not None), "")


def _has_no_answer(record: Mapping[str, Any]) -> bool:
    """Return whether the verifier stores the answer that it extracted, and extracted none."""
    name = next((name for name in EXTRACTED_NAMES if name in record), None)
    return name is not None and record[name] in (None, "")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole_number(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else default


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"
