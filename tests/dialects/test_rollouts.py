"""Calls belong to their rollout in every dialect, whole and streamed: tokens are captured and limits bind."""

import json
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from nemo_gym.convert.chat_stream import completion_from_chunks
from nemo_gym.convert.error_bodies import Dialect
from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening
from tests.dialects.test_endpoint_faults import CHAT_CLIENTS, CLIENTS
from tests.dialects.test_live_streams import CHUNKS, TOKEN_CHUNKS, stored_generations, vllm_model

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
