"""Model servers as their authors write them: one answer in three dialects, streamed or not."""

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import aiohttp
import pytest
from fastapi import HTTPException, Request, Response
from omegaconf import OmegaConf
from starlette.testclient import TestClient
from yarl import URL

from nemo_gym import base_responses_api_model as module
from nemo_gym.base_responses_api_model import (
    BaseResponsesAPIModelConfig,
    Body,
    CaptureStore,
    NeMoGymChatCompletion,
    NeMoGymChatCompletionCreateParamsNonStreaming,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    SimpleResponsesAPIModel,
    merge_model_call_capture_into_record,
    read_model_call_records,
)
from nemo_gym.errors import ConfigError
from nemo_gym.rollout_correlation import current_rollout_id
from nemo_gym.serve import event_stream
from nemo_gym.server_utils import SESSION_ID_KEY, ServerClient

USER = [{"role": "user", "content": "hi"}]


def response(**changes: Any) -> NeMoGymResponse:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "hello", "annotations": []}],
    }
    fields: dict[str, Any] = {
        "id": "resp_1",
        "created_at": 1.0,
        "model": "m",
        "object": "response",
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 3,
            "input_tokens_details": {"cached_tokens": 1},
            "output_tokens": 2,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 5,
        },
    }
    return NeMoGymResponse(**(fields | changes))


def completion() -> NeMoGymChatCompletion:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello"}}
    return NeMoGymChatCompletion(
        id="chat_1",
        choices=[choice],
        created=1,
        model="m",
        object="chat.completion",
        usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    )


class Echo(SimpleResponsesAPIModel):
    """Answer always the same and keep the requests."""

    config: BaseResponsesAPIModelConfig
    requests: list[Any] = []

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        self.requests.append(body)
        return response()

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        self.requests.append(body)
        return completion()


class Failing(Echo):
    """A provider that has had enough."""

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        return await self.responses(body)  # type: ignore[arg-type, return-value]

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        info = aiohttp.RequestInfo(URL("http://provider"), "POST", headers={}, real_url=URL("http://provider"))  # type: ignore[arg-type]
        failure = aiohttp.ClientResponseError(info, (), status=429, message="Too Many Requests")
        failure.response_content = b'{"error": "slow down"}'  # type: ignore[attr-defined]
        raise failure


def model(kind: type[SimpleResponsesAPIModel] = Echo, global_config: dict[str, Any] | None = None) -> Any:
    client = MagicMock(spec=ServerClient)
    client.global_config_dict = OmegaConf.create(global_config or {})
    config = BaseResponsesAPIModelConfig(host="0.0.0.0", port=8080, entrypoint="", name="policy_model")
    return kind(config=config, server_client=client)


def client_for(*args: Any) -> TestClient:
    return TestClient(model(*args).setup_webserver())


