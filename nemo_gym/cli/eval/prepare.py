"""Prepare benchmarks: run the scripts that write their rows.

All benchmarks of the configuration are checked before the first script runs. Pass arguments to the scripts with
+prepare_script_args.NAME=VALUE. Exit status: 0 all prepared, 1 a script failed or the configuration is not valid.
"""

import argparse

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.switch("--use-cached", "skip benchmarks whose rows exist already", "use_cached_prepared_benchmarks")
    processes_help = "number of benchmarks to prepare at once (default: 1)"
    flags.integer("--processes", processes_help, "num_prepare_benchmark_processes")
    timeout_help = "maximum time per script (default: 21600, six hours)"
    flags.decimal("--timeout", "SECONDS", timeout_help, "prepare_timeout_seconds")
    flags.json()
    options.add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from nemo_gym import component_search_roots
    from nemo_gym.catalog.benchmarks import PrepareBenchmarkConfig, PreparedBenchmark, preparations, prepare_all
    from nemo_gym.config.omegaconf_adapter import as_dict

    def print_benchmark(benchmark: PreparedBenchmark) -> None:
        state = "existed already" if benchmark.cached else "written"
        if not args.json:
            output.write(f"{benchmark.name}: {benchmark.rows} rows {state}: {benchmark.path}")

    config = options.resolve_config(args, needs_model=False).config
    settings = options.load_options(PrepareBenchmarkConfig, config, args)
    scripts = preparations(as_dict(config), component_search_roots())
    for script in scripts:
        output.notify(f"{script.dataset.name}: {script.script}")
    benchmarks = prepare_all(scripts, settings, print_benchmark)
    if args.json:
        facts = [{"name": b.name, "agent": b.agent, "path": str(b.path), "rows": b.rows} for b in benchmarks]
        output.write_json({"prepared": facts})
    return 0
