"""A cancelled rollout returns what was generated, as one response."""

import orjson

from nemo_gym.transport.client_response import LocalResponse
from nemo_gym.transport.reply_log import ReplyLog
from nemo_gym.wire.call_reply import Call, Reply

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "cold"}
MESSAGE = {"type": "message", "role": "assistant", "content": []}


def reply(body, status=200):
    return LocalResponse(Call("POST", "http://127.0.0.1", "/v1/responses"), Reply(status, orjson.dumps(body)))


def response(*items, tokens=1):
    return reply({"id": "r", "output": list(items), "usage": {"input_tokens": 2, "total_tokens": tokens}})


async def test_the_prefix_has_all_turns_and_the_tool_outputs_between_them():
    """The viewer and text-based trainers read the conversation; it must be complete up to the last answer."""
    log = ReplyLog()
    log.add({"input": "hi"}, response(CALL, tokens=3))
    log.add({"input": [{"role": "user", "content": "hi"}, CALL, OUTPUT]}, response(MESSAGE, tokens=5))

    prefix = await log.prefix_response()

    assert prefix is not None
    assert prefix["output"] == [CALL, OUTPUT, MESSAGE]
    assert prefix["usage"] == {"input_tokens": 4, "output_tokens": 0, "total_tokens": 8}


async def test_replies_that_are_no_responses_add_nothing():
    """A failed call, another dialect or garbage must not break the answer to a cancelled rollout."""
    log = ReplyLog()
    for body, status in (({"detail": "busy"}, 503), ({"choices": []}, 200), ("text", 200)):
        log.add({}, reply(body, status))
    log.add({}, LocalResponse(Call("POST", "http://127.0.0.1", "/"), Reply(200, b"not json")))

    assert await log.prefix_response() is None
    log.add("no mapping", response(MESSAGE))
    assert (await log.prefix_response())["output"] == [MESSAGE]