def events(reply: Any) -> list[Any]:
    assert reply.headers["content-type"].startswith("text/event-stream")
    data = [line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: ")]
    return [item if item == "[DONE]" else json.loads(item) for item in data]


# Requests that are not streamed


def test_a_responses_request_is_answered() -> None:
    """The dialect everything else here is built on."""
    reply = client_for().post("/v1/responses", json={"input": USER})

    assert reply.status_code == 200
    assert reply.json()["output"][0]["content"][0]["text"] == "hello"
    assert NeMoGymResponse.model_validate(reply.json()).output_text == "hello"


def test_a_chat_request_is_answered() -> None:
    """Existing agents speak Chat Completions."""
    reply = client_for().post("/v1/chat/completions", json={"messages": USER})

    assert reply.json()["choices"][0]["message"]["content"] == "hello"


def test_the_method_gets_the_request_as_its_author_typed_it() -> None:
    """Fields that were not sent stay unset, so that only sent ones are passed on."""
    server = model()
    client = TestClient(server.setup_webserver())

    client.post("/v1/responses", json={"input": USER, "temperature": 0.5})
    client.post("/v1/chat/completions", json={"messages": USER, "unknown": 1})

    first, second = server.requests
    assert first.model_dump(exclude_unset=True) == {"input": USER, "temperature": 0.5}
    assert second.model_dump(exclude_unset=True) == {"messages": USER}


def test_a_method_may_take_the_request_first() -> None:
    """Models that keep sessions apart need the session id."""

    class Sticky(Echo):
        async def responses(  # type: ignore[override]
            self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming = Body()
        ) -> NeMoGymResponse:
            return response(id=request.session[SESSION_ID_KEY])

    client = client_for(Sticky)

    first = client.post("/v1/responses", json={"input": "a"}).json()["id"]
    again = client.post("/v1/responses", json={"input": "b"}).json()["id"]
    other = client_for(Sticky).post("/v1/responses", json={"input": "c"}).json()["id"]
    assert first == again != other
    assert client.post("/v1/messages", json={"model": "m", "max_tokens": 1, "messages": USER}).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "location"),
    [
        ("/v1/responses", {}, ["body", "input"]),
        ("/v1/responses", {"input": "x", "temprature": 1}, ["body", "temprature"]),
        ("/v1/responses", {"input": "x", "temperature": "hot"}, ["body", "temperature"]),
        ("/v1/chat/completions", {}, ["body", "messages"]),
        ("/v1/responses", [], ["body"]),
    ],
)
def test_a_request_that_does_not_fit_is_422_with_its_place_under_body(
    path: str, body: Any, location: list[str]
) -> None:
    """The same shape as every other server's refusals."""
    reply = client_for().post(path, json=body)

    assert reply.status_code == 422
    assert location in [problem["loc"] for problem in reply.json()["detail"]]
    error = reply.json()["error"]
    assert (error["type"], error["code"], error["param"]) == (
        "invalid_request_error",
        None,
        ".".join(location[1:]) or "body",
    )


def test_plain_data_and_finished_responses_are_accepted_from_a_method() -> None:
    """Some models hand on what the provider sent."""

    class Raw(Echo):
        async def responses(self, body: Any = Body()) -> Any:
            return {"id": "raw", "huge": 10**30}

        async def chat_completions(self, body: Any = Body()) -> Any:
            return Response(b"{}", status_code=203, media_type="application/json")

    client = client_for(Raw)

    assert client.post("/v1/responses", json={"input": "x"}).json() == {"id": "raw", "huge": 10**30}
    assert client.post("/v1/chat/completions", json={"messages": USER}).status_code == 203


# Streams


def test_a_streamed_response_tells_the_same_answer() -> None:
    """Clients that only stream get what the others get."""
    client = client_for()

    events_seen = events(client.post("/v1/responses", json={"input": USER, "stream": True}))

    whole = client.post("/v1/responses", json={"input": USER}).json()
    assert [event["type"].removeprefix("response.") for event in events_seen] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events_seen] == list(range(9))
    assert events_seen[0]["response"]["status"] == "in_progress"
    assert events_seen[-1]["response"] == whole


def test_a_streaming_client_may_send_more_than_we_know(caplog: pytest.LogCaptureFixture) -> None:
    """Coding agents send private fields; refusing them would refuse the agent. What is left out is logged."""
    body = {"input": USER, "stream": True, "client_metadata": {"a": 1}, "tools": [{"type": "nonsense_tool"}]}

    with caplog.at_level("WARNING"):
        reply = client_for().post("/v1/responses", json=body)

    assert events(reply)[-1]["type"] == "response.completed"
    assert "client_metadata" in caplog.text


REQUESTS = [
    ("/v1/responses", {"input": "x", "model": "asked"}),
    ("/v1/chat/completions", {"messages": USER, "model": "asked"}),
    ("/v1/messages", {"model": "asked", "max_tokens": 1, "messages": USER}),
]


