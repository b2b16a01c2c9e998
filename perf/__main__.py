"""Measure what we promise and print it beside the promise: `python -m perf [--short] [--json FILE]`.

Figures are CPU seconds, the best of several runs, because other people's work on the machine only ever adds to them.
A promise missed by more than the margin makes the exit status 1.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from perf import config, imports, validate

MARGIN = 1.5


@dataclass(frozen=True)
class Figure:
    """One measured number and what it may be at most."""

    name: str
    measured: float
    promised: float
    unit: str = "s CPU"

    @property
    def ratio(self) -> float:
        return self.measured / self.promised


def import_figures() -> list[Figure]:
    found = imports.measure()
    if found["forbidden_loaded"]:
        raise SystemExit(f"a server process loads {found['forbidden_loaded']}")
    return [
        Figure("import nemo_gym", found["import_nemo_gym_s"], 0.06),
        Figure("import nemo_gym.base_resources_server", found["import_base_resources_server_s"], 0.9),
    ]


def validation_figures() -> list[Figure]:
    found = validate.measure()
    return [
        Figure("validate a response of 300 items", found["items_300_s"], 0.003),
        Figure("validate 30 items of 20,000 token ids", found["tokens_30x20k_s"], 0.015),
    ]


def config_figures() -> list[Figure]:
    return [Figure("parse and check 100 instances", config.measure()["parse_100_instances_s"], 0.3)]


GROUPS: dict[str, Callable[[], list[Figure]]] = {
    "imports": import_figures,
    "validation": validation_figures,
    "configuration": config_figures,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="the form CI runs (all groups are short so far)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], help="what to measure (default: all)")
    args = parser.parse_args()
    figures = [figure for name in args.groups or GROUPS for figure in GROUPS[name]()]
    print(f"{'what':<44} {'measured':>10} {'promised':>10} {'ratio':>6}")
    for figure in figures:
        print(
            f"{figure.name:<44} {figure.measured:>10.4f} {figure.promised:>10.4f} {figure.ratio:>6.2f}  {figure.unit}"
        )
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps([asdict(figure) | {"ratio": figure.ratio} for figure in figures], indent=2))
    missed = [figure.name for figure in figures if figure.ratio > MARGIN]
    if missed:
        print(f"missed by more than {MARGIN:g} x: {', '.join(missed)}", file=sys.stderr)
    return int(bool(missed))


if __name__ == "__main__":
    raise SystemExit(main())
