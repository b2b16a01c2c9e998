"""External MCP servers as tools of an agent: real processes and a real HTTP server."""

import asyncio
import json
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from pydantic import ValidationError

from nemo_gym.authoring.external_mcp import McpServer, McpTools
from nemo_gym.authoring.mcp_channels import ChannelClosed, HttpChannel, parse_message
from nemo_gym.errors import AgentFailed
from responses_api_agents.simple_agent.tests import mcp_server
from responses_api_agents.simple_agent.tests.bench import Bench, tool_texts, types, unmount_servers
from responses_api_models.openai_model.tests.endpoint import ask

SERVER = Path(mcp_server.__file__)
DONE = {"text": "Done."}


@pytest.fixture(autouse=True)
def _unmount_servers() -> Iterator[None]:
    yield
    unmount_servers()


def command(folder: Path, **settings: Any) -> dict[str, Any]:
    return {"command": [sys.executable, str(SERVER), str(folder)], **settings}


def turn(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}


def recorded_pids(folder: Path) -> list[int]:
    """Return the ids of all processes that the servers started."""
    return [int(pid) for path in folder.glob("*.pids") for pid in path.read_text().split()]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def has_ended(folder: Path, count: int) -> bool:
    pids = recorded_pids(folder)
    return len(pids) == count and not any(map(is_alive, pids))


def test_calls_are_items_of_the_conversation_and_the_processes_end_with_the_rollout(tmp_path: Path) -> None:
    """Every call must be visible in the trajectory, and a thousand rollouts must not leave a thousand processes."""
    script = [turn(("files__echo", {"text": "hello"}), ("weather", {"city": "Oslo"})), DONE]

    result = Bench(script, mcp_servers={"files": command(tmp_path)}).run()

    assert types(result["response"]) == ["function_call"] * 2 + ["function_call_output"] * 2 + ["message"]
    assert tool_texts(result["response"])[0] == "hello"
    assert result["reward"] == 1.0  # the tool of the environment works beside it
    offered = [tool["name"] for tool in result["responses_create_params"]["tools"]]
    assert offered[:3] == ["files__echo", "files__sleep", "files__flood"]
    assert has_ended(tmp_path, 2)


def test_each_rollout_has_its_own_process(tmp_path: Path) -> None:
    """State of one rollout must not be seen in another."""
    world = Bench([turn(("files__count", {})), DONE], mcp_servers={"files": command(tmp_path)})

    assert [tool_texts(world.run()["response"]) for _ in range(2)] == [["1"], ["1"]]
    assert has_ended(tmp_path, 4)


@pytest.mark.parametrize(
    ("tool", "problem"),
    [
        ("files__sleep", "sleep gave no answer within 0.5 s."),
        ("files__flood", "The answer of flood is longer than 10,000 bytes. Ask for less."),
        ("files__fail", "None"),
        ("files__crash", "crash cannot be called: the program ended (status 3): the disk is full"),
    ],
)
def test_limits_and_errors_of_a_call_are_an_answer_for_the_model(tmp_path: Path, tool: str, problem: str) -> None:
    """The model can do without one tool; the episode must neither hang nor fail."""
    servers = {"files": command(tmp_path, call_timeout_s=0.5 if "sleep" in tool else 60, max_output_bytes=10_000)}

    result = Bench([turn((tool, {})), DONE], mcp_servers=servers).run()

    assert json.loads(tool_texts(result["response"])[0]) == {"error": problem}
    assert types(result["response"])[-1] == "message"
    assert has_ended(tmp_path, 2)


def test_a_message_beyond_every_limit_ends_the_server_and_not_the_agent(tmp_path: Path, monkeypatch: Any) -> None:
    """A server that prints without end must not fill the memory of the agent."""
    monkeypatch.setattr("nemo_gym.authoring.mcp_channels.MAX_PROTOCOL_BYTES", 20_000)
    servers = {"files": command(tmp_path, max_output_bytes=1000)}

    result = Bench([turn(("files__flood", {})), DONE], mcp_servers=servers).run()

    assert "longer than 1,000 bytes" in tool_texts(result["response"])[0]
    assert has_ended(tmp_path, 2)


def test_an_image_is_an_image_for_the_model(tmp_path: Path) -> None:
    """Screenshots are the point of many servers."""
    result = Bench([turn(("files__picture", {})), DONE], mcp_servers={"files": command(tmp_path)}).run()

    parts = next(each["output"] for each in result["response"]["output"] if each["type"] == "function_call_output")
    assert parts == [
        {"type": "input_image", "image_url": f"data:image/png;base64,{mcp_server.PIXEL}", "detail": "auto"}
    ]


