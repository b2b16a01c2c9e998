"""Streams that leave while the endpoint generates: every dialect of a client over every dialect of an endpoint."""

import asyncio
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from omegaconf import OmegaConf

from nemo_gym.base_responses_api_model import CaptureStore, SimpleResponsesAPIModel, read_model_call_records
from nemo_gym.convert import sse
from nemo_gym.convert.chat_stream import completion_from_chunks
from nemo_gym.convert.message_stream import message_from_events
from nemo_gym.convert.response_events import events_from_response, numbered_events, response_from_events
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport.large_bodies import limits
from responses_api_models.openai_model.app import SimpleModelServer, SimpleModelServerConfig
from responses_api_models.openai_model.tests.endpoint import OpenStream, Reply, ask, listening
from responses_api_models.vllm_model.app import VLLMModel, VLLMModelConfig
from tests.dialects.strategies import Json, meaning_of_completion, meaning_of_message, meaning_of_response

USER = {"role": "user", "content": "hi"}
BODIES: dict[str, Json] = {
    "/v1/responses": {"input": "hi"},
    "/v1/chat/completions": {"messages": [USER], "stream_options": {"include_usage": True}},
    "/v1/messages": {"model": "m", "max_tokens": 50, "messages": [USER]},
}
MEANING: dict[str, Callable[[bytes], Any]] = {
    "/v1/responses": lambda body: meaning_of_response(response_from_events(sse.decode(body))),
    "/v1/chat/completions": lambda body: meaning_of_completion(completion_from_chunks(sse.decode(body))),
    "/v1/messages": lambda body: meaning_of_message(message_from_events(sse.decode(body))),
}


def chunk(delta: Json, finish: str | None = None, **fields: Any) -> Json:
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **fields.pop("choice", {})}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "big"}
    return {**head, "choices": [choice], **fields}


def call_piece(arguments: str, **fields: Any) -> Json:
    function = {"arguments": arguments, **fields.pop("function", {})}
    return {"tool_calls": [{"index": 0, "function": function, **fields}]}


CHUNKS: list[Json] = [
    chunk({"role": "assistant", "content": ""}),
    chunk({"reasoning": "first"}),
    chunk({"reasoning": " thought"}),
    chunk({"content": "Hello"}),
    chunk({"content": ", you"}),
    chunk(call_piece("", id="call_1", type="function", function={"name": "get"})),
    chunk(call_piece('{"a"')),
    chunk(call_piece(": 1}")),
    chunk({}, "tool_calls"),
    {**chunk({}), "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}},
]
RESPONSE: Json = {
    "id": "resp_1", "object": "response", "created_at": 1, "model": "big", "status": "completed", "error": None,
    "incomplete_details": None, "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "first thought"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "Hello, you", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get", "arguments": '{"a": 1}',
         "status": "completed"},
    ],
    "usage": {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 9,
              "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 16},
}  # fmt: skip
EVENTS = list(numbered_events(events_from_response(RESPONSE)))
PLACE: Json = {"host": "127.0.0.1", "port": 1, "entrypoint": "app.py", "name": "policy_model"}


def client_of(config: Json | None = None) -> MagicMock:
    return MagicMock(spec=ServerClient, global_config_dict=OmegaConf.create(config or {}))


def openai_model(url: str, config: Json | None = None) -> SimpleResponsesAPIModel:
    settings = SimpleModelServerConfig(**PLACE, openai_base_url=url, openai_api_key="k", openai_model="big")
    return SimpleModelServer(config=settings, server_client=client_of(config))


def vllm_model(url: str, config: Json | None = None, **settings: Any) -> SimpleResponsesAPIModel:
    fields = {"return_token_id_information": False, "uses_reasoning_parser": True, **settings}
    return VLLMModel(
        config=VLLMModelConfig(**PLACE, base_url=url, api_key="k", model="big", **fields),
        server_client=client_of(config),
    )


