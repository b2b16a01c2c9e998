"""Which server a failed rollout names when the verifier gives an answer that its agent cannot use."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse

from nemo_gym.base_resources_server import BaseResourcesServerConfig, SimpleResourcesServer
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.errors import InvalidReply
from nemo_gym.launch.app_listener import AppListener
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.server_utils import ServerClient, get_response_json, server_config
from nemo_gym.transport import http_sessions, in_process
from nemo_gym.transport.client_response import read_at_most
from nemo_gym.transport.response_errors import FAILED_HEADER
from responses_api_agents.simple_agent.app import SimpleAgent
from responses_api_models.scripted_model.app import ScriptedModel

ASKS = {"tool_calls": [{"name": "break_off", "arguments": {}}]}
SAYS = {"text": "Done."}


async def broken_stream(error: BaseException) -> AsyncIterator[bytes]:
    yield b'{"reward": 1.0, '
    await asyncio.sleep(0)
    raise error


def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


ANSWERS: dict[str, Callable[[], Response]] = {
    "HTML": lambda: PlainTextResponse("<html>502</html>"),
    "cut JSON": lambda: Response('{"reward": 1.0', media_type="application/json"),
    "no body": lambda: Response(status_code=204),
    "bytes": lambda: Response(b"\xff\xfe\x00", media_type="application/json"),
    "a list": lambda: Response("[1.0]", media_type="application/json"),
    "broken stream": lambda: StreamingResponse(broken_stream(RuntimeError("disk")), media_type="application/json"),
    "cancelled stream": lambda: StreamingResponse(broken_stream(asyncio.CancelledError())),
    "bad length": lambda: Response("{}", headers={"content-length": "2000"}),
    "bad header": lambda: Response("{}", headers={"x-note": "a\r\nb"}),
    "bad cookie": lambda: Response("no", headers={"set-cookie": "a@b=1"}),
    "unlabelled error": lambda: Response("{}", status_code=500, headers={"x-nemo-gym-failed": ""}),
}


class Environment(SimpleResourcesServer):
    """Answers `/verify` with one of `ANSWERS`."""

    HOSTING = "cell"
    answer: str

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/break_off")(self.break_off)
        return app

    async def break_off(self) -> Response:
        return ANSWERS["broken stream"]()

    async def verify(self, request: Request, body: dict[str, Any]) -> Any:  # type: ignore[override]
        if self.answer == "cancels itself":
            cancel_itself()
            await asyncio.Event().wait()
        return ANSWERS[self.answer]()


def make_client(script: list[Any], port: int) -> ServerClient:
    def at(number: int, **fields: Any) -> dict[str, Any]:
        return {"entrypoint": "app.py", "host": "127.0.0.1", "port": number, "domain": "other", **fields}

    model = {"type": "responses_api_models", "name": "m"}
    environment = {"type": "resources_servers", "name": "r"}
    config = {
        "head_server": {"host": "127.0.0.1", "port": 31000},
        "m": {"responses_api_models": {"scripted_model": at(11, script=script)}},
        "r": {"resources_servers": {"odd": at(port)}},
        "a": {"responses_api_agents": {"simple_agent": at(13, model_server=model, resources_server=environment)}},
    }
    head = BaseServerConfig(host="127.0.0.1", port=31000)
    return ServerClient(head_server_config=head, global_config_dict=config)


@asynccontextmanager
async def serving(answer: str, carrier: str, script: list[Any]) -> AsyncIterator[ServerClient]:
    """Serve a model and an agent in memory, and the environment in memory or over HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = make_client(script, port)
        config = client.global_config_dict
        apps: dict[int, FastAPI] = {}
        for cls, name in ((ScriptedModel, "m"), (SimpleAgent, "a")):
            loaded = server_config(cls, config, name)
            apps[loaded.port or 0] = cls(config=loaded, server_client=client).prepare_webserver(config)
        loaded = BaseResourcesServerConfig(host="127.0.0.1", port=port, name="r", entrypoint="app.py", domain="other")
        apps[port] = Environment(config=loaded, server_client=client, answer=answer).prepare_webserver(config)
        server = AppListener(apps[port], listener, {})
        if carrier == "HTTP":
            del apps[port]
            await server.open()
        for number, app in apps.items():
            in_process.mount("127.0.0.1", number, app)
        try:
            yield client
        finally:
            for number in apps:
                in_process.unmount("127.0.0.1", number)
            if carrier == "HTTP":
                await http_sessions.close_current_session()
                server.stop_accepting()
                await server.close()


