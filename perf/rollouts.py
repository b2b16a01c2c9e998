"""What one tool-calling rollout costs, collector and servers together, against the floor in the same minute.

CPU seconds of every process of ours are summed. Start-up is taken out by measuring a short and a long run and dividing
the difference; the floor is measured between them, so that a busy machine slows both.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "description": ""}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
RUNS = 2
"""The best of so many, of each kind: starting up varies by as much as hundreds of rollouts cost."""

MOST_TIMES_THE_FLOOR = 4.0
"""What is promised. CI lets a promise be missed by half (`MARGIN`), because its machines are slower and busier."""

SYSTEM = "You are a helpful personal assistant that aims to be helpful and reduce any pain points the user has."


def write_rows(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            asked = [
                {"role": "developer", "content": SYSTEM},
                {"role": "user", "content": f"what's it like in sf? (question {number})"},
            ]
            file.write(json.dumps({"responses_create_params": {"input": asked, "tools": [TOOL]}}) + "\n")


@contextmanager
def endpoint(folder: Path, latency_ms: float = 0.0) -> Iterator[str]:
    """The URL of a running mock endpoint."""
    port_file = folder / "port"
    process = subprocess.Popen([sys.executable, "-m", "perf.endpoint", str(port_file), str(latency_ms)])
    try:
        deadline = time.monotonic() + 30
        while not port_file.exists() or not port_file.read_text():
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit("the mock endpoint did not start")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port_file.read_text()}/v1"
    finally:
        process.terminate()
        process.wait()


def children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def evaluation_cpu(rows: Path, at_once: int, url: str, folder: Path) -> float:
    """CPU seconds of `gym eval run`, all its processes included."""
    before = children_cpu()
    done = subprocess.run(
        [
            sys.executable, "-m", "nemo_gym.cli.main", "eval", "run",
            "--resources-server", "example_single_tool_call", "--model-type", "openai_model",
            "--model-url", url, "--model-api-key", "x", "--model", "mock",
            "--input", str(rows), "--agent", "example_single_tool_call_simple_agent",
            "--output", str(folder / "out.jsonl"), "--concurrency", str(at_once),
            "--disable-aggregation", "--json", "+num_cells=1",
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"the evaluation failed:\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
    return children_cpu() - before


def floor_ms(rows: Path, at_once: int, url: str) -> float:
    command = [sys.executable, "-m", "perf.floor", str(rows), str(at_once), f"{url}/responses"]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return 1000.0 * float(result["cpu_s"]) / int(result["count"])


def measure(at_once: tuple[int, ...] = (64,), count: int = 2000) -> dict[str, Any]:
    """Milliseconds of CPU per rollout and per floor rollout, and their ratio, for each number in flight."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, endpoint(Path(name)) as url:
        folder = Path(name)
        short, long = folder / "short.jsonl", folder / "long.jsonl"
        write_rows(short, count // 10)
        write_rows(long, count)
        for number in at_once:
            starts, wholes, floors = [], [], []
            for _ in range(RUNS):
                starts.append(evaluation_cpu(short, number, url, folder))
                floors.append(floor_ms(long, number, url))
                wholes.append(evaluation_cpu(long, number, url, folder))
            ours = 1000.0 * (min(wholes) - min(starts)) / (count - count // 10)
            found[str(number)] = {"ours_ms": ours, "floor_ms": min(floors), "ratio": ours / min(floors)}
    return found


if __name__ == "__main__":
    print(json.dumps(measure((64, 256, 1024)), indent=2))
