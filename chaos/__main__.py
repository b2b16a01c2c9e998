"""Disturb evaluations and check the results: `python -m chaos [--short] [--runs N] [--seed S] [SCENARIO …]`.

Every run is determined by its seed, which is printed when a check fails: `--runs 1 --seed S` repeats it.
The exit status is 1 if any check failed.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaos import scenarios
from chaos.evaluation import BrokenPromise

CONCURRENT_RUNS = 2


def run_kills(folder: Path, seeds: range) -> Iterator[str]:
    """Kill a process of each run; yield a line per failed check."""
    baseline = scenarios.run_undisturbed(folder / "undisturbed")

    def run_seed(seed: int) -> scenarios.KilledRun | str:
        try:
            return scenarios.run_with_kill(folder / str(seed), seed, baseline)
        except BrokenPromise as problem:
            return f"seed {seed} ({scenarios.VICTIMS[seed % len(scenarios.VICTIMS)]}): {problem}"

    victims: Counter[str] = Counter()
    with ThreadPoolExecutor(CONCURRENT_RUNS) as pool:
        for result in pool.map(run_seed, seeds):
            if isinstance(result, str):
                yield result
            else:
                victims[result.victim] += 1
    print(f"kills: {victims.total()} of {len(seeds)} runs complete after resume ({dict(victims)})")


def run_endpoint_faults(folder: Path, seeds: range) -> Iterator[str]:
    """Make a tenth of the model calls fail; yield a line per failed check."""
    for seed in seeds[: max(1, len(seeds) // 20)]:
        try:
            print(f"endpoint, seed {seed}: {scenarios.run_with_endpoint_faults(folder / f'endpoint-{seed}', seed)}")
        except BrokenPromise as problem:
            yield f"endpoint, seed {seed}: {problem}"


def run_suspended_server(folder: Path, seeds: range) -> Iterator[str]:
    """Suspend a server with SIGSTOP; yield a line per failed check."""
    try:
        print(f"suspended, seed {seeds[0]}: {scenarios.run_with_suspended_server(folder / 'suspended')}")
    except BrokenPromise as problem:
        yield f"suspended: {problem}"


SCENARIOS: dict[str, Callable[[Path, range], Iterator[str]]] = {
    "kills": run_kills,
    "endpoint": run_endpoint_faults,
    "suspended": run_suspended_server,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="run the short form of CI: 6 kills")
    parser.add_argument("--runs", type=int, default=200, metavar="N", help="number of killed runs (default: 200)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of the first run (default: 0)")
    parser.add_argument(
        "scenarios", nargs="*", choices=[*SCENARIOS, []], metavar="SCENARIO", help=f"any of {', '.join(SCENARIOS)}"
    )
    args = parser.parse_args()
    seeds = range(args.seed, args.seed + (6 if args.short else args.runs))
    begin = time.monotonic()
    problems = []
    with tempfile.TemporaryDirectory() as name:
        for scenario in args.scenarios or SCENARIOS:
            for problem in SCENARIOS[scenario](Path(name) / scenario, seeds):
                print(problem, file=sys.stderr)
                problems.append(problem)
    print(f"{len(problems)} promises broken, {time.monotonic() - begin:.0f} s")
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
