"""Break evaluations on purpose: `python -m chaos [--short] [--runs N] [--seed S] [what …]`.

Every run is decided by its seed, which is printed when a promise does not hold: `--runs 1 --seed S` repeats it.
The exit status is 1 if any did not.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from chaos import faults, kills, stopped
from chaos.job import Broken

AT_ONCE = 2


def killed(folder: Path, seeds: range) -> Iterator[str]:
    """Runs whose processes are killed."""
    expected = kills.undisturbed(folder / "undisturbed")

    def one(seed: int) -> kills.Killed | str:
        try:
            return kills.disturbed(folder / str(seed), seed, expected)
        except Broken as broken:
            return f"seed {seed} ({kills.VICTIMS[seed % len(kills.VICTIMS)]}): {broken}"

    victims: Counter[str] = Counter()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in pool.map(one, seeds):
            if isinstance(done, str):
                yield done
            else:
                victims[done.victim] += 1
    print(f"kills: {victims.total()} of {len(seeds)} runs whole after resume ({dict(victims)})")


def faulty(folder: Path, seeds: range) -> Iterator[str]:
    """Runs whose model endpoint misbehaves."""
    for seed in seeds[: max(1, len(seeds) // 20)]:
        try:
            print(f"endpoint, seed {seed}: {faults.disturbed(folder / f'endpoint-{seed}', seed)}")
        except Broken as broken:
            yield f"endpoint, seed {seed}: {broken}"


def halted(folder: Path, seeds: range) -> Iterator[str]:
    """A run with a server that stops without dying."""
    try:
        print(f"stopped, seed {seeds[0]}: {stopped.disturbed(folder / 'stopped')}")
    except Broken as broken:
        yield f"stopped: {broken}"


WAYS: dict[str, Callable[[Path, range], Iterator[str]]] = {"kills": killed, "endpoint": faulty, "stopped": halted}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--short", action="store_true", help="the form CI runs: 6 kills")
    parser.add_argument("--runs", type=int, default=200, metavar="N", help="how many runs are killed (default: 200)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="of the first run (default: 0)")
    parser.add_argument("ways", nargs="*", choices=[*WAYS, []], metavar="what", help=f"of {', '.join(WAYS)}")
    args = parser.parse_args()
    seeds = range(args.seed, args.seed + (6 if args.short else args.runs))
    begin = time.monotonic()
    problems = []
    with tempfile.TemporaryDirectory() as name:
        for way in args.ways or WAYS:
            for problem in WAYS[way](Path(name) / way, seeds):
                print(problem, file=sys.stderr)
                problems.append(problem)
    print(f"{len(problems)} promises broken, {time.monotonic() - begin:.0f} s")
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
