"""What one tool-calling rollout costs, collector and servers together, against the floor in the same minute.

CPU seconds of every process of `gym eval run` are summed, from the moment a first part of the rollouts is stored until
nearly all are. So start-up, first connections and first-call caches are outside, and the last rollouts, when fewer are
in flight than asked for. The floor is measured over the same part of the same rows, right after, so that a busy machine
slows both.

`python -m perf.rollouts [--no-serve]` measures at 64, 256 and 1,024 in flight. With `--no-serve` the servers are
started beforehand by `gym env start`, every `/run` is a request over HTTP, and their CPU counts as well.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
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
"""So many of each kind, in turn; the best counts, because other people's work on the machine only ever adds."""

WARM = 2
"""Rollouts for each place in flight before the measurement begins."""

LOOK_SECONDS = 0.01
LONGEST_SECONDS = 300.0

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


def serving(url: str) -> list[str]:
    """The flags that say which servers there are."""
    return [
        "--resources-server", "example_single_tool_call", "--model-type", "openai_model",
        "--model-url", url, "--model-api-key", "x", "--model", "mock", "+num_cells=1",
    ]  # fmt: skip


def evaluation(rows: Path, at_once: int, servers: list[str], output: Path) -> "subprocess.Popen[bytes]":
    """`gym eval run` on these rows, begun."""
    with output.with_suffix(".said").open("wb") as said:
        return subprocess.Popen(
            [
                *GYM, "eval", "run", *servers,
                "--input", str(rows), "--agent", "example_single_tool_call_simple_agent",
                "--output", str(output), "--overwrite", "--concurrency", str(at_once),
                "--disable-aggregation", "--json",
            ],
            stdout=said, stderr=said, env={**os.environ, "XDG_RUNTIME_DIR": str(output.parent)},
        )  # fmt: skip


@contextmanager
def started(url: str, folder: Path) -> Iterator[int]:
    """Servers that run already; the process they belong to."""
    log = folder / "servers.said"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [*GYM, "env", "start", *serving(url)],
            stdout=said, stderr=said, env={**os.environ, "XDG_RUNTIME_DIR": str(folder)},
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


class Stored:
    """How many lines a growing file has."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self.lines = 0

    def look(self) -> int:
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                added = file.read()
            self._read += len(added)
            self.lines += added.count(b"\n")
        return self.lines


def rollout_ms(
    rows: Path, at_once: int, servers: list[str], folder: Path, part: tuple[int, int], also: int | None = None
) -> float:
    """CPU milliseconds for each rollout between the two of `part`, all processes of the evaluation together.

    `also` is a process that counts, with its descendants.
    """
    output = folder / "out.jsonl"
    output.unlink(missing_ok=True)
    process = evaluation(rows, at_once, servers, output)
    marks: list[tuple[int, float]] = []
    stored, members = Stored(output), [process.pid]
    deadline = time.monotonic() + LONGEST_SECONDS
    try:
        while len(marks) < len(part):
            if stored.look() >= part[len(marks)]:
                members = members if marks else [*family(process.pid), *(family(also) if also is not None else ())]
                marks.append((stored.lines, sum(map(cpu_seconds, members))))
            if process.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(LOOK_SECONDS)
        if len(marks) < len(part) or process.wait(LONGEST_SECONDS):
            raise SystemExit(f"the evaluation failed:\n{output.with_suffix('.said').read_text()[-2000:]}")
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    (began, before), (ended, after) = marks
    return 1000.0 * (after - before) / (ended - began)


def floor_ms(rows: Path, at_once: int, url: str, part: tuple[int, int]) -> float:
    command = [sys.executable, "-m", "perf.floor", str(rows), str(at_once), f"{url}/responses", *map(str, part)]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return 1000.0 * float(result["cpu_s"]) / int(result["count"])


def measure(at_once: tuple[int, ...] = (64,), count: int = 4000, *, serve: bool = True) -> dict[str, Any]:
    """Milliseconds of CPU per rollout and per floor rollout, and their ratio, for each number in flight.

    `count` rollouts are measured, besides those before and after. Without `serve` the servers run already.
    """
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name, endpoint(Path(name)) as url, ExitStack() as running:
        folder = Path(name)
        also = None if serve else running.enter_context(started(url, folder))
        servers = serving(url) if serve else ["--no-serve"]
        rows = folder / "rows.jsonl"
        for number in at_once:
            warm = max(400, WARM * number)
            part = (warm, warm + count)
            write_rows(rows, warm + count + number)
            ours, floors = [], []
            for _ in range(RUNS):
                ours.append(rollout_ms(rows, number, servers, folder, part, also))
                floors.append(floor_ms(rows, number, url, part))
            found[str(number)] = {
                "ours_ms": min(ours),
                "floor_ms": min(floors),
                "ratio": min(ours) / min(floors),
                "all_ours_ms": ours,
                "all_floor_ms": floors,
            }
    return found


if __name__ == "__main__":
    print(json.dumps(measure((64, 256, 1024), serve="--no-serve" not in sys.argv), indent=2))