@pytest.mark.parametrize(("path", "body"), REQUESTS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_the_endpoint_keeps_its_status_in_the_form_of_the_dialect(
    path: str, body: Any, stream: bool
) -> None:
    """Clients send a request again unless the status says that it is useless, and read errors in one form only."""
    server = model(Failing)
    app = server.setup_webserver()
    server.setup_exception_middleware(app)

    reply = TestClient(app).post(path, json={**body, "stream": stream})

    assert reply.status_code == 429
    assert reply.json()["error"]["message"] == "slow down"
    assert reply.json()["error"]["type"] == "rate_limit_error"
    assert reply.headers["x-nemo-gym-upstream-status"] == "429"


@pytest.mark.parametrize(("path", "body"), REQUESTS)
def test_a_late_failure_is_an_event_of_the_stream(path: str, body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The headers do not wait for a slow endpoint; a failure after them must not look like an empty answer."""
    monkeypatch.setattr(event_stream, "HEADERS_AFTER_SECONDS", 0.0)

    class FailingLate(Failing):
        async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
            for _ in range(20):  # turns of the loop, in which the headers leave
                await asyncio.sleep(0)
            return await super().responses(body)

    reply = client_for(FailingLate).post(path, json={**body, "stream": True})

    events_seen = events(reply)
    assert reply.status_code == 200
    assert reply.text.startswith(": keep-alive")
    if path == "/v1/responses":
        assert [event["type"] for event in events_seen] == ["response.created", "response.failed"]
        assert events_seen[-1]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "slow down"}
        assert events_seen[-1]["response"]["model"] == "asked"
    elif path == "/v1/messages":
        assert events_seen == [{"type": "error", "error": {"type": "rate_limit_error", "message": "slow down"}}]
    else:
        assert events_seen[0]["error"]["message"] == "slow down"
        assert events_seen[-1] == "[DONE]"


class NotStreaming(Echo):
    """A model whose endpoint never answers."""

    async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
        await asyncio.Event().wait()
        raise AssertionError("never")

    async def chat_completions(
        self, body: NeMoGymChatCompletionCreateParamsNonStreaming = Body()
    ) -> NeMoGymChatCompletion:
        await asyncio.Event().wait()
        raise AssertionError("never")


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_headers_and_keep_alive_bytes_leave_before_the_answer_and_a_disconnect_cancels_it(
    path: str, body: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients give up on a silent connection; a client that leaves must not keep the endpoint generating."""
    monkeypatch.setattr(event_stream, "HEADERS_AFTER_SECONDS", 0.01)
    monkeypatch.setattr(event_stream, "KEEP_ALIVE_SECONDS", 0.01)
    app = model(NotStreaming).setup_webserver()
    messages: list[Any] = []
    has_pinged_twice = asyncio.Event()
    request = {"type": "http.request", "body": json.dumps({**body, "stream": True}).encode(), "more_body": False}
    inbox = [request]

    async def receive() -> Any:
        if inbox:
            return inbox.pop()
        await has_pinged_twice.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)
        if len(messages) == 3:
            has_pinged_twice.set()

    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b""}
    scope |= {"headers": [(b"content-type", b"application/json")], "asgi": {"spec_version": "2.3"}, "root_path": ""}
    tasks = asyncio.all_tasks()
    await app(scope, receive, send)

    assert messages[0]["status"] == 200
    assert {message["body"] for message in messages[1:3]} == {b": keep-alive\n\n"}
    assert asyncio.all_tasks() == tasks


def test_a_streamed_request_with_wrong_values_is_422() -> None:
    """Leaving unknown fields out is kind; guessing values is not."""
    reply = client_for().post("/v1/responses", json={"input": "x", "stream": True, "temperature": "hot"})

    assert reply.status_code == 422


def test_a_method_may_refuse_a_streamed_request_itself() -> None:
    """Its own status is its own decision."""

    class Picky(Echo):
        async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
            raise HTTPException(418, "teapot")

    assert client_for(Picky).post("/v1/responses", json={"input": "x", "stream": True}).status_code == 418


