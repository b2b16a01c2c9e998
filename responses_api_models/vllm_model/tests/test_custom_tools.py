"""Custom tools of Chat clients, which vLLM does not have."""

import json

import pytest

from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening
from responses_api_models.vllm_model.tests.support import USER, completion, model

TOOL = {"type": "custom", "custom": {"name": "ap", "description": "Patch."}}
EARLIER = {
    "role": "assistant",
    "tool_calls": [{"id": "c0", "type": "custom", "custom": {"name": "ap", "input": "old"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c0", "content": "done"}


@pytest.mark.asyncio
@pytest.mark.parametrize("stream", [False, True])
async def test_a_custom_tool_is_a_function_for_the_endpoint_and_custom_for_the_client(stream: bool):
    """vLLM refuses the whole request otherwise."""
    call = {"id": "c1", "type": "function", "function": {"name": "ap", "arguments": json.dumps({"input": "*** patch"})}}
    body = {"messages": [USER, EARLIER, RESULT], "tools": [TOOL], "stream": stream}
    choice = {"type": "custom", "custom": {"name": "ap"}}

    async with listening(chat=Reply(completion(None, "tool_calls", tool_calls=[call]))) as endpoint:
        reply = await ask(model(endpoint.url), "/v1/chat/completions", {**body, "tool_choice": choice})
        text = await reply.text()

    (sent,) = endpoint.bodies
    assert sent["tools"][0]["function"]["name"] == "ap"
    assert sent["tool_choice"] == {"type": "function", "function": {"name": "ap"}}
    assert json.loads(sent["messages"][1]["tool_calls"][0]["function"]["arguments"]) == {"input": "old"}
    whole = json.loads(text) if not stream else None
    if whole is not None:
        (answered,) = whole["choices"][0]["message"]["tool_calls"]
        assert (answered["type"], answered["custom"]) == ("custom", {"name": "ap", "input": "*** patch"})
    assert '"custom":{"' in text.replace(" ", "")
    assert '"function"' not in text
