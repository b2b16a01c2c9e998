"""Measure CPU time and memory of scoring and profiling stored rollouts, relative to parsing the file.

    python -m perf.aggregate [ROLLOUTS]

100,000 rollouts of a tool-calling task (158 MB) in 12,500 tasks of eight; the floor is `orjson.loads` of every line.
Each measurement runs in a separate process, so that peak memory is measured separately too.
"""

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

ROLLOUTS = 100_000
REPEATS = 8
RUNS = 2
LIMIT_SECONDS = 5.0
LIMIT_MB = 400.0
START_SECONDS = 1.2
"""CPU time of a command before it reads its first line; matters only in the short form."""

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": ""}},
        "required": ["city"],
        "additionalProperties": False,
    },
}

PROGRAMS = {
    "floor": "import orjson, sys\nwith open(sys.argv[1], 'rb') as lines:\n    for line in lines: orjson.loads(line)\n",
    "aggregate": "import sys\nfrom nemo_gym.cli.main import main\n"
    "sys.argv[1:] = ['eval', 'aggregate', '-i', sys.argv[1], '--json']\nassert main() == 0\n",
    "profile": "import sys\nfrom nemo_gym.cli.main import main\n"
    "sys.argv[1:] = ['eval', 'profile', '--rollouts', sys.argv[1], '--json']\nassert main() == 0\n",
}
PRINT_USAGE = (
    "\nimport json, resource\nused = resource.getrusage(resource.RUSAGE_SELF)\n"
    "sys.stderr.write('\\n' + json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024]))\n"
)


def request_params(task: int) -> dict[str, Any]:
    text = "You are a helpful personal assistant that aims to be helpful and reduce any pain points the user has."
    messages = [
        {"role": "developer", "content": text},
        {"role": "user", "content": f"what's it like in sf? (question {task})"},
    ]
    return {"input": messages, "tools": [TOOL]}


def response_to(task: int, draw: random.Random) -> dict[str, Any]:
    call = {"type": "function_call", "call_id": f"call_{task}", "name": "get_weather", "arguments": '{"city":"SF"}'}
    words = " ".join(draw.choices(("cold", "windy", "foggy", "mild", "take", "a", "coat", "tonight"), k=72))
    message = {
        "type": "message",
        "id": f"msg_{task}",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": f"The weather in San Francisco is {words}.", "annotations": []}],
    }
    incoming, outgoing = draw.randrange(150, 400), draw.randrange(20, 90)
    return {
        "id": f"resp_{task}",
        "created_at": 1_700_000_000.0 + task,
        "model": "policy",
        "object": "response",
        "output": [call, {"type": "function_call_output", "call_id": f"call_{task}", "output": "cold"}, message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": incoming, "output_tokens": outgoing, "total_tokens": incoming + outgoing},
    }


def records(rollouts: int, repeats: int = REPEATS) -> Iterator[dict[str, Any]]:
    """Yield rollouts as a run stores them: whole conversations, a reward and a few numbers added by the server."""
    draw = random.Random(0)
    for number in range(rollouts):
        task, rollout = divmod(number, repeats)
        yield {
            "responses_create_params": request_params(task),
            "response": response_to(task, draw),
            "reward": float(draw.random() < task / (rollouts / repeats)),
            "parsed": draw.random() < 0.9,
            "num_steps": draw.randrange(2, 6),
            "seconds": round(draw.expovariate(0.2), 3),
            "_ng_task_index": task,
            "_ng_rollout_index": rollout,
            "agent_ref": {"type": "responses_api_agents", "name": "weather_agent"},
        }


def write_run(folder: Path, rollouts: int, repeats: int = REPEATS) -> Path:
    """Write the rollouts of a run and their inputs; return the path of the rollouts."""
    path = folder / "rollouts.jsonl"
    kept = ("responses_create_params", "_ng_task_index", "_ng_rollout_index", "agent_ref")
    with path.open("wb") as rollouts_file, (folder / "rollouts_materialized_inputs.jsonl").open("wb") as inputs:
        for record in records(rollouts, repeats):
            rollouts_file.write(orjson.dumps(record) + b"\n")
            inputs.write(orjson.dumps({name: record[name] for name in kept}) + b"\n")
    return path


def measure(rollouts: int = ROLLOUTS, repeats: int = REPEATS, runs: int = RUNS) -> dict[str, dict[str, float]]:
    """Return CPU seconds, peak megabytes and ratio to the floor of each command on generated data; best of `runs`."""
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="perf-aggregate-") as folder:
        path = write_run(Path(folder), rollouts, repeats)
        for name, program in PROGRAMS.items():
            seconds, megabytes = min(_run_program(program, path) for _ in range(runs))
            figures[name] = {"cpu_s": seconds, "rss_mb": megabytes}
        for figure in figures.values():
            figure["x_floor"] = figure["cpu_s"] / figures["floor"]["cpu_s"]
            figure["mb_of_rollouts"] = path.stat().st_size / 1e6
    return figures


def _run_program(program: str, path: Path) -> tuple[float, float]:
    command = [sys.executable, "-c", program + PRINT_USAGE, str(path)]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, megabytes = json.loads(result.stderr.splitlines()[-1])
    return seconds, megabytes


def limit_seconds(rollouts: int) -> float:
    """Return the promised CPU seconds for a number of rollouts."""
    return LIMIT_SECONDS if rollouts >= ROLLOUTS else START_SECONDS + LIMIT_SECONDS * rollouts / ROLLOUTS


def main() -> None:
    rollouts = int(sys.argv[1]) if len(sys.argv) > 1 else ROLLOUTS
    for repeats in (REPEATS, 1):
        for name, figure in measure(rollouts, repeats).items():
            text = ", ".join(f"{key} {value:.2f}" for key, value in figure.items())
            print(f"{rollouts} rollouts, {repeats} per task, {name}: {text}")


if __name__ == "__main__":
    main()
