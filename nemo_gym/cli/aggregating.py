"""What `gym eval aggregate` does: many files of rollouts, one set of scores."""

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop
from omegaconf import DictConfig

from nemo_gym.catalog.files import whole_file
from nemo_gym.cli import output
from nemo_gym.cli.inputs import config_overrides
from nemo_gym.cli.options import UsageError, files_explained, options, resolved_without_model
from nemo_gym.cli.scoring import client_of, only, plain_config, servers_with_metrics, show_scores, shown, unless_stopped
from nemo_gym.config.resolve import Resolved
from nemo_gym.errors import ConfigError, GymError
from nemo_gym.keys import SERVER_TYPES
from nemo_gym.metrics.aggregate import RolloutRowsError
from nemo_gym.rollout_collection import RolloutAggregationConfig
from nemo_gym.rollouts.aggregate import Gathered, ask_server, entries_of, write_metrics
from nemo_gym.rollouts.jsonl import read_rows
from nemo_gym.rollouts.paths import aggregate_metrics_path_for, failures_path_for
from nemo_gym.rollouts.shards import Shards, find_shards
from nemo_gym.rollouts.subsets import SubsetBy

COMMAND = "gym eval aggregate"
INTERRUPTED = 130
LISTED = 10
Row = dict[str, Any]


def aggregate(args: argparse.Namespace, rest: Sequence[str]) -> int:
    with files_explained():
        return _aggregate(args, rest)


def _aggregate(args: argparse.Namespace, rest: Sequence[str]) -> int:
    resolved = resolved_without_model(config_overrides(args, rest))
    config, shards = _asked_for(args, resolved.config)
    target = Path(config.output_jsonl_fpath)
    known = plain_config(resolved.config)
    merging = config.merge_shards and [path.resolve() for path in shards.paths] != [target.resolve()]
    gathered = _gather(
        shards.records(indexed=merging), shards.paths, SubsetBy(args.by) if args.by else None, _whom(known)
    )
    if shards.foreign:
        places = ", ".join(shards.foreign[:LISTED]) + (", …" if len(shards.foreign) > LISTED else "")
        output.talk(
            f"Warning: {len(shards.foreign)} lines have NaN or Infinity in them, which is not JSON: {places}; "
            "where that is the reward, the rollout counts as failed"
        )
    if merging:
        with whole_file(target) as file:
            file.writelines(shards.sorted_lines())
    answered = uvloop.run(_entries(gathered, resolved, args.verbose))
    if answered is None:
        output.talk("interrupted; no metrics were written")
        return INTERRUPTED
    entries, failed = answered
    metrics = aggregate_metrics_path_for(target)
    write_metrics(metrics, entries)
    _report(args, shards, entries, target if merging else None, metrics)
    for agent, error in failed.items():
        output.error(f"no metrics of {agent}: {error}")
    return int(bool(failed))


def _asked_for(args: argparse.Namespace, config: DictConfig) -> tuple[RolloutAggregationConfig, Shards]:
    """The options and the files; without an output a single file stands for itself."""
    target = args.output or config.get("output_jsonl_fpath")
    pattern = args.input_glob or config.get("input_glob")
    given = {"input_glob": ("--input-glob", pattern), "output_jsonl_fpath": ("--output", target or "")}
    alone = None
    if pattern and not target:
        found = find_shards(str(pattern))
        if len(found) > 1:
            raise UsageError(
                f"{len(found)} files match, from {found[0]} to {found[-1]}: where should they be merged?",
                where=COMMAND,
                fix="--output merged.jsonl",
            )
        alone = found[0]
        given["output_jsonl_fpath"] = ("--output", str(alone))
    asked = options(RolloutAggregationConfig, config, given, command=COMMAND)
    return asked, Shards([alone] if alone else find_shards(asked.input_glob, output=Path(asked.output_jsonl_fpath)))


def _whom(config: dict[str, Any]) -> Callable[[str], bool]:
    """Whether an agent's rollouts are to be sent to a server; said once of agents the configuration does not know."""
    defined = {name for name, block in config.items() if isinstance(block, dict) and "responses_api_agents" in block}
    asked = servers_with_metrics(config, defined)
    named = any(kind in block for block in config.values() if isinstance(block, dict) for kind in SERVER_TYPES[1:])

    def is_asked(agent: str) -> bool:
        if named and agent not in defined:
            output.talk(f"Warning: the configuration has no agent '{agent}'; it gets the standard metrics only")
        return agent in asked

    if not named:
        output.talk("no configuration is named, so metrics that servers add of their own are left out")
    return is_asked


def _gather(
    records: Iterable[Row], paths: Sequence[Path], by: SubsetBy | None, is_asked: Callable[[str], bool]
) -> Gathered:
    """Everything that scores are made of: the rollouts, and the failures noted beside them."""
    gathered = Gathered(asked=is_asked, subset_of=by or (lambda _: None))
    with _placed(", ".join(map(str, paths))):
        for record in records:
            gathered.add(record)
    if not gathered.agents:
        raise ConfigError("there are no rollouts in it", where=", ".join(map(str, paths)))
    if by is not None:
        by.check(str(paths[0]))
    for path in map(failures_path_for, paths):
        with _placed(str(path)):
            for record in read_rows(path):
                gathered.fail(record)
    return gathered


@contextmanager
def _placed(where: str) -> Iterator[None]:
    """Say in which files the rows are that cannot be counted."""
    try:
        yield
    except RolloutRowsError as error:
        raise RolloutRowsError(error.problem, where=where, fix=error.fix) from None


async def _entries(
    gathered: Gathered, resolved: Resolved, verbose: bool
) -> tuple[list[Row], dict[str, GymError]] | None:
    """One entry per agent; the servers that have to be asked run no longer than it takes. None: interrupted."""
    agents = [name for name, rollouts in gathered.agents.items() if name and rollouts.rows]
    if not agents:
        return await entries_of(gathered, _nobody)
    from nemo_gym.cli.serving import interruptible, servers  # most of our start-up time

    asked = servers_with_metrics(plain_config(resolved.config), agents)
    config = only(resolved, asked.values())
    async with interruptible() as stop, servers(config, stop, cells=1, echo=verbose) as running:
        client = client_of(running.config)

        async def ask(agent: str, records: list[Row]) -> Row:
            return await ask_server(client, asked[agent], records)

        return await unless_stopped(stop, entries_of(gathered, ask))


async def _nobody(agent: str, _: list[Row]) -> Row:
    raise AssertionError(f"nobody is to be asked about {agent}")


def _report(args: argparse.Namespace, shards: Shards, entries: list[Row], merged: Path | None, metrics: Path) -> None:
    if args.json:
        output.json(
            {
                "inputs": [str(path) for path in shards.paths],
                "rollouts": str(merged or shards.paths[0]) if merged or len(shards.paths) == 1 else None,
                "metrics": str(metrics),
                "agents": [shown(entry) for entry in entries],
            }
        )
        return
    show_scores(entries)
    output.data(f"\nrollouts  {merged}\nmetrics   {metrics}" if merged else f"\nmetrics   {metrics}")
