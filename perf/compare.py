"""Compare the cost of one rollout between two checkouts: `python -m perf.compare BASE [--checkout NOW]`.

A checkout is a folder with the project and its environment in `.venv` (`python3 dev.py lint` builds it). The two are
measured in turn, run by run, over the same rows and against the same mock endpoint, so that a busy machine slows both.
The figure of a checkout is the best of its runs, because other work on the machine only adds; every run is printed.

CPU time depends on other work on the machine all the same. `--operations` counts the bytecode operations that the
collector and the cell execute instead: it does not count work in C, but repeats within one per cent on any machine, and
it prints the files in which the two checkouts differ most. (Machine instructions, as valgrind counts them, are less
useful: a process that is fifty times slower does its periodic work fifty times more often per rollout.)
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from perf.rollouts import (
    MAX_RUN_SECONDS,
    POLL_SECONDS,
    WARM_UP,
    LineCounter,
    RolloutCost,
    endpoint,
    measure_evaluation,
    server_flags,
    start_evaluation,
    write_rows,
)
from perf.startup import family

OPERATION_COUNTER = """
import json, os, signal, sys

counts = {}

def count_operation(frame, event, _):
    if event == "opcode":
        counts[frame.f_code] = counts.get(frame.f_code, 0) + 1
    return count_operation

def trace_call(frame, *_):
    frame.f_trace_opcodes, frame.f_trace_lines = True, False
    return count_operation

def stop(*_):
    sys.settrace(None)
    total = {}
    for code, count in counts.items():
        total[code.co_filename] = total.get(code.co_filename, 0) + count
    path = os.path.join(os.environ["OPERATION_COUNTS"], str(os.getpid()))
    with open(path + ".part", "w") as file:
        json.dump(total, file)
    os.rename(path + ".part", path)

def install():
    signal.signal(signal.SIGUSR1, lambda *_: sys.settrace(trace_call))
    signal.signal(signal.SIGUSR2, stop)