@pytest.mark.parametrize(
    ("server", "problem"),
    [
        ({"command": ["/no/such/program"]}, "No such file"),
        ({"command": [sys.executable, "-c", "import sys; sys.exit('no key')"]}, "no key"),
        ({"command": ["sleep", "1000"], "start_timeout_s": 0.5}, "did not list its tools within 0.5 s"),
        ({"url": "http://127.0.0.1:9/mcp"}, "is not reachable"),
    ],
)
def test_a_server_that_does_not_start_fails_the_rollout(server: dict[str, Any], problem: str) -> None:
    """A task without its tools must not be scored 0."""
    world = Bench([DONE], mcp_servers={"files": server})

    reply = world.http.post("/run", json={"responses_create_params": {"input": "hi"}})

    assert reply.status_code == 500
    assert "mcp_servers.files" in reply.text and problem in reply.text


def test_only_the_named_tools_are_offered_and_callable(tmp_path: Path) -> None:
    """A server may have tools that a task must not use."""
    servers = {"files": command(tmp_path, tools=["echo"])}

    result = Bench([turn(("files__flood", {})), DONE], mcp_servers=servers).run()

    assert [tool["name"] for tool in result["responses_create_params"]["tools"]] == ["files__echo"]
    assert "no tool named 'files__flood'" in tool_texts(result["response"])[0]


def test_a_named_tool_that_is_missing_is_one_error(tmp_path: Path) -> None:
    """A misspelt name would silently take a tool from the model."""
    world = Bench([DONE], mcp_servers={"files": command(tmp_path, tools=["ecko"])})

    reply = world.http.post("/run", json={"responses_create_params": {"input": "hi"}})

    assert "the MCP server has no ecko" in reply.text
    assert has_ended(tmp_path, 2)


async def test_a_cancelled_rollout_leaves_no_process(tmp_path: Path) -> None:
    """Rollouts are cancelled while tools hang; that is when processes are left."""
    async with asyncio.timeout(60):
        tools = McpTools({"files": McpServer(**command(tmp_path))})

        async def hang() -> None:
            async with tools:
                started.set()
                await tools.call("files__sleep", {})

        started = asyncio.Event()
        task = asyncio.create_task(hang())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert has_ended(tmp_path, 2)


def test_the_end_of_the_agent_server_ends_its_servers(tmp_path: Path) -> None:
    """A server that was killed cannot close anything."""
    program = f"""
import asyncio, os, signal
from nemo_gym.authoring.external_mcp import McpServer, McpTools
async def main():
    async with McpTools({{"files": McpServer(command={[sys.executable, str(SERVER), str(tmp_path)]!r})}}):
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    subprocess.run([sys.executable, "-c", program], check=False, timeout=60)
    pids = recorded_pids(tmp_path)

    assert len(pids) == 2
    for pid in pids:  # the system ends them; wait for it without a fixed time
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        assert select.select([descriptor], [], [], 30)[0], f"{pid} is alive"
        os.close(descriptor)


class HttpServer:
    """Serves the tools over streamable HTTP, as JSON or as events."""

    def __init__(self, *, events: bool) -> None:
        self.events = events
        self.headers: list[dict[str, str]] = []
        self.methods: list[str] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer one message; the first answer begins a session."""
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.methods.append(request.method)
        if request.method == "DELETE":
            return web.Response(status=204)
        reply = mcp_server.answer(await request.json())
        if reply is None:
            return web.Response(status=202)
        headers = {"Mcp-Session-Id": "session-1"}
        if not self.events:
            return web.json_response(reply, headers=headers)
        note = json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": {}})
        text = f": ping\r\n\r\ndata: {note}\r\n\r\nevent: message\r\ndata: {json.dumps(reply)}\r\n\r\n"
        return web.Response(text=text, content_type="text/event-stream", headers=headers)


@pytest.fixture(params=[False, True], ids=["json", "events"])
async def http_server(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, HttpServer]]:
    handler = HttpServer(events=request.param)
    app = web.Application()
    app.router.add_route("*", "/mcp", handler.handle)
    async with TestServer(app) as server:
        yield str(server.make_url("/mcp")), handler


async def test_tools_over_http(http_server: tuple[str, HttpServer]) -> None:
    """Most servers that people run for several clients speak HTTP; the session ends with the rollout."""
    url, handler = http_server
    world = Bench(
        [turn(("web__echo", {"text": "hällo"})), DONE], mcp_servers={"web": {"url": url, "headers": {"X-Key": "k"}}}
    )

    result = await (await ask(world.agent, "/run", {"responses_create_params": {"input": "hi"}})).json()

    assert tool_texts(result["response"]) == ["hällo"]
    assert handler.methods == ["POST"] * 5 + ["DELETE"]
    assert {headers["x-key"] for headers in handler.headers} == {"k"}
    assert {headers.get("mcp-session-id") for headers in handler.headers[1:]} == {"session-1"}


async def test_a_missing_start_raises_one_error() -> None:
    """Several servers start together; the first problem is the message, not a group of exceptions."""
    servers = {"a": McpServer(command=["/no/such/program"]), "b": McpServer(command=["/no/such/program"])}

    with pytest.raises(AgentFailed, match="does not start"):
        async with McpTools(servers):
            raise AssertionError("not reached")


