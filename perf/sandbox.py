"""Measure running a program in the sandbox: cold, warm, and many at once.

The promise is wall time on an idle core. The steps of a run are sequential, so wall time equals the CPU time of all
processes involved (this one, `bwrap`, process 1, the program). CPU time is compared with the promise, because wall time
on a shared machine includes other work. The floor is the same program in a plain process.
"""

import asyncio
import resource
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from nemo_gym.sandbox import SandboxSpec
from nemo_gym.sandbox.providers.local import LocalProvider, probe
from nemo_gym.sandbox.providers.local.box import Box
from nemo_gym.sandbox.providers.local.bubblewrap import interpreter_path
from nemo_gym.sandbox.python import PythonRunner

MAX_COLD_MS = 100.0
MAX_WARM_MS = 25.0
CROWD = 256

PROGRAM = "print(sum(range(100)))"


def floor(count: int) -> dict[str, float]:
    """Run the same program in a plain process of the same interpreter."""
    argv = [interpreter_path(), "-I", "-S", "-c", PROGRAM]
    wall, cpu = [], []
    for _ in range(count):
        begin, used = time.perf_counter(), _our_cpu()
        subprocess.run(argv, check=True, capture_output=True)
        wall.append(time.perf_counter() - begin)
        cpu.append(_our_cpu() - used)
    return _medians(wall, cpu)


async def run(count: int, *, warm: bool) -> dict[str, float]:
    """Return the medians of `count` sequential programs; with `warm`, each finds a prepared box."""
    provider = LocalProvider(warm=1 if warm else 0)
    pool = await provider.open()
    wall, cpu = [], []
    for _ in range(count):
        if warm:
            await pool.wait_until_full()
        begin, used = time.perf_counter(), _our_cpu()
        handle = await provider.create(SandboxSpec())
        box = handle.raw.box
        used += _box_cpu(box) if warm else 0.0  # excludes the CPU time of preparing the box
        outcome = await provider.run(handle, {"action": "program", "code": PROGRAM}, timeout_s=60)
        await provider.close(handle)  # returns once bubblewrap and process 1 have ended
        wall.append(time.perf_counter() - begin)
        cpu.append(_our_cpu() - used)
        assert outcome.result.stdout == "4950\n", outcome
    await provider.aclose()
    return _medians(wall, cpu)


async def run_many(count: int) -> dict[str, float]:
    """Run `count` programs at once, each with a timeout much shorter than the total."""
    provider = LocalProvider(warm=2)
    await provider.open()
    async with PythonRunner(provider) as runner:
        begin = time.perf_counter()
        results = await asyncio.gather(*(runner.run(PROGRAM, timeout_s=2, memory_mib=128) for _ in range(count)))
        seconds = time.perf_counter() - begin
    await provider.aclose()
    wrong = [result for result in results if result.stdout != "4950\n"]
    return {"seconds": seconds, "each_ms": seconds / count * 1000, "wrong": float(len(wrong))}


def measure(count: int = 40, at_once: int = CROWD) -> dict[str, Any]:
    """Return all figures, or none where programs cannot be isolated."""
    if not probe().available:
        return {}
    return {
        "isolation": probe().describe(),
        "floor": floor(count),
        "cold": asyncio.run(run(count, warm=False)),
        "warm": asyncio.run(run(count, warm=True)),
        "crowd": asyncio.run(run_many(at_once)),
    }


def _our_cpu() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _box_cpu(box: Box) -> float:
    """Return the CPU seconds of process 1, which has no children yet."""
    return int(Path(f"/proc/{box.pid}/schedstat").read_text().split()[0]) / 1e9


def _medians(wall: list[float], cpu: list[float]) -> dict[str, float]:
    return {
        "wall_ms": statistics.median(wall) * 1000,
        "best_wall_ms": min(wall) * 1000,
        "cpu_ms": statistics.median(cpu) * 1000,
    }


if __name__ == "__main__":
    for name, value in measure().items():
        print(f"{name:<10} {value}")
