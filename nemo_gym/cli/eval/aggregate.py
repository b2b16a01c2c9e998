"""Merge the rollouts of several runs and compute their scores together.

Reads every file that --input-glob matches and writes the merged rollouts to --output with their metrics next to it.
Without --output a single file is scored in place. Servers are started only if the configuration has one with custom
metrics, and only that one. Exit status: 0 done, 1 a server returned no metrics or the files cannot be used, 2 wrong
usage, 3 a server did not start, 130 interrupted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.shared import options
from nemo_gym.cli.terminal import output
from nemo_gym.errors import ConfigError, GymError

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nemo_gym.config.resolve import ResolvedConfig
    from nemo_gym.rollout_collection import RolloutAggregationConfig
    from nemo_gym.rollouts.aggregate import RolloutsByAgent
    from nemo_gym.rollouts.merged_outputs import MergedOutputs

MAX_LISTED = 10
Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags = options.FlagGroup(parser)
    flags.text("-i --input-glob", "GLOB", "rollout files; separate several patterns by commas")
    output_help = "file for the merged rollouts (default: a single input is scored in place)"
    flags.text("-o --output", "FILE", output_help, "output_jsonl_fpath")
    flags.text("--by", "FIELD", "score the rollouts of each value of this field separately as well")
    flags.json()
    options.add_config_arguments(parser)


def run(args: argparse.Namespace) -> int:
    import uvloop

    from nemo_gym.catalog.atomic_files import whole_file
    from nemo_gym.cli.shared.scoring import print_scores, summarize_entry
    from nemo_gym.rollouts.aggregate import write_metrics
    from nemo_gym.rollouts.run_files import aggregate_metrics_path_for, materialized_path_for
    from nemo_gym.rollouts.run_identity import check_planned_rows

    resolved = options.resolve_config(args, needs_model=False)
    config, shards = _find_files(args, resolved.config)
    for path in shards.paths:
        check_planned_rows(materialized_path_for(path))
    target = Path(config.output_jsonl_fpath)
    is_in_place = [path.resolve() for path in shards.paths] == [target.resolve()]
    is_merging = config.merge_shards and not is_in_place
    gathered = _read_rollouts(shards, args.by, _metrics_filter(resolved.config), indexed=is_merging)
    if is_merging:
        with whole_file(target) as file:
            file.writelines(shards.sorted_lines())
    entries, errors = uvloop.run(_compute_entries(gathered, resolved, args.verbose))
    metrics = aggregate_metrics_path_for(target)
    write_metrics(metrics, entries)
    rollouts = target if is_merging else shards.paths[0] if len(shards.paths) == 1 else None
    if args.json:
        facts = {"rollouts": str(rollouts) if rollouts else None, "metrics": str(metrics)}
        agents = [summarize_entry(entry) for entry in entries]
        output.write_json({"inputs": [str(path) for path in shards.paths], **facts, "agents": agents})
    else:
        print_scores(entries)
        output.write(f"\nrollouts  {target}\nmetrics   {metrics}" if is_merging else f"\nmetrics   {metrics}")
    for agent, error in errors.items():
        output.report_error(f"no metrics of {agent}: {error}")
    return int(bool(errors))


def _find_files(args: argparse.Namespace, config: DictConfig) -> tuple[RolloutAggregationConfig, MergedOutputs]:
    """Return the options and the input files; if no output is named, a single input file is also the output."""
    from nemo_gym.rollout_collection import RolloutAggregationConfig
    from nemo_gym.rollouts.merged_outputs import MergedOutputs, find_outputs

    target = args.output_jsonl_fpath or config.get("output_jsonl_fpath")
    pattern = args.input_glob or config.get("input_glob")
    single = None
    if pattern and not target:
        paths = find_outputs(str(pattern))
        if len(paths) > 1:
            problem = f"{len(paths)} files match, from {paths[0]} to {paths[-1]}, and no output is named"
            raise options.UsageError(problem, where=args.prog, fix="--output merged.jsonl")
        single = paths[0]
    values = {"output_jsonl_fpath": str(target or single or "")}
    settings = options.load_options(RolloutAggregationConfig, config, args, values)
    if single is not None:
        return settings, MergedOutputs([single])
    return settings, MergedOutputs(find_outputs(settings.input_glob, output=Path(settings.output_jsonl_fpath)))


def _metrics_filter(config: DictConfig) -> Callable[[str], bool]:
    """Return a function that tells whether a server computes custom metrics of an agent; it warns of unknown agents."""
    from nemo_gym.cli.shared.scoring import servers_with_metrics
    from nemo_gym.config.instances import server_instances

    types = {instance.name: instance.server_type for instance in server_instances(config).values()}
    agents = {name for name, server_type in types.items() if server_type == "responses_api_agents"}
    computed_by = servers_with_metrics(config, agents)
    has_servers = any(server_type != "responses_api_models" for server_type in types.values())

    def has_custom_metrics(agent: str) -> bool:
        if has_servers and agent not in agents:
            output.warn(f"the configuration has no agent '{agent}'; it gets the standard metrics only")
        return agent in computed_by

    if not has_servers:
        output.notify("no configuration is named, so custom metrics of servers are not computed")
    return has_custom_metrics


def _read_rollouts(
    shards: MergedOutputs, field: str | None, has_custom_metrics: Callable[[str], bool], *, indexed: bool
) -> RolloutsByAgent:
    """Read the rollouts and the failures next to them; with `indexed`, `shards` can sort its lines afterwards."""
    from nemo_gym.journal import read_rows
    from nemo_gym.metrics.aggregate import RolloutRowsError
    from nemo_gym.rollouts.aggregate import RolloutsByAgent, SubsetField
    from nemo_gym.rollouts.run_files import failures_path_for

    by = SubsetField(field) if field else None
    gathered = RolloutsByAgent(has_own_metrics=has_custom_metrics, subset_of=by or (lambda _: None))
    where = ", ".join(map(str, shards.paths))
    try:
        for record in shards.records(indexed=indexed):
            gathered.add(record)
        if not gathered.agents:
            raise ConfigError("contains no rollouts", where=where)
        if by is not None:
            by.check(str(shards.paths[0]))
        for path in map(failures_path_for, shards.paths):
            where = str(path)
            for record in read_rows(path):
                gathered.add_failure(record)
    except RolloutRowsError as error:
        raise RolloutRowsError(error.problem, where=where, fix=error.fix) from None
    if lines := shards.lenient_lines:
        listed = ", ".join(lines[:MAX_LISTED]) + (", …" if len(lines) > MAX_LISTED else "")
        problem = f"{len(lines)} lines contain NaN, Infinity or half a character, which is not JSON: {listed}"
        output.warn(f"{problem}; a rollout with such a reward counts as failed")
    return gathered


async def _compute_entries(
    gathered: RolloutsByAgent, resolved: ResolvedConfig, verbose: bool
) -> tuple[list[Row], dict[str, GymError]]:
    """Return the metrics entries of agents, and their errors; start the servers that compute custom metrics."""
    from nemo_gym.cli.shared.scoring import keep_servers, servers_with_metrics
    from nemo_gym.rollouts.aggregate import fetch_metrics, metrics_entries

    agents = [name for name, rollouts in gathered.agents.items() if name and rollouts.rows]
    computed_by = servers_with_metrics(resolved.config, agents) if agents else {}

    async def query_server(agent: str, records: list[Row]) -> Row:  # called for `agents` only, while the servers run
        return await fetch_metrics(client, computed_by[agent], records)

    if not agents:
        return await metrics_entries(gathered, query_server)
    from nemo_gym.cli.shared.concurrency import cancel_on, interrupt_event
    from nemo_gym.cli.shared.servers import client_for, running_servers  # most of the start-up time

    config = keep_servers(resolved, computed_by.values())
    async with interrupt_event() as stop, running_servers(config, stop, cells=1, verbose=verbose) as servers:
        client = client_for(servers.config)
        return await cancel_on(stop, metrics_entries(gathered, query_server))
