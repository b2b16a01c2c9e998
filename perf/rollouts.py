"""Measure the CPU time of one tool-calling rollout, collector and servers together, relative to the floor.

The figure sums the CPU seconds of every process of `gym eval run` between the moment a first part of the rollouts is
stored and the moment nearly all are, which excludes start-up, first connections, first-call caches and the end of the
run, when fewer rollouts are in flight. The floor is measured right afterwards over the same part of the same rows, so
that a busy machine slows both.

`python -m perf.rollouts [--no-serve]` measures at 64, 256 and 1,024 in flight. With `--no-serve`, `gym env start`
starts the servers beforehand, every `/run` is a request over HTTP, and the servers' CPU counts as well.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perf.startup import cpu_seconds, family

GYM = (sys.executable, "-m", "nemo_gym.cli.main")
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
RUNS = 3
"""Runs of each kind, alternating; the best counts, because other work on the machine only adds."""

WARM_UP = 2
"""Rollouts per rollout in flight before the measurement begins."""

POLL_SECONDS = 0.01
MAX_RUN_SECONDS = 300.0

MAX_TIMES_THE_FLOOR = 4.0
"""The promise. CI tolerates half as much again (`MARGIN`), because its machines are slower and busier."""

SYSTEM = "You are a helpful personal assistant that aims to be helpful and reduce any pain points the user has."


def write_rows(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            messages = [
                {"role": "developer", "content": SYSTEM},
                {"role": "user", "content": f"what's it like in sf? (question {number})"},
            ]
            file.write(json.dumps({"responses_create_params": {"input": messages, "tools": [TOOL]}}) + "\n")


@contextmanager
def endpoint(folder: Path, latency_ms: float = 0.0) -> Iterator[str]:
    """Run a mock endpoint; yield its URL."""
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


def server_flags(url: str) -> list[str]:
    """Return the flags that select the servers."""
    return [
        "--resources-server", "example_single_tool_call", "--model-type", "openai_model",
        "--model-url", url, "--model-api-key", "x", "--model", "mock", "+num_cells=1",
    ]  # fmt: skip


def start_evaluation(
    rows: Path,
    at_once: int,
    servers: list[str],
    output: Path,
    gym: Sequence[str] = GYM,
    checkout: Path | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> "subprocess.Popen[bytes]":
    """Start `gym eval run` on the rows, in the folder `checkout` (default: the current one)."""
    with output.with_suffix(".log").open("wb") as log_file:
        return subprocess.Popen(
            [
                *gym, "eval", "run", *servers,
                "--input", str(rows), "--agent", "example_single_tool_call_simple_agent",
                "--output", str(output), "--overwrite", "--concurrency", str(at_once),
                "--disable-aggregation", "--json",
            ],
            stdout=log_file, stderr=log_file, cwd=checkout,
            env={**os.environ, "XDG_RUNTIME_DIR": str(output.parent), "PYTHONHASHSEED": "0", **environment},
        )  # fmt: skip


@contextmanager
def running_servers(url: str, folder: Path) -> Iterator[int]:
    """Start the servers with `gym env start`; yield its process id."""
    log = folder / "servers.log"
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            [*GYM, "env", "start", *server_flags(url)],
            stdout=log_file, stderr=log_file, env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while b"ready" not in log.read_bytes():
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"the servers did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


class LineCounter:
    """Count the lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.lines = 0

    def update(self) -> int:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                added = file.read()
            self._read += len(added)
            self.lines += added.count(b"\n")
        return self.lines


@dataclass(frozen=True)
class RolloutCost:
    """CPU milliseconds per rollout: of the collector, and of all other processes together."""

    collector: float
    servers: float

    @property
    def total(self) -> float:
        return self.collector + self.servers


def measure_evaluation(
    process: "subprocess.Popen[bytes]", output: Path, part: tuple[int, int], also: int | None = None
) -> RolloutCost:
    """Return the cost of a rollout between the two numbers of `part`; wait for the end of the evaluation.

    `also` is a further process to count, with its descendants.
    """
    marks: list[tuple[int, list[float]]] = []
    stored, members = LineCounter(output), [process.pid]
    deadline = time.monotonic() + MAX_RUN_SECONDS
    try:
        while len(marks) < len(part):
            if stored.update() >= part[len(marks)]:
                members = members if marks else [*family(process.pid), *(family(also) if also is not None else ())]
                marks.append((stored.lines, list(map(cpu_seconds, members))))
            if process.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(POLL_SECONDS)
        if len(marks) < len(part) or process.wait(MAX_RUN_SECONDS):
            raise SystemExit(f"the evaluation failed:\n{output.with_suffix('.log').read_text()[-2000:]}")
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    (first, before), (last, after) = marks
    collector, *others = (1000.0 * (end - start) / (last - first) for start, end in zip(before, after, strict=True))
    return RolloutCost(collector, sum(others))


def floor_ms(rows: Path, at_once: int, url: str, part: tuple[int, int]) -> float:
    command = [sys.executable, "-m", "perf.floor", str(rows), str(at_once), f"{url}/responses", *map(str, part)]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return 1000.0 * float(result["cpu_s"]) / int(result["count"])


def measure(at_once: tuple[int, ...] = (64,), count: int = 4000, *, serve: bool = True) -> dict[str, Any]:
    """Return CPU milliseconds per rollout, of the floor, and their ratio, for each number in flight.

    `count` rollouts are measured, after a warm-up. Without `serve`, the servers are started beforehand.
    """
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, endpoint(Path(name)) as url, ExitStack() as running:
        folder = Path(name)
        also = None if serve else running.enter_context(running_servers(url, folder))
        servers = server_flags(url) if serve else ["--no-serve"]
        rows = folder / "rows.jsonl"
        for number in at_once:
            warm = max(400, WARM_UP * number)
            part = (warm, warm + count)
            write_rows(rows, warm + count + number)
            ours, floors = [], []
            for _ in range(RUNS):
                output = folder / "out.jsonl"
                output.unlink(missing_ok=True)
                process = start_evaluation(rows, number, servers, output)
                ours.append(measure_evaluation(process, output, part, also).total)
                floors.append(floor_ms(rows, number, url, part))
            figures[str(number)] = {
                "ours_ms": min(ours),
                "floor_ms": min(floors),
                "ratio": min(ours) / min(floors),
                "all_ours_ms": ours,
                "all_floor_ms": floors,
            }
    return figures


if __name__ == "__main__":
    print(json.dumps(measure((64, 256, 1024), serve="--no-serve" not in sys.argv), indent=2))
