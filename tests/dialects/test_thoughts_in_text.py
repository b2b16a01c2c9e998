"""Thoughts that an endpoint leaves in the text: whole and streamed answers divide it in the same way."""

from typing import Any

import pytest

from nemo_gym.convert import sse
from nemo_gym.convert.message_stream import message_from_events
from nemo_gym.convert.thought_splitter import ThinkTagSplitter
from responses_api_models.openai_model.tests.endpoint import OpenStream, Reply, ask, listening
from tests.dialects.strategies import Json
from tests.dialects.test_live_streams import CHUNKS, chunk, vllm_model

BODY: Json = {"input": "hi"}
TEXTS = {
    "the template wrote the begin": ("I think so</think>42", "stop", ["I think so"], "42"),
    "two thoughts": ("one</think>4<think>two</think>2", "stop", ["one", "two"], "42"),
    "cut in a thought": ("<think>thinking long", "length", ["thinking long"], ""),
    "cut in the second thought": ("<think>a</think>4<think>b", "length", ["a", "b"], "4"),
    "no thought": ("only <b>text", "stop", [], "only <b>text"),
}


def text_chunks(text: str, finish: str) -> list[Json]:
    """Return the chunks of an answer, one for each three characters."""
    pieces = [text[start : start + 3] for start in range(0, len(text), 3)]
    return [CHUNKS[0], *(chunk({"content": piece}) for piece in pieces), chunk({}, finish), CHUNKS[-1]]


def whole(text: str, finish: str) -> Json:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "big"}
    return {**head, "choices": [choice], "usage": CHUNKS[-1]["usage"]}


def thoughts_and_text(items: list[Json]) -> tuple[list[str], str]:
    """Return the thoughts and the text of the items of an answer."""
    thoughts = [part["text"] for item in items if item["type"] == "reasoning" for part in item["summary"]]
    return thoughts, "".join(part["text"] for item in items if item["type"] == "message" for part in item["content"])


def finished_items(events: list[Json]) -> list[Json]:
    return [event["item"] for event in events if event["type"] == "response.output_item.done"]


@pytest.mark.parametrize("name", TEXTS)
async def test_a_text_is_divided_in_the_same_way_whole_and_streamed(name: str) -> None:
    """A thought taken for visible text would be graded."""
    text, finish, *expected = TEXTS[name]

    async with listening(chat=Reply(whole(text, finish))) as endpoint:
        answer = await (await ask(vllm_model(endpoint.url), "/v1/responses", BODY)).json()
    async with listening(chat=Reply(events=text_chunks(text, finish))) as endpoint:
        reply = await ask(vllm_model(endpoint.url), "/v1/responses", {**BODY, "stream": True})
        events = list(sse.decode(await reply.read()))

    assert thoughts_and_text(answer["output"]) == tuple(expected)
    assert thoughts_and_text(finished_items(events)) == tuple(expected)
    last = events[-1]["response"]["output"]
    assert thoughts_and_text(last) == tuple(expected)
    assert [item["id"] for item in finished_items(events)] == [item["id"] for item in last]
    assert "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta") == expected[1]


async def test_a_messages_client_sees_no_thought_in_the_text() -> None:
    """Claude Code shows text to the user and sends it back as the answer."""
    body = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}], "stream": True}

    async with listening(chat=Reply(events=text_chunks("I think so</think>42", "stop"))) as endpoint:
        reply = await ask(vllm_model(endpoint.url), "/v1/messages", body)
        message = message_from_events(list(sse.decode(await reply.read())))

    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["content"][1]["text"] == "42"


async def test_text_is_held_back_only_until_the_first_answer_shows_the_template() -> None:
    """The first answer cannot be live; all later ones would pay for nothing."""
    events = text_chunks("a longer text", "stop")

    async with listening(chat=[Reply(events=events), Reply(events=events, waits_before=3)]) as endpoint:
        server = vllm_model(endpoint.url)
        await ask(server, "/v1/responses", {**BODY, "stream": True})
        async with OpenStream(server, "/v1/responses", {**BODY, "stream": True}) as stream:
            received = await stream.read_until(b"response.output_text.delta")
            endpoint.resume.set()
            await stream.read_all()

    assert b"response.completed" not in received


async def test_an_answer_with_alternating_thoughts_has_the_items_that_were_streamed() -> None:
    """Clients that read the last event and clients that read each item must send the same conversation back."""
    deltas: list[Json] = [{"reasoning": "r1"}, {"content": "t1"}, {"reasoning": "r2"}, {"content": "t2"}]
    events = [CHUNKS[0], *map(chunk, deltas), chunk({}, "stop"), CHUNKS[-1]]

    async with listening(chat=Reply(events=events)) as endpoint:
        reply = await ask(vllm_model(endpoint.url), "/v1/responses", {**BODY, "stream": True})
        received = list(sse.decode(await reply.read()))

    items: list[Any] = received[-1]["response"]["output"]
    assert [item["id"] for item in finished_items(received)] == [item["id"] for item in items]
    assert thoughts_and_text(items) == (["r1", "r2"], "t1t2")


def test_an_end_without_begin_is_noticed_across_pieces() -> None:
    """It shows that the template begins with a thought; the next answer is then held back."""
    splitter = ThinkTagSplitter()

    parts = [part for piece in ("x</th", "ink>", "y") for part in splitter.feed(piece)]

    assert "".join(text for is_thought, text in parts if not is_thought) == "x</think>y"
    assert splitter.began_inside
