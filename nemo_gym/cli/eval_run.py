"""Start the servers, collect rollouts, score them and stop.

Rows come from --input, or from the agents' own datasets. Every result is on disk the moment it is known; --resume
continues an interrupted run. Exit status: 0 all rollouts scored, 1 some failed, 2 wrong usage, 3 servers did not start,
130 interrupted.
"""

import argparse
import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import uvloop
from omegaconf import DictConfig, OmegaConf

from nemo_gym import _resolve_under_cwd_or_install, global_config
from nemo_gym.cli import output
from nemo_gym.cli.inputs import add_config_arguments, config_overrides
from nemo_gym.cli.progress import Progress
from nemo_gym.cli.serving import interruptible, servers, servers_config
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.data.agents import agent_datasets, chosen_datasets, stamped_lines
from nemo_gym.rollout_collection import RolloutCollectionConfig, RolloutCollectionHelper
from nemo_gym.rollouts.paths import aggregate_metrics_path_for, failures_path_for
from nemo_gym.serve.run import settle_collector
from nemo_gym.server_utils import ServerClient

SAMPLING = ("temperature", "top_p", "max_output_tokens")
DEFAULT_OUTPUT = "results/rollouts.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config_arguments(parser)
    rows = parser.add_argument_group("rows")
    rows.add_argument("-i", "--input", metavar="FILE", help="JSONL rows (default: the agents' datasets)")
    rows.add_argument("--split", choices=("train", "validation", "benchmark", "example"), help="which of the datasets")
    rows.add_argument("-a", "--agent", metavar="NAME", help="the agent of rows that name none")
    rows.add_argument("--limit", type=int, metavar="N", help="only the first N rows")
    rows.add_argument("--num-repeats", type=int, metavar="N", help="rollouts per row (default: 1)")
    rows.add_argument("--prompt-config", metavar="FILE", help="a prompt that builds the input of every row")
    how = parser.add_argument_group("collection")
    how.add_argument("-o", "--output", metavar="FILE", help=f"where rollouts go (default: {DEFAULT_OUTPUT})")
    how.add_argument("--concurrency", type=int, metavar="N", help="rollouts in flight at once")
    how.add_argument("--resume", action="store_true", help="keep what is finished and run the rest")
    how.add_argument("--disable-aggregation", action="store_true", help="do not compute metrics at the end")
    how.add_argument("--temperature", type=float, metavar="T")
    how.add_argument("--top-p", type=float, metavar="P")
    how.add_argument("--max-output-tokens", type=int, metavar="N")
    how.add_argument("--json", action="store_true", help="print the result as one JSON object, and nothing else")


def run(args: argparse.Namespace, rest: Sequence[str]) -> int:
    return uvloop.run(_evaluate(args, config_overrides(args, rest)))


async def _evaluate(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    config = servers_config(overrides)
    collection = collection_config(args, config)
    async with (
        interruptible() as stop,
        servers(config, stop, cells=os.cpu_count() or 1, echo=bool(args.verbose)) as running,
    ):
        global_config._GLOBAL_CONFIG_DICT = running.config
        settle_collector()
        progress = Progress(expected(collection), quiet=args.json)
        collecting = asyncio.create_task(Collector(running.config, progress).collect_from_config(collection))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({collecting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        interrupted = not collecting.done()
        if interrupted:
            collecting.cancel()
        stopping.cancel()
        await asyncio.wait({collecting})
        progress.finish()
        if not interrupted:
            collecting.result()
    report(args, collection, progress, interrupted=interrupted)
    return 130 if interrupted else int(progress.tally.scored < progress.tally.total)


class Collector(RolloutCollectionHelper):
    """Collects from the servers this very process supervises."""

    def __init__(self, config: DictConfig, progress: Progress) -> None:
        super().__init__(observers=[progress])
        self._config = config

    def setup_server_client(self, head_server_config: BaseServerConfig | None = None) -> ServerClient:
        head = head_server_config or BaseServerConfig.model_validate(dict(self._config["head_server"]))
        return ServerClient(head_server_config=head, global_config_dict=self._config)


def collection_config(args: argparse.Namespace, config: DictConfig) -> RolloutCollectionConfig:
    """Flags over keys of the configuration; rows of the agents' datasets where no input is named."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    keys = {str(key): value for key, value in plain.items()}
    flags = {
        "agent_name": args.agent,
        "input_jsonl_fpath": args.input,
        "output_jsonl_fpath": args.output or keys.get("output_jsonl_fpath") or DEFAULT_OUTPUT,
        "limit": args.limit,
        "num_repeats": args.num_repeats,
        "prompt_config": args.prompt_config,
        "num_samples_in_parallel": args.concurrency,
        "resume_from_cache": args.resume or None,
        "disable_aggregation": args.disable_aggregation or None,
    }
    chosen = {**keys, **{key: value for key, value in flags.items() if value is not None}}
    sampling = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
    chosen["responses_create_params"] = {**(keys.get("responses_create_params") or {}), **sampling}
    if not chosen.get("input_jsonl_fpath"):
        chosen["input_jsonl_fpath"] = str(gather_rows(keys, args.split, Path(chosen["output_jsonl_fpath"])))
    return RolloutCollectionConfig.model_validate(chosen)


def gather_rows(config: dict[str, Any], split: str | None, target: Path) -> Path:
    """Write the rows of the agents' datasets beside the output, and return that file."""
    chosen = chosen_datasets(agent_datasets(config, _resolve_under_cwd_or_install), split)
    folder = target.with_suffix("") / "preprocessed_datasets"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{chosen[0].type}.jsonl"
    partial = path.with_suffix(".partial")
    with partial.open("wb") as rows:
        rows.writelines(stamped_lines(chosen))
    partial.replace(path)
    return path


def expected(collection: RolloutCollectionConfig) -> int | None:
    """How many rollouts there will be, where that is easy to say."""
    if not isinstance(collection.num_repeats, int) or collection.resume_from_cache:
        return None
    with _resolve_under_cwd_or_install(collection.input_jsonl_fpath).open("rb") as lines:
        rows = sum(1 for line in lines if line.strip())
    return min(rows, collection.limit or rows) * collection.num_repeats


def report(
    args: argparse.Namespace, collection: RolloutCollectionConfig, progress: Progress, *, interrupted: bool
) -> None:
    """The scores, where they are, and what to type next."""
    target = Path(collection.output_jsonl_fpath)
    metrics_path = aggregate_metrics_path_for(target)
    metrics = orjson.loads(metrics_path.read_bytes()) if metrics_path.exists() and not interrupted else []
    mean = progress.rewards.mean()
    if args.json:
        output.json(
            {
                "scored": progress.tally.scored,
                "failed": {str(kind): count for kind, count in progress.tally.failed.items()},
                "mean_reward": mean.value if mean else None,
                "half_width_95": mean.half_width if mean else None,
                "rollouts": str(target),
                "metrics": {entry["agent_ref"]["name"]: entry["key_metrics"] for entry in metrics},
            }
        )
        return
    output.data(f"\n{progress.tally}")
    output.data(f"mean reward  {mean or 'none: nothing was scored'}")
    for entry in metrics:
        output.data(f"\n{entry['agent_ref']['name']}")
        output.table([(f"  {key}", f"{value:.4g}") for key, value in entry["key_metrics"].items() if _is_number(value)])
    output.data(f"\nrollouts  {target}")
    if progress.tally.failed:
        output.data(f"failures  {failures_path_for(target)}")
    if interrupted or progress.tally.failed:
        words = [word for word in sys.argv[1:] if word != "--resume"]
        output.data(f"continue with: gym {shlex.join(words)} --resume")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