@pytest.fixture
def fail(tmp_path: Path) -> Callable[..., Awaitable[dict[str, Any]]]:
    """Return a function that collects one rollout and returns its failure line."""

    async def collect_failure(answer: str, carrier: str, script: list[Any]) -> dict[str, Any]:
        rows = tmp_path / "in.jsonl"
        rows.write_bytes(orjson.dumps({"responses_create_params": {"input": "Go."}, "agent_ref": {"name": "a"}}))
        options = RolloutCollectionConfig(
            input_jsonl_fpath=str(rows),
            output_jsonl_fpath=str(tmp_path / "out" / "x.jsonl"),
            disable_aggregation=True,
            max_rollout_attempts=1,
        )
        async with serving(answer, carrier, script) as client:
            helper = RolloutCollectionHelper()
            helper.setup_server_client = lambda head_server_config=None: client  # type: ignore[method-assign]
            await helper.collect_from_config(options)
        (line,) = (tmp_path / "out" / "x_failures.jsonl").read_bytes().splitlines()
        failure: dict[str, Any] = orjson.loads(line)
        return failure

    return collect_failure


@pytest.mark.parametrize("answer", [*ANSWERS, "cancels itself"])
@pytest.mark.parametrize("carrier", ["memory", "HTTP"])
async def test_an_unusable_answer_of_the_verifier_is_its_own_failure(
    fail: Callable[..., Awaitable[dict[str, Any]]], answer: str, carrier: str
) -> None:
    """The agent only passed the question on; its log does not show the fault."""
    failure = await fail(answer, carrier, [SAYS])

    assert (failure["_ng_failure_class"], failure["_ng_failure"]["whom"]) in (
        ("verifier_error", "r"),
        ("invalid_reward", "r"),  # the answer is JSON, but has no reward
    )


async def test_a_tool_whose_answer_breaks_off_is_a_failure_of_its_server(
    fail: Callable[..., Awaitable[dict[str, Any]]],
) -> None:
    """In memory the model would get a 500 as the output of the tool; over HTTP only the start of an answer arrives."""
    failure = await fail("HTML", "HTTP", [ASKS, SAYS])

    assert (failure["_ng_failure_class"], failure["_ng_failure"]["whom"]) == ("tool_error", "r")


@pytest.mark.parametrize("carrier", ["memory", "HTTP"])
async def test_every_way_to_read_an_answer_names_its_server(carrier: str) -> None:
    """Agents of server folders read answers with the methods of aiohttp, too."""
    async with serving("cut JSON", carrier, [SAYS]) as client:

        async def verify() -> Any:
            return await client.post(server_name="r", url_path="/verify", json={})

        for read in (lambda reply: get_response_json(reply), lambda reply: reply.json()):
            with pytest.raises(InvalidReply, match=r"^r: the answer to /verify is invalid") as caught:
                await read(await verify())
            assert isinstance(caught.value, ValueError), "callers catch it as such"
        assert await (await verify()).read() == b'{"reward": 1.0'

    async with serving("HTML", carrier, [SAYS]) as client:
        with pytest.raises(Exception, match="unexpected mimetype") as wrong_type:
            await (await verify()).json()
        assert wrong_type.value.headers[FAILED_HEADER] == "r"  # type: ignore[attr-defined]

    async with serving("broken stream", "HTTP", [SAYS]) as client:
        for read in (lambda reply: reply.read(), lambda reply: read_at_most(reply, 10_000, callee="x")):
            with pytest.raises(InvalidReply, match=r"^r: the answer to /verify breaks off"):
                await read(await verify())
