"""What `gym eval run` is asked to do: flags over keys of the configuration, checked before anything is started."""

import argparse
import importlib
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from nemo_gym import _resolve_under_cwd_or_install
from nemo_gym.cli.eval_flags import DEFAULT_GRACE, DEFAULT_OUTPUT, FLAGS, GRACE_KEY, SAMPLING
from nemo_gym.cli.options import UsageError, options
from nemo_gym.config_types import DEPRECATED_UPLOAD_ROLLOUTS_KEY
from nemo_gym.errors import ConfigError
from nemo_gym.rollout_collection import E2ERolloutCollectionConfig, RolloutCollectionConfig

COMMAND = "gym eval run"

Gather = Callable[[str | None, Path, bool], Path]
"""Makes a file of the agents' rows of a type, beside an output; whether their input comes from a prompt."""
Driver = Callable[[RolloutCollectionConfig, DictConfig], Awaitable[Any]]


def collection_config(args: argparse.Namespace, config: DictConfig, gather: Gather) -> RolloutCollectionConfig:
    """Flags over keys of the configuration; `gather` makes a file of the agents' rows if none is named.

    Raises:
        UsageError: what is wrong with them, together.
    """
    given = _from_flags(args)
    sampling = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
    if sampling:
        given["responses_create_params"] = {**plain(config).get("responses_create_params", {}), **sampling}
    for key, fallback in (("output_jsonl_fpath", DEFAULT_OUTPUT), ("input_jsonl_fpath", "")):
        if given[key] is None and not config.get(key):
            given[key] = fallback
    given[DEPRECATED_UPLOAD_ROLLOUTS_KEY] = config.get(DEPRECATED_UPLOAD_ROLLOUTS_KEY)
    flags = {key: (FLAGS.get(key, f"+{key}"), value) for key, value in given.items()}
    checked = options(RolloutCollectionConfig, config, flags, command=COMMAND)
    if checked.force_resume:
        checked = checked.model_copy(update={"resume_from_cache": True})
    if checked.resume_from_cache and checked.overwrite:
        raise UsageError("--resume keeps earlier results and --overwrite removes them", fix="leave one of them out")
    if not checked.input_jsonl_fpath:
        split = args.split or config.get("split")
        rows = gather(split, Path(checked.output_jsonl_fpath), checked.prompt_config is not None)
        checked = checked.model_copy(update={"input_jsonl_fpath": str(rows)})
    _check_files(checked)
    return checked


def _from_flags(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "agent_name": args.agent,
        "input_jsonl_fpath": args.input,
        "output_jsonl_fpath": args.output,
        "limit": args.limit,
        "num_repeats": repeats(args.num_repeats) if args.num_repeats is not None else None,
        "prompt_config": args.prompt_config,
        "num_samples_in_parallel": args.concurrency,
        "resume_from_cache": args.resume or None,
        "force_resume": args.force_resume or None,
        "overwrite": args.overwrite or None,
        "disable_aggregation": args.disable_aggregation or None,
        "max_failures": args.max_failures,
        "fail_fast": args.fail_fast or None,
        "max_rollout_attempts": args.max_attempts,
        "rollout_timeout_seconds": args.rollout_timeout,
        "max_steps_per_rollout": args.max_steps,
        "max_tokens_per_rollout": args.max_rollout_tokens,
        "max_total_tokens": args.max_total_tokens,
    }


def repeats(text: str) -> int | dict[str, int]:
    """`4`, or `math_agent=8,_default=2`.

    Raises:
        UsageError: it is neither.
    """
    try:
        pairs = [part.split("=", 1) for part in text.split(",") if part.strip()] if "=" in text else []
        counts = {name.strip(): int(count) for name, count in pairs} or int(text)
    except ValueError:
        counts = 0
    if min(counts.values() if isinstance(counts, dict) else (counts,)) < 1:
        raise UsageError(
            f"'{text}' is neither a number from 1 nor NAME=N,NAME=N",
            where="--num-repeats",
            fix="4 or math=8,_default=2",
        )
    return counts


def check_agent(collection: RolloutCollectionConfig, served: Mapping[str, Any]) -> None:
    """The agent that rows without one are sent to must be there.

    Raises:
        UsageError: it is not; names the ones that are.
    """
    agents = sorted(
        str(name) for name, block in served.items() if isinstance(block, Mapping) and "responses_api_agents" in block
    )
    name = collection.agent_name
    if name is not None and name not in agents:
        close = get_close_matches(name, agents, n=1)
        there = close[0] if close else f"one of {', '.join(agents)}" if agents else None
        raise UsageError(f"there is no agent '{name}'", where="--agent", fix=there)


def _check_files(collection: RolloutCollectionConfig) -> None:
    """Files that are read later must be there now, before servers are started for nothing."""
    missing = [
        f"{FLAGS[key]}: there is no file {name!r}"
        for key, name in (
            ("input_jsonl_fpath", collection.input_jsonl_fpath),
            ("prompt_config", collection.prompt_config),
        )
        if name is not None and not _resolve_under_cwd_or_install(name).is_file()
    ]
    if missing:
        raise UsageError("; ".join(missing))


def plain(config: DictConfig) -> dict[str, Any]:
    """The configuration as plain data."""
    tree = OmegaConf.to_container(config, resolve=True)
    assert isinstance(tree, dict)
    return {str(key): value for key, value in tree.items()}


def misspelt(words: Sequence[str], config: Mapping[str, Any]) -> list[str]:
    """What should be said of overrides that nobody reads but that are nearly a key of this command."""
    known = sorted({*RolloutCollectionConfig.model_fields, *E2ERolloutCollectionConfig.model_fields, GRACE_KEY})
    told = []
    for word in words:
        key = word.lstrip("+~").split("=", 1)[0].split(".", 1)[0].split("@", 1)[0]
        close = get_close_matches(key, known, n=1, cutoff=0.8)
        if "=" in word and key not in known and close and not isinstance(config.get(key), Mapping):
            told.append(f"'{key}' is not a key of this command — did you mean '{close[0]}'?")
    return told


def prepare_command(args: argparse.Namespace) -> str:
    """What makes the data of the benchmark that was asked for."""
    words = ["gym", "eval", "prepare", *(word for path in args.config for word in ("--config", path))]
    return shlex.join([*words, *(("--benchmark", args.benchmark) if args.benchmark else ())])


def grace_seconds(args: argparse.Namespace, config: DictConfig) -> float:
    """How long rollouts in flight may go on after an interrupt."""
    given = args.grace if args.grace is not None else config.get(GRACE_KEY, DEFAULT_GRACE)
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given < float("inf"):
        raise UsageError(f"seconds from 0, not {given!r}", where=f"--grace or +{GRACE_KEY}")
    return float(given)


def driver_of(collection: RolloutCollectionConfig) -> Driver | None:
    """The function that collects instead of us, if one is named.

    Raises:
        ConfigError: it cannot be found or called.
    """
    named = collection.rollout_collection_driver
    if named is None:
        return None
    where = "rollout_collection_driver"
    module_name, _, function = named.partition(":")
    if not module_name or not function:
        raise ConfigError(f"{named!r} is not of the form module.path:function", where=where)
    try:
        found: Any = getattr(importlib.import_module(module_name), function)
    except ModuleNotFoundError as error:
        raise ConfigError(f"cannot import {module_name!r}: {error}", where=where, fix="check the path") from error
    except AttributeError as error:
        raise ConfigError(f"{module_name!r} has no {function!r}", where=where) from error
    if not callable(found):
        raise ConfigError(f"{named!r} cannot be called", where=where)
    driver: Driver = found
    return driver
