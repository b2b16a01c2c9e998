"""Requests of real programs are answered, and the answers follow the rules by which these programs read them."""

import json
import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.dialects.codex_rules import CodexReader
from tests.dialects.program_requests import CODEX, FILE, PROGRAMS
from tests.dialects.readers import MESSAGES

anthropic = pytest.importorskip("anthropic")
openai = pytest.importorskip("openai")
gemini_errors = pytest.importorskip("google.genai.errors")
types = pytest.importorskip("google.genai.types")

Json = dict[str, Any]
NPM_PREFIX = Path(__file__).parents[2] / ".npm-clients"
USAGE: Json = {
    "input_tokens": 20,
    "input_tokens_details": {"cached_tokens": 4},
    "output_tokens": 10,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 30,
}
RESPONSE: Json = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "model": "m",
    "status": "completed",
    "error": None,
    "incomplete_details": None,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": USAGE,
    "output": [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Think."}]},
        {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "I fix it.", "annotations": []}],
        },
        {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "call_1",
            "name": "bash",
            "arguments": '{"command": "sed"}',
            "status": "completed",
        },
    ],
}
MESSAGE: Json = {
    "role": "assistant",
    "content": "I fix it.",
    "reasoning_content": "Think.",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "sed"}'}}
    ],
}
COMPLETION: Json = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "tool_calls"}],
    "usage": {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30},
}


@pytest.fixture(autouse=True)
def _usual_answer(servers):
    endpoint = servers.endpoint
    endpoint.response, endpoint.response_events, endpoint.status = RESPONSE, [], 200
    endpoint.completion, endpoint.chunks = COMPLETION, []