@pytest.mark.parametrize(("options", "has_usage"), [(None, False), ({"include_usage": True}, True)])
def test_a_streamed_completion_tells_the_same_answer(options: Any, has_usage: bool) -> None:
    """Usage comes only on request."""
    body = {"messages": USER, "stream": True, "stream_options": options, "private": 1}

    events_seen = events(client_for().post("/v1/chat/completions", json=body))

    chunks = events_seen[:-1]
    text = "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk["choices"])
    reasons = [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert events_seen[-1] == "[DONE]"
    assert (text, reasons) == ("hello", ["stop"])
    assert any(chunk.get("usage") for chunk in chunks) is has_usage


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "x", "stream": True}),
        ("/v1/chat/completions", {"messages": USER, "stream": True}),
        ("/v1/messages", {"model": "m", "max_tokens": 1, "messages": USER, "stream": True}),
    ],
)
def test_a_method_may_stream_by_itself(path: str, body: Any) -> None:
    """A response it made is sent as it is."""

    class Own(Echo):
        async def responses(self, body: Any = Body()) -> Any:
            return Response(b"data: mine\n\n", media_type="text/event-stream")

        async def chat_completions(self, body: Any = Body()) -> Any:
            return Response(b"data: mine\n\n", media_type="text/event-stream")

    assert client_for(Own).post(path, json=body).text == "data: mine\n\n"


# Messages


def test_every_model_answers_messages() -> None:
    """Agents built for the Messages API run against any model."""
    server = model()
    body = {"model": "claude", "max_tokens": 5, "system": "be kind", "messages": USER}

    reply = TestClient(server.setup_webserver()).post("/v1/messages", json=body)

    message = reply.json()
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "claude")
    assert message["content"] == [{"type": "text", "text": "hello"}]
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("end_turn", 2)
    (requests,) = server.requests
    assert (requests.instructions, requests.max_output_tokens) == ("be kind", 5)


def test_a_streamed_message_tells_the_same_answer() -> None:
    """The events are those of the dialect."""
    body = {"model": "claude", "max_tokens": 5, "messages": USER, "stream": True}

    events_seen = events(client_for().post("/v1/messages", json=body))

    assert events_seen[0]["type"] == "message_start"
    assert events_seen[-1]["type"] == "message_stop"
    assert "".join(e["delta"]["text"] for e in events_seen if e["type"] == "content_block_delta") == "hello"


