"""Measure thousands of rollouts at once against a slow endpoint: wall time, event-loop lag, memory per rollout.

`python -m perf.inflight [CONCURRENCY] [WAVES] [RUNS]` starts an endpoint that answers after a second, one cell per
core, and collects CONCURRENCY x WAVES rollouts of two model turns each. Wall time is compared with two figures, both
printed:

- the latency alone, two seconds a wave: the time on a machine with enough cores;
- the floor: the same calls in bare loops (`perf/floor.py`), one process per cell, measured right afterwards. On a
  machine whose cores are the bottleneck, the floor takes longer than the latency alone.

The ideal is the longer of the two. Loop lag is the delay of a timer, in the collector and in every cell; memory is the
peak of all processes minus their memory before the first rollout.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import uvloop
from omegaconf import DictConfig, OmegaConf

from perf import rollouts, startup

RUNS = 3
LATENCY = 1.0
TURNS = 2
LAG_INTERVAL = 0.02
MEMORY_INTERVAL = 1.0
"""Seconds between measurements of memory; each walks the page tables of all processes, which costs CPU."""
MAX_TIMES_IDEAL = 1.25
MAX_LAG_MS = 100.0
MAX_KB = 200.0

ROOT = Path(__file__).resolve().parents[1]
CELL_LAG = re.compile(r"delayed by ([0-9.]+) ms \(p99\)")


def servers(url: str, at_once: int) -> DictConfig:
    """Return the configuration of the weather example; ports are chosen at the start."""
    weather = {"entrypoint": "app.py", "domain": "agent"}
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": "weather"},
        "model_server": {"type": "responses_api_models", "name": "model"},
    }
    model = {"entrypoint": "app.py", "openai_base_url": url, "openai_api_key": "x", "openai_model": "mock"}
    address = {"host": "127.0.0.1", "port": -1}
    config: dict[str, Any] = {
        "head_server": {"host": "127.0.0.1", "port": 0},
        "weather": {"resources_servers": {"example_single_tool_call": weather | address}},
        "agent": {"responses_api_agents": {"simple_agent": agent | address}},
        "model": {"responses_api_models": {"openai_model": model | address}},
        "global_aiohttp_connector_limit_per_host": at_once,
        "verbose": True,
    }
    return OmegaConf.create(config)


class LoopLag:
    """Measure the delay of a timer of the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._late: list[float] = []
        self._due = 0.0

    def start(self) -> None:
        self._due = time.monotonic() + LAG_INTERVAL
        self._loop.call_later(LAG_INTERVAL, self._measure)

    def _measure(self) -> None:
        self._late.append(max(0.0, time.monotonic() - self._due))
        self.start()

    def p99_ms(self) -> float:
        late = sorted(self._late)
        return 1000 * late[int(0.99 * len(late))]


async def collect(url: str, folder: Path, at_once: int) -> None:
    """Start the servers, print `ready`, wait for a line, collect, and print seconds and lag (the measured process)."""
    from nemo_gym.launch.run import Run
    from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
    from nemo_gym.serve import gc_tuning
    from nemo_gym.server_utils import BaseServerConfig, ServerClient
    from nemo_gym.transport.http_sessions import raise_open_files_limit

    raise_open_files_limit()
    config = servers(url, at_once)
    async with Run(config, [ROOT], cells=os.cpu_count() or 1, log_dir=folder / "logs"):
        client = ServerClient(head_server_config=BaseServerConfig(**config["head_server"]), global_config_dict=config)
        helper = RolloutCollectionHelper()
        helper.setup_server_client = lambda *_: client  # type: ignore[method-assign]
        settings = RolloutCollectionConfig(
            input_jsonl_fpath=str(folder / "rows.jsonl"),
            output_jsonl_fpath=str(folder / "out.jsonl"),
            agent_name="agent",
            num_samples_in_parallel=at_once,
            disable_aggregation=True,
        )
        gc_tuning.freeze()
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        lag = LoopLag()
        lag.start()
        began = time.monotonic()
        await helper.collect_from_config(settings)
        print(json.dumps({"seconds": time.monotonic() - began, "lag_ms": lag.p99_ms()}), flush=True)
        await asyncio.to_thread(sys.stdin.read)  # stay alive until the parent has measured memory


def memory_kb(pid: int) -> float:
    """Return the proportional set size of a process and its descendants in kilobytes."""
    total = 0.0
    for member in startup.family(pid):
        try:
            total += startup.pss_mb(member) * 1024
        except OSError:
            continue  # it ended
    return total


