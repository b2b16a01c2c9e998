"""Measure the CPU time and memory of the collector without the calls it makes: plan, run, resume.

The agent is an app in this process that answers at once; the cost of calling it is measured separately and subtracted.
Each step runs in a separate process; the figures are its CPU time and its peak memory.
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

MAX_MB = 300.0
CONCURRENCY = 256
MAX_MICROSECONDS = 150.0
MAX_RESUME_SECONDS = 3.0

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
            messages = [{"role": "user", "content": f"what is {number} + {number}?"}]
            file.write(orjson.dumps({"responses_create_params": {"input": messages}, "expected": number}) + b"\n")


async def instant_agent(_scope: Any, receive: Any, send: Any) -> None:
    """Read a request and send a prepared answer (an ASGI app)."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": orjson.dumps(ANSWER)})


def client() -> Any:
    from nemo_gym.config_types import BaseServerConfig
    from nemo_gym.server_utils import ServerClient
    from nemo_gym.transport import in_process

    config = {"a": {"responses_api_agents": {"instant": {"entrypoint": "x", "host": "127.0.0.1", "port": PORT}}}}
    in_process.mount("127.0.0.1", PORT, instant_agent)
    head = BaseServerConfig(host="127.0.0.1", port=2)
    return ServerClient(head_server_config=head, global_config_dict=config)


def floor_us(rows: Path, folder: Path, count: int = 5000) -> float:
    """Return the microseconds of the unavoidable work: parse a row, write a result."""
    with rows.open("rb") as source, (folder / "floor.jsonl").open("ab", buffering=0) as output:
        began = time.process_time()
        for _ in range(count):
            row = orjson.loads(source.readline() or b"{}")
            output.write(orjson.dumps({**ANSWER, **row}) + b"\n")
        return 1e6 * (time.process_time() - began) / count


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def step(rows: Path, output: Path, rollouts: int, resume: bool) -> dict[str, float]:
    """Plan all rows, or resume, and run `rollouts` of them; return the CPU seconds of each part."""
    from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
    from nemo_gym.rollouts.rollout_sender import run_on_agent

    server_client = client()
    marks: dict[str, float] = {}

    class Helper(RolloutCollectionHelper):
        def setup_server_client(self, head_server_config: Any = None) -> Any:  # noqa: ARG002
            return server_client

    async def calls() -> float:
        """Return the CPU seconds of the calls alone."""
        row = {**orjson.loads(rows.open("rb").readline()), "agent_ref": {"name": "a"}, "_ng_task_index": 0}
        calls_left = iter(range(rollouts))

        async def worker() -> None:
            for _ in calls_left:  # shared by all workers
                await run_on_agent(server_client, row)

        began = time.process_time()
        await asyncio.gather(*(worker() for _ in range(CONCURRENCY)))
        return time.process_time() - began

    def mark_planned(_: Any) -> None:
        marks["planned"] = time.process_time()

    async def run() -> None:
        marks["calls"] = await calls() if rollouts else 0.0
        config = RolloutCollectionConfig(
            input_jsonl_fpath=str(rows),
            output_jsonl_fpath=str(output),
            agent_name="a",
            num_samples_in_parallel=CONCURRENCY,
            disable_aggregation=True,
            max_total_tokens=rollouts if rollouts and not resume else 1,  # each rollout uses one token
            resume_from_cache=resume,
        )
        marks["began"] = time.process_time()
        await Helper(on_plan=mark_planned).collect_from_config(config)
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
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise SystemExit(f"the collector failed:\n{result.stderr[-3000:]}")
    figures: dict[str, float] = json.loads(result.stdout)
    return figures


def measure(rows: int = 1_000_000, rollouts: int = 100_000) -> dict[str, float]:
    """Return microseconds per rollout beyond its call, peak memory, and seconds until a resume runs a rollout."""
    with tempfile.TemporaryDirectory() as name:
        source, output = Path(name) / "rows.jsonl", Path(name) / "out.jsonl"
        write_rows(source, rows)
        first = _child(source, output, rollouts, 0)
        resume = _child(source, output, 0, 1)
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
        "resume_s": resume["plan_s"],
        "resume_peak_mb": resume["peak_mb"],
    }


if __name__ == "__main__":
    if len(sys.argv) == 5:
        print(json.dumps(step(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1")))
    else:
        print(json.dumps(measure(), indent=2))
