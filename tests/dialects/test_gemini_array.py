"""Gemini streams as a JSON array, which clients without `alt=sse` read."""

import json

from nemo_gym.convert.gemini_answer import gemini_from_chunks
from responses_api_models.openai_model.tests.endpoint import OpenStream, listening
from tests.dialects.test_live_streams import openai_model, streaming


async def test_an_array_of_chunks_is_live() -> None:
    """A client that shows the answer as it comes would wait for all of it."""
    body = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}

    async with (
        listening(**streaming()) as endpoint,
        OpenStream(openai_model(endpoint.url), "/v1beta/models/m:streamGenerateContent", body) as stream,
    ):
        early = bytes(await stream.read_until(b"Hello"))
        endpoint.resume.set()
        whole = json.loads(await stream.read_all())

    assert not early.endswith(b"]")
    assert "Hello, you" in json.dumps(gemini_from_chunks(whole))