def post(url: str, body: Json) -> tuple[int, bytes]:
    """Send a request as a program does, and return the status and body of the answer."""
    headers = {"content-type": "application/json", "authorization": "Bearer k"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def sse_events(body: bytes) -> list[Json]:
    """Return the JSON payloads of a stream, without the comments."""
    lines = [line.removeprefix("data: ") for line in body.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("server", ["openai_model", "vllm_model"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_request_of_a_program_reaches_the_endpoint_and_is_answered(servers, server, program):
    """Fields of one program must not fail its rollouts; the tool's output must reach the model."""
    path, body = PROGRAMS[program]

    status, answer = post(f"{servers.roots[server]}{path}", body)

    assert status == 200, answer
    assert "I fix it." in answer.decode()
    sent = servers.endpoint.requests[-1]
    assert FILE in json.dumps(sent, ensure_ascii=False).encode().decode("unicode_escape")
    assert sent["tools"]


@pytest.mark.parametrize("server", ["openai_model", "vllm_model"])
def test_a_stream_follows_the_rules_of_codex(servers, server):
    """Codex ends a turn at the first event that it does not expect."""
    status, body = post(f"{servers.roots[server]}/v1/responses", CODEX)

    assert status == 200
    reader = CodexReader()
    for event in sse_events(body):
        reader.read(event)
    assert reader.completed is not None
    assert [item["type"] for item in reader.items] == ["reasoning", "message", "function_call"]


def test_calls_of_namespaced_tools_come_back_split(servers):
    """Codex answers a call of a flat name with `unsupported call`."""
    call = {**RESPONSE["output"][2], "name": "multi_agent_v1__spawn_agent"}
    servers.endpoint.response = {**RESPONSE, "output": [call]}

    _, body = post(f"{servers.roots['openai_model']}/v1/responses", CODEX)

    (item,) = sse_events(body)[-1]["response"]["output"]
    assert (item["namespace"], item["name"]) == ("multi_agent_v1", "spawn_agent")


@pytest.mark.parametrize("server", ["openai_model", "vllm_model"])
def test_the_ai_sdk_reads_a_stream(servers, server):
    """opencode and many web programs read Responses with this package; it fails on a missing event."""
    if shutil.which("node") is None or not (NPM_PREFIX / "node_modules/@ai-sdk/openai").exists():
        pytest.skip("node or @ai-sdk/openai is missing: python3 dev.py dialects installs it")
    script = Path(__file__).with_name("ai_sdk.mjs")
    command = ["node", str(script), str(NPM_PREFIX), f"{servers.roots[server]}/v1"]

    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["text"], result["reasoning"], result["errors"]) == ("I fix it.", "Think.", [])
    assert result["calls"] == [["call_1", "bash", '{"command": "sed"}']]
    assert result["finish"]["unified"] == "tool-calls"
    assert result["usage"]["inputTokens"]["total"] == 20


class Refusals:
    """One refused request per client package."""

    @staticmethod
    def responses(servers, server):
        servers.client("openai", server).responses.create(model="m", input="?")

    @staticmethod
    def chat(servers, server):
        servers.client("openai", server).chat.completions.create(model="m", messages=MESSAGES)

    @staticmethod
    def messages(servers, server):
        servers.client("anthropic", server).messages.create(model="m", max_tokens=9, messages=MESSAGES)

    @staticmethod
    def gemini(servers, server):
        servers.client("gemini", server).models.generate_content(model="m", contents="?")


@pytest.mark.parametrize("server", ["openai_model", "vllm_model"])
@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (Refusals.responses, openai.BadRequestError),
        (Refusals.chat, openai.BadRequestError),
        (Refusals.messages, anthropic.BadRequestError),
        (Refusals.gemini, gemini_errors.ClientError),
    ],
)
def test_a_refusal_of_the_endpoint_is_the_error_of_each_client(servers, server, ask, error):
    """A client repeats a request after 500; after 400 it stops and shows the reason."""
    servers.endpoint.status = 400

    with pytest.raises(error, match="the prompt is refused"):
        ask(servers, server)


def test_gemini_calls_and_results_are_joined_without_ids(servers):
    """Some clients drop the id of a call; parallel calls of one function must keep their order."""
    config = types.GenerateContentConfig(
        system_instruction="Be brief.",
        tools=[types.Tool(function_declarations=[types.FunctionDeclaration(name="f", description="do it")])],
        tool_config=types.ToolConfig(
            function_calling_config=types.FunctionCallingConfig(mode="ANY", allowed_function_names=["f"])
        ),
        max_output_tokens=50,
        temperature=0.5,
        response_mime_type="application/json",
        response_schema={"type": "OBJECT", "properties": {"a": {"type": "INTEGER"}}},
    )
    calls = [types.Part.from_function_call(name="f", args={"n": n}) for n in (1, 2)]
    results = [types.Part.from_function_response(name="f", response={"output": text}) for text in ("one", "two")]
    contents = [
        types.Content(
            role="user",
            parts=[types.Part.from_text(text="go"), types.Part.from_bytes(data=b"x", mime_type="image/png")],
        ),
        types.Content(role="model", parts=calls),
        types.Content(role="user", parts=results),
    ]

    servers.client("gemini", "openai_model").models.generate_content(model="m", contents=contents, config=config)

    sent = servers.endpoint.requests[-1]
    assert sent["instructions"] == "Be brief."
    assert sent["input"][0]["content"][1]["image_url"] == "data:image/png;base64,eA=="
    first, second, *outputs = sent["input"][1:]
    assert [json.loads(call["arguments"])["n"] for call in (first, second)] == [1, 2]
    assert [(out["call_id"], out["output"]) for out in outputs] == [
        (first["call_id"], "one"),
        (second["call_id"], "two"),
    ]
    assert sent["tool_choice"] == {"type": "function", "name": "f"}
    assert (sent["max_output_tokens"], sent["temperature"]) == (50, 0.5)
    assert sent["text"]["format"]["schema"] == {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_models_are_listed_and_tokens_counted(servers):
    """Programs ask for these before or between their requests."""
    openai_client = servers.client("openai", "vllm_model")
    anthropic_client = servers.client("anthropic", "vllm_model")
    gemini_client = servers.client("gemini", "vllm_model")

    assert [model.id for model in openai_client.models.list()] == ["m"]
    assert openai_client.models.retrieve("org/other").id == "org/other"
    assert [model.id for model in anthropic_client.models.list()] == ["m"]
    assert [model.name for model in gemini_client.models.list()] == ["models/m"]
    assert anthropic_client.messages.count_tokens(model="m", messages=MESSAGES).input_tokens == 3
    assert gemini_client.models.count_tokens(model="m", contents="?").total_tokens == 3
    assert json.loads(post(f"{servers.roots['vllm_model']}/tokenize", {"prompt": "?"})[1])["tokens"] == [1, 2, 3]


def test_a_server_without_a_tokenizer_says_so(servers):
    """A wrong count would make a client compact its context too late."""
    with pytest.raises(anthropic.NotFoundError, match="cannot count tokens"):
        servers.client("anthropic", "openai_model").messages.count_tokens(model="m", messages=MESSAGES)


@pytest.mark.parametrize("path", ["/v1/v1/messages", "/messages", "/v1/messages"])
def test_a_base_url_works_with_and_without_its_version(servers, path):
    """Clients disagree about who adds `/v1`; a wrong guess must not be a 404."""
    body = {"model": "m", "max_tokens": 9, "messages": MESSAGES}

    assert post(f"{servers.roots['openai_model']}{path}", body)[0] == 200
    assert post(f"{servers.roots['openai_model']}/ng-rollout/3-0{path}", body)[0] == 200
