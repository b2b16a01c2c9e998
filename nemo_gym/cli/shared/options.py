"""Flags that commands share, and the options that flags and configuration keys make together."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nemo_gym import component_search_roots
from nemo_gym.catalog.component_names import (
    BENCHMARK,
    ENVIRONMENT,
    MODEL_TYPE,
    RESOURCES_SERVER,
    ComponentKind,
    config_file,
)
from nemo_gym.cli.terminal import output
from nemo_gym.config.keys import CONFIGURATION, KEYS, MODEL, keys_with_flags
from nemo_gym.config.search_roots import _augment_sys_path
from nemo_gym.errors import GymError
from nemo_gym.keys import EXTRA_ROOTS_ENV_VAR

if TYPE_CHECKING:  # expensive to import, and --help does not need them
    from omegaconf import DictConfig

    from nemo_gym.config.resolve import ResolvedConfig
    from nemo_gym.config.schema_cli import BaseNeMoGymCLIConfig

    OptionsT = TypeVar("OptionsT", bound=BaseNeMoGymCLIConfig)

SELECTORS = {
    "benchmark": BENCHMARK,
    "environment": ENVIRONMENT,
    "resources_server": RESOURCES_SERVER,
    "model_type": MODEL_TYPE,
}
"""Flag that selects a configuration by name -> kind of component."""
_TYPE_LABEL = re.compile(r"constrained-\w+|(?:dict|list|tuple|union)\[.*\]|function-\w+\[.*\]|int|str|float|bool|none")
"""Parts of pydantic's error locations that name a member of a union, not a key."""
CONFIG_PATHS = "config_paths"
MODEL_NAME_KEY = "policy_model_name"


class UsageError(GymError):
    """The command line or its options cannot be used."""

    exit_status = 2


class FlagGroup:
    """Adds flags to a parser, or to a titled group of its help.

    The value of a flag is stored under `key`, the configuration key that it sets; by default that is the flag's name.
    """

    def __init__(self, parser: argparse._ActionsContainer, title: str | None = None) -> None:
        self.title = title
        self.add_argument = (parser.add_argument_group(title) if title else parser).add_argument

    def text(self, names: str, metavar: str, help_text: str, key: str = "") -> None:
        """Add a flag with a text; `names` are separated by spaces."""
        self.add_argument(*names.split(), dest=key or _key_of(names), metavar=metavar, help=help_text)

    def integer(self, names: str, help_text: str, key: str = "", default: int | None = None) -> None:
        """Add a flag with an integer, which the help calls N."""
        self.add_argument(
            *names.split(), dest=key or _key_of(names), metavar="N", help=help_text, type=int, default=default
        )

    def decimal(self, names: str, metavar: str, help_text: str, key: str = "") -> None:
        """Add a flag with a decimal number."""
        self.add_argument(*names.split(), dest=key or _key_of(names), metavar=metavar, help=help_text, type=float)

    def words(self, name: str, metavar: str, help_text: str, key: str = "") -> None:
        """Add a flag with a text that may be repeated."""
        self.add_argument(name, dest=key or _key_of(name), action="append", default=[], metavar=metavar, help=help_text)

    def choice(self, names: str, choices: Sequence[str], help_text: str, default: str | None = None) -> None:
        """Add a flag with one of several words."""
        self.add_argument(*names.split(), choices=choices, help=help_text, default=default)

    def switch(self, names: str, help_text: str, key: str = "") -> None:
        """Add a flag without a value."""
        self.add_argument(*names.split(), dest=key or _key_of(names), action="store_true", help=help_text)

    def json(self) -> None:
        """Add --json."""
        self.switch("--json", "print the result as JSON and nothing else on stdout")

    def search_dir(self) -> None:
        """Add --search-dir."""
        text = "search this folder first; repeatable"
        self.add_argument("--search-dir", action="append", default=[], metavar="DIR", help=text)

    def component(self, name_help: str) -> None:
        """Add NAME, an environment or benchmark with a manifest, and --kind, which says which of the two it is."""
        self.add_argument("name", nargs="?", metavar="NAME", help=name_help)
        self.choice("--kind", ("environment", "benchmark"), "kind of NAME, if both kinds have it")

    def server_folder(self) -> None:
        """Add the flags that name one server folder; `+entrypoint=<type>/<name>` does the same."""
        self.text("--resources-server", "NAME", "resources server to use", "server_name")
        self.search_dir()


