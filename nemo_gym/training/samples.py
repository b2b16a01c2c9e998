"""Build samples and rollouts from the token fields of a rollout's record.

The main trace is the conversation in `response.output`: the items with token fields are the model calls, in order. The
record may have more traces (`_ng_token_traces`), which token capture adds for sub-agents and compacted contexts. Text
is never tokenised here: what the engine did not report is not in a sample.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from nemo_gym.errors import GymError
from nemo_gym.keys import (
    MASK_SAMPLE_KEY,
    NG_FAILURE_DETAIL_KEY,
    NG_TOKEN_CAPTURE_KEY,
    NG_TOKEN_TRACES_KEY,
    ROLLOUT_ID_KEY_NAME,
)
from nemo_gym.training.types import OutcomeName, Rollout, Sample, Span, VersionRange
from nemo_gym.wire.base import has_token_fields
from nemo_gym.wire.stored_rollout import LIMIT_CLASS, RolloutKey, StoredRollout, finite_float

MAIN_TRACE = "main"
STEP_REWARDS_KEY = "step_rewards"
CANCELLED_CLASS = "cancelled"

CONSTRAINED = "generated under a grammar"
AFTER_BREAK = "after a prompt that does not continue the calls before it"
INVALID = "in a rollout with invalid token fields"

NOT_IDS = "token ids are not a list of whole numbers from 0"

OnBreak = Literal["segment", "raise", "truncate"]


class TokenFieldsError(GymError, ValueError):
    """The token fields of a rollout cannot be used: they are incomplete, malformed or contradict each other."""


class BrokenPrompt(TokenFieldsError):
    """A prompt does not start with the tokens of the calls before it, and the caller did not allow that."""


@dataclass(frozen=True, slots=True)
class _ModelCall:
    """The token fields of one model call."""

    turn: int
    trace: str
    prompt: list[int]
    generation: list[int]
    logprobs: list[float]
    fields: Mapping[str, Any]

    @property
    def is_constrained(self) -> bool:
        return self.fields.get("constrained") is True

    def span(self, start: int, reward: float | None) -> Span:
        reason = self.fields.get("finish_reason")
        return Span(
            start,
            start + len(self.generation),
            self.turn,
            reward,
            parse_weight_version(self.fields.get("weight_version")),
            None if reason is None else str(reason),
            self.is_constrained,
        )


@dataclass(slots=True)
class _SampleBuilder:
    """A sample while its calls are added."""

    trace: str
    rollout_id: str
    tokens: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    experts: list[Any] = field(default_factory=list)
    prompt_len: int = 0

    def accepts(self, call: _ModelCall) -> bool:
        """Return whether the prompt of a call starts with the tokens so far."""
        length = len(self.tokens)
        return length <= len(call.prompt) and call.prompt[:length] == self.tokens

    def add(self, call: _ModelCall, reward: float | None) -> None:
        """Add the new part of a call's prompt with mask 0, and its generation.

        Raises:
            TokenFieldsError: the new part has something else than token ids.
        """
        new_prompt = call.prompt[len(self.tokens) :]
        if not _are_token_ids(new_prompt):
            raise TokenFieldsError(f"turn {call.turn}: {NOT_IDS}", where=_where(self.rollout_id, self.trace))
        if not self.spans:
            self.prompt_len = len(call.prompt)
        self.tokens += new_prompt
        self.mask += [0] * len(new_prompt)
        self.logprobs += [0.0] * len(new_prompt)
        self.spans.append(call.span(len(self.tokens), reward))
        self.tokens += call.generation
        count = len(call.generation)
        self.mask += [0 if call.is_constrained else 1] * count
        self.logprobs += [0.0] * count if call.is_constrained else call.logprobs
        self.experts.append(call.fields.get("routed_experts"))

    def build(self) -> Sample:
        has_experts = any(experts is not None for experts in self.experts)
        return Sample(
            self.tokens,
            self.mask,
            self.logprobs,
            self.prompt_len,
            self.spans,
            self.rollout_id,
            self.trace,
            self.experts if has_experts else None,
        )


@dataclass(slots=True)
class _SampleSet:
    """The samples of a rollout, and the counts of what is not in them."""

    samples: list[Sample] = field(default_factory=list)
    breaks: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def samples_of(result: Mapping[str, Any], *, on_break: OnBreak = "segment") -> list[Sample]:
    """Return the samples of a rollout's record: the main trace first, then sub-agents and compacted contexts.

    `on_break` says what to do with a prompt that does not start with the tokens of the calls before it: begin another
    sample (`segment`), leave out the rest of the trace (`truncate`) or raise an error (`raise`).

    Raises:
        TokenFieldsError: the token fields are incomplete or malformed, or a prompt breaks with `on_break="raise"`.
    """
    return _build_samples(result, on_break).samples


def rollout_of(
    result: Mapping[str, Any],
    *,
    group: str | None = None,
    outcome: OutcomeName | None = None,
    on_break: OnBreak = "segment",
) -> Rollout:
    """Return a record as a rollout. `group` is the task index and `outcome` follows from the record, unless given.

    A rollout with unusable token fields has no samples and says why it is not trainable.

    Raises:
        BrokenPrompt: a prompt breaks with `on_break="raise"`.
    """
    stored = StoredRollout(result)
    outcome = outcome or outcome_name(stored)
    try:
        key: RolloutKey | None = stored.key
    except ValueError:
        key = None
    try:
        built, problem = _build_samples(result, on_break), None
    except BrokenPrompt:
        raise
    except TokenFieldsError as error:
        built = _SampleSet(left_out=Counter({INVALID: _count_generated(result)}))
        problem = f"unusable token fields: {error.problem}"
    why_not = _why_not_trainable(stored, outcome, built, problem)
    components = result.get("reward_components")
    return Rollout(
        rollout_id=_rollout_id(result, key),
        task=key.task if key else -1,
        group=group if group is not None else str(key.task if key else ""),
        attempt=key.attempt if key else 0,
        agent=stored.agent,
        outcome=outcome,
        reward=stored.reward if outcome == "scored" else None,
        samples=built.samples,
        trainable=why_not is None,
        why_not=why_not,
        reward_components=_numbers_by_name(components),
        step_rewards=_step_rewards(result),
        breaks=built.breaks,
        left_out=dict(+built.left_out),
        timings=_timings(stored),
        result=result,
    )


def outcome_name(stored: StoredRollout) -> OutcomeName:
    """Return how a rollout ended, from its record."""
    if stored.is_cancelled or stored.failure_class == CANCELLED_CLASS:
        return "cancelled"
    if stored.failure_class == LIMIT_CLASS:
        return "limit"
    return "scored" if stored.reward is not None else "failed"


def parse_weight_version(value: Any) -> VersionRange | None:
    """Return the oldest and the newest weight version of a call, from a number, a numeric text or a list of these."""
    values = value if isinstance(value, list | tuple) else [value]
    numbers = [int(each) for each in values if isinstance(each, int) or (isinstance(each, str) and each.isdecimal())]
    return (min(numbers), max(numbers)) if numbers else None


def _build_samples(result: Mapping[str, Any], on_break: OnBreak) -> _SampleSet:
    """Build the samples of all traces."""
    stored = StoredRollout(result)
    try:
        rollout_id = _rollout_id(result, stored.key)
    except ValueError:
        rollout_id = _rollout_id(result, None)
    built = _SampleSet()
    calls = list(_main_calls(stored.output, rollout_id))
    rewards = _step_rewards(result)
    turn_rewards: list[float | None] = [*rewards] if len(rewards) == len(calls) else [None] * len(calls)
    _add_trace(built, calls, turn_rewards, rollout_id, on_break)
    next_turn = len(calls)
    for name, trace_calls in _side_traces(result, rollout_id, next_turn):
        _add_trace(built, trace_calls, [None] * len(trace_calls), rollout_id, on_break, trace=name)
    built.left_out += _left_out_by_capture(result)
    return built


def _left_out_by_capture(result: Mapping[str, Any]) -> Counter[str]:
    """Return the generated tokens that token capture recorded but did not deliver, by reason."""
    capture = result.get(NG_TOKEN_CAPTURE_KEY)
    counts = capture.get("left_out") if isinstance(capture, Mapping) else None
    pairs = counts.items() if isinstance(counts, Mapping) else ()
    return Counter({f"token capture: {reason}": count for reason, count in pairs if isinstance(count, int)})


def _add_trace(
    built: _SampleSet,
    calls: Sequence[_ModelCall],
    rewards: Sequence[float | None],
    rollout_id: str,
    on_break: OnBreak,
    *,
    trace: str = MAIN_TRACE,
) -> None:
    """Add the samples of one trace to `built`: one, and one more for each break."""
    builder = _SampleBuilder(trace, rollout_id)
    builders = [builder]
    for position, (call, reward) in enumerate(zip(calls, rewards, strict=True)):
        if not builder.accepts(call):
            built.breaks += 1
            if on_break == "raise":
                raise _broken_prompt(builder, call, rollout_id)
            if on_break == "truncate":
                built.left_out[AFTER_BREAK] += sum(len(later.generation) for later in calls[position:])
                break
            builder = _SampleBuilder(trace, rollout_id)
            builders.append(builder)
        builder.add(call, reward)
        if call.is_constrained:
            built.left_out[CONSTRAINED] += len(call.generation)
    built.samples += [builder.build() for builder in builders if builder.spans]


def _broken_prompt(builder: _SampleBuilder, call: _ModelCall, rollout_id: str) -> BrokenPrompt:
    pairs = zip(builder.tokens, call.prompt, strict=False)
    position = next((index for index, (ours, theirs) in enumerate(pairs) if ours != theirs), len(call.prompt))
    problem = f"the prompt of turn {call.turn} differs at token {position} from the calls before it"
    return BrokenPrompt(
        problem, where=_where(rollout_id, call.trace), fix="use the token transport of the model server, or on_break"
    )


def _main_calls(items: Sequence[Any], rollout_id: str) -> Iterator[_ModelCall]:
    """Yield the model calls of `response.output`.

    Raises:
        TokenFieldsError: some turns of the model have token fields and others have none, or a field is invalid.
    """
    turns = _model_turns(items)
    calls = [item for turn in turns for item in turn if has_token_fields(item)]
    if not calls:
        return
    for number, turn in enumerate(turns):
        if not any(map(has_token_fields, turn)):
            problem = f"output of the model has no token ids (part {number + 1} of {len(turns)} between tool results)"
            raise TokenFieldsError(problem, where=_where(rollout_id, MAIN_TRACE))
    for number, item in enumerate(calls):
        yield _checked_call(item, number, MAIN_TRACE, rollout_id)


def _model_turns(items: Sequence[Any]) -> list[list[Mapping[str, Any]]]:
    """Group the items that a model wrote, separated by tool results and messages of others."""
    turns: list[list[Mapping[str, Any]]] = [[]]
    for item in items:
        if isinstance(item, Mapping) and _is_from_model(item):
            turns[-1].append(item)
        elif turns[-1]:
            turns.append([])
    return [turn for turn in turns if turn]


def _is_from_model(item: Mapping[str, Any]) -> bool:
    kind = str(item.get("type") or "message")
    return item.get("role", "assistant") == "assistant" if kind == "message" else not kind.endswith("_output")


def _side_traces(result: Mapping[str, Any], rollout_id: str, next_turn: int) -> Iterator[tuple[str, list[_ModelCall]]]:
    """Yield the traces besides the main one; their turns are numbered on."""
    traces = result.get(NG_TOKEN_TRACES_KEY)
    for number, trace in enumerate(traces if isinstance(traces, list) else []):
        if not isinstance(trace, Mapping) or not isinstance(trace.get("calls"), list):
            raise TokenFieldsError(f"entry {number} of {NG_TOKEN_TRACES_KEY} is not a trace", where=rollout_id or None)
        name = str(trace.get("trace") or f"trace-{number + 1}")
        calls = [
            _checked_call(call if isinstance(call, Mapping) else {}, next_turn + position, name, rollout_id)
            for position, call in enumerate(trace["calls"])
        ]
        next_turn += len(calls)
        yield name, calls


def _checked_call(item: Mapping[str, Any], turn: int, trace: str, rollout_id: str) -> _ModelCall:
    """Read the token fields of an item or captured call.

    Raises:
        TokenFieldsError: a field is missing, or its numbers are malformed.
    """
    prompt, generation = item.get("prompt_token_ids"), item.get("generation_token_ids")
    logprobs = item.get("generation_log_probs")
    problem = None
    if not isinstance(prompt, list) or not _are_token_ids(generation):  # the prompt is checked where it is added
        problem = NOT_IDS
    elif not isinstance(logprobs, list) or not _are_finite(logprobs):
        problem = "log-probs are not a list of finite numbers"
    elif not generation:
        problem = "no token was generated"
    elif len(generation) != len(logprobs):
        problem = f"there are {len(generation)} generated tokens but {len(logprobs)} log-probs"
    elif max(logprobs) > 1e-3:  # rounding may give a little more than 0
        problem = f"a log-prob is {max(logprobs):g}, more than 0"
    if problem is not None:
        raise TokenFieldsError(f"turn {turn}: {problem}", where=_where(rollout_id, trace))
    return _ModelCall(turn, trace, prompt, generation, logprobs, item)  # type: ignore[arg-type] # checked above


def _are_token_ids(values: Any) -> bool:
    """Return whether a value is a list of whole numbers from 0. The type of the sum shows the types at C speed."""
    if not isinstance(values, list):
        return False
    try:
        return type(sum(values)) is int and (not values or min(values) >= 0)
    except TypeError:
        return False


def _are_finite(values: list[Any]) -> bool:
    try:
        return math.isfinite(math.fsum(values)) and not any(isinstance(value, bool) for value in values[:1])
    except (TypeError, ValueError, OverflowError):  # a text, or a sum of infinities
        return False


def _why_not_trainable(
    stored: StoredRollout, outcome: OutcomeName, built: _SampleSet, problem: str | None
) -> str | None:
    """Return the first reason against training on a rollout, or None."""
    if outcome != "scored":
        detail = stored.record.get(NG_FAILURE_DETAIL_KEY)
        kind = stored.failure_class
        which = detail.get("which") if isinstance(detail, Mapping) else None
        parts = " ".join(str(part) for part in (kind, which) if part and part != outcome)
        return f"the rollout is {outcome}" + (f": {parts}" if parts else "")
    if problem is not None:
        return problem
    if stored.record.get(MASK_SAMPLE_KEY):
        return _mask_reason(stored.record)
    if not built.samples:
        return "the model server reported no token ids (return_token_id_information is off)"
    if not any(1 in sample.loss_mask for sample in built.samples):
        return "no token to train on: all were generated under a grammar"
    return None


def _mask_reason(record: Mapping[str, Any]) -> str:
    """Return why token capture or the agent masked a rollout."""
    capture = record.get(NG_TOKEN_CAPTURE_KEY)
    facts = capture if isinstance(capture, Mapping) else {}
    attribution = facts.get("terminal_attribution")
    reason = (
        facts.get("mask_reason")
        or facts.get("error")
        or (attribution.get("reason") if isinstance(attribution, Mapping) else None)
    )
    if not reason and facts.get("capture_incomplete"):
        reason = "the captured calls are incomplete"
    return f"masked: {reason}" if reason else "masked by the agent"


def _count_generated(result: Mapping[str, Any]) -> int:
    """Count the generated token ids of a record whose token fields are invalid."""
    items = [item for item in StoredRollout(result).output if isinstance(item, Mapping)]
    traces = result.get(NG_TOKEN_TRACES_KEY)
    for trace in traces if isinstance(traces, list) else []:
        calls = trace.get("calls") if isinstance(trace, Mapping) else None
        items += [call for call in (calls if isinstance(calls, list) else []) if isinstance(call, Mapping)]
    lists = (item.get("generation_token_ids") for item in items)
    return sum(len(ids) for ids in lists if isinstance(ids, list))


def _numbers_by_name(values: Any) -> dict[str, float]:
    pairs = values.items() if isinstance(values, Mapping) else ()
    return {str(name): number for name, value in pairs if (number := finite_float(value)) is not None}


def _step_rewards(result: Mapping[str, Any]) -> list[float]:
    """Return the rewards of the steps; empty unless all are finite numbers."""
    values = result.get(STEP_REWARDS_KEY)
    numbers = [finite_float(value) for value in values] if isinstance(values, list) else []
    return [number for number in numbers if number is not None] if None not in numbers else []


def _timings(stored: StoredRollout) -> dict[str, float]:
    seconds = stored.seconds
    return _numbers_by_name(stored.phases) | ({} if seconds is None else {"total": seconds})


def _rollout_id(result: Mapping[str, Any], key: RolloutKey | None) -> str:
    rollout_id = result.get(ROLLOUT_ID_KEY_NAME)
    return str(rollout_id) if rollout_id else str(key or "")


def _where(rollout_id: str, trace: str) -> str | None:
    parts = [f"rollout {rollout_id}"] if rollout_id else []
    return ", ".join([*parts, *([f"trace {trace}"] if trace != MAIN_TRACE else [])]) or None
