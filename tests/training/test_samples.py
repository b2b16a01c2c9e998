"""From the token fields of a record to samples."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nemo_gym.training import BrokenPrompt, TokenFieldsError, rollout_of, samples_of
from nemo_gym.training.samples import AFTER_BREAK, CONSTRAINED, INVALID

TOKEN = st.integers(0, 2**31)
LOGPROB = st.floats(-50, 0, allow_nan=False)


def call(prompt: list[int], generation: list[int], logprobs: list[float] | None = None, **more: Any) -> dict[str, Any]:
    """Return the item of a model call that asked for a tool."""
    return {
        "type": "function_call",
        "call_id": "c",
        "name": "ask",
        "arguments": "{}",
        "prompt_token_ids": prompt,
        "generation_token_ids": generation,
        "generation_log_probs": [-0.5] * len(generation) if logprobs is None else logprobs,
        **more,
    }


TOOL_RESULT = {"type": "function_call_output", "call_id": "c", "output": "7"}


def record(*items: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "_ng_task_index": 3,
        "_ng_rollout_index": 1,
        "reward": 1.0,
        "agent_ref": {"name": "solver"},
        "response": {"output": list(items)},
        **more,
    }


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Draw model calls of which some continue the calls before them, and some do not."""
    calls: list[dict[str, Any]] = []
    seen: list[int] = []
    for _ in range(draw(st.integers(1, 6))):
        new_tokens = draw(st.lists(TOKEN, max_size=6))
        seen = [*seen, *new_tokens] if draw(st.booleans()) else new_tokens
        generation = draw(st.lists(TOKEN, min_size=1, max_size=5))
        logprobs = draw(st.lists(LOGPROB, min_size=len(generation), max_size=len(generation)))
        calls += [call(seen, generation, logprobs, constrained=draw(st.booleans()))]
        seen = [*seen, *generation]
    return calls


@given(conversations())
def test_every_generated_token_has_one_owner(calls: list[dict[str, Any]]) -> None:
    """A token that two samples train on, or that none does, biases the gradient without any error."""
    items = [item for each in calls for item in (each, TOOL_RESULT)]

    rollout = rollout_of(record(*items))

    expected = [
        (token, logprob)
        for each in calls
        if not each["constrained"]
        for token, logprob in zip(each["generation_token_ids"], each["generation_log_probs"], strict=True)
    ]
    trained = [
        (sample.token_ids[position], sample.logprobs[position])
        for sample in rollout.samples
        for position, mask in enumerate(sample.loss_mask)
        if mask
    ]
    assert trained == expected
    total = sum(len(each["generation_token_ids"]) for each in calls)
    assert sum(sample.trainable_tokens for sample in rollout.samples) + sum(rollout.left_out.values()) == total


@given(conversations())
def test_a_span_follows_exactly_its_prompt(calls: list[dict[str, Any]]) -> None:
    """The trainer recomputes log-probs from the tokens before a span, so they must be what the engine saw."""
    samples = samples_of(record(*calls))

    spans = [(sample, span) for sample in samples for span in sample.spans]
    assert len(spans) == len(calls)
    for each, (sample, span) in zip(calls, spans, strict=True):
        assert sample.token_ids[: span.start] == each["prompt_token_ids"]
        assert sample.token_ids[span.start : span.end] == each["generation_token_ids"]
        assert len(sample.token_ids) == len(sample.loss_mask) == len(sample.logprobs)
        assert all(math.isfinite(value) for value in sample.logprobs)
        assert sample.prompt_len == sample.spans[0].start


@given(conversations())
def test_truncation_counts_what_it_leaves_out(calls: list[dict[str, Any]]) -> None:
    """A trainer that trains on the first part only must know how much it lost."""
    rollout = rollout_of(record(*calls), on_break="truncate")

    total = sum(len(each["generation_token_ids"]) for each in calls)
    assert sum(sample.trainable_tokens for sample in rollout.samples) + sum(rollout.left_out.values()) == total
    assert len(rollout.samples) == 1
    assert (AFTER_BREAK in rollout.left_out) == (rollout.breaks > 0)


