"""Streams to clients: every event of the endpoint arrives, however slowly the client reads."""

import asyncio
from typing import Any

import pytest

from nemo_gym.convert.error_bodies import ApiError
from nemo_gym.convert.stream_encoders import ChatEncoder
from nemo_gym.serve import event_stream
from nemo_gym.serve.event_stream import Emit, EventStreamResponse, stream_answer


def chunk(text: str, finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


async def test_an_event_that_comes_while_the_client_reads_a_comment_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A model that thinks for long is silent; the first words after the silence are part of the answer."""
    monkeypatch.setattr(event_stream, "HEADERS_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_SECONDS", 0.0)
    speaks, ends = asyncio.Event(), asyncio.Event()

    async def produce(emit: Emit) -> dict[str, Any]:
        await speaks.wait()
        await emit(chunk("first words"))
        speaks.clear()
        await ends.wait()
        message = {"role": "assistant", "content": "first words"}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": None}

    encoder = ChatEncoder(include_usage=False, keeps_token_ids=False)
    answer = await stream_answer(produce, encoder, lambda error: ApiError(500, repr(error)))
    assert isinstance(answer, EventStreamResponse)
    chunks = aiter(answer.body_iterator)
    comments = [await anext(chunks), await anext(chunks)]

    speaks.set()  # the client still reads the second comment
    for _ in range(10):
        await asyncio.sleep(0)
    ends.set()
    text = b"".join([bytes(piece) async for piece in chunks])  # type: ignore[arg-type]

    assert comments == [event_stream.KEEP_ALIVE] * 2
    assert b"first words" in text
