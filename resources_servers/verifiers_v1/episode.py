"""One task of a taskset of verifiers: its package runs setup, tools, limits and rewards, and calls our model."""

import importlib
import random
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

from nemo_gym.adapters.episodes import PeerTurn, Row, episode_function
from nemo_gym.adapters.model_calls import CallingEpisode, assistant_message, function_tool

HARNESS = "nemo_gym_harness"
"""The name by which the package imports our harness."""


@cache
def temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of all working folders; it is removed when its process ends, unless that is killed."""
    return tempfile.TemporaryDirectory(prefix="gym-verifiers-", ignore_cleanup_errors=True)


def prepare() -> None:
    """Import the package once, before the sessions start."""
    for name in ("verifiers.v1", "verifiers.v1.envs.single_agent", "verifiers.v1.interception.server", "mcp", "httpx"):
        importlib.import_module(name)
    # A session that is killed leaves its working folder behind, by default in the home folder.
    importlib.import_module("verifiers.v1.runtimes.subprocess").CACHE_DIR = Path(temporary_folder().name)
    sys.modules[HARNESS] = importlib.import_module("resources_servers.verifiers_v1.harness")


def load_environment(name: str, arguments: dict[str, Any]) -> Any:
    """Return the environment of a taskset, with one agent: the policy.

    Raises:
        TypeError: its package plays with several agents, or the tasks need a container.
    """
    prepare()
    loaders = importlib.import_module("verifiers.v1.utils.loaders")
    single = importlib.import_module("verifiers.v1.envs.single_agent")
    if loaders.environment_class(name) is not single.SingleAgentEnv:
        raise TypeError(f"{name} plays with several agents, of which only one can be the policy")
    taskset = loaders.taskset_config_type(name).model_validate({"id": name, **arguments})
    if loaders.taskset_class(name).task_type().NEEDS_CONTAINER:
        raise TypeError(f"the tasks of {name} need a container")
    agent = {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}}
    return loaders.load_environment(single.SingleAgentEnvConfig(taskset=taskset, agent=agent))


@asynccontextmanager
async def policy_endpoint(episode: CallingEpisode) -> AsyncIterator[str]:
    """Serve Chat Completions on a free port of the loopback interface; every request is a turn of the policy."""
    web = importlib.import_module("aiohttp.web")

    async def complete(request: Any) -> Any:
        body = await request.json()
        functions = [tool["function"] for tool in body.get("tools") or ()]
        tools = [function_tool(one["name"], one.get("description", ""), one["parameters"]) for one in functions]
        message = assistant_message(await episode.ask(body["messages"], tools))
        finish = "tool_calls" if message.get("tool_calls") else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        reply = {"id": "policy", "object": "chat.completion", "created": 0, "model": "policy"}
        return web.json_response({**reply, "choices": [choice], "usage": usage})

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


class TasksetEpisode(CallingEpisode):
    async def play(self, row: Row) -> PeerTurn:
        random.seed(row["seed"])
        clients = importlib.import_module("verifiers.v1.clients")
        env = load_environment(row["environment"], row["arguments"])
        (task,) = env.taskset.include(idx=[str(row["index"])])
        if task.key != row["key"]:
            raise RuntimeError(f"task {row['index']} is another one than that of the row: the taskset has changed")
        async with policy_endpoint(self) as url:
            client = clients.EvalClientConfig(base_url=url, api_key_var="GYM_POLICY_KEY")
            async with env.serving():
                episode = await env.run_episode(task, clients.ModelContext(model="policy", client=client))
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if not episode.ok:
            raise RuntimeError("; ".join(f"{one.type}: {one.message}" for one in errors) or "the episode failed")
        (trace,) = episode.traces
        wire = importlib.import_module("verifiers.v1.dialects.chat").message_to_wire
        scored = {name: one.value for name, one in trace.rewards.items() if one is not None}
        return PeerTurn(
            reward=float(trace.reward),
            truncated=bool(trace.is_truncated or trace.is_timeout),
            messages=[wire(message) for message in trace.messages],
            info={"rewards": scored, "metrics": dict(trace.metrics), "stop_condition": trace.stop_condition},
        )


play = episode_function(TasksetEpisode)
