"""What the collector costs beside the calls it makes: many rows planned, some of them run, the output resumed.

The agent is an app in this process that answers at once. What calling it costs is measured by itself and taken out.
Everything is CPU time of one process, and its peak memory; each step is a process of its own.
"""

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

MOST_MB = 300.0
MOST_MICROSECONDS = 150.0
MOST_RESUME_SECONDS = 3.0

PORT = 1
ANSWER = {
    "responses_create_params": {"input": [{"role": "user", "content": "what is 2 + 2? " * 20}]},
    "response": {
        "id": "resp_1",
        "object": "response",
        "output": [
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "four " * 120}]}
        ],
        "usage": {"input_tokens": 0, "output_tokens": 1, "total_tokens": 1},
    },
    "reward": 1.0,
    "expected": "4",
}


def write_rows(path: Path, count: int) -> None:
    with path.open("wb") as file:
        for number in range(count):
            asked = [{"role": "user", "content": f"what is {number} + {number}?"}]
            file.write(orjson.dumps({"responses_create_params": {"input": asked}, "expected": number}) + b"\n")


async def instant_agent(_scope: Any, receive: Any, send: Any) -> None:
    """An ASGI app that reads the request and has the answer ready."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": orjson.dumps(ANSWER)})


def client() -> Any:
    from nemo_gym.config_types import BaseServerConfig
    from nemo_gym.net import local
    from nemo_gym.server_utils import ServerClient

    config = {"a": {"responses_api_agents": {"instant": {"entrypoint": "x", "host": "127.0.0.1", "port": PORT}}}}
    local.mount("127.0.0.1", PORT, instant_agent)
    head = BaseServerConfig(host="127.0.0.1", port=2)
    return ServerClient(head_server_config=head, global_config_dict=config)


def floor_us(rows: Path, folder: Path, count: int = 5000) -> float:
    """What nobody can do without: read a row, write a result. Microseconds each."""
    with rows.open("rb") as source, (folder / "floor.jsonl").open("ab", buffering=0) as output:
        began = time.process_time()
        for _ in range(count):
            row = orjson.loads(source.readline() or b"{}")
            output.write(orjson.dumps({**ANSWER, **row}) + b"\n")
        return 1e6 * (time.process_time() - began) / count


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def step(rows: Path, output: Path, rollouts: int, resume: bool) -> dict[str, float]:
    """Plan all rows, or resume, and run `rollouts` of them; seconds of CPU for each part."""
    from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper, _run_on_agent
    from nemo_gym.rollouts.completion import in_completion_order

    known = client()
    marks: dict[str, float] = {}

    class Helper(RolloutCollectionHelper):
        def setup_server_client(self, head_server_config: Any = None) -> Any:  # noqa: ARG002
            return known

    async def calls() -> float:
        """What the calls alone cost."""
        row = {**orjson.loads(rows.open("rb").readline()), "agent_ref": {"name": "a"}, "_ng_task_index": 0}
        began = time.process_time()
        for awaitable in in_completion_order([row] * rollouts, lambda one: _run_on_agent(known, one), at_once=256):
            await awaitable
        return time.process_time() - began

    def planned(_: Any) -> None:
        marks["planned"] = time.process_time()

    async def run() -> None:
        marks["calls"] = await calls() if rollouts else 0.0
        done = rollouts if not resume else 0
        config = RolloutCollectionConfig(
            input_jsonl_fpath=str(rows),
            output_jsonl_fpath=str(output),
            agent_name="a",
            num_samples_in_parallel=256,
            disable_aggregation=True,
            max_total_tokens=max(1, done),  # one token each: that many rollouts are run, or none
            resume_from_cache=resume,
        )
        marks["began"] = time.process_time()
        await Helper(on_plan=planned).collect_from_config(config)
        marks["ended"] = time.process_time()

    asyncio.run(run())
    return {
        "plan_s": marks["planned"] - marks["began"],
        "run_s": marks["ended"] - marks["planned"],
        "calls_s": marks["calls"],
        "peak_mb": peak_mb(),
    }


def _child(*arguments: object) -> dict[str, float]:
    command = [sys.executable, "-m", "perf.collector", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the collector failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def measure(rows: int = 1_000_000, rollouts: int = 100_000) -> dict[str, float]:
    """Microseconds per rollout beyond its call, peak memory, and what resuming takes before the first rollout."""
    with tempfile.TemporaryDirectory() as name:
        source, output = Path(name) / "rows.jsonl", Path(name) / "out.jsonl"
        write_rows(source, rows)
        first = _child(source, output, rollouts, 0)
        again = _child(source, output, 0, 1)
        size = output.stat().st_size
        floor = floor_us(source, Path(name))
    beyond = 1e6 * (first["run_s"] - first["calls_s"]) / rollouts
    return {
        "rows": rows,
        "rollouts": rollouts,
        "output_mb": size / 1e6,
        "plan_us_per_row": 1e6 * first["plan_s"] / rows,
        "us_per_rollout": beyond,
        "floor_us": floor,
        "times_the_floor": beyond / floor,
        "call_us": 1e6 * first["calls_s"] / rollouts,
        "peak_mb": first["peak_mb"],
        "resume_s": again["plan_s"],
        "resume_peak_mb": again["peak_mb"],
    }


if __name__ == "__main__":
    if len(sys.argv) == 5:
        print(json.dumps(step(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")))
    else:
        print(json.dumps(measure(), indent=2))