SERVERS = [
    pytest.param(openai_model, "/v1/responses", id="Responses to Responses"),
    pytest.param(openai_model, "/v1/messages", id="Responses to Messages"),
    pytest.param(openai_model, "/v1/chat/completions", id="Chat to Chat"),
    pytest.param(vllm_model, "/v1/responses", id="vLLM to Responses"),
    pytest.param(vllm_model, "/v1/messages", id="vLLM to Messages"),
    pytest.param(vllm_model, "/v1/chat/completions", id="vLLM to Chat"),
]


def streaming(waits: bool = True) -> Json:
    """Return replies of an endpoint that pauses in the middle of the text, in both dialects."""
    in_text = next(index for index, event in enumerate(EVENTS) if event["type"] == "response.output_text.done")
    return {
        "chat": Reply(events=CHUNKS, waits_before=4 if waits else None),
        "responses": Reply(events=EVENTS, waits_before=in_text if waits else None),
    }


@pytest.mark.parametrize(("make", "path"), SERVERS)
async def test_text_leaves_before_the_answer_is_complete_and_adds_up_to_it(make: Any, path: str) -> None:
    """A client that sees nothing for minutes gives up; one that streams must get the answer of one that waits."""
    async with listening(**streaming()) as endpoint:
        body = {**BODIES[path], "stream": True}
        async with OpenStream(make(endpoint.url), path, body) as stream:
            await stream.read_until(b"Hello")
            assert endpoint.has_paused.is_set()
            assert not endpoint.resume.is_set()
            endpoint.resume.set()
            received = await stream.read_all()

    assert endpoint.bodies[0]["stream"] is True
    meaning = MEANING[path](received)
    assert (meaning.reasoning, meaning.text) == ("first thought", "Hello, you")
    assert (meaning.calls, meaning.stop, meaning.usage) == ((("call_1", "get", '{"a": 1}'),), "tool_calls", (7, 0, 9))


@pytest.mark.parametrize(("make", "path"), SERVERS)
async def test_a_client_that_leaves_ends_the_request_to_the_endpoint(make: Any, path: str) -> None:
    """An endpoint that generates for a client that has left is slow for all others."""
    async with listening(**streaming()) as endpoint:
        async with OpenStream(make(endpoint.url), path, {**BODIES[path], "stream": True}) as stream:
            await stream.read_until(b"Hello")
        async with asyncio.timeout(10):
            await endpoint.was_left.wait()


