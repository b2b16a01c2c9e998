"""A playground: one real run of servers whose models and tools misbehave, each in a different way."""

import asyncio
import json
import textwrap
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nemo_gym.config.search_roots import PARENT_DIR
from nemo_gym.keys import DEADLINE_HEADER
from nemo_gym.launch.run import Run

ENVIRONMENT = """
    import time
    from pathlib import Path

    from fastapi import Request

    from nemo_gym.base_resources_server import (
        BaseResourcesServerConfig, BaseVerifyRequest, BaseVerifyResponse, SimpleResourcesServer,
    )
    from nemo_gym.server_utils import SESSION_ID_KEY

    GO = Path(__file__).with_name("go")

    class Tools(SimpleResourcesServer):
        HOSTING = "cell"
        config: BaseResourcesServerConfig

        def setup_webserver(self):
            app = super().setup_webserver()
            for tool in (self.fine, self.flood, self.block, self.crash, self.whoami):
                app.post(f"/{tool.__name__}")(tool)
            return app

        async def fine(self) -> dict[str, str]:
            return {"answer": "fine"}

        async def flood(self) -> str:
            return "x" * 100_000_000

        async def block(self) -> dict[str, str]:
            give_up = time.monotonic() + 60
            while not GO.exists() and time.monotonic() < give_up:
                time.sleep(0.01)
            return {"answer": "late"}

        async def crash(self) -> dict[str, str]:
            raise RuntimeError("boiler exploded")

        async def whoami(self, request: Request) -> dict[str, str]:
            return {"session": request.session[SESSION_ID_KEY]}

        async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
            return BaseVerifyResponse(**body.model_dump(), reward=1.0)

    if __name__ == "__main__":
        Tools.run_webserver()
"""
TOOLS = ("fine", "flood", "block", "crash")
FAULTS = ("slow", "wrong_key", "wrong_json", "wrong_shape", "half_body")


