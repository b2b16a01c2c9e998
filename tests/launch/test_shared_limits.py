"""A limit on concurrent requests holds for the whole run: several cells, real processes, one counting endpoint."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from omegaconf import DictConfig, OmegaConf

from nemo_gym.config.search_roots import PARENT_DIR
from nemo_gym.launch.hosted_instances import Instance
from nemo_gym.launch.model_endpoints import SharedLimits
from nemo_gym.launch.run import Run
from tests.processes import wait_until

LIMIT = 2
ANSWER = {
    "id": "r", "created_at": 0, "model": "m", "object": "response", "parallel_tool_calls": True, "tool_choice": "auto",
    "tools": [], "output": [],
}  # fmt: skip


class CountingEndpoint:
    """Counts concurrent calls."""

    def __init__(self) -> None:
        self.now = self.highest = self.served = 0
        self.opened = asyncio.Event()
        self.url = ""

    async def respond(self, request: web.Request) -> web.Response:
        await request.read()
        self.now += 1
        self.highest = max(self.highest, self.now)
        try:
            await self.opened.wait()
            await asyncio.sleep(0.005)
        finally:
            self.now -= 1
        self.served += 1
        return web.json_response(ANSWER)


@asynccontextmanager
async def serving_endpoint() -> AsyncIterator[CountingEndpoint]:
    counting, app = CountingEndpoint(), web.Application()
    app.router.add_post("/v1/responses", counting.respond)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    counting.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield counting
    finally:
        counting.opened.set()
        await runner.cleanup()


def config_for(url: str) -> DictConfig:
    model = {
        "entrypoint": "app.py", "host": "127.0.0.1", "port": -1, "openai_base_url": url, "openai_api_key": "k",
        "openai_model": "m", "max_concurrent_requests": LIMIT,
    }  # fmt: skip
    head = {"host": "127.0.0.1", "port": 0}
    return OmegaConf.create({"head_server": head, "policy_model": {"responses_api_models": {"openai_model": model}}})


async def test_cells_together_keep_to_the_limit_even_after_some_were_killed() -> None:
    """The endpoint's owner allows two calls, however many processes we use."""

    async def call() -> int:
        # A new connection for every call, so that every cell gets some.
        async with aiohttp.ClientSession() as session, session.post(url, json={"input": "hi"}) as answer:
            await answer.read()
            return answer.status

    async with serving_endpoint() as counting, Run(config_for(counting.url), [PARENT_DIR], cells=3, links=False) as run:
        url = f"http://127.0.0.1:{run.instances[0].port}/v1/responses"
        first = [asyncio.create_task(call()) for _ in range(24)]
        await wait_until(lambda: counting.now == LIMIT)
        assert counting.highest == LIMIT
        before = [unit.pid for unit in run._supervisor.units]
        for pid in before[1:]:  # with the semaphore slots they hold and the calls that wait in them
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: not {None, *before[1:]} & {unit.pid for unit in run._supervisor.units})
        counting.opened.set()
        await asyncio.gather(*first, return_exceptions=True)
        highest_at_first, counting.highest = counting.highest, 0
        await wait_until(lambda: all(unit.ready and unit.ready.done() for unit in run._supervisor.units))
        statuses = await asyncio.gather(*(call() for _ in range(24)))

    assert highest_at_first <= 2 * LIMIT  # calls of dead processes may still be in flight at the endpoint
    assert counting.highest == LIMIT
    assert statuses == [200] * 24


def make_instance(**changes: Any) -> Instance:
    fields: dict[str, Any] = {
        "name": "m", "kind": "responses_api_models", "implementation": "openai_model", "folder": PARENT_DIR,
        "entrypoint": "app.py", "host": "127.0.0.1", "port": 1, "hosting": "cell",
    }  # fmt: skip
    return Instance(**{**fields, **changes})


def config_with(**settings: Any) -> dict[str, Any]:
    return {"m": {"responses_api_models": {"openai_model": settings}}}


def test_a_limit_is_shared_only_between_several_processes() -> None:
    """A single process counts for itself, which costs nothing."""
    cases = [
        (make_instance(), config_with(max_concurrent_requests=2), 1),
        (make_instance(), config_with(), 4),
        (make_instance(), config_with(max_concurrent_requests=2), 4),
        (make_instance(hosting="process", num_workers=3), config_with(max_concurrent_requests=2), 1),
        (make_instance(), config_with(max_concurrent_requests=2, base_url=["http://a/v1", "http://b/v1"]), 4),
    ]
    semaphores = []
    for instance, config, cells in cases:
        limits = SharedLimits(config, [instance], cells)
        semaphores.append(len(limits.descriptors().get("m", [])))
        limits.close()

    assert semaphores == [0, 0, 1, 1, 2]