def _key_of(names: str) -> str:
    """Return the key of a flag: `max_rows` for `-m --max-rows`."""
    return names.split()[-1].lstrip("-").replace("-", "_")


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that select a configuration: files, components by name, the model."""
    group = FlagGroup(parser, CONFIGURATION)
    add_key_flags([FlagGroup(parser), group, FlagGroup(parser, MODEL)])
    texts = {
        "--benchmark": "benchmark to use, as NAME or NAME/FLAVOUR; repeatable",
        "--environment": "environment to use; repeatable",
        "--resources-server": "resources server to use; repeatable",
        "--model-type": "model server to use",
        "--agent-type": "agent to use in place of the environment's own",
    }
    for flag, text in texts.items():
        group.add_argument(flag, metavar="NAME", help=text, action=KeepEveryValue)
    group.search_dir()


class KeepEveryValue(argparse.Action):
    """Store the value of a flag like `store`, and all values of a repeated flag for `given_values`."""

    def __call__(self, _parser: Any, args: argparse.Namespace, value: Any, _flag: str | None = None) -> None:
        setattr(args, self.dest, value)
        args.every_value = getattr(args, "every_value", {})
        args.every_value.setdefault(self.dest, []).append(value)


def given_values(args: argparse.Namespace, dest: str) -> list[str]:
    """Return the different values of a flag with the action `KeepEveryValue`."""
    value = getattr(args, dest, None)
    return list(dict.fromkeys(getattr(args, "every_value", {}).get(dest) or ([value] if value else [])))


def agent_types(args: argparse.Namespace) -> list[str]:
    """Return the agents of --agent-type, which may be repeated or have names separated by commas.

    Raises:
        UsageError: a name is empty.
    """
    values = given_values(args, "agent_type")
    names = [name.strip() for value in values for name in value.split(",")]
    if "" in names:
        problem = f"--agent-type {','.join(values)!r} has an empty name"
        raise UsageError(problem, where=args.prog, fix="names separated by commas; gym list agents shows them")
    return list(dict.fromkeys(names))


def add_key_flags(groups: Sequence[FlagGroup], command: str = "") -> None:
    """Add the flags of `nemo_gym.config.keys`, each to the group with its title. `config_overrides` reads them."""
    add_argument_by_title = {group.title: group.add_argument for group in groups}
    for key, flag in keys_with_flags(command):
        settings: dict[str, Any] = {"metavar": flag.metavar, "type": flag.kind}
        if not flag.metavar:
            settings = {"action": "store_true"}
        elif key.name == CONFIG_PATHS:
            settings = {"metavar": flag.metavar, "action": "append", "default": []}
        elif key.name == MODEL_NAME_KEY:
            settings["action"] = KeepEveryValue
        add_argument_by_title[flag.title](*flag.names.split(), help=key.flag_help, **settings)


def config_overrides(args: argparse.Namespace) -> list[str]:
    """Return flags and overrides as override tokens, configuration files first."""
    for name in ("model", "model_type", "agent_type"):
        values = agent_types(args) if name == "agent_type" else given_values(args, name)
        if len(values) > 1:
            also = "" if name == "model_type" else f"; gym eval run evaluates several --{name.replace('_', '-')}"
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is given as {' and '.join(values)}", where=args.prog, fix=f"choose one{also}")
    add_search_dirs(args)
    roots = component_search_roots()
    paths = list(getattr(args, "config", ()))
    for name, kind in SELECTORS.items():
        paths += [config_path(kind, value, roots) for value in given_values(args, name)]
    paths += [path for word in args.overrides for path in _literal_paths(word)]
    pairing_tokens: list[str] = []
    for name in agent_types(args):
        from nemo_gym.catalog.agent_pairing import pair_agent  # --help does not need it

        pairing = pair_agent(name, paths, roots, args.overrides)
        paths = [*paths, str(pairing.path)]
        pairing_tokens = pairing.overrides
        if getattr(args, "agent_name", "") is None:  # the command has --agent, which is not given
            args.agent_name = pairing.instance
    tokens = [f"+{CONFIG_PATHS}={json.dumps(paths)}"] if paths else []
    tokens += pairing_tokens
    for key in KEYS.values():
        value = getattr(args, key.flag.dest, None) if key.flag and key.name != CONFIG_PATHS else None
        if value or type(value) in (int, float):  # 0 is a value; None and False are flags that are not set
            tokens.append(f"+{key.name}={json.dumps(value)}")
    if getattr(args, "server_name", None):
        tokens.append(f"+entrypoint=resources_servers/{args.server_name}")
    return [*tokens, *(word for word in args.overrides if not _literal_paths(word))]


def config_path(kind: ComponentKind, value: str, roots: Sequence[Path]) -> str:
    """Return the entry of `config_paths` for a component: its file, or the name of another package's environment."""
    if kind is ENVIRONMENT and ":" in value:
        from nemo_gym.config.environment_sources import parse_name

        return parse_name(value, roots).text
    return str(config_file(kind, value, roots))