def http_reply(fault: str, turns: int) -> bytes:
    """Return a complete HTTP reply of the endpoint `/<fault>/v1`, in turn number `turns`."""
    if fault == "wrong_key":
        return _http(401, {"error": {"message": "Incorrect API key provided", "type": "invalid_request_error"}})
    if fault == "wrong_json":
        return _http(200, b"<html>this is not the endpoint you are looking for</html>")
    if fault == "wrong_shape":
        return _http(200, {"hello": "world"})
    if fault == "half_body":
        whole = _http(200, _response("x" * 5000))
        return whole[: len(whole) // 2]
    tool = fault.removeprefix("tool_")
    return _http(200, _response("done") if turns else _response(call=tool))


def _response(text: str = "", call: str | None = None) -> dict[str, Any]:
    item: dict[str, Any] = (
        {"type": "function_call", "id": "fc", "call_id": "c", "name": call, "arguments": "{}", "status": "completed"}
        if call
        else {
            "type": "message", "id": "m", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
    )  # fmt: skip
    return {
        "id": "r", "created_at": 0, "model": "m", "object": "response", "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [], "output": [item],
    }  # fmt: skip


def _http(status: int, body: Any) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + content


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next((int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line), 0)
    body = json.loads(await reader.readexactly(length) or b"{}")
    fault = head.split(b" ")[1].decode().split("/")[1]
    try:
        if fault == "slow":
            await reader.read()  # until the caller gives up
        else:
            turns = sum(item.get("type") == "function_call_output" for item in body.get("input", []))
            writer.write(http_reply(fault, turns))
            await writer.drain()
    finally:
        writer.close()


def lower_names(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@dataclass
class Playground:
    """A run, methods that call it, and everything its servers have printed."""

    run: Run
    lines: list[str] = field(default_factory=list)
    go: Path = Path("go")
    """The blocking tool returns when this file exists."""

    def url(self, name: str) -> str:
        instance = next(instance for instance in self.run.instances if instance.name == name)
        return f"http://{instance.host}:{instance.port}"

    def call(self, name: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Send one POST and return status, JSON and headers."""
        request = urllib.request.Request(
            f"{self.url(name)}{path}",
            data=json.dumps(body or {}).encode(),
            headers={"Content-Type": "application/json", **headers},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply), lower_names(reply.headers)
        except urllib.error.HTTPError as reply:
            with reply:
                return reply.code, json.load(reply), lower_names(reply.headers)

    def rollout(self, agent: str, seconds: float = 30.0) -> tuple[int, Any, dict[str, str]]:
        """Call `/run` of an agent with a deadline of `seconds`."""
        row = {"responses_create_params": {"input": "Do it."}}
        return self.call(agent, "/run", row, **{DEADLINE_HEADER: str(seconds)})

    def wait_for_line(self, words: str, seconds: float = 20.0) -> str:
        """Wait for the first line that contains `words`."""
        end = time.monotonic() + seconds
        while True:
            match = next((line for line in self.lines if words in line), None)
            if match:
                return match
            assert time.monotonic() < end, self.lines
            time.sleep(0.02)

    def is_fine(self) -> bool:
        """Return True if a rollout with a good model and a good tool still scores."""
        status, body, _ = self.rollout("agent_tool_fine")
        return status == 200 and body["reward"] == 1.0


def config_for(endpoint: str, nowhere: str) -> dict[str, Any]:
    """Configure one environment and, for every fault, a model and an agent that uses it."""
    common = {"entrypoint": "app.py", "host": "127.0.0.1", "port": -1}
    blocks: dict[str, Any] = {"tools": {"resources_servers": {"misbehaving": {**common, "domain": "other"}}}}
    elsewhere = nowhere.replace("127.0.0.1", "127.0.0.2")  # a circuit breaker of one must not affect the other
    urls = {"down": f"{nowhere}/v1", "gone": f"{elsewhere}/v1"}
    for fault in (*FAULTS, *urls, *(f"tool_{tool}" for tool in TOOLS)):
        url = urls.get(fault, f"{endpoint}/{fault}/v1")
        model = {**common, "openai_base_url": url, "openai_api_key": "sk-secret-123", "openai_model": "m"}
        agent = {
            **common,
            "resources_server": {"type": "resources_servers", "name": "tools"},
            "model_server": {"type": "responses_api_models", "name": f"model_{fault}"},
        }
        blocks[f"model_{fault}"] = {"responses_api_models": {"openai_model": model}}
        blocks[f"agent_{fault}"] = {"responses_api_agents": {"simple_agent": agent}}
    return {"head_server": {"host": "127.0.0.1", "port": 0}, "unreachable_timeout_seconds": 2.0, **blocks}


def write_server(root: Path, name: str, source: str, requirements: str = "-e nemo-gym[dev] @ ../../\n") -> Path:
    """Write a resources server folder."""
    folder = root / "resources_servers" / name
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "app.py").write_text(textwrap.dedent(source))
    (folder / "requirements.txt").write_text(requirements)
    return folder


@asynccontextmanager
async def running_playground(root: Path) -> AsyncIterator[Playground]:
    go = write_server(root, "misbehaving", ENVIRONMENT) / "go"
    endpoint = await asyncio.start_server(_serve, "127.0.0.1", 0)
    nowhere = await asyncio.start_server(_serve, "127.0.0.1", 0)
    urls = [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in (endpoint, nowhere)]
    nowhere.close()  # the port was just free: no server answers there
    lines: list[str] = []
    run = Run(
        OmegaConf.create(config_for(*urls)),
        [root, PARENT_DIR],
        watch=lambda _, line: lines.append(line),
        links=False,
    )
    async with run:
        yield Playground(run, lines, go)
    endpoint.close()


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """One run for all tests of a module: it must survive every fault."""
    ready: list[Playground] = []
    is_ready, stop = threading.Event(), threading.Event()

    async def main() -> None:
        try:
            async with running_playground(tmp_path_factory.mktemp("faults")) as playground:
                ready.append(playground)
                is_ready.set()
                await asyncio.to_thread(stop.wait)
        finally:
            is_ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    is_ready.wait(120)
    assert ready, "the servers did not come up"
    yield ready[0]
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture(name="write_server")
def _write_server() -> Callable[..., Path]:
    return write_server
