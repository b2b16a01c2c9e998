"""Run, seed and verify requests as servers subclass and echo them."""

import math

import pytest
from pydantic import ConfigDict, ValidationError

from nemo_gym.metrics.aggregate import AggregateMetrics, AggregateMetricsRequest
from nemo_gym.wire.run_seed_verify import (
    BaseMultiRewardVerifyResponse,
    BaseRunRequest,
    BaseSeedSessionRequest,
    BaseVerifyRequest,
    BaseVerifyResponse,
    MCPServerMetadata,
    ReverifyMode,
    verify_fields,
)

RESPONSE = {
    "id": "resp_1",
    "created_at": 1.0,
    "model": "m",
    "object": "response",
    "output": [
        {"type": "reasoning", "id": "r", "summary": [], "status": "completed"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "4"}]},
        {
            "type": "message",
            "id": "m",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "4", "annotations": []}],
            "prompt_token_ids": [1],
            "generation_token_ids": [2],
            "generation_log_probs": [-0.5],
        },
    ],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
BODY = {
    "responses_create_params": {
        "input": [{"role": "user", "content": "2 + 2?"}],
        "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}],
    },
    "response": RESPONSE,
}


class SumsRunRequest(BaseRunRequest):
    expected: float


class SumsVerifyRequest(SumsRunRequest, BaseVerifyRequest):
    pass


class SumsVerifyResponse(SumsVerifyRequest, BaseVerifyResponse):
    answer: float | None


def test_a_verifier_echoes_the_request_and_adds_its_verdict():
    """The idiom of every verifier; a second validation must accept everything the first one dumped."""
    body = SumsVerifyRequest.model_validate({**BODY, "expected": 4})

    verdict = SumsVerifyResponse(**body.model_dump(), answer=4, reward=1.0)

    assert verdict.reward == 1.0
    assert verdict.response == body.response
    assert verdict.responses_create_params == body.responses_create_params


def test_unknown_fields_are_ignored_unless_a_server_asks_for_them():
    """A row carries fields of other servers; one that wants them all says so."""

    class Keeping(BaseRunRequest):
        model_config = ConfigDict(extra="allow")

    row = {**BODY, "other": 1}

    assert "other" not in BaseRunRequest.model_validate(row).model_dump()
    assert Keeping.model_validate(row).model_dump(exclude_unset=True)["other"] == 1


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_reaches_the_collector(reward):
    """Failing to write it would turn a verifier's bug into a lost rollout without a reason."""
    verdict = BaseMultiRewardVerifyResponse.model_validate(
        {**BODY, "reward": reward, "reward_components": {"a": reward}}
    )

    again = BaseMultiRewardVerifyResponse.model_validate_json(verdict.model_dump_json())

    assert repr(again.reward) == repr(reward)
    assert repr(again.reward_components) == repr({"a": reward})


def test_a_verdict_needs_a_reward_and_a_request_its_params():
    """No reward is a failure, never zero."""
    with pytest.raises(ValidationError, match="reward"):
        BaseVerifyResponse.model_validate(BODY)
    with pytest.raises(ValidationError, match="responses_create_params"):
        BaseRunRequest.model_validate({})


def test_the_small_ones_have_the_contracts_defaults():
    """These shapes are on the wire between servers of different versions."""
    assert BaseSeedSessionRequest.model_validate({"anything": 1}).model_dump() == {}
    assert AggregateMetricsRequest(verify_responses=[{"reward": 1}]).verify_responses == [{"reward": 1}]
    assert AggregateMetrics().model_dump() == {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}}
    assert MCPServerMetadata(server_name="s").model_dump() == {
        "server_name": "s",
        "url_path": "/mcp",
        "transport": "http",
        "headers": {},
    }
    assert [mode.value for mode in ReverifyMode] == ["stateless", "unsupported", "unknown"]


def test_the_fields_of_an_answer_are_those_of_its_dump():
    """An agent in the same process takes the fields, one in another reads the dump; the records must be equal."""
    plain = BaseVerifyResponse(**BODY, reward=1.0)
    masked = BaseVerifyResponse(**BODY, reward=0.0, mask_sample=False, failure_kind="judge")

    for answer in (plain, masked):
        assert verify_fields(answer).keys() - {"capture_rollout_id"} == answer.model_dump().keys()
    assert "mask_sample" not in verify_fields(plain)
    assert verify_fields(masked)["mask_sample"] is False