def add_search_dirs(args: argparse.Namespace) -> None:
    """Put --search-dir folders before the other search roots, the last one given first; make the roots importable."""
    for folder in getattr(args, "search_dir", ()):
        if not Path(folder).is_dir():
            reason = "not a folder" if Path(folder).exists() else "folder not found"
            raise UsageError(f"--search-dir: {reason}: {folder}", fix="correct the path")
        roots = os.environ.get(EXTRA_ROOTS_ENV_VAR)
        os.environ[EXTRA_ROOTS_ENV_VAR] = os.pathsep.join(filter(None, [str(Path(folder).resolve()), roots]))
    _augment_sys_path(with_working_directory=False)


def _literal_paths(word: str) -> list[str]:
    """Return the paths in `+config_paths=[a,b]`, which are added to those of flags; [] for any other word."""
    start = "+config_paths=["
    if not word.startswith(start) or not word.endswith("]"):
        return []
    return [part.strip().strip("'\"") for part in word[len(start) : -1].split(",") if part.strip()]


def is_override(word: str) -> bool:
    """Return whether a word is an override: `+key=value`, `key=value` or `~key`.

    A name with settings, `SOURCE:ID?key=value`, is no override: keys of the configuration have no question mark.
    """
    key, equals, _ = word.partition("=")
    return word[:1] in ("+", "~") or (equals == "=" and "?" not in key)


def take_name(args: argparse.Namespace) -> str | None:
    """Return NAME like `take_names`, for a command that has at most one; None without a name."""
    return next(iter(take_names(args)), None)


def take_names(args: argparse.Namespace) -> list[str]:
    """Return the words of NAME that are names. Argparse also takes overrides for names: move them to the overrides."""
    words = args.name if isinstance(args.name, list) else [args.name] if args.name else []
    args.overrides[:0] = [word for word in words if is_override(word)]
    return [word for word in words if not is_override(word)]


def resolve_config(args: argparse.Namespace, *, needs_model: bool = True, hide_secrets: bool = False) -> ResolvedConfig:
    """Resolve the configuration of the command line and print its warnings.

    Without `needs_model` a placeholder stands for the model.
    """
    from nemo_gym.config.omegaconf_adapter import as_dict
    from nemo_gym.config.resolve import ResolveRequest, resolve
    from nemo_gym.exporters import register_exporter_keys
    from nemo_gym.global_config import GlobalConfigDictParserConfig, host_facts

    initial = {} if needs_model else as_dict(GlobalConfigDictParserConfig.NO_MODEL_GLOBAL_CONFIG_DICT)
    register_exporter_keys()
    request = ResolveRequest(overrides=config_overrides(args), initial=initial, offline=True, hide_secrets=hide_secrets)
    resolved = resolve(request, host_facts())
    for warning in resolved.warnings:
        output.warn(warning)
    return resolved


def load_options(
    options_class: type[OptionsT],
    config: DictConfig,
    args: argparse.Namespace,
    values: Mapping[str, Any] | None = None,
    labels: Mapping[str, str] | None = None,
) -> OptionsT:
    """Return the options of a command: configuration keys, overridden by flags, overridden by `values`.

    A flag sets the key that is its `dest`. None and the False of an unset switch override nothing. `labels` are the
    names of keys in errors; by default that is the flag with this `dest`.

    Raises:
        UsageError: options are missing or wrong; the error lists all of them.
    """
    from pydantic import ValidationError

    from nemo_gym.config.omegaconf_adapter import as_dict

    keys = {key: config[key] for key in options_class.model_fields if key in config}
    flags = {key: getattr(args, key, None) for key in options_class.model_fields}
    chosen = {key: value for key, value in flags.items() if value is not None and value is not False}
    chosen |= {key: value for key, value in (values or {}).items() if value is not None}
    try:
        return options_class.model_validate({**as_dict(keys), **chosen})
    except ValidationError as error:
        names = {**args.flag_names, **(labels or {})}
        problems = [_describe_problem(problem, names) for problem in error.errors()]
        raise UsageError("; ".join(problems), where=args.prog, fix=f"{args.prog} --help") from None


def _describe_problem(problem: Any, names: Mapping[str, str]) -> str:
    """Return a problem that pydantic found as text; `names` are the flags of keys."""
    key = ".".join(part for part in map(str, problem["loc"]) if not _TYPE_LABEL.fullmatch(part))
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not key:
        return message
    name = f"{names[key]} (or +{key}=…)" if key in names else f"+{key}=…"
    return f"{name} is missing" if problem["type"] == "missing" else f"{name}: {message}"
