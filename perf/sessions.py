"""Measure training sessions: rollouts per second, the delay by a slow task, cancellation, and 20,000 rows in flight.

Each measurement runs in a separate process (`python -m perf.sessions NAME COUNT`), which prints its figures as JSON.
The model is scripted and answers at once, or after the seconds that the row says.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

from perf.inflight import family_cpu_seconds

MAX_CPU_MS = 1000 / 300 * 2
"""CPU of one rollout, all processes together: 300 rollouts a second on two cores."""
MAX_TIMES_ALONE = 1.3
"""Time of fast groups beside a slow task, relative to the same groups alone."""
MAX_CANCEL_SECONDS = 1.0
MAX_KB = 200.0
SLOW_SECONDS = 3600.0
PAUSE_SECONDS = 2.0
"""How long the model takes in the 20,000 rollouts that are in flight together."""

TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


def play(scene: Any) -> dict[str, Any]:
    """The scripted model: call the tool, then answer after the seconds in the message."""
    if scene.number == 0:
        return {"tool_calls": [{"name": "get_weather", "arguments": {"city": "Oslo"}}]}
    message = next(item for item in scene.conversation if item.get("role") == "user")
    return {"text": "cold", "delay_seconds": float(message["content"])}


def config(**keys: Any) -> dict[str, Any]:
    """Return the configuration of the weather example with the scripted model."""
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": "weather"},
        "model_server": {"type": "responses_api_models", "name": "model"},
    }
    model = {"entrypoint": "app.py", "function": "perf.sessions:play", "token_ids": True}
    return {
        "weather": {"resources_servers": {"example_single_tool_call": {"entrypoint": "app.py", "domain": "agent"}}},
        "agent": {"responses_api_agents": {"simple_agent": agent}},
        "model": {"responses_api_models": {"scripted_model": model}},
        "num_cells": os.cpu_count() or 1,
        **keys,
    }


def rows(count: int, seconds: float = 0.0) -> Iterator[dict[str, Any]]:
    for _ in range(count):
        params = {"input": [{"role": "user", "content": f"{seconds}"}], "tools": [TOOL]}
        yield {"responses_create_params": params, "agent_ref": {"name": "agent"}}


async def stream(count: int) -> dict[str, Any]:
    """Return rollouts per second, and the CPU of one, of a stream with an instant model, after a warm-up."""
    from nemo_gym import training

    async with training.session(config()) as gym:
        async for _ in gym.stream(rows(count // 4), at_once=64):
            pass
        start, cpu_before = time.monotonic(), family_cpu_seconds(os.getpid())
        done = [rollout.trainable async for rollout in gym.stream(rows(count), at_once=64)]
        seconds, cpu = time.monotonic() - start, family_cpu_seconds(os.getpid()) - cpu_before
        return {"per_second": count / seconds, "cpu_ms": 1000 * cpu / count, "errors": count - sum(done)}


async def slow_task(count: int) -> dict[str, Any]:
    """Return the time of `count` fast groups beside a task that does not end, relative to the groups alone."""
    from nemo_gym import training

    async def seconds_for(slow: int) -> float:
        start = time.monotonic()
        sources = [*rows(slow, SLOW_SECONDS), *rows(count)]
        async with aclosing(gym.groups(sources, 8, at_once=64 + 8 * slow)) as groups:
            for _ in range(count):
                await anext(groups)
            return time.monotonic() - start

    async with training.session(config()) as gym:
        await seconds_for(0)
        runs = [(await seconds_for(0), await seconds_for(1)) for _ in range(3)]
    return {"times_alone": min(beside for _, beside in runs) / min(alone for alone, _ in runs)}


async def cancel(count: int) -> dict[str, Any]:
    """Return the longest of 20 cancellations with `count` rollouts in flight, and the rollouts without a prefix."""
    from nemo_gym import training

    async with training.session(config()) as gym, gym.stream(rows(count, SLOW_SECONDS), at_once=count) as rollouts:
        while len(gym.in_flight) < count:  # noqa: ASYNC110 - the session does not signal it
            await asyncio.sleep(0.05)
        await asyncio.sleep(5 * count / 1000)  # until every rollout waits in its second turn
        longest, without_prefix = 0.0, 0
        for number in range(20):
            start = time.monotonic()
            await gym.cancel(f"{number * count // 20}-0")
            longest = max(longest, time.monotonic() - start)
            without_prefix += not (await anext(rollouts)).samples
        return {"seconds": longest, "without_prefix": without_prefix}


async def run_examples(count: int, head: Any) -> dict[str, Any]:
    """Return errors, seconds and memory of `count` rows that `run_examples` has in flight together."""
    from nemo_gym.rollout_collection import RolloutCollectionHelper

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, errors = time.monotonic(), 0
    for awaitable in RolloutCollectionHelper().run_examples(list(rows(count, PAUSE_SECONDS)), head_server_config=head):
        try:
            _, result = await awaitable
            errors += result["reward"] != 1.0
        except Exception as error:  # any error counts
            errors += 1
            if errors < 4:
                print(f"{type(error).__name__}: {str(error)[:500]}", file=sys.stderr)
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"errors": errors, "seconds": time.monotonic() - start, "kb_per_rollout": used / count}


def run_examples_of_a_trainer(count: int) -> dict[str, Any]:
    """Start the servers as NeMo RL does, and run the rows over HTTP."""
    from omegaconf import OmegaConf

    from nemo_gym.cli.env import RunHelper
    from nemo_gym.global_config import GlobalConfigDictParserConfig
    from nemo_gym.transport.http_sessions import raise_open_files_limit

    raise_open_files_limit()
    limits = {"global_aiohttp_connector_limit": 65536, "global_aiohttp_connector_limit_per_host": 65536}
    values, helper = OmegaConf.create(config(**limits)), RunHelper()
    helper.start(GlobalConfigDictParserConfig(initial_global_config_dict=values, skip_load_from_cli=True))
    try:
        return asyncio.run(run_examples(count, helper.head))
    finally:
        helper.shutdown()


MEASUREMENTS = {
    "stream": lambda count: asyncio.run(stream(count)),
    "slow_task": lambda count: asyncio.run(slow_task(count)),
    "cancel": lambda count: asyncio.run(cancel(count)),
    "run_examples": run_examples_of_a_trainer,
}


def measure(name: str, count: int) -> dict[str, Any]:
    """Run one measurement in a new process and return its figures."""
    command = [sys.executable, "-m", "perf.sessions", name, str(count)]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=500).stdout
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    return figures


if __name__ == "__main__":
    print(json.dumps(MEASUREMENTS[sys.argv[1]](int(sys.argv[2]))))
