"""Any answer of a model says the same in every dialect and streaming mode, read by the clients' own parsers."""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings

from nemo_gym.convert.response_events import events_from_response, numbered_events
from tests.dialects.readers import CHAT_READERS, READERS
from tests.dialects.strategies import (
    FULL_COMPLETION,
    FULL_RESPONSE,
    chunk_streams,
    chunks_of,
    meaning_of_completion,
    meaning_of_response,
    responses,
)

EXAMPLES = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
CUT_OFF = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("streams", [False, True], ids=["whole endpoint", "streaming endpoint"])
@EXAMPLES
@given(response=responses())
@example(response=FULL_RESPONSE)
@example(response={**FULL_RESPONSE, **CUT_OFF})
def test_a_response_says_the_same_in_every_dialect(servers, reader, streams, response):
    """A client must not lose text, calls, tokens or the reason of the end because of the dialect that it speaks."""
    events = list(numbered_events(events_from_response(response))) if streams else []
    servers.endpoint.response, servers.endpoint.response_events, servers.endpoint.status = response, events, 200

    meaning = READERS[reader](servers, "openai_model")

    assert _comparable(meaning, reader) == _comparable(meaning_of_response(response), reader)


@pytest.mark.parametrize("reader", [*READERS, *CHAT_READERS])
@pytest.mark.parametrize("streams", [False, True], ids=["whole endpoint", "streaming endpoint"])
@EXAMPLES
@given(answer=chunk_streams())
@example(answer=(FULL_COMPLETION, chunks_of(FULL_COMPLETION)))
def test_a_chat_completion_says_the_same_in_every_dialect(servers, reader, streams, answer):
    """Engines speak Chat Completions; whether they stream or not must not change what a client reads."""
    completion, chunks = answer
    servers.endpoint.completion, servers.endpoint.chunks = completion, chunks if streams else []
    servers.endpoint.status = 200

    meaning = {**READERS, **CHAT_READERS}[reader](servers, "vllm_model")

    assert _comparable(meaning, reader) == _comparable(meaning_of_completion(completion), reader)


@pytest.mark.parametrize("reader", [*READERS, *CHAT_READERS])
def test_a_reader_sees_everything_that_an_answer_says(servers, reader):
    """A reader that loses something on both sides would let the tests above pass for answers that lack it."""
    servers.endpoint.completion, servers.endpoint.chunks = FULL_COMPLETION, chunks_of(FULL_COMPLETION)
    servers.endpoint.status = 200

    meaning = {**READERS, **CHAT_READERS}[reader](servers, "vllm_model")

    assert (meaning.reasoning, meaning.text, meaning.stop) == ("I compare.", "Both at once.", "tool_calls")
    assert [(call[0], call[1]) for call in meaning.calls] == [("call_a", "f"), ("call_b", "g")]
    assert [json.loads(call[2]) for call in meaning.calls] == [{"x": [1, None, "é"]}, {}]
    assert meaning.usage == (40, 30, 12)


def _comparable(meaning, reader):
    """Return the meaning as far as the dialect can express it: an answer of Gemini ends with calls or with a stop."""
    if meaning.stop == "length" and meaning.calls and reader.startswith("responses"):
        return meaning
    return replace(meaning, reasoning=meaning.reasoning.replace("\n", ""))
