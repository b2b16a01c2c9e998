"""Servers for the tests of sessions: an environment with a tool, one with a score, and an engine that never answers."""

import asyncio
import json
import threading

from aiohttp import web

WEATHER = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


def agent(resources: str, model: str) -> dict:
    block = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": resources},
        "model_server": {"type": "responses_api_models", "name": model},
    }
    return {"responses_api_agents": {"simple_agent": block}}


def servers(engine_url: str, **fields) -> dict:
    """Return a configuration with the agents `weather_agent`, `sums_agent` and `engine_agent`."""
    scripted = {"entrypoint": "app.py", "function": "tests.training.scripted_play:play", "token_ids": True}
    engine = {"entrypoint": "app.py", "openai_base_url": engine_url, "openai_api_key": "x", "openai_model": "m"}
    return {
        "weather": {
            "resources_servers": {"example_single_tool_call": {"entrypoint": "app.py", "domain": "agent"}},
        },
        "sums": {"resources_servers": {"arithmetic": {"entrypoint": "app.py", "domain": "math"}}},
        "scripted": {"responses_api_models": {"scripted_model": scripted}},
        "engine": {"responses_api_models": {"openai_model": engine}},
        "weather_agent": agent("weather", "scripted"),
        "sums_agent": agent("sums", "scripted"),
        "engine_agent": agent("weather", "engine"),
        **fields,
    }


def row(agent: str = "weather_agent", *, expected: int | None = None, **wish) -> dict:
    """Return a row whose model does what `wish` says."""
    params = {"input": [{"role": "user", "content": json.dumps(wish)}], "tools": [WEATHER]}
    extra = {} if expected is None else {"expected_answer": expected}
    return {"responses_create_params": params, "agent_ref": {"name": agent}, **extra}


class HangingEngine:
    """A model endpoint on a thread: it keeps every request open and notes when the client gives one up."""

    def __init__(self) -> None:
        self.arrived, self.given_up = threading.Semaphore(0), threading.Semaphore(0)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_):
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> str:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}/v1"

    async def _answer(self, request: web.Request) -> web.Response:
        if request.method != "POST":
            return web.json_response({"data": []})
        await request.read()
        self.arrived.release()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.given_up.release()
            raise
        return web.Response()