def test_a_broken_prompt_is_named() -> None:
    """Someone who debugs a template needs the turn and the token, not only the fact."""
    items = [call([1, 2], [3]), TOOL_RESULT, call([1, 2, 9, 4], [5])]

    with pytest.raises(BrokenPrompt, match="rollout 3-1: the prompt of turn 1 differs at token 2"):
        samples_of(record(*items), on_break="raise")

    assert rollout_of(record(*items)).breaks == 1


def test_a_prompt_that_ends_too_early_is_a_break() -> None:
    """A context cut in the middle of a generated turn does not contain the tokens that were sampled."""
    assert len(samples_of(record(call([1], [2, 3, 4]), TOOL_RESULT, call([1, 2], [5])))) == 2


def test_constrained_tokens_are_not_trained_on() -> None:
    """Log-probs after a grammar's mask are not those of the policy: a gap of several nats for the trainer."""
    rollout = rollout_of(record(call([1], [2, 3], constrained=True), TOOL_RESULT, call([1, 2, 3, 4], [5])))

    (sample,) = rollout.samples
    assert sample.loss_mask == [0, 0, 0, 0, 1]
    assert sample.logprobs[:4] == [0.0] * 4
    assert rollout.left_out == {CONSTRAINED: 2}
    assert rollout.trainable
    assert rollout_of(record(call([1], [2], constrained=True))).why_not == (
        "no token to train on: all were generated under a grammar"
    )


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (call([1], [2, 3], [-0.1]), "there are 2 generated tokens but 1 log-probs"),
        (call([1], [2], ["NaN"]), "log-probs are not a list of finite numbers"),
        (call([1], [2], [float("nan")]), "log-probs are not a list of finite numbers"),
        (call([1], [2, 3], [float("inf"), float("-inf")]), "log-probs are not a list of finite numbers"),
        (call([1], [2], [0.5]), "a log-prob is 0.5, more than 0"),
        (call([1], [], []), "no token was generated"),
        (call([1], [-2]), "token ids are not a list of whole numbers from 0"),
        (call([1.5], [2]), "token ids are not a list of whole numbers from 0"),
        (call(["a"], [2]), "token ids are not a list of whole numbers from 0"),
        ({**call([1], [2]), "generation_log_probs": None}, "log-probs are not a list of finite numbers"),
    ],
)
def test_unusable_token_fields_are_refused(item: dict[str, Any], problem: str) -> None:
    """A trainer that dies on one sample, or trains on garbage, is worse than one sample less with a reason."""
    with pytest.raises(TokenFieldsError, match=f"turn 0: {problem}"):
        samples_of(record(item))

    rollout = rollout_of(record(item))
    assert rollout.why_not == f"unusable token fields: turn 0: {problem}"
    assert not rollout.samples
    assert sum(rollout.left_out.values()) == len(item["generation_token_ids"])
    assert set(rollout.left_out) <= {INVALID}


def test_a_turn_without_token_ids_is_refused() -> None:
    """A tool call turn whose ids are missing would never be trained, and nothing would say so."""
    bare = {"type": "function_call", "call_id": "c", "name": "ask", "arguments": "{}"}

    rollout = rollout_of(record(call([1], [2]), TOOL_RESULT, bare, TOOL_RESULT, call([1, 2, 3], [4])))

    assert not rollout.trainable
    assert "part 2 of 3" in (rollout.why_not or "")
    assert rollout.left_out == {INVALID: 2}


def test_a_record_without_token_ids_says_how_to_get_them() -> None:
    """The most frequent mistake is that the model server was not asked for token ids."""
    rollout = rollout_of(record({"type": "message", "role": "assistant", "content": "7"}))

    assert not rollout.trainable
    assert "return_token_id_information" in (rollout.why_not or "")


