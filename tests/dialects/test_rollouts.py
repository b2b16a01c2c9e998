"""Calls belong to their rollout in every dialect, whole and streamed: tokens are captured and limits bind."""

import json
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from nemo_gym.capture.store import CaptureStore, merge_model_call_capture_into_record
from nemo_gym.convert.chat_stream import completion_from_chunks
from nemo_gym.rollouts.capture_join import build_trajectory
from nemo_gym.wire.observations import Dialect
from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening
from tests.dialects.test_endpoint_faults import CHAT_CLIENTS, CLIENTS, GEMINI, GEMINI_BODY, GEMINI_STREAM
from tests.dialects.test_live_streams import (
    CHUNKS,
    RESPONSE,
    TOKEN_CHUNKS,
    openai_model,
    stored_generations,
    vllm_model,
)

ALL_CLIENTS = CLIENTS | CHAT_CLIENTS


@pytest.mark.parametrize("client", ALL_CLIENTS)
async def test_the_tokens_of_an_answer_are_captured(client: str, tmp_path: Path) -> None:
    """A trainer learns from what the engine generated, whichever dialect and streaming mode the harness uses."""
    config = {"token_id_capture": {"enabled": True, "all_agents": True}, "model_call_capture_dir": str(tmp_path)}
    settings = {"return_token_id_information": True, "request_prompt_and_generation_token_ids": True}
    path, body = ALL_CLIENTS[client]
    reply = Reply(events=TOKEN_CHUNKS) if "streamed" in client else Reply(completion_from_chunks(TOKEN_CHUNKS))

    async with listening(chat=reply) as endpoint:
        answer = await ask(
            vllm_model(endpoint.url, config, **settings), f"/ng-rollout/3-1/training-token-capture{path}", body
        )

    assert "Hello" in await answer.text()
    (record,) = stored_generations(tmp_path)
    assert (record["prompt_token_ids"], record["generation_token_ids"]) == ([1, 2], [5, 6])
    assert record["generation_log_probs"] == [-0.5, -0.25]


@pytest.mark.parametrize("client", [*ALL_CLIENTS, "gemini array"])
async def test_a_captured_call_has_the_answer_and_the_tokens_of_the_model(client: str, tmp_path: Path) -> None:
    """A call in a dialect that the trajectory did not know failed the whole rollout, and most had no token ids."""
    config = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path)}
    settings = {"return_token_id_information": True, "request_prompt_and_generation_token_ids": True}
    array = (GEMINI_STREAM.removesuffix("?alt=sse"), GEMINI_BODY)
    path, body = {**ALL_CLIENTS, "gemini array": array}[client]
    is_live = "streamed" in client or "array" in client
    reply = Reply(events=TOKEN_CHUNKS) if is_live else Reply(completion_from_chunks(TOKEN_CHUNKS))

    async with listening(chat=reply) as endpoint:
        answer = await ask(vllm_model(endpoint.url, config, **settings), f"/ng-rollout/3-1{path}", body)
        await answer.read()
    rollout = merge_model_call_capture_into_record({}, CaptureStore(tmp_path), "3-1")
    trajectory = build_trajectory(rollout)

    assert trajectory is not None
    (call,) = trajectory.model_calls
    assert call.response_metadata is not None and call.token_stats is not None
    metadata, tokens = call.response_metadata, call.token_stats
    assert (metadata.dialect, metadata.error_category) == (client.split()[0], None)
    assert metadata.response_id and "Hello" in json.dumps(call.response)
    assert (tokens.prompt_tokens, tokens.completion_tokens) != (None, None) or client == "chat streamed"
    (stored,) = rollout["ng_model_call_capture"]["calls"]
    answer_of_model = json.dumps(stored.get("model_answer", stored["response"]))
    assert '"generation_token_ids": [5, 6]' in answer_of_model
    assert '"generation_log_probs": [-0.5, -0.25]' in answer_of_model


@pytest.mark.parametrize("make", [openai_model, vllm_model])
@pytest.mark.parametrize("dialect", ["messages", "gemini"])
async def test_a_repeated_conversation_is_the_same_request_of_the_endpoint(dialect: str, make: Any) -> None:
    """Ids that were new each time broke the prefix cache of templates that print them, and every hit of `--cache`."""
    calls = [{"functionCall": {"name": "f", "args": {}}}, {"text": "done", "thought": True}, {"text": "so"}]
    result = {"functionResponse": {"name": "f", "response": {"output": "x"}}}
    contents = [("user", [{"text": "hi"}]), ("model", calls), ("user", [result])]
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "so"}]
    messages = [("user", "hi"), ("assistant", blocks), ("user", "go")]
    bodies = {
        "gemini": (GEMINI, {"contents": [{"role": role, "parts": parts} for role, parts in contents]}),
        "messages": (
            "/v1/messages",
            {"model": "m", "max_tokens": 9, "messages": [{"role": role, "content": value} for role, value in messages]},
        ),
    }
    path, body = bodies[dialect]

    async with listening(chat=Reply(completion_from_chunks(CHUNKS)), responses=Reply(RESPONSE)) as endpoint:
        server = make(endpoint.url)
        answers = [await ask(server, path, body) for _ in range(2)]

    assert [answer.status for answer in answers] == [200, 200]
    first, second = (call.body for call in endpoint.calls)
    assert first == second
    assert "hi" in json.dumps(first)


def error_message(answer: dict[str, Any], dialect: Dialect) -> str:
    """Return the message of an error body, which must have the form of the dialect."""
    error = answer["error"]
    if dialect == "gemini":
        assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    else:
        assert error["type"] == "invalid_request_error"
        assert answer.get("type") == ("error" if dialect == "messages" else None)
    return str(error["message"])


@pytest.mark.parametrize("client", ALL_CLIENTS)
@pytest.mark.parametrize(("limit", "setting"), [("s1", "max_steps_per_rollout"), ("t5", "max_tokens_per_rollout")])
async def test_a_limit_of_the_rollout_refuses_the_next_call(client: str, limit: str, setting: str) -> None:
    """Programs have no flag for it, and repeat a request after any other status than 400, also in a stream."""
    path, body = ALL_CLIENTS[client]
    dialect: Any = client.split()[0]
    reply = Reply(events=CHUNKS) if "streamed" in client else Reply(completion_from_chunks(CHUNKS))

    async with listening(chat=reply) as endpoint:
        server = vllm_model(endpoint.url)
        prefixed = f"/ng-rollout/3-1/budget/{token_hex(8)}-c0-{limit}{path}"
        first = await ask(server, prefixed, body)
        await first.read()
        second = await ask(server, prefixed, body)

    assert (first.status, second.status) == (200, 400)
    assert len(endpoint.calls) == 1
    assert setting in error_message(json.loads(await second.read()), dialect)
