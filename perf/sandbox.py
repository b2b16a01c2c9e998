"""What it costs to run a program in a sandbox: cold, warm, and in a crowd.

The promise is wall time on an idle core. The steps of one run follow each other, so that is the processor time of all
who take part (us, `bwrap`, process 1, the program); that is what is compared with the promise, because on a shared
machine the wall shows who else is working. The floor is the same program in a plain process.
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
from nemo_gym.sandbox.providers.local.bubblewrap import interpreter
from nemo_gym.sandbox.providers.local.launch import Box
from nemo_gym.sandbox.python import PythonRunner

MOST_COLD_MS = 100.0
MOST_WARM_MS = 25.0
CROWD = 256

PROGRAM = "print(sum(range(100)))"


def floor(count: int) -> dict[str, float]:
    """The same program in a plain process of the same interpreter."""
    argv = [interpreter(), "-I", "-S", "-c", PROGRAM]
    wall, cpu = [], []
    for _ in range(count):
        begun, used = time.perf_counter(), _our_cpu()
        subprocess.run(argv, check=True, capture_output=True)
        wall.append(time.perf_counter() - begun)
        cpu.append(_our_cpu() - used)
    return _medians(wall, cpu)


async def run(count: int, *, warm: bool) -> dict[str, float]:
    """The medians of `count` programs, one after the other; a warm one finds a box that waits."""
    provider = LocalProvider(warm=1 if warm else 0)
    pool = await provider.open()
    wall, cpu = [], []
    for _ in range(count):
        if warm:
            await pool.full()
        begun, used = time.perf_counter(), _our_cpu()
        handle = await provider.create(SandboxSpec())
        box = handle.raw.box
        used += _box_cpu(box) if warm else 0.0  # what it used to get warm, nobody waited for
        outcome = await provider.run(handle, {"task": "program", "code": PROGRAM}, timeout_s=60)
        await provider.close(handle)  # bubblewrap has waited for process 1 then, and we for bubblewrap
        wall.append(time.perf_counter() - begun)
        cpu.append(_our_cpu() - used)
        assert outcome.result.stdout == "4950\n", outcome
    await provider.aclose()
    return _medians(wall, cpu)


async def crowd(count: int) -> dict[str, float]:
    """`count` programs asked for at once, each with a clock much shorter than the whole takes."""
    provider = LocalProvider(warm=2)
    await provider.open()
    async with PythonRunner(provider) as runner:
        begun = time.perf_counter()
        results = await asyncio.gather(*(runner.run(PROGRAM, timeout_s=2, memory_mib=128) for _ in range(count)))
        seconds = time.perf_counter() - begun
    await provider.aclose()
    wrong = [result for result in results if result.stdout != "4950\n"]
    return {"seconds": seconds, "each_ms": seconds / count * 1000, "wrong": float(len(wrong))}


def measure(count: int = 40, at_once: int = CROWD) -> dict[str, Any]:
    """Everything, or nothing where programs cannot be isolated."""
    if not probe().available:
        return {}
    return {
        "isolation": probe().describe(),
        "floor": floor(count),
        "cold": asyncio.run(run(count, warm=False)),
        "warm": asyncio.run(run(count, warm=True)),
        "crowd": asyncio.run(crowd(at_once)),
    }


def _our_cpu() -> float:
    """Processor seconds of this process, all threads, and of children it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _box_cpu(box: Box) -> float:
    """Processor seconds of process 1, which has no children yet."""
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