@pytest.mark.parametrize(
    ("fields", "outcome", "why_not"),
    [
        ({"_ng_failure_class": "server_died", "_ng_failure": {}}, "failed", "the rollout is failed: server_died"),
        (
            {"_ng_failure_class": "limit", "_ng_failure": {"which": "context_length"}},
            "limit",
            "the rollout is limit: context_length",
        ),
        ({"_ng_no_persist": True}, "cancelled", "the rollout is cancelled"),
        ({"reward": float("nan")}, "failed", "the rollout is failed"),
        ({"mask_sample": True}, "scored", "masked by the agent"),
        (
            {"mask_sample": True, "_ng_token_capture": {"terminal_attribution": {"reason": "no_match"}}},
            "scored",
            "masked: no_match",
        ),
    ],
)
def test_only_scored_rollouts_have_a_reward(fields: dict[str, Any], outcome: str, why_not: str) -> None:
    """A failure that enters a baseline as 0 teaches the policy that the machine was its fault."""
    rollout = rollout_of(record(call([1], [2]), **fields))

    assert (rollout.outcome, rollout.why_not, rollout.trainable) == (outcome, why_not, False)
    assert (rollout.reward is not None) == (outcome == "scored")
    assert rollout.samples, "the tokens stay visible"


def test_side_traces_are_samples_of_the_same_rollout() -> None:
    """Sub-agents are part of what the policy did, so they share the rollout's reward."""
    trace = {"trace": "searcher", "calls": [call([9], [8]), call([9, 8, 7], [6])]}

    rollout = rollout_of(record(call([1], [2]), _ng_token_traces=[trace]))

    main, side = rollout.samples
    assert (main.trace, side.trace) == ("main", "searcher")
    assert side.token_ids == [9, 8, 7, 6]
    assert [span.turn for sample in rollout.samples for span in sample.spans] == [0, 1, 2]
    assert {sample.rollout_id for sample in rollout.samples} == {"3-1"}


def test_tokens_that_capture_did_not_deliver_are_counted() -> None:
    """A retried call was generated and paid, so it must not vanish from the count."""
    rollout = rollout_of(record(call([1], [2]), _ng_token_capture={"left_out": {"retry": 3}}))

    assert rollout.left_out == {"token capture: retry": 3}
    assert rollout.trainable


def test_step_rewards_belong_to_their_turns() -> None:
    """Per-turn credit needs the reward of each turn; a list of another length cannot be assigned."""
    items = [call([1], [2]), TOOL_RESULT, call([1, 2, 3], [4])]

    assigned = rollout_of(record(*items, step_rewards=[0.25, 0.75]))
    unassigned = rollout_of(record(*items, step_rewards=[0.25]))

    assert [span.reward for span in assigned.samples[0].spans] == [0.25, 0.75]
    assert [span.reward for span in unassigned.samples[0].spans] == [None, None]
    assert unassigned.step_rewards == [0.25]


@pytest.mark.parametrize(
    ("value", "expected"), [(7, (7, 7)), ("7", (7, 7)), ([5, "6"], (5, 6)), (None, None), ("abc", None), ([], None)]
)
def test_weight_versions_are_a_range(value: Any, expected: Any) -> None:
    """Engines report a number, a text or several versions for a call during which the weights changed."""
    assert rollout_of(record(call([1], [2], weight_version=value))).weight_version == expected


def test_identity_and_group_are_stable() -> None:
    """A trainer matches rollouts with its own rows by these."""
    rollout = rollout_of(record(call([1], [2]), _ng_attempt_index=2))

    assert (rollout.rollout_id, rollout.task, rollout.group, rollout.attempt) == ("3-1-a2", 3, "3", 2)
    assert rollout.agent == "solver"
    assert rollout_of(record(call([1], [2])), group="step-4/3").group == "step-4/3"


@pytest.mark.parametrize("kind", [None, 7])
def test_an_item_with_an_odd_type_is_read(kind):
    """Agents write what they like; one odd item must not end the training with an AttributeError."""
    rollout = rollout_of(record(call([1], [2, 3], type=kind)))

    assert rollout.trainable
    assert [sample.trainable_tokens for sample in rollout.samples] == [2]


@pytest.mark.parametrize("traces", [5, [{"calls": 5}]])
def test_odd_traces_of_a_record_with_invalid_tokens_are_not_counted(traces):
    """A record that is malformed in two places is a rollout that is not trainable, not an exception."""
    rollout = rollout_of(record(call([1], [2, 3], [-0.5]), _ng_token_traces=traces))

    assert (rollout.trainable, rollout.left_out) == (False, {INVALID: 2})
