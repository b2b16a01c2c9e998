"""Disturb evaluations and check the results: `python -m chaos [--short] [--runs N] [--seed S] [SCENARIO …]`.

Every run is determined by its seed, which is printed when a check fails: `--runs 1 --seed S SCENARIO` repeats it.
The exit status is 1 if any check failed.
"""

import argparse
import importlib
import pkgutil
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from chaos import scenarios
from chaos.evaluation import BrokenPromise

CONCURRENT_RUNS = 3
"""Runs at a time, of any scenarios. Most of them wait for a timeout at some time, so that two cores suffice."""
SHORT_RUNS = 20
SCENARIOS = [module.name for module in pkgutil.iter_modules(scenarios.__path__)]


@dataclass(frozen=True)
class RunResult:
    """The result of one disturbed run: a sentence about it, or the problem of a broken promise."""

    summary: str
    problem: str
    seconds: float


def run_seed(name: str, seed: int, folder: Path) -> RunResult:
    """Run one scenario with one seed."""
    module = importlib.import_module(f"chaos.scenarios.{name}")
    begin = time.monotonic()
    summary = problem = ""
    try:
        summary = module.run_seed(folder / name / str(seed), seed)
    except BrokenPromise as broken:
        problem = f"{name}, seed {seed}: {broken}"
    return RunResult(summary, problem, time.monotonic() - begin)


def run_scenarios(seeds: Mapping[str, range], folder: Path) -> list[str]:
    """Run every scenario for its seeds; print a line for each scenario and return the problems."""
    problems: list[str] = []
    pool = ThreadPoolExecutor(CONCURRENT_RUNS)
    try:
        futures = {name: [pool.submit(run_seed, name, seed, folder) for seed in seeds[name]] for name in seeds}
        for name, runs in futures.items():
            results = [run.result() for run in runs]
            kept = [result.summary for result in results if not result.problem]
            mean = sum(result.seconds for result in results) / len(results)
            last = f" (the last: {kept[-1]})" if kept else ""
            print(f"{name}: {len(kept)} of {len(results)} runs kept every promise, {mean:.1f} s each{last}", flush=True)
            for result in results:
                if result.problem:
                    print(result.problem, file=sys.stderr)
                    problems.append(result.problem)
    finally:
        pool.shutdown(cancel_futures=True)  # after Ctrl-C, only the current runs are finished
    return problems


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
    begin = time.monotonic()
    seeds = {}
    for name in args.scenarios or SCENARIOS:
        count = number_of_short_runs(name) if args.short else args.runs
        seeds[name] = range(args.seed, args.seed + count)
    with tempfile.TemporaryDirectory() as folder:
        problems = run_scenarios(seeds, Path(folder))
    print(f"{len(problems)} promises broken, {time.monotonic() - begin:.0f} s")
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
