"""A hanging rollout reports the call it waits for."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import Body, FastAPI
from omegaconf import OmegaConf

from nemo_gym.base_responses_api_agent import BaseResponsesAPIAgentConfig, BaseRunRequest, SimpleResponsesAPIAgent
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.launch.ports import listen_on_unix_socket, unix_name
from nemo_gym.serve.app import create_app
from nemo_gym.serve.correlation import RolloutContextMiddleware
from nemo_gym.serve.failures import DeadlineMiddleware, FailureMiddleware
from nemo_gym.server_utils import ServerClient
from nemo_gym.transport import in_process, rejection_notice
from nemo_gym.transport.call_timing import pending_calls
from nemo_gym.transport.cell_link import (
    WAITING_CALLS,
    CellLink,
    CellListener,
    RemoteInstance,
    fetch_waiting_calls,
    waiting_calls_app,
)

HOST = "127.0.0.9"
PORTS = {
    "agent": ("responses_api_agents", 20001),
    "environment": ("resources_servers", 20002),
    "policy_model": ("responses_api_models", 20003),
}


def make_client(**config: Any) -> ServerClient:
    blocks = {
        name: {kind: {name: {"host": HOST, "port": port, "entrypoint": "app.py"}}}
        for name, (kind, port) in PORTS.items()
    }
    head = BaseServerConfig(host=HOST, port=20000)
    return ServerClient(head_server_config=head, global_config_dict=OmegaConf.create(blocks | config))


class Agent(SimpleResponsesAPIAgent):
    async def responses(self, body: Any = Body()) -> Any:
        raise NotImplementedError

    async def run(self, body: BaseRunRequest) -> Any:  # type: ignore[override]
        row = body.model_dump()
        await asyncio.gather(self.server_client.post(server_name="environment", url_path="/verify", json=row))
        return {"reward": 1.0}


@pytest.fixture(params=[{}, {"observability_enabled": True}], ids=["plain", "observed"])
async def cell(request: pytest.FixtureRequest) -> AsyncIterator[tuple[CellLink, asyncio.Event]]:
    """A link to a cell with an agent that calls an environment, which calls a model that answers on the event."""
    client, go_on = make_client(**request.param), asyncio.Event()
    config = BaseResponsesAPIAgentConfig(host=HOST, port=20001, entrypoint="app.py", name="agent")
    agent = Agent(config=config, server_client=client).prepare_webserver({})
    environment, model = create_app(), FastAPI()

    @model.post("/v1/responses")
    async def responses() -> Any:
        await go_on.wait()
        return {}

    @environment.post("/verify")
    async def verify_with_judge(body: dict[str, Any]) -> Any:
        await make_client().post(server_name="policy_model", url_path="/v1/responses", json={})
        return {}

    environment.add_middleware(RolloutContextMiddleware)
    environment.add_middleware(DeadlineMiddleware)
    environment.add_middleware(FailureMiddleware)
    for name, app in (("environment", environment), ("policy_model", model)):
        in_process.mount(HOST, PORTS[name][1], app)
    token, listener = secrets.token_hex(8), listen_on_unix_socket()
    cell_listener = CellListener({"agent": agent, WAITING_CALLS: waiting_calls_app}, token)
    server = await asyncio.get_running_loop().create_unix_server(cell_listener.protocol, sock=listener)
    link = CellLink(unix_name(listener), token, "cell 0")
    in_process.mount(HOST, PORTS["agent"][1], RemoteInstance("agent", [link]))
    try:
        yield link, go_on
    finally:
        go_on.set()
        link.close()
        server.close()
        await cell_listener.close()
        for _, port in PORTS.values():
            in_process.unmount(HOST, port)


def row(task: int, rollout: int = 0) -> dict[str, Any]:
    return {"responses_create_params": {"input": "x"}, "_ng_task_index": task, "_ng_rollout_index": rollout}


async def until_reported(link: CellLink, rollouts: list[tuple[int, int]], text: str) -> dict[tuple[int, int], str]:
    """Return the cell's report as soon as all rollouts wait for `text`."""
    async with asyncio.timeout(5):
        while list((calls := await fetch_waiting_calls([link], rollouts)).values()) != [text] * len(rollouts):  # noqa: ASYNC110 - the table sets no event
            await asyncio.sleep(0)
    return calls


async def test_a_rollout_that_waits_for_a_rate_limit_says_so(
    cell: tuple[CellLink, asyncio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An endpoint that answers 429 looks like a slow model otherwise."""
    monkeypatch.setattr(rejection_notice, "_rejections", {})
    link, go_on = cell
    run = asyncio.create_task(make_client().post(server_name="agent", url_path="/run", json=row(1)))
    rejection_notice.note_rejection("policy_model", 429, pause=60)

    await until_reported(link, [(1, 0)], "policy_model /v1/responses (429: rate limited)")

    go_on.set()
    await run


async def test_a_rollout_waits_for_its_innermost_call(cell: tuple[CellLink, asyncio.Event]) -> None:
    """The server that does not answer is of interest, not the agent and the verifier that wait for it."""
    link, go_on = cell
    client = make_client()
    runs = [asyncio.create_task(client.post(server_name="agent", url_path="/run", json=row(task))) for task in (1, 11)]

    one = await until_reported(link, [(1, 0)], "policy_model /v1/responses")
    both = await until_reported(link, [(1, 0), (11, 0)], "policy_model /v1/responses")

    assert one == {(1, 0): "policy_model /v1/responses"}
    assert both.keys() == {(1, 0), (11, 0)}
    assert await fetch_waiting_calls([link], [(1, 1), (2, 0)]) == {}
    go_on.set()
    answers = await asyncio.gather(*runs)
    assert [answer.status for answer in answers] == [200, 200]
    assert await fetch_waiting_calls([link], [(1, 0)]) == {}
    assert pending_calls == {}


async def test_a_cancelled_rollout_leaves_no_pending_call(cell: tuple[CellLink, asyncio.Event]) -> None:
    """The table must not grow over a run of a million rollouts."""
    link, _ = cell
    run = asyncio.create_task(make_client().post(server_name="agent", url_path="/run", json=row(5)))
    await until_reported(link, [(5, 0)], "policy_model /v1/responses")

    run.cancel()
    await asyncio.wait({run})
    async with asyncio.timeout(10):
        while pending_calls:  # noqa: ASYNC110 - the cancellation reaches the cell without an event
            await asyncio.sleep(0)


async def test_a_cell_that_is_gone_reports_nothing() -> None:
    """The report is needed at the very moment when something is broken."""
    nowhere = CellLink("\0nowhere-" + secrets.token_hex(8), "token", "cell 1")

    assert await fetch_waiting_calls([nowhere], [(0, 0)]) == {}