@pytest.mark.parametrize(
    "body",
    [
        {"model": "claude", "max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
        {"model": "claude", "max_tokens": "many", "messages": USER},
        {"model": "claude", "messages": "hi"},
    ],
)
def test_what_messages_cannot_ask_of_our_models_is_refused_in_its_own_shape(body: Any) -> None:
    """The client's library reads errors in this form."""
    reply = client_for().post("/v1/messages", json=body)

    assert reply.status_code == 400
    assert reply.json()["type"] == "error"
    assert reply.json()["error"]["type"] == "invalid_request_error"
    assert reply.json()["error"]["message"]


# Failures


def test_refusals_of_the_server_have_the_form_of_the_dialect() -> None:
    """A path that does not exist, a body that is not JSON, and a refusal by the method itself."""

    class Picky(Echo):
        async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
            raise HTTPException(400, "the budget of this rollout is used up")

    client = client_for(Picky)

    missing = client.get("/v1/nothing")
    assert (missing.status_code, missing.json()["error"]["message"]) == (404, "Not Found")
    garbled = client.post("/v1/messages", content=b"{", headers={"content-type": "application/json"})
    assert (garbled.status_code, garbled.json()["error"]["type"]) == (400, "invalid_request_error")
    for stream in (False, True):
        body = {"model": "m", "max_tokens": 1, "messages": USER, "stream": stream}
        refused = client.post("/v1/messages", json=body)
        assert (refused.status_code, refused.json()["type"]) == (400, "error")
        assert refused.json()["error"]["message"] == "the budget of this rollout is used up"


def test_a_provider_s_refusal_is_attributed_to_the_model_with_its_status() -> None:
    """An agent must see that the model was refused, by whom and why, and not an opaque error."""
    server = model(Failing)
    app = server.setup_webserver()
    server.setup_exception_middleware(app)

    reply = TestClient(app).post("/v1/responses", json={"input": "x"})

    assert (reply.status_code, reply.json()["error"]["message"]) == (429, "slow down")
    assert reply.headers["x-nemo-gym-failed"] == "policy_model"
    assert reply.headers["x-nemo-gym-upstream-status"] == "429"


# Capture


def observing_config(folder: Path) -> dict[str, Any]:
    return {"observability_enabled": True, "model_call_capture_dir": str(folder)}


@pytest.mark.parametrize("prefix", ["/ng-rollout/3-1", "/ng-rollout/3-1/training-token-capture"])
def test_the_rollout_prefix_is_taken_off_whether_or_not_calls_are_captured(prefix: str) -> None:
    """Agents may put it there always."""

    class RecordingEcho(Echo):
        async def responses(self, body: NeMoGymResponseCreateParamsNonStreaming = Body()) -> NeMoGymResponse:
            return response(id=f"for {current_rollout_id()}")

    client = client_for(RecordingEcho)

    assert client.post(f"{prefix}/v1/responses", json={"input": "x"}).json()["id"] == "for 3-1"
    assert client.post(f"{prefix}/v1/chat/completions", json={"messages": USER}).status_code == 200


def test_calls_of_a_rollout_are_captured_in_every_dialect(tmp_path: Path) -> None:
    """Totals per rollout come from here, whatever the agent speaks."""
    client = client_for(Echo, observing_config(tmp_path))

    client.post("/ng-rollout/3-1/v1/responses", json={"input": "a"})
    client.post("/ng-rollout/3-1/v1/chat/completions", json={"messages": USER})
    body = {"model": "claude", "max_tokens": 5, "messages": USER, "stream": True}
    client.post("/ng-rollout/3-1/v1/messages", json=body)
    client.post("/v1/responses", json={"input": "not part of a rollout"})

    store = CaptureStore(tmp_path)
    calls = read_model_call_records(store, "3-1")
    assert [call.dialect for call in calls] == ["responses", "chat", "messages"]
    assert {call.model_ref.name for call in calls} == {"policy_model"}
    assert calls[0].response["id"] == "resp_1"
    metrics = merge_model_call_capture_into_record({}, store, "3-1")["ng_model_call_capture"]["metrics"]
    assert (metrics["num_calls"], metrics["tokens_in"], metrics["tokens_out"]) == (3, 9, 6)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_refused_request_is_captured_too(tmp_path: Path) -> None:
    """The call that went wrong is the one people look for."""
    client = client_for(Echo, observing_config(tmp_path))

    assert client.post("/ng-rollout/3-1/v1/responses", json={}).status_code == 422

    (call,) = read_model_call_records(CaptureStore(tmp_path), "3-1")
    assert (call.status_code, call.error_category, call.request) == (422, "client_error", {})


def test_a_provider_s_refusal_is_captured_as_what_it_was(tmp_path: Path) -> None:
    """Rate limits are counted apart from bugs."""
    client = client_for(Failing, observing_config(tmp_path))

    with pytest.raises(aiohttp.ClientResponseError):
        client.post("/ng-rollout/3-1/v1/responses", json={"input": "x"})

    (call,) = read_model_call_records(CaptureStore(tmp_path), "3-1")
    assert (call.status_code, call.error_category, call.response) == (429, "rate_limit", {"error": "slow down"})


@pytest.mark.parametrize("folder", [None, "relative/folder"])
def test_capturing_without_a_usable_folder_is_a_configuration_error(folder: str | None) -> None:
    """Found when the server starts, not after a night of rollouts."""
    with pytest.raises(ConfigError, match="model_call_capture_dir must be an absolute path"):
        client_for(Echo, {"observability_enabled": True, "model_call_capture_dir": folder})


def test_a_mock_without_a_configuration_captures_nothing() -> None:
    """Tests of server folders build models with a bare mock."""
    config = BaseResponsesAPIModelConfig(host="0.0.0.0", port=8080, entrypoint="", name="")
    server = Echo(config=config, server_client=MagicMock(spec=ServerClient))

    assert TestClient(server.setup_webserver()).post("/v1/responses", json={"input": "x"}).status_code == 200


def test_names_of_the_capture_are_found_here() -> None:
    """They are imported from this module by others."""
    for name in ("ModelCallRecord", "build_model_call_record", "aggregate_model_call_metrics", "_CaptureMiddleware"):
        assert name in module.__all__
        assert hasattr(module, name)
    assert SimpleResponsesAPIModel.HOSTING == "process"
