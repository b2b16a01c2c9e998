"""Disturb evaluations and check the results: `python -m chaos [--short] [--runs N] [--seed S] [SCENARIO …]`.

Every run is determined by its seed, which is printed when a check fails: `--runs 1 --seed S SCENARIO` repeats it. The
last lines are a table of all scenarios.
The exit status is 1 if any check failed.
"""

import argparse
import importlib
import os
import pkgutil
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from chaos import scenarios
from chaos.commands import thread_cpu
from chaos.evaluation import BrokenPromise

CONCURRENT_RUNS = 2 * (os.cpu_count() or 1)
"""Runs at a time, of different scenarios. Most of them wait for a timeout at some time."""
SHORT_RUNS = 20
PROGRESS_SECONDS = 10.0
SCENARIOS = [module.name for module in pkgutil.iter_modules(scenarios.__path__)]


@dataclass(frozen=True)
class RunResult:
    """The result of one disturbed run: a sentence about it, or the problem of a broken promise."""

    name: str
    summary: str
    problem: str
    seconds: float
    cpu_seconds: float


def run_seed(name: str, seed: int, folder: Path) -> RunResult:
    """Run one scenario with one seed."""
    module = importlib.import_module(f"chaos.scenarios.{name}")
    begin, cpu_begin = time.monotonic(), thread_cpu.seconds
    summary = problem = ""
    try:
        summary = module.run_seed(folder / name / str(seed), seed)
    except BrokenPromise as broken:
        problem = f"{name}, seed {seed}: {broken}"
    except Exception:  # the boundary of a run: the others go on
        problem = f"{name}, seed {seed}: the scenario failed\n{traceback.format_exc()}"
    else:
        shutil.rmtree(folder / name / str(seed))  # thousands of runs would fill the disk
    return RunResult(name, summary, problem, time.monotonic() - begin, thread_cpu.seconds - cpu_begin)


def run_scenarios(seeds: Mapping[str, range], folder: Path) -> list[RunResult]:
    """Run every scenario for its seeds, in turn; print progress and every broken promise at once."""
    results: list[RunResult] = []
    order = sorted((number, name) for name, numbers in seeds.items() for number in numbers)
    begin = last_report = time.monotonic()
    pool = ThreadPoolExecutor(CONCURRENT_RUNS)
    try:
        for future in as_completed([pool.submit(run_seed, name, seed, folder) for seed, name in order]):
            results.append(future.result())
            if results[-1].problem:
                print(results[-1].problem, file=sys.stderr, flush=True)
            now = time.monotonic()
            if now - last_report > PROGRESS_SECONDS or len(results) == len(order):
                last_report, elapsed = now, now - begin
                remaining = elapsed / len(results) * (len(order) - len(results))
                progress = f"{len(results)} of {len(order)} runs, {elapsed:.0f} s, about {remaining:.0f} s remain"
                print(progress, file=sys.stderr, flush=True)
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, only the current runs are finished
    return results


def print_table(results: Sequence[RunResult]) -> None:
    """Print a line for each scenario: runs, runs that kept every promise, time and CPU time of a run, an example."""
    print(f"{'scenario':<18}{'runs':>6}{'kept':>6}{'s/run':>8}{'max s':>8}{'CPU s/run':>11}  example")
    for name in sorted({result.name for result in results}):
        runs = [result for result in results if result.name == name]
        kept = [run.summary for run in runs if not run.problem]
        seconds = [run.seconds for run in runs]
        cpu = sum(run.cpu_seconds for run in runs) / len(runs)
        mean = sum(seconds) / len(runs)
        figures = f"{len(runs):>6}{len(kept):>6}{mean:>8.1f}{max(seconds):>8.1f}{cpu:>11.2f}"
        print(f"{name:<18}{figures}  {kept[-1] if kept else ''}")


def number_of_short_runs(name: str) -> int:
    """Return how often a scenario runs in CI: its own `SHORT_RUNS`, or 20."""
    return int(getattr(importlib.import_module(f"chaos.scenarios.{name}"), "SHORT_RUNS", SHORT_RUNS))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="run the short form of CI")
    parser.add_argument("--runs", type=int, default=1000, metavar="N", help="runs per scenario (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the first run (default: 0)")
    parser.add_argument(
        "scenarios", nargs="*", choices=[*SCENARIOS, []], metavar="SCENARIO", help=f"any of {', '.join(SCENARIOS)}"
    )
    args = parser.parse_args()
    if args.runs < 1:
        parser.error(f"--runs {args.runs}: at least 1 run per scenario is needed")
    begin = time.monotonic()
    seeds = {}
    for name in args.scenarios or SCENARIOS:
        count = number_of_short_runs(name) if args.short else args.runs
        seeds[name] = range(args.seed, args.seed + count)
    with tempfile.TemporaryDirectory() as folder:
        results = run_scenarios(seeds, Path(folder))
    print_table(results)
    problems = [result.problem for result in results if result.problem]
    print(f"{len(problems)} promises broken, {time.monotonic() - begin:.0f} s")
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
