"""The texts of errors name what the client has sent, and a failure of the model is one line of the log."""

import logging

import pytest

from responses_api_models.openai_model.tests.endpoint import Reply, ask, listening
from tests.dialects.test_live_streams import openai_model, vllm_model


async def test_an_unknown_block_is_refused_without_the_name_of_a_class() -> None:
    """The user looks for the field, not for a class of ours."""
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "odd"}]}]}

    async with listening(responses=Reply()) as endpoint:
        reply = await ask(openai_model(endpoint.url), "/v1/messages", body)
        error = (await reply.json())["error"]

    assert reply.status == 400
    assert "messages[0].content[0]" in error["message"]
    assert "ConversionError" not in error["message"]


async def test_a_failed_model_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand rollouts of a broken endpoint would fill the log with one stack."""
    async with listening(chat=Reply({"choices": []})) as endpoint:
        with caplog.at_level(logging.ERROR):
            reply = await ask(vllm_model(endpoint.url), "/v1/responses", {"input": "hi"})

    assert reply.status == 500
    (line,) = [record.getMessage() for record in caplog.records if "no choices" in record.getMessage()]
    assert "Traceback" not in line
    assert "\n" not in line