@pytest.mark.parametrize(
    "fields",
    [{}, {"command": ["a"], "url": "http://h"}, {"command": []}, {"url": "http://h", "env": {"A": "b"}}, {"cmd": ["a"]},
     {"command": ["a"], "headers": {"A": "b"}}, {"command": ["a"], "transport": "http"}],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    """A misspelt field must not start a server without its limits or keys."""
    with pytest.raises(ValidationError):
        McpServer(**fields)


def test_servers_do_not_inherit_the_keys_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program from the network must not read the keys of the run."""
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    script = f"import os; open({str(tmp_path / 'env')!r}, 'w').write(repr(dict(os.environ))); raise SystemExit(1)"
    world = Bench([DONE], mcp_servers={"files": {"command": [sys.executable, "-c", script], "env": {"MINE": "1"}}})

    world.http.post("/run", json={"responses_create_params": {"input": "hi"}})

    env = (tmp_path / "env").read_text()
    assert "secret" not in env and "'MINE': '1'" in env


def test_a_call_after_a_message_beyond_every_limit_names_the_end_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model must not ask for less of a tool that answers nothing any more."""
    monkeypatch.setattr("nemo_gym.authoring.mcp_channels.MAX_PROTOCOL_BYTES", 20_000)
    script = [turn(("files__flood", {})), turn(("files__echo", {"text": "hi"})), DONE]

    result = Bench(script, mcp_servers={"files": command(tmp_path, max_output_bytes=1000)}).run()

    first, second = tool_texts(result["response"])
    assert "Ask for less" in first
    assert json.loads(second) == {"error": "echo cannot be called: it was ended: a message is longer than 21,000 bytes"}


def changed_server(folder: Path, old: str, new: str) -> McpServer:
    """Return the test server with a part of its program replaced."""
    program = SERVER.read_text()
    assert old in program
    (folder / "server.py").write_text(program.replace(old, new))
    return McpServer(command=[sys.executable, str(folder / "server.py"), str(folder)])


KEY = "sk-proj-1234567890abcdefghijABCDEFGHIJ"


async def test_keys_reach_neither_the_model_nor_the_record(tmp_path: Path) -> None:
    """URLs of servers contain keys, and programs print theirs; both are in the messages of errors."""
    script = f"import sys; sys.exit('bad key {KEY}')"
    servers = [
        McpServer(url=f"http://127.0.0.1:9/mcp?api_key={KEY}"),
        McpServer(command=[sys.executable, "-c", script]),
    ]
    for server in servers:
        with pytest.raises(AgentFailed) as error:
            async with McpTools({"files": server}):
                raise AssertionError("not reached")
        assert KEY not in str(error.value)

    crash = f"import os, sys; print('key {KEY}', file=sys.stderr, flush=True); os._exit(3)"
    changed = changed_server(tmp_path, 'sys.stderr.write("the disk is full\\n")', crash)
    async with McpTools({"files": changed}) as tools:
        output = str(await tools.call("files__crash", {}))

    assert "the program ended (status 3): key" in output
    assert KEY not in output


def test_two_tools_with_one_name_are_one_error(tmp_path: Path) -> None:
    """Otherwise a call would reach whichever server came last."""
    (tmp_path / "a").mkdir()
    servers = {name: command(tmp_path / "a", tools=["echo"]) for name in ("my files", "my_files")}

    reply = Bench([DONE], mcp_servers=servers).http.post("/run", json={"responses_create_params": {"input": "hi"}})

    assert reply.status_code == 500
    assert "my files.echo and my_files.echo have the same name, my_files__echo" in reply.text


class Pieces:
    """A body that arrives in the given pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.content = self
        self.pieces = pieces

    async def iter_any(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece


async def test_events_may_be_split_anywhere() -> None:
    """A network cuts a stream at any byte, also within the end of an event."""
    event = b'event: message\r\ndata: {"id": 1}\r\n\r\n'
    channel = HttpChannel(McpServer(url="http://127.0.0.1:9/mcp"))

    for cut in range(len(event) - 1):
        pieces: Any = Pieces(event[:cut], event[cut : cut + 1], event[cut + 1 :])
        assert await channel._read_events(pieces, 1) == {"id": 1}


async def test_a_call_over_http_may_take_longer_than_the_default_of_the_client() -> None:
    """`call_timeout_s` may be an hour; aiohttp would end every request after five minutes."""
    channel = HttpChannel(McpServer(url="http://127.0.0.1:9/mcp"))
    await channel.open()
    try:
        assert channel._session is not None and channel._session.timeout.total is None
    finally:
        await channel.close()


DEEP = "[" * 200_000


async def test_a_message_that_nests_too_deep_is_no_message(tmp_path: Path) -> None:
    """Such a line must not end the task that reads the answers, which would let every call wait for its deadline."""
    changed = changed_server(tmp_path, "a line that is no message", DEEP)

    async with asyncio.timeout(60), McpTools({"files": changed}) as tools:
        assert await tools.call("files__echo", {"text": "hi"}) == "hi"
    with pytest.raises(ChannelClosed, match="is no JSON"):
        parse_message(DEEP.encode())
