"""What `gym eval prepare` does."""

import argparse
from collections.abc import Sequence

from nemo_gym import component_search_roots
from nemo_gym.benchmarks import PrepareBenchmarkConfig, Prepared, preparations, prepare_all
from nemo_gym.cli import output
from nemo_gym.cli.inputs import config_overrides
from nemo_gym.cli.options import options, resolved_without_model
from nemo_gym.cli.scoring import plain_config

COMMAND = "gym eval prepare"


def prepare(args: argparse.Namespace, rest: Sequence[str]) -> int:
    config = resolved_without_model(config_overrides(args, rest)).config
    given = {
        "use_cached_prepared_benchmarks": ("--use-cached", args.use_cached or None),
        "num_prepare_benchmark_processes": ("--processes", args.processes),
        "prepare_timeout_seconds": ("--timeout", args.timeout),
    }
    asked = options(PrepareBenchmarkConfig, config, given, command=COMMAND)
    wanted = preparations(plain_config(config), component_search_roots())
    for one in wanted:
        output.talk(f"{one.dataset.name}: {one.script}")
    done = prepare_all(wanted, asked, (lambda _: None) if args.json else _tell)
    if args.json:
        told = [{"name": one.name, "agent": one.agent, "path": str(one.path), "rows": one.rows} for one in done]
        output.json({"prepared": told})
    return 0


def _tell(one: Prepared) -> None:
    there = "were there already" if one.cached else "written"
    output.data(f"{one.name}: {one.rows} rows {there}: {one.path}")
