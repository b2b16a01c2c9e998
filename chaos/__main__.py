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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaos import scenarios
from chaos.evaluation import BrokenPromise

CONCURRENT_RUNS = 2
SCENARIOS = [module.name for module in pkgutil.iter_modules(scenarios.__path__)]


def run_scenario(name: str, seeds: range, folder: Path) -> list[str]:
    """Run a scenario for every seed, two runs at a time; print a summary and return a line per broken promise."""
    module = importlib.import_module(f"chaos.scenarios.{name}")
    begin = time.monotonic()
    summaries: list[str] = []

    def run_seed(seed: int) -> str | None:
        try:
            summaries.append(module.run_seed(folder / name / str(seed), seed))
        except BrokenPromise as problem:
            return f"{name}, seed {seed}: {problem}"
        return None

    with ThreadPoolExecutor(CONCURRENT_RUNS) as pool:
        problems = [problem for problem in pool.map(run_seed, seeds) if problem]
    seconds = time.monotonic() - begin
    last = f" (the last: {summaries[-1]})" if summaries else ""
    print(f"{name}: {len(summaries)} of {len(seeds)} runs kept every promise, {seconds / len(seeds):.1f} s each{last}")
    return problems


def number_of_runs(name: str, runs: int | None) -> int:
    """Return how often a scenario runs: `SHORT_RUNS` in CI (`runs` is None), otherwise `runs` divided for slow ones."""
    module = importlib.import_module(f"chaos.scenarios.{name}")
    if runs is None:
        return int(getattr(module, "SHORT_RUNS", 20))
    return max(1, runs // int(getattr(module, "LONG_DIVISOR", 1)))


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
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        for name in args.scenarios or SCENARIOS:
            count = number_of_runs(name, None if args.short else args.runs)
            for problem in run_scenario(name, range(args.seed, args.seed + count), Path(folder)):
                print(problem, file=sys.stderr)
                problems.append(problem)
    print(f"{len(problems)} promises broken, {time.monotonic() - begin:.0f} s")
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
