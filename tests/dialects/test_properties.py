"""Any answer of a model says the same in every dialect and streaming mode, read by the clients' own parsers."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings

from tests.dialects.readers import CHAT_READERS, READERS
from tests.dialects.strategies import chunk_streams, meaning_of_completion, meaning_of_response, responses

EXAMPLES = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("reader", READERS)
@EXAMPLES
@given(response=responses())
def test_a_response_says_the_same_in_every_dialect(servers, reader, response):
    """A client must not lose text, calls, tokens or the reason of the end because of the dialect that it speaks."""
    servers.endpoint.response, servers.endpoint.response_events, servers.endpoint.status = response, [], 200

    meaning = READERS[reader](servers, "openai_model")

    assert _comparable(meaning, reader) == _comparable(meaning_of_response(response), reader)


@pytest.mark.parametrize("reader", [*READERS, *CHAT_READERS])
@pytest.mark.parametrize("streams", [False, True], ids=["whole endpoint", "streaming endpoint"])
@EXAMPLES
@given(answer=chunk_streams())
def test_a_chat_completion_says_the_same_in_every_dialect(servers, reader, streams, answer):
    """Engines speak Chat Completions; whether they stream or not must not change what a client reads."""
    completion, chunks = answer
    servers.endpoint.completion, servers.endpoint.chunks = completion, chunks if streams else []
    servers.endpoint.status = 200

    meaning = {**READERS, **CHAT_READERS}[reader](servers, "vllm_model")

    assert _comparable(meaning, reader) == _comparable(meaning_of_completion(completion), reader)


def _comparable(meaning, reader):
    """Return the meaning as far as the dialect can express it: an answer of Gemini ends with calls or with a stop."""
    if meaning.stop == "length" and meaning.calls and reader.startswith("responses"):
        return meaning
    return replace(meaning, reasoning=meaning.reasoning.replace("\n", ""))