@pytest.mark.parametrize(("make", "path"), SERVERS)
async def test_a_stream_is_limited_in_size_like_any_answer(
    make: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runaway model must not fill the memory of a server."""
    monkeypatch.setattr(limits, "answer", 400)

    async with listening(**streaming(waits=False)) as endpoint:
        reply = await ask(make(endpoint.url), path, {**BODIES[path], "stream": True})

    assert "longer than 400 bytes" in await reply.text()


@pytest.mark.parametrize(("make", "path"), SERVERS)
async def test_a_stream_that_breaks_off_is_a_failure(make: Any, path: str) -> None:
    """Half an answer must never pass for a whole one."""
    replies = {"chat": Reply(events=CHUNKS[:5]), "responses": Reply(events=EVENTS[:12])}

    async with listening(**replies) as endpoint:
        reply = await ask(make(endpoint.url), path, {**BODIES[path], "stream": True})

    text = await reply.text()
    assert re.search(r"the stream .*before the (answer|response) is finished", text)
    assert "message_stop" not in text
    assert "response.completed" not in text


@pytest.mark.parametrize(("make", "path"), SERVERS)
async def test_an_error_inside_a_stream_is_an_error_event(make: Any, path: str) -> None:
    """The status line has already said 200; the client reads errors in the form of its dialect."""
    refusal = {"message": "the prompt is not allowed", "type": "BadRequestError", "code": 400}
    failing = {"chat": [*CHUNKS[:4], {"error": refusal}], "responses": [*EVENTS[:11], {**refusal, "type": "error"}]}

    async with listening(**{name: Reply(events=events) for name, events in failing.items()}) as endpoint:
        reply = await ask(make(endpoint.url), path, {**BODIES[path], "stream": True})

    last = list(sse.decode((await reply.text()).encode()))[-1]
    error = last["response"]["error"] if path == "/v1/responses" else last["error"]
    assert error["message"] == "the prompt is not allowed"
    assert len(endpoint.calls) == 1
    if path == "/v1/responses":
        assert (last["type"], error["code"]) == ("response.failed", "invalid_prompt")


@pytest.mark.parametrize(("make", "path"), SERVERS)
async def test_an_endpoint_that_does_not_stream_gives_the_whole_sequence(make: Any, path: str) -> None:
    """Some endpoints ignore `stream`; their answers are replayed."""
    completion = completion_from_chunks(CHUNKS)

    async with listening(chat=Reply(completion), responses=Reply(RESPONSE)) as endpoint:
        reply = await ask(make(endpoint.url), path, {**BODIES[path], "stream": True})

    meaning = MEANING[path](await reply.read())
    assert (meaning.reasoning, meaning.text, meaning.stop) == ("first thought", "Hello, you", "tool_calls")


@pytest.mark.parametrize("make", [openai_model, vllm_model])
async def test_reasoning_has_one_name_and_comes_before_the_text_in_chat(make: Any) -> None:
    """Chat clients read `reasoning_content`; tags in the text, or the thought again after it, end up in the answer."""
    path = "/v1/chat/completions"
    doubled = [chunk({"reasoning": "x", "reasoning_content": "x"}), *CHUNKS[3:]]

    async with listening(chat=Reply(events=doubled)) as endpoint:
        reply = await ask(make(endpoint.url), path, {**BODIES[path], "stream": True})

    deltas = [choice["delta"] for event in sse.decode(await reply.read()) for choice in event["choices"]]
    assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == ["x"]
    assert not any("reasoning" in delta for delta in deltas)
    assert "reasoning_content" in deltas[0]


async def test_thoughts_in_the_text_become_reasoning_while_they_arrive() -> None:
    """An endpoint without a reasoning parser writes tags, also across chunks."""
    pieces = ["<th", "ink>hm", "m</thi", "nk>do", "ne"]
    chunks = [*(chunk({"content": piece}) for piece in pieces), chunk({}, "stop"), CHUNKS[-1]]

    async with listening(chat=Reply(events=chunks)) as endpoint:
        reply = await ask(vllm_model(endpoint.url), "/v1/responses", {"input": "hi", "stream": True})

    events = list(sse.decode(await reply.read()))
    texts = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    thoughts = [event["delta"] for event in events if event["type"] == "response.reasoning_summary_text.delta"]
    assert ("".join(thoughts), "".join(texts)) == ("hmm", "done")
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["reasoning", "message"]


async def test_ids_of_streamed_items_are_those_of_the_finished_response() -> None:
    """Clients find the item of an event by its id."""
    async with listening(chat=Reply(events=CHUNKS)) as endpoint:
        reply = await ask(vllm_model(endpoint.url), "/v1/responses", {"input": "hi", "stream": True})

    events = list(sse.decode(await reply.read()))
    finished = events[-1]["response"]
    streamed = [event["item"]["id"] for event in events if event["type"] == "response.output_item.done"]
    assert streamed == [item["id"] for item in finished["output"]]
    assert finished["id"] == events[0]["response"]["id"]


async def test_tools_of_a_namespace_are_called_by_their_own_name() -> None:
    """Codex finds a tool by namespace and name; with the flat name it answers "unsupported call"."""
    tool = {"type": "function", "name": "get", "parameters": {"type": "object"}, "strict": False}
    body = {"input": "hi", "tools": [{"type": "namespace", "name": "mcp__x", "description": "d", "tools": [tool]}]}
    chunks = json.loads(json.dumps(CHUNKS).replace('"get"', '"mcp__x__get"'))

    async with listening(chat=[Reply(events=chunks), Reply(completion_from_chunks(chunks))]) as endpoint:
        server = vllm_model(endpoint.url)
        streamed = await ask(server, "/v1/responses", {**body, "stream": True})
        whole = await ask(server, "/v1/responses", body)

    assert [tool["function"]["name"] for tool in endpoint.bodies[0]["tools"]] == ["mcp__x__get"]
    assert endpoint.bodies[0]["tools"] == endpoint.bodies[1]["tools"]
    events = list(sse.decode(await streamed.read()))
    items = [event["item"] for event in events if event["type"].startswith("response.output_item")]
    calls = [item for item in items if item["type"] == "function_call"]
    calls += [events[-1]["response"]["output"][-1], (await whole.json())["output"][-1]]
    assert {(call["namespace"], call["name"]) for call in calls} == {("mcp__x", "get")}


async def test_a_custom_tool_is_called_with_text() -> None:
    """Codex applies patches with a custom tool."""
    arguments = json.dumps({"input": "*** Begin"})
    pieces = [call_piece("", id="c", type="function", function={"name": "patch"}), call_piece(arguments)]
    chunks = [*map(chunk, pieces), chunk({}, "tool_calls"), CHUNKS[-1]]
    body = {"input": "hi", "tools": [{"type": "custom", "name": "patch"}], "stream": True}

    async with listening(chat=Reply(events=chunks)) as endpoint:
        reply = await ask(vllm_model(endpoint.url), "/v1/responses", body)

    events = list(sse.decode(await reply.read()))
    assert [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"] == ["*** Begin"]
    (item,) = events[-1]["response"]["output"]
    assert (item["type"], item["input"], item["id"]) == ("custom_tool_call", "*** Begin", "c")


TOKEN_CHUNKS = [
    chunk({"role": "assistant"}, prompt_token_ids=[1, 2]),
    chunk(
        {"content": "Hello"},
        choice={"token_ids": [5], "logprobs": {"content": [{"token": "Hello", "logprob": -0.5, "bytes": None}]}},
    ),
    chunk(
        {"content": "!"},
        "stop",
        choice={"token_ids": [6], "logprobs": {"content": [{"token": "!", "logprob": -0.25, "bytes": None}]}},
    ),
    CHUNKS[-1],
]


def stored_generations(folder: Path) -> list[Json]:
    files = [file for file in folder.rglob("*") if file.is_file() and "3-1" in file.name]
    return [json.loads(line) for file in files for line in file.read_bytes().splitlines()]


@pytest.mark.parametrize("path", BODIES)
async def test_the_tokens_of_a_streamed_answer_are_captured_in_every_dialect(path: str, tmp_path: Path) -> None:
    """A trainer learns from what the engine generated, whichever dialect the harness speaks."""
    config = {"token_id_capture": {"enabled": True, "all_agents": True}, "model_call_capture_dir": str(tmp_path)}
    settings = {"return_token_id_information": True, "request_prompt_and_generation_token_ids": True}

    async with listening(chat=Reply(events=TOKEN_CHUNKS)) as endpoint:
        server = vllm_model(endpoint.url, config, **settings)
        prefixed = f"/ng-rollout/3-1/training-token-capture{path}"
        reply = await ask(server, prefixed, {**BODIES[path], "stream": True})

    assert endpoint.bodies[0]["return_token_ids"] is True
    assert b"Hello" in await reply.read()
    if path != "/v1/responses":  # there the finished items carry them
        assert b"token_ids" not in await reply.read()
        assert b'logprob"' not in await reply.read()
    (record,) = stored_generations(tmp_path)
    assert (record["prompt_token_ids"], record["generation_token_ids"]) == ([1, 2], [5, 6])
    assert record["generation_log_probs"] == [-0.5, -0.25]


@pytest.mark.parametrize(("make", "path"), SERVERS)
async def test_a_streamed_call_is_captured_before_its_end_is_sent(make: Any, path: str, tmp_path: Path) -> None:
    """A client with the complete answer reads the capture at once."""
    config = {"observability_enabled": True, "model_call_capture_dir": str(tmp_path)}

    async with listening(**streaming()) as endpoint:
        prefixed = f"/ng-rollout/3-1{path}"
        async with OpenStream(make(endpoint.url, config), prefixed, {**BODIES[path], "stream": True}) as stream:
            await stream.read_until(b"Hello")
            endpoint.resume.set()
            await stream.read_all()
            (record,) = read_model_call_records(CaptureStore(tmp_path), "3-1")

    assert (record.error_category, record.status_code) == (None, 200)
    assert record.response["usage"]


async def test_the_first_byte_follows_that_of_the_endpoint_within_50_ms() -> None:
    """The issue's promise; the best of ten calls, because other processes share the machine."""
    delays = []
    for _ in range(10):
        async with listening(chat=Reply(events=CHUNKS, waits_before=0)) as endpoint:
            server = vllm_model(endpoint.url)
            async with OpenStream(server, "/v1/messages", {**BODIES["/v1/messages"], "stream": True}) as stream:
                await endpoint.has_paused.wait()
                started = time.perf_counter()
                endpoint.resume.set()
                await stream.read_until(b"message_start")
                delays.append(time.perf_counter() - started)
                await stream.read_all()

    assert min(delays) < 0.05


FUNCTION = {"type": "function", "name": "get", "parameters": {"type": "object"}, "strict": False}
CODEX: Json = {  # what codex sends, written by us
    "model": "m",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "fix it"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "look"}], "content": None},
        {
            "type": "custom_tool_call",
            "status": "completed",
            "call_id": "c1",
            "name": "apply_patch",
            "input": "*** Begin",
        },
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
        {"type": "web_search_call", "status": "completed", "action": {"type": "search"}},
        {"type": "ghost_snapshot", "ghost_commit": {}},
    ],
    "tools": [
        {"type": "function", "name": "shell", "parameters": {"type": "object"}, "strict": False},
        {"type": "custom", "name": "apply_patch", "description": "Edit files."},
        {"type": "namespace", "name": "mcp__gym", "description": "d", "tools": [FUNCTION]},
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "low", "summary": "auto"},
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "k",
    "client_metadata": {"a": "b"},
    "top_k": 7,
}
CLAUDE: Json = {  # what claude-code sends, written by us
    "model": "m",
    "max_tokens": 64000,
    "system": [{"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "fix it", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "look", "signature": ""},
                {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "a.png"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"}}
                    ],
                }
            ],
        },
    ],
    "tools": [
        {"name": "Read", "description": "d", "input_schema": {"type": "object"}, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": []},
    "metadata": {"user_id": "u"},
    "output_config": {"effort": "high"},
}


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/responses", CODEX), ("/v1/messages", CLAUDE)], ids=["codex", "claude"]
)
@pytest.mark.parametrize("make", [openai_model, vllm_model])
async def test_the_endpoint_gets_the_same_request_streamed_or_not(
    make: Any, path: str, body: Json, caplog: pytest.LogCaptureFixture
) -> None:
    """A harness that changes its streaming mode must not get another prompt; what is left out is logged once."""
    async with listening(chat=Reply(completion_from_chunks(CHUNKS)), responses=Reply(RESPONSE)) as endpoint:
        server = make(endpoint.url)
        whole = await ask(server, path, body)
        streamed = await ask(server, path, {**body, "stream": True})
        warned = len(caplog.records)
        again = await ask(server, path, body)

    assert (whole.status, streamed.status, again.status) == (200, 200, 200)
    first, second, _ = [
        {key: value for key, value in sent.items() if key not in ("stream", "stream_options")}
        for sent in endpoint.bodies
    ]
    assert json.dumps(first) == json.dumps(second).replace(new_ids(second), new_ids(first))
    assert len(caplog.records) == warned
    if path == "/v1/responses":
        assert first["top_k"] == 7
        assert "client_metadata" not in first


def new_ids(request: Json) -> str:
    """Return the id that the server made for a reasoning item of a Messages request; "-" without one."""
    items = request.get("input") or []
    return next((item["id"] for item in items if str(item.get("id", "")).startswith("rs_")), "-")