def family_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and its live descendants."""
    total = 0.0
    for member in startup.family(pid):
        try:
            total += startup.cpu_seconds(member)
        except OSError:
            continue
    return total


class PeakMemory(threading.Thread):
    """Record the peak memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid = pid
        self._done = threading.Event()
        self.kb = 0.0

    def run(self) -> None:
        while not self._done.wait(MEMORY_INTERVAL):
            self.kb = max(self.kb, memory_kb(self._pid))

    def stop(self) -> float:
        self._done.set()
        self.join()
        return self.kb


def floor_seconds(folder: Path, url: str, at_once: int, waves: int) -> float:
    """Return the wall time of the same rollouts in bare loops, one process per cell."""
    cells = os.cpu_count() or 1
    each = at_once // cells
    rollouts.write_rows(folder / "floor.jsonl", each * waves)
    command = [sys.executable, "-m", "perf.floor", str(folder / "floor.jsonl"), str(each), f"{url}/responses"]
    loops = [
        subprocess.Popen(
            [*command, "0", str(each * waves), "wait"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(cells)
    ]
    for loop in loops:
        assert loop.stdout is not None
        if loop.stdout.readline() != "ready\n":
            raise SystemExit("the floor did not start")
    for loop in loops:
        assert loop.stdin is not None
        loop.stdin.write("\n")
        loop.stdin.flush()
    return max(float(json.loads(loop.communicate()[0])["wall_s"]) for loop in loops)


def measure(at_once: int = 4096, waves: int = 4, runs: int = RUNS) -> dict[str, Any]:
    """Return wall time relative to the ideal, the worst loop lag, errors and memory per rollout in flight.

    Runs alternate with the floor. The best wall time counts on both sides; of the other figures, the worst.
    """
    results = [measure_once(at_once, waves) for _ in range(runs)]
    latency = waves * TURNS * LATENCY
    ours, floor = [run["seconds"] for run in results], [run["floor_seconds"] for run in results]
    best, ideal = min(ours), max(latency, min(floor))
    return {
        "seconds": best,
        "latency_seconds": latency,
        "floor_seconds": min(floor),
        "times_latency": best / latency,
        "times_floor": best / min(floor),
        "times_ideal": best / ideal,
        "all_seconds": ours,
        "all_floor_seconds": floor,
        "cpu_ms_per_rollout": min(run["cpu_ms_per_rollout"] for run in results),
        "lag_ms": max(run["lag_ms"] for run in results),
        "errors": sum(run["errors"] for run in results),
        "kb_per_rollout": max(run["kb_per_rollout"] for run in results),
    }


def measure_once(at_once: int, waves: int) -> dict[str, Any]:
    """Measure one run, then the floor."""
    with tempfile.TemporaryDirectory() as name, rollouts.endpoint(Path(name), 1000 * LATENCY) as url:
        folder = Path(name)
        rollouts.write_rows(folder / "rows.jsonl", at_once * waves)
        child = subprocess.Popen(
            [sys.executable, "-m", "perf.inflight", "collect", url, str(folder), str(at_once)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        with child:
            assert child.stdin is not None
            assert child.stdout is not None
            if child.stdout.readline() != "ready\n":
                raise SystemExit("the servers did not start")
            before, cpu_before = memory_kb(child.pid), family_cpu_seconds(child.pid)
            peak = PeakMemory(child.pid)
            peak.start()
            child.stdin.write("\n")
            child.stdin.flush()
            printed = child.stdout.readline()
            cpu = family_cpu_seconds(child.pid) - cpu_before
            peak_kb = peak.stop()
            child.stdin.close()
        if child.returncode or not printed:
            raise SystemExit("the collection failed")
        figures = json.loads(printed)
        stored = (folder / "out.jsonl").read_bytes().count(b"\n")
        cells = [float(lag) for log in (folder / "logs").glob("*.log") for lag in CELL_LAG.findall(log.read_text())]
        return {
            "seconds": figures["seconds"],
            "floor_seconds": floor_seconds(folder, url, at_once, waves),
            "cpu_ms_per_rollout": 1000 * cpu / (at_once * waves),
            "lag_ms": max(figures["lag_ms"], *cells),
            "errors": at_once * waves - stored,
            "kb_per_rollout": (peak_kb - before) / at_once,
        }


if __name__ == "__main__":
    if sys.argv[1:2] == ["collect"]:
        uvloop.run(collect(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
    else:
        print(json.dumps(measure(*map(int, sys.argv[1:])), indent=2))