install()
os.register_at_fork(after_in_child=install)
"""
"""A `sitecustomize` module: counts the operations of a process by file between two signals."""

OPERATIONS_AT_ONCE = 16
"""Rollouts in flight while operations are counted; they hardly depend on it, and fewer make the count more exact."""
FILES_SHOWN = 12


class OperationCount(NamedTuple):
    """Operations of one rollout by file, of the collector and of the cell."""

    collector: dict[str, float]
    cell: dict[str, float]

    @property
    def cost(self) -> RolloutCost:
        return RolloutCost(sum(self.collector.values()), sum(self.cell.values()))


def gym_command(checkout: Path) -> tuple[str, ...]:
    python = checkout / ".venv" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python} is missing: run `python3 dev.py lint` in {checkout}")
    return (str(python), "-m", "nemo_gym.cli.main")


def cpu_cost(checkout: Path, url: str, folder: Path, at_once: int, count: int) -> RolloutCost:
    """Return the CPU milliseconds of a rollout of this checkout."""
    warm = max(400, WARM_UP * at_once)
    rows, output = folder / "rows.jsonl", folder / "out.jsonl"
    write_rows(rows, warm + count + at_once)
    output.unlink(missing_ok=True)
    process = start_evaluation(rows, at_once, server_flags(url), output, gym_command(checkout), checkout)
    return measure_evaluation(process, output, (warm, warm + count))


def count_operations(checkout: Path, url: str, folder: Path, count: int) -> OperationCount:
    """Return the operations of a rollout of this checkout, between two numbers of stored rollouts."""
    warm = 400
    rows, output, counts = folder / "rows.jsonl", folder / "out.jsonl", folder / f"counts.{checkout.name}"
    write_rows(rows, warm + count + warm)
    output.unlink(missing_ok=True)
    counts.mkdir(exist_ok=True)
    (counts / "sitecustomize.py").write_text(OPERATION_COUNTER)
    environment = {"PYTHONPATH": str(counts), "OPERATION_COUNTS": str(counts)}
    command = gym_command(checkout)
    process = start_evaluation(rows, OPERATIONS_AT_ONCE, server_flags(url), output, command, checkout, environment)
    stored, deadline = LineCounter(output), time.monotonic() + MAX_RUN_SECONDS
    measured: list[int] = []
    marks: list[int] = []
    try:
        for number, sent in ((warm, signal.SIGUSR1), (warm + count, signal.SIGUSR2)):
            while stored.update() < number:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the evaluation failed:\n{output.with_suffix('.log').read_text()[-2000:]}")
                time.sleep(POLL_SECONDS)
            measured = measured or [process.pid, family(process.pid)[-1]]  # the cell is started last
            for pid in measured:
                os.kill(pid, sent)
            marks.append(stored.lines)
        process.wait(MAX_RUN_SECONDS)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    collector, cell = (_read_counts(counts / str(pid), checkout, marks[1] - marks[0]) for pid in measured)
    return OperationCount(collector, cell)


def _read_counts(path: Path, checkout: Path, rollouts: int) -> dict[str, float]:
    """Return the operations per rollout by file, with paths relative to the checkout or the environment."""
    counts: dict[str, float] = {}
    for location, count in json.loads(path.read_text()).items():
        name = location.removeprefix(f"{checkout}/").removeprefix(f"{sys.base_prefix}/").rpartition("site-packages/")[2]
        counts[name] = counts.get(name, 0.0) + count / rollouts
    return counts


def print_operations(base: OperationCount, now: OperationCount) -> None:
    """Print the operations of a rollout and the files in which the two checkouts differ most."""
    print("bytecode operations per rollout:")
    print_figures("base", [base.cost])
    print_figures("now", [now.cost])
    print(f"  now / base: {now.cost.total / base.cost.total:.3f}; files that differ most (base, now):")
    for title, before, after in (("collector", base.collector, now.collector), ("cell", base.cell, now.cell)):
        names = sorted(before.keys() | after.keys(), key=lambda name: -abs(after.get(name, 0) - before.get(name, 0)))
        for name in names[:FILES_SHOWN]:
            print(f"    {title:<10} {before.get(name, 0):7.0f} {after.get(name, 0):7.0f}  {name}")


def print_figures(name: str, costs: Sequence[RolloutCost]) -> None:
    best = min(costs, key=lambda cost: cost.total)
    every = " ".join(f"{cost.total:.3f}" for cost in costs)
    print(
        f"  {name:<5} best {best.total:.3f} (collector {best.collector:.3f}, servers {best.servers:.3f}), "
        f"median {statistics.median(cost.total for cost in costs):.3f}; all: {every}",
        flush=True,
    )


def print_comparison(at_once: int, base: Sequence[RolloutCost], now: Sequence[RolloutCost]) -> None:
    print(f"{at_once} in flight, CPU ms per rollout:")
    print_figures("base", base)
    print_figures("now", now)
    best = min(cost.total for cost in now) / min(cost.total for cost in base)
    paired = statistics.median(after.total / before.total for before, after in zip(base, now, strict=True))
    print(f"  now / base: best {best:.3f}, median of the pairs {paired:.3f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", type=Path, help="checkout to compare with")
    parser.add_argument("--checkout", type=Path, default=Path(), help="checkout to judge (default: the current folder)")
    parser.add_argument(
        "--in-flight", type=int, nargs="+", default=[64, 256, 1024], help="numbers of rollouts in flight"
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each checkout (default 5)")
    parser.add_argument("--count", type=int, help="rollouts measured in a run (default 4000; with --operations 1000)")
    parser.add_argument("--operations", action="store_true", help="count bytecode operations, in one run of each")
    args = parser.parse_args()
    base, now = args.base.resolve(), args.checkout.resolve()
    with tempfile.TemporaryDirectory() as name, endpoint(Path(name)) as url:
        folder = Path(name)
        if args.operations:
            count = args.count or 1000
            print_operations(count_operations(base, url, folder, count), count_operations(now, url, folder, count))
            return 0
        for at_once in args.in_flight:
            costs: dict[Path, list[RolloutCost]] = {base: [], now: []}
            for number in range(args.runs):
                for checkout in (base, now) if number % 2 == 0 else (now, base):
                    costs[checkout].append(cpu_cost(checkout, url, folder, at_once, args.count or 4000))
            print_comparison(at_once, costs[base], costs[now])
    return 0


if __name__ == "__main__":
    sys.exit(main())
