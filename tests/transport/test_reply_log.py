"""A cancelled rollout returns what was generated, as one response."""

import orjson

from nemo_gym.transport.client_response import LocalResponse
from nemo_gym.transport.reply_log import ReplyLog, prefix_response
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
    log: ReplyLog = [None]
    log[0] = {"input": [{"role": "user", "content": "hi"}, CALL, OUTPUT]}
    log += [response(CALL, tokens=3), response(MESSAGE, tokens=5)]

    prefix = await prefix_response(log)

    assert prefix is not None
    assert prefix["output"] == [CALL, OUTPUT, MESSAGE]
    assert prefix["usage"] == {"input_tokens": 4, "output_tokens": 0, "total_tokens": 8}


async def test_replies_that_are_no_responses_add_nothing():
    """A failed call, another dialect or garbage must not break the answer to a cancelled rollout."""
    log: ReplyLog = [None]
    for body, status in (({"detail": "busy"}, 503), ({"choices": []}, 200), ("text", 200)):
        log.append(reply(body, status))
    log.append(LocalResponse(Call("POST", "http://127.0.0.1", "/"), Reply(200, b"not json")))

    assert await prefix_response(log) is None
    log[0] = "no mapping"
    log.append(response(MESSAGE))
    assert (await prefix_response(log))["output"] == [MESSAGE]


async def test_a_failed_rollout_keeps_the_tokens_of_its_turns():
    """The page of a failed rollout shows what it had cost until then, turn by turn."""
    log: ReplyLog = [None]
    usage = {
        "input_tokens": 9,
        "output_tokens": 4,
        "total_tokens": 13,
        "input_tokens_details": {"cached_tokens": 5},
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    log.append(reply({"id": "r", "output": [CALL], "usage": usage}))
    log[0] = {"input": [CALL, OUTPUT]}
    log.append(reply({"id": "s", "output": [MESSAGE]}))

    prefix = await prefix_response(log, with_turns=True)

    assert prefix is not None
    assert prefix["_ng_turns"] == [[1, 9, 5, 4, 3], [1]]
    assert prefix["usage"]["input_tokens_details"] == {"cached_tokens": 5}
    assert prefix["usage"]["output_tokens_details"] == {"reasoning_tokens": 3}
    assert "_ng_turns" not in (await prefix_response(log) or {}), "a response has no such field"
