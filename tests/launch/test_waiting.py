"""A rollout that hangs can be asked what it waits for, and one that nobody asks about pays nothing."""

import asyncio
import contextvars
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fastapi import FastAPI, Request
from omegaconf import OmegaConf

from nemo_gym.config_types import BaseServerConfig
from nemo_gym.launch.link import Door, Link, LinkedApp
from nemo_gym.launch.ports import listen_privately, unix_name
from nemo_gym.launch.waiting import WAITING, ask_cells, innermost_call, suspended_frames, waiting_app
from nemo_gym.net import local
from nemo_gym.net.isolated import Isolated
from nemo_gym.server_utils import ServerClient

ADDRESSES = {
    "agent": ("responses_api_agents", 20001),
    "environment": ("resources_servers", 20002),
    "policy_model": ("responses_api_models", 20003),
}


def client() -> ServerClient:
    config = {
        name: {kind: {name: {"host": "127.0.0.9", "port": port, "entrypoint": "app.py"}}}
        for name, (kind, port) in ADDRESSES.items()
    }
    head = BaseServerConfig(host="127.0.0.9", port=20000)
    return ServerClient(head_server_config=head, global_config_dict=OmegaConf.create(config))


@pytest.fixture
async def cell() -> AsyncIterator[tuple[Link, asyncio.Event]]:
    """A link to a door behind which an agent calls an environment, which calls a model that answers when told."""
    calling, go_on = client(), asyncio.Event()
    agent, environment, model = FastAPI(), FastAPI(), FastAPI()

    @agent.post("/run")
    async def run(request: Request) -> Any:
        row = await request.json()
        calls = [calling.post(server_name="environment", url_path="/verify", json=row)]
        await asyncio.gather(*calls)
        return {"reward": 1.0}

    @environment.post("/verify")
    async def verify() -> Any:
        await calling.post(server_name="policy_model", url_path="/v1/responses", json={})
        return {}

    @model.post("/v1/responses")
    async def responses() -> Any:
        await go_on.wait()
        return {}

    for name, app in (("environment", environment), ("policy_model", model)):
        local.mount("127.0.0.9", ADDRESSES[name][1], app)
    token, listener = secrets.token_hex(8), listen_privately()
    door = Door({"agent": agent, WAITING: waiting_app}, token)
    answering = await asyncio.get_running_loop().create_unix_server(door.protocol, sock=listener)
    link = Link(unix_name(listener), token, "cell 0")
    local.mount("127.0.0.9", ADDRESSES["agent"][1], LinkedApp("agent", lambda: link))
    try:
        yield link, go_on
    finally:
        go_on.set()
        link.close()
        answering.close()
        await door.close()
        for _, port in ADDRESSES.values():
            local.unmount("127.0.0.9", port)


def row(task: int, rollout: int = 0) -> dict[str, Any]:
    return {"responses_create_params": {}, "_ng_task_index": task, "_ng_rollout_index": rollout}


async def until_known(link: Link, places: list[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """What the cell answers as soon as it knows something about all of them."""
    async with asyncio.timeout(20):
        while len(found := await ask_cells([link], places)) < len(places):  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)
    return found


async def test_the_deepest_call_is_what_a_rollout_waits_for(cell: tuple[Link, asyncio.Event]) -> None:
    """Whoever looks at a hanging run wants the server that does not answer, not the agent that waits for it."""
    link, go_on = cell
    calling = client()
    running = [
        asyncio.create_task(calling.post(server_name="agent", url_path="/run", json=row(task))) for task in (1, 11)
    ]

    found = await until_known(link, [(1, 0)])
    both = await until_known(link, [(1, 0), (11, 0)])

    assert found == {(1, 0): "policy_model /v1/responses"}
    assert both == {(1, 0): "policy_model /v1/responses", (11, 0): "policy_model /v1/responses"}
    assert await ask_cells([link], [(1, 1), (2, 0)]) == {}
    go_on.set()
    answers = await asyncio.gather(*running)
    assert [answer.status for answer in answers] == [200, 200]
    assert await ask_cells([link], [(1, 0)]) == {}


async def test_a_cell_that_is_gone_knows_nothing(cell: tuple[Link, asyncio.Event]) -> None:
    """The view is there for the very moment when something is broken."""
    nowhere = Link("\0nobody-" + secrets.token_hex(8), "token", "cell 1")

    assert await ask_cells([nowhere], [(0, 0)]) == {}


@asynccontextmanager
async def suspended(work: Any) -> AsyncIterator["asyncio.Task[Any]"]:
    task = asyncio.create_task(work)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})


async def deepest() -> None:
    await asyncio.Event().wait()


async def by_hand() -> None:
    await Isolated(deepest(), contextvars.Context())


async def by_task() -> None:
    await asyncio.create_task(deepest())


async def by_gather() -> None:
    await asyncio.gather(asyncio.sleep(0), deepest())


async def by_wait() -> None:
    one = asyncio.create_task(deepest())
    await asyncio.wait({one})


@pytest.mark.parametrize("work", [deepest, by_hand, by_task, by_gather, by_wait])
async def test_frames_are_found_however_the_work_is_awaited(work: Any) -> None:
    """Agents await in every way there is."""
    async with suspended(work()) as task:
        names = [frame.f_code.co_name for frame in suspended_frames(task)]

        assert "deepest" in names
        assert innermost_call(task) is None


async def test_a_task_that_awaits_itself_in_a_circle_ends_the_search() -> None:
    """Looking must never hang or fail."""

    async def circle() -> None:
        me = asyncio.current_task()  # held by the last frame
        await asyncio.Event().wait()
        del me

    async with suspended(circle()) as task:
        assert len(list(suspended_frames(task))) >= 1
