"""Responses streams of endpoints that leave events out: every client gets the complete sequence."""

from collections.abc import Callable
from typing import Any

import pytest

from nemo_gym.convert import sse
from nemo_gym.convert.gemini_answer import gemini_from_chunks
from nemo_gym.convert.message_stream import message_from_events
from nemo_gym.convert.response_events import ResponseEventDecoder, closing_event, events_from_response
from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening
from tests.dialects.strategies import FULL_RESPONSE, Json, meaning_of_message, meaning_of_response
from tests.dialects.test_live_streams import BODIES, RESPONSE, openai_model

EVENTS = [*events_from_response(FULL_RESPONSE)][:-1]
FINAL = {"type": "response.completed", "response": FULL_RESPONSE}
GAPS: dict[str, Callable[[str], bool]] = {
    "no created": lambda kind: kind != "response.created",
    "no in_progress": lambda kind: kind != "response.in_progress",
    "no opening": lambda kind: kind not in ("response.created", "response.in_progress"),
    "only created": lambda kind: kind == "response.created",
    "only deltas": lambda kind: kind.endswith(".delta"),
    "no begin of items": lambda kind: kind != "response.output_item.added",
    "no begin of parts": lambda kind: "part.added" not in kind,
    "no end of parts": lambda kind: "part.done" not in kind,
    "no end of texts": lambda kind: not kind.endswith(("text.done", "arguments.done")),
    "no end of items": lambda kind: kind != "response.output_item.done",
    "only items": lambda kind: "output_item" in kind,
    "nothing": lambda kind: False,
}


def kinds_of_items(events: list[Json]) -> list[list[str]]:
    """Return the kinds of the events of each item; endpoints may end one item after the begin of the next."""
    indices = {event["output_index"] for event in events if "output_index" in event}
    return [[each["type"] for each in events if each.get("output_index") == index] for index in sorted(indices)]


@pytest.mark.parametrize("gap", [name for name in GAPS if name != "nothing"])
def test_events_that_an_endpoint_leaves_out_are_added(gap: str) -> None:
    """The openai package fails on a delta without the begin of its part; codex waits for the end of an item."""
    decoder = ResponseEventDecoder()

    events = [out for event in EVENTS if GAPS[gap](event["type"]) for out in decoder.feed(event)]
    events += decoder.feed(FINAL)

    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [sorted(kinds) for kinds in kinds_of_items(events)] == [sorted(kinds) for kinds in kinds_of_items(EVENTS)]
    assert all(kinds[0].endswith("item.added") and kinds[-1].endswith("item.done") for kinds in kinds_of_items(events))
    assert {**(decoder.response or {}), "id": "resp_full"} == FULL_RESPONSE
    assert decoder.response is not None
    assert decoder.response["id"] == events[0]["response"]["id"]


@pytest.mark.parametrize("gap", GAPS)
@pytest.mark.parametrize("end", ["completed", "incomplete"])
async def test_a_stream_with_gaps_says_the_same_in_every_dialect(gap: str, end: str) -> None:
    """An empty answer of a model that has written one would be scored 0."""
    details = {"reason": "max_output_tokens"} if end == "incomplete" else None
    response = {**RESPONSE, "status": end, "incomplete_details": details}
    events: list[Json] = [event for event in events_from_response(response) if GAPS[gap](event["type"])]
    if events and events[-1] == closing_event(response):
        events.pop()
    reply = Reply(events=[*events, {"type": f"response.{end}", "response": response}])
    contents = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}

    async with listening(responses=reply) as endpoint:
        server = openai_model(endpoint.url)
        to_messages = await ask(server, "/v1/messages", {**BODIES["/v1/messages"], "stream": True})
        to_gemini = await ask(server, "/v1beta/models/m:streamGenerateContent?alt=sse", contents)
        message = message_from_events(list(sse.decode(await to_messages.read())))
        gemini: Any = gemini_from_chunks(list(sse.decode(await to_gemini.read())))

    assert meaning_of_message(message) == meaning_of_response(response)
    parts = gemini["candidates"][0]["content"]["parts"]
    assert [part.get("text") or part["functionCall"]["name"] for part in parts if not part.get("thought")] == [
        "Hello, you",
        "get",
    ]


async def test_the_openai_package_reads_a_stream_of_deltas_only() -> None:
    """It keeps a snapshot of the answer, into which each delta must fit."""
    openai = pytest.importorskip("openai.lib.streaming.responses._responses")
    types = pytest.importorskip("openai.types.responses")
    models = pytest.importorskip("openai._models")
    events = [event for event in events_from_response(RESPONSE) if event["type"].endswith(".delta")]
    reply = Reply(events=[*events, {"type": "response.completed", "response": RESPONSE}])

    async with listening(responses=reply) as endpoint:
        answer = await ask(openai_model(endpoint.url), "/v1/responses", {"input": "hi", "stream": True})
        received = list(sse.decode(await answer.read()))

    state = openai.ResponseStreamState(input_tools=[], text_format=openai.omit)
    for event in received:
        state.handle_event(models.construct_type(type_=types.ResponseStreamEvent, value=event))
    assert [event["sequence_number"] for event in received] == list(range(len(received)))
