"""Arguments that commands share, and the resolved configuration they lead to."""

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path

from nemo_gym import component_search_roots
from nemo_gym.catalog.find import BENCHMARK, ENVIRONMENT, MODEL_TYPE, RESOURCES_SERVER, config_file
from nemo_gym.catalog.roots import _augment_sys_path
from nemo_gym.keys import EXTRA_ROOTS_ENV_VAR

SELECTORS = {
    "benchmark": BENCHMARK,
    "environment": ENVIRONMENT,
    "resources_server": RESOURCES_SERVER,
    "model_type": MODEL_TYPE,
}
MODEL_KEYS = {"model": "policy_model_name", "model_url": "policy_base_url", "model_api_key": "policy_api_key"}


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Which configuration: files, components by name, the model."""
    group = parser.add_argument_group("configuration")
    group.add_argument("--config", action="append", default=[], metavar="PATH", help="a configuration file; repeatable")
    group.add_argument("--benchmark", metavar="NAME", help="a benchmark by name, as NAME or NAME/FLAVOUR")
    group.add_argument("--environment", metavar="NAME", help="an environment by name")
    group.add_argument("--resources-server", metavar="NAME", help="a resources server by name")
    group.add_argument("--model-type", metavar="NAME", help="a model server by name")
    group.add_argument("--search-dir", action="append", default=[], metavar="DIR", help="look here first; repeatable")
    model = parser.add_argument_group("model")
    model.add_argument("-m", "--model", metavar="NAME", help="the model's name (policy_model_name)")
    model.add_argument("--model-url", metavar="URL", help="where it is served (policy_base_url)")
    model.add_argument(
        "--model-api-key", metavar="KEY", help="the key for it (policy_api_key); better kept in env.yaml"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="say more")


def config_overrides(args: argparse.Namespace, rest: Sequence[str]) -> list[str]:
    """Flags and overrides as one list of override tokens, configuration files first."""
    for folder in args.search_dir:
        known = os.environ.get(EXTRA_ROOTS_ENV_VAR)
        os.environ[EXTRA_ROOTS_ENV_VAR] = os.pathsep.join(filter(None, [str(Path(folder).resolve()), known]))
    _augment_sys_path()
    roots = component_search_roots()
    paths = list(args.config)
    for name, shelf in SELECTORS.items():
        if getattr(args, name):
            paths.append(str(config_file(shelf, getattr(args, name), roots)))
    paths += [path for word in rest for path in _listed_paths(word)]
    tokens = ["+verbose=true"] if args.verbose else []
    if paths:
        tokens.append(f"+config_paths={json.dumps(paths)}")
    tokens += [f"+{key}={json.dumps(getattr(args, flag))}" for flag, key in MODEL_KEYS.items() if getattr(args, flag)]
    return [*tokens, *(word for word in rest if not _listed_paths(word))]


def _listed_paths(word: str) -> list[str]:
    """The paths of a literal `+config_paths=[a,b]`, so that several ways of naming files add up."""
    start = "+config_paths=["
    if not word.startswith(start) or not word.endswith("]"):
        return []
    return [part.strip().strip("'\"") for part in word[len(start) : -1].split(",") if part.strip()]


def named(word: str | None, rest: Sequence[str]) -> tuple[str | None, list[str]]:
    """An optional NAME and the overrides: argparse takes the first override for the name where none was given."""
    if word is None or (word[0] not in "+~" and "=" not in word):
        return word, list(rest)
    return None, [word, *rest]
