"""The texts of errors name what the client has sent, and a failure of the model is one line of the log."""

import logging
from typing import Any

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


async def test_an_error_names_the_field_of_the_client() -> None:
    """A Messages or Gemini client has sent no `input` and no `max_output_tokens`."""
    document = {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}}
    messages = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": [document]}]}
    contents = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
    options = {"generationConfig": {"maxOutputTokens": "many"}}

    async with listening(chat=Reply()) as endpoint:
        server = vllm_model(endpoint.url)
        of_messages = await ask(server, "/v1/messages", messages)
        of_gemini = await ask(server, "/v1beta/models/m:generateContent", {**contents, **options})
        texts = [(await reply.json())["error"]["message"] for reply in (of_messages, of_gemini)]

    assert (of_messages.status, of_gemini.status) == (400, 400)
    assert texts[0].startswith("messages: ")
    assert "input" not in texts[0]
    assert texts[1].startswith("generationConfig.maxOutputTokens: ")


@pytest.mark.parametrize(
    ("path", "body", "param", "text"),
    [
        ("/v1/responses", {"input": [{"role": "odd", "content": "hi"}]}, "input[0].role", "'user'"),
        ("/v1/responses", {"input": None}, "input", "valid list"),
        ("/v1/responses", {}, "input", "required"),
        ("/v1/responses", [], "body", "dictionary"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "messages[0].content[0].text",
            "required",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "odd", "content": "hi"}]},
            "messages[0]",
            "unknown kind 'odd'; expected one of 'developer', 'system', 'user', 'assistant', 'tool'",
        ),
    ],
)
async def test_an_invalid_field_is_named_as_the_client_wrote_it(path: str, body: Any, param: str, text: str) -> None:
    """The path and the text named members of our types, which are in no request."""
    async with listening(chat=Reply()) as endpoint:
        reply = await ask(vllm_model(endpoint.url), path, body)
        error = (await reply.json())["error"]

    assert (reply.status, error["param"]) == (422, param)
    assert error["message"].startswith(f"{param}: ")
    assert text in error["message"]
    assert "_tag" not in error["message"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions", "/v1/messages"])
async def test_a_failure_has_no_class_and_no_number_as_its_code(path: str) -> None:
    """A user reads the message, and a typed client fails on a code that is not a text, as vLLM sends it."""
    text = {"role": "user", "content": "hi"}
    body = {"model": "m", "max_tokens": 5, "messages": [text]} if path != "/v1/responses" else {"input": [text]}
    refusal = {"error": {"message": "too hot", "type": "BadRequestError", "code": 400, "param": None}}

    async with (
        listening(chat=Reply({"id": "x", "choices": []})) as broken,
        listening(chat=Reply(refusal, 400)) as bad,
    ):
        of_failure = await (await ask(vllm_model(broken.url), path, body)).json()
        of_refusal = await (await ask(vllm_model(bad.url), path, body)).json()

    assert "(" not in of_failure["error"]["message"].split(":")[0]
    assert of_refusal["error"]["message"] == "too hot"
    assert of_refusal["error"].get("code") is None


@pytest.mark.parametrize(
    ("path", "field"), [("/v1/messages/batches", "type"), ("/v1beta/models/m:embedContent", "error")]
)
async def test_a_path_that_a_dialect_has_and_we_do_not_is_refused_in_its_form(path: str, field: str) -> None:
    """A client shows the message of an error only if it can read the body."""
    async with listening(chat=Reply()) as endpoint:
        reply = await ask(vllm_model(endpoint.url), path, {})
        body = await reply.json()

    assert reply.status in (404, 405)
    assert field in body
    assert "param" not in body["error"]


async def test_a_file_that_was_uploaded_to_google_is_refused() -> None:
    """The endpoint would be asked to download it without the key of the client."""
    uploaded = {"fileUri": "https://generativelanguage.googleapis.com/v1beta/files/x", "mimeType": "image/png"}
    body = {"contents": [{"role": "user", "parts": [{"fileData": uploaded}]}]}

    async with listening(chat=Reply()) as endpoint:
        reply = await ask(vllm_model(endpoint.url), "/v1beta/models/m:generateContent", body)

    assert reply.status == 400
    assert not endpoint.calls


async def test_a_failed_model_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand rollouts of a broken endpoint would fill the log with one stack."""
    async with listening(chat=Reply({"choices": []})) as endpoint:
        with caplog.at_level(logging.ERROR):
            reply = await ask(vllm_model(endpoint.url), "/v1/responses", {"input": "hi"})

    assert reply.status == 500
    (line,) = [record.getMessage() for record in caplog.records if "no choices" in record.getMessage()]
    assert "Traceback" not in line
    assert "\n" not in line


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint_status", [200, 403])
async def test_a_program_that_repeats_a_refused_call_is_one_line_of_the_log(
    stream: bool, endpoint_status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Some programs send a refused request again for minutes, and each rollout of a run has such a program."""
    refusal = Reply({"error": {"message": "forbidden", "type": "x"}}, endpoint_status)
    item = {"type": "item_reference", "id": "x"} if endpoint_status == 200 else {"role": "user", "content": "hi"}

    async with listening(chat=refusal) as endpoint:
        server = vllm_model(endpoint.url)
        with caplog.at_level(logging.WARNING):
            replies = [await ask(server, "/v1/responses", {"input": [item], "stream": stream}) for _ in range(9)]

    assert {reply.status for reply in replies} == {400 if endpoint_status == 200 else 403}
    lines = [message for message in caplog.messages if "POST /v1/responses" in message]
    assert len(lines) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "hi", "stream": True}),
        ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "stream": True}),
        ("/v1beta/models/m:streamGenerateContent", {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}),
    ],
)
async def test_an_endpoint_that_breaks_off_is_one_line_without_a_stack(
    path: str, body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The stack of a lost connection is that of our client: a hundred lines that say nothing about the endpoint."""
    async with listening(responses=Reply({"output": []}, half=True)) as endpoint:
        server = openai_model(endpoint.url)
        with caplog.at_level(logging.WARNING):
            await ask(server, path, {"model": "m", **body})

    assert "Traceback" not in caplog.text
    assert any("broke off" in message for message in caplog.messages)
