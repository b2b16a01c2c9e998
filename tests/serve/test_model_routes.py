"""Endpoints of model servers that clients ask for, and the routes of Gemini, with the scripted model."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from omegaconf import OmegaConf
from starlette.testclient import TestClient

from nemo_gym.base_responses_api_model import CaptureStore, read_model_call_records
from nemo_gym.capture.record import usage_of
from nemo_gym.serve.model_routes import canonical_path
from nemo_gym.server_utils import ServerClient
from responses_api_models.scripted_model.app import ScriptedModel, ScriptedModelConfig

GENERATE = "/v1beta/models/any/name:generateContent"
STREAM = "/v1beta/models/any/name:streamGenerateContent"
TURN = {
    "reasoning": "hm",
    "text": "I look at it.",
    "tool_calls": [{"name": "f", "arguments": {"a": 1}}],
}
BODY = {
    "contents": [{"role": "user", "parts": [{"text": "go"}]}],
    "tools": [{"functionDeclarations": [{"name": "f"}]}],
    "generationConfig": {"thinkingConfig": {"includeThoughts": True}, "topK": 3},
}
PARTS = [
    {"text": "hm", "thought": True},
    {"text": "I look at it."},
    {"functionCall": {"id": "call_0_0", "name": "f", "args": {"a": 1}}},
]


def client_of(config: dict[str, Any] | None = None, **fields: Any) -> TestClient:
    block = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "m", "script": [TURN], **fields}
    server_client = MagicMock(spec=ServerClient)
    server_client.global_config_dict = OmegaConf.create(config or {})
    server = ScriptedModel(config=ScriptedModelConfig.model_validate(block), server_client=server_client)
    return TestClient(server.prepare_webserver(config or {}))


@pytest.mark.parametrize(
    ("path", "route"),
    [
        ("/v1/messages", "/v1/messages"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/messages", "/v1/messages"),
        ("/v1/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/responses", "/v1/responses"),
        ("/v1/models/a/b:generateContent", "/v1beta/models/a/b:generateContent"),
        ("/v1/v1beta/models/m:countTokens", "/v1beta/models/m:countTokens"),
        ("/v1/models/m", "/v1/models/m"),
        ("/v1/tokenize", "/tokenize"),
        ("/other", "/other"),
    ],
)
def test_a_path_has_one_form(path: str, route: str) -> None:
    """Clients disagree about who adds the version to a base URL."""
    assert canonical_path(path) == route


def test_the_model_is_listed_for_clients_of_every_api() -> None:
    """Some clients ask which models exist before their first request."""
    client = client_of(model="small")

    listing = client.get("/v1/models").json()

    assert (listing["object"], listing["has_more"]) == ("list", False)
    assert [model["id"] for model in listing["data"]] == ["small"]
    assert client.get("/v1/models/org/any").json()["id"] == "org/any"
    for version in ("v1", "v1beta"):  # google-genai asks either, and reads `name`
        assert client.get(f"/{version}/models/org/any").json()["name"] == "models/org/any"
    assert client.get("/v1beta/models").json()["models"][0]["name"] == "models/small"
    assert client.get("/v1beta/models/x").json()["name"] == "models/x"


def test_tokens_are_counted_as_in_the_usage_of_replies() -> None:
    """A client that compacts its context compares both."""
    client = client_of()
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "one two three"}]}

    count = client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]

    assert count == client.post("/v1/messages", json=body).json()["usage"]["input_tokens"] > 0
    gemini = client.post("/v1beta/models/m:countTokens", json={"generateContentRequest": BODY}).json()
    usage = client.post(GENERATE, json=BODY).json()["usageMetadata"]
    assert gemini["totalTokens"] == usage["promptTokenCount"]


def test_a_server_without_a_tokenizer_refuses_in_the_form_of_the_dialect() -> None:
    """404 is not repeated; a made-up number would be believed."""
    reply = client_of().post("/tokenize", json={"prompt": "x"})

    assert reply.status_code == 404
    assert "no tokenizer" in reply.json()["error"]["message"]


def test_gemini_answers_are_whole_or_chunks_of_events_or_of_an_array() -> None:
    """`alt=sse` is what the SDKs send; the API streams a JSON array without it."""
    client = client_of()

    whole = client.post(GENERATE, json=BODY).json()
    array = client.post(STREAM, json=BODY).json()
    events = client.post(STREAM, params={"alt": "sse"}, json=BODY)

    assert whole["candidates"][0]["content"]["parts"] == PARTS
    assert whole["candidates"][0]["finishReason"] == "STOP"
    assert whole["modelVersion"] == "any/name"
    assert [part for chunk in array for part in chunk["candidates"][0]["content"]["parts"]][:3] == PARTS
    assert events.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in events.text.splitlines() if line.startswith("data: ")]
    assert [json.loads(line) for line in lines] == array


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"contents": "go"}, "contents"),
        ({"contents": [{"role": "user", "parts": [{"videoMetadata": {}}]}]}, "videoMetadata"),
        ({**BODY, "generationConfig": {"temperature": "warm"}}, "temperature"),
    ],
)
@pytest.mark.parametrize("path", [GENERATE, f"{STREAM}?alt=sse", "/v1beta/models/m:countTokens"])
def test_an_invalid_gemini_request_is_one_error_in_its_form(path: str, body: dict[str, Any], words: str) -> None:
    """The client shows the message; the status tells it not to try again."""
    reply = client_of().post(path, json=body)

    assert reply.status_code == 400
    error = reply.json()["error"]
    assert (error["code"], error["status"]) == (400, "INVALID_ARGUMENT")
    assert words in error["message"]


def test_gemini_calls_of_a_rollout_are_captured(tmp_path: Path) -> None:
    """Captures show what an agent did, whichever dialect it speaks."""
    config = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path)}
    client = client_of(config)

    client.post(f"/ng-rollout/3-1{GENERATE}", json=BODY)
    client.post(f"/ng-rollout/3-1{STREAM}?alt=sse", json=BODY)

    whole, streamed = read_model_call_records(CaptureStore(tmp_path), "3-1")
    assert (whole.dialect, streamed.dialect, streamed.error_category) == ("gemini", "gemini", None)
    assert whole.response["candidates"] == streamed.response["candidates"]
    assert usage_of(whole) == usage_of(streamed)
    assert usage_of(whole)["tokens_total"] == usage_of(whole)["tokens_in"] + usage_of(whole)["tokens_out"]
