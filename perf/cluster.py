"""Measure what the Ray engine adds on one node: CPU time of a rollout, and time until the first rollout is stored.

`.venv-ray/bin/python -m perf.cluster [COUNT]` starts a cluster of one node with `ray start`, and then runs the same
evaluation with both engines, alternating. The CPU time is that of all processes of the run, with the Ray engine also
those of the cluster.
"""

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from perf.rollouts import RUNS, endpoint, measure_evaluation, server_flags, start_evaluation, write_rows

AT_ONCE = 64
MAX_TIMES_LOCAL = 1.3
"""The promise for the CPU time of a rollout on one node."""
MAX_LATER_SECONDS = 5.0
"""The promise for the start of a run on a warm cluster."""
START_SECONDS = 300.0
OBJECT_STORE_BYTES = 100 * 2**20


@contextmanager
def one_node_cluster(folder: Path) -> Iterator[tuple[str, int]]:
    """Start a cluster of one node; yield its address and the id of the process whose descendants are the cluster."""
    log = folder / "cluster.log"
    command = [
        str(Path(sys.executable).parent / "ray"), "start", "--head", "--port=0", "--num-cpus=2", "--block",
        "--include-dashboard=false", f"--object-store-memory={OBJECT_STORE_BYTES}",
    ]  # fmt: skip
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": f"{START_SECONDS:g}"}
    environment["RAY_AUTH_MODE"] = os.environ["RAY_AUTH_MODE"] = "token"
    environment["RAY_AUTH_TOKEN"] = os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    with log.open("wb") as log_file:
        process = subprocess.Popen(command, stdout=log_file, stderr=log_file, env=environment)
    try:
        deadline = time.monotonic() + START_SECONDS
        while (match := re.search(r"--address='([\d.]+:\d+)'", log.read_text())) is None:
            if time.monotonic() > deadline or process.poll() is not None:
                raise SystemExit(f"the cluster did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        yield match[1], process.pid
    finally:
        process.terminate()
        process.wait()


def start_seconds(rows: Path, servers: list[str], output: Path) -> float:
    """Return the time from the start of the command until the first rollout is stored."""
    begin = time.monotonic()
    process = start_evaluation(rows, AT_ONCE, [*servers, "--limit", "1"], output)
    while not (output.exists() and output.stat().st_size):
        if process.poll() is not None or time.monotonic() > begin + START_SECONDS:
            raise SystemExit(f"the evaluation failed:\n{output.with_suffix('.log').read_text()[-2000:]}")
        time.sleep(0.01)
    seconds = time.monotonic() - begin
    process.wait()
    return seconds


def measure(count: int = 2000) -> dict[str, Any]:
    """Return CPU milliseconds per rollout and seconds until the first one, of both engines: the best of RUNS."""
    costs: dict[str, list[float]] = {"local": [], "ray": []}
    starts: dict[str, list[float]] = {"local": [], "ray": []}
    collectors: dict[str, list[float]] = {"local": [], "ray": []}
    with tempfile.TemporaryDirectory() as name, endpoint(Path(name)) as url:
        folder, rows = Path(name), Path(name, "rows.jsonl")
        part = (400, 400 + count)
        write_rows(rows, part[1] + AT_ONCE)
        with one_node_cluster(folder) as (address, cluster):
            on_cluster = ["--engine", "ray", "--ray-address", address, "+node_resources={CPU: 1}"]
            engines = {"local": ([], None), "ray": (on_cluster, cluster)}
            for number in range(RUNS):
                for engine, (flags, also) in engines.items():
                    servers = [*server_flags(url), *flags]
                    output = folder / f"{engine}{number}.jsonl"
                    cost = measure_evaluation(start_evaluation(rows, AT_ONCE, servers, output), output, part, also)
                    costs[engine].append(cost.total)
                    collectors[engine].append(cost.collector)
                    starts[engine].append(start_seconds(rows, servers, folder / f"start-{engine}{number}.jsonl"))
    return {
        "local_ms": min(costs["local"]),
        "ray_ms": min(costs["ray"]),
        "ratio": min(costs["ray"]) / min(costs["local"]),
        "later_seconds": min(starts["ray"]) - min(starts["local"]),
        "all_ms": costs,
        "all_driver_ms": collectors,
        "all_start_seconds": starts,
    }


if __name__ == "__main__":
    print(json.dumps(measure(*map(int, sys.argv[1:])), indent=2))
