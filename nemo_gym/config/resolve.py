"""Resolve files, env.yaml and overrides into one checked configuration. Functions are in execution order."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_gym.config.checks import (
    InstanceCheck,
    check_addresses,
    check_instances,
    check_keys,
    check_references,
    misspelt_keys,
    referenced_names,
)
from nemo_gym.config.defaults import HostFacts, default_host, fill_defaults
from nemo_gym.config.earlier_forms import adopt_earlier_forms
from nemo_gym.config.environment_sources import ENVIRONMENT_KEY, source_names
from nemo_gym.config.error_locations import ErrorLocations
from nemo_gym.config.inheritance import Expansion
from nemo_gym.config.instances import PLACEHOLDER_MODEL, is_server_block
from nemo_gym.config.interpolations import check_interpolations, interpolation_problem
from nemo_gym.config.keys import ANY, DEFAULT_HEAD_SERVER_PORT, KEYS
from nemo_gym.config.load import CONFIG_PATHS, ConfigSource, load_files, path_list, read_source
from nemo_gym.config.omegaconf_adapter import RESOLVE_ERRORS, as_plain_value, register_resolvers
from nemo_gym.config.overrides import apply_overrides, apply_pending, parse_overrides
from nemo_gym.config.problems import ConfigProblem, KeyPath, dotted_path, raise_all
from nemo_gym.config.provider_keys import adopt_provider_key, advise_on_provider_keys
from nemo_gym.config.secret_names import has_secret_name
from nemo_gym.config.secret_text import forget_secrets, mask_text, remember_secrets
from nemo_gym.config.secrets import mask_in_place, redact_text, secret_values
from nemo_gym.config.trees import Tree, copy_tree, has_interpolation, merge, merge_into, missing_values, names_in
from nemo_gym.errors import ConfigError, ConfigMissingValuesError
from nemo_gym.keys import MODELS

ENV_FILE = "env.yaml"
PATHS_OF_FLAGS = f"override '+{CONFIG_PATHS}=["
"""Prefix of the location of a list of configuration files. The command line joins the files of all flags."""


@dataclass(frozen=True)
class ResolveRequest:
    """The inputs of a resolution."""

    overrides: Sequence[str] = field(default=(), repr=False)
    initial: Tree = field(default_factory=dict, repr=False)
    env_path: Path | None = None
    read_env: bool = True
    offline: bool = False
    hide_secrets: bool = False


@dataclass(frozen=True)
class ResolvedConfig:
    """The configuration with its warnings, its server instances and the locations of its values."""

    config: DictConfig = field(repr=False)
    warnings: list[str]
    instances: InstanceCheck
    locations: ErrorLocations


def resolve(request: ResolveRequest, host: HostFacts) -> ResolvedConfig:
    """Resolve and check a configuration. Its secrets are masked from now on; ports are probed unless offline.

    Raises:
        ConfigError: the message lists every problem of the first step that has problems.
    """
    tree, locations, warnings = merge_sources(request, host)
    warnings += adopt_provider_key(tree, host.environ)
    _remember_secrets(tree)
    tree = expand_tree(tree, locations)
    warnings += adopt_earlier_forms(tree, host.roots)
    config, instances, more_warnings = check_and_fill(tree, locations, request, host)
    if request.hide_secrets:
        mask_in_place(config)
    unique_warnings = dict.fromkeys(map(mask_text, [*warnings, *more_warnings]))
    return ResolvedConfig(config, list(unique_warnings), instances, locations)


def _remember_secrets(tree: Tree) -> None:
    """Mask the secrets of the configuration in every text from now on; a key of the configuration is not a secret."""
    remember_secrets(secret_values(tree))
    forget_secrets(names_in(tree))


def merge_sources(request: ResolveRequest, host: HostFacts) -> tuple[Tree, ErrorLocations, list[str]]:
    """Read and merge all sources: earlier paths < later paths < env.yaml < initial values and command line.

    Returns the merged tree, the locations of its values, and warnings.
    """
    overrides = parse_overrides(request.overrides)
    command_line, pending = apply_overrides(overrides)
    initial = merge(request.initial, command_line)
    env = _read_env(request, host)
    without_files: Tree = copy_tree(env.tree) if env else {}
    merge_into(without_files, initial, root=without_files)
    apply_pending(without_files, pending, strict=False)
    sources = [env] if env else []
    sources += [ConfigSource("initial", "initial values", request.initial)] if request.initial else []
    location = ErrorLocations(sources, overrides).where((CONFIG_PATHS,))
    if location is not None and location.startswith(PATHS_OF_FLAGS):  # the list that --config and others were put in
        location = None
    try:
        paths = path_list(_resolve_paths(without_files), location=location)
        paths = [*paths, *source_names(without_files.get(ENVIRONMENT_KEY), "command line or env.yaml")]
        files = load_files(paths, host.roots, named_in=location)
        forget_secrets(paths)  # paths of existing files are public
    except ConfigError as error:  # a path may be a secret that a `${…}` inserted
        what, fix = (redact_text(text or "", without_files) for text in (error.problem, error.fix))
        raise type(error)(what, where=error.where, fix=fix or None) from None
    tree: Tree = {}
    for source in [*files.sources, *([env] if env else [])]:
        merge_into(tree, source.tree, root=tree)
    merge_into(tree, initial, root=tree)
    apply_pending(tree, pending, strict=True)
    if CONFIG_PATHS in tree or files.paths:
        tree[CONFIG_PATHS] = files.paths
    warnings = [*files.warnings, *(env.warnings if env else ())]
    return tree, ErrorLocations([*files.sources, *sources], overrides), warnings


def _read_env(request: ResolveRequest, host: HostFacts) -> ConfigSource | None:
    """Read env.yaml if it exists."""
    if not request.read_env:
        return None
    candidates = [request.env_path] if request.env_path else [root / ENV_FILE for root in host.roots]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    return read_source(path, kind="env") if path else None


def _resolve_paths(tree: Tree) -> Any:
    """Return `config_paths`, which may refer to a list elsewhere in env.yaml or on the command line."""
    value = tree.get(CONFIG_PATHS)
    if not has_interpolation(value):
        return value
    register_resolvers()
    try:
        return as_plain_value(as_config(tree)[CONFIG_PATHS])
    except (OmegaConfBaseException, RecursionError) as error:
        problem = interpolation_problem(error, (CONFIG_PATHS,), str(value), names=[str(key) for key in tree])
        raise problem.kind(problem.what, fix=problem.fix) from None


def as_config(tree: Mapping[Any, Any], locations: ErrorLocations | None = None) -> DictConfig:
    """Return plain data as an OmegaConf tree.

    Raises:
        ConfigError: OmegaConf rejects a value; the message contains no secret.
    """
    try:
        return OmegaConf.create(dict(tree))
    except OmegaConfBaseException as error:
        name = str(error.full_key or "")
        steps = re.findall(r"\[(\d+)\]|([^.\[\]]+)", name)
        path: KeyPath = tuple(int(index) if index else key for index, key in steps)
        reason = "cannot be read" if has_secret_name(path) else str(error).splitlines()[0]
        raise ConfigError(f"'{name}': {reason}", where=locations.where(path) if locations else None) from None
    except RecursionError:
        raise ConfigError("the configuration is nested too deep") from None


def expand_tree(tree: Tree, locations: ErrorLocations) -> Tree:
    """Expand directives, raise an error if a value is still `???`, and replace dummy models by real ones."""
    expansion = Expansion(tree)
    locations.moves = expansion.moves
    raise_all(locations.locate(expansion.problems))
    missing = missing_values(expansion.tree)
    if missing:
        raise missing_values_error(missing, locations)
    locations.moves += merge_dummy_models(expansion.tree)
    return expansion.tree


def missing_values_error(paths: Sequence[KeyPath], locations: ErrorLocations | None = None) -> ConfigMissingValuesError:
    """Return one error for all values that are still `???`."""
    lines = []
    for path in paths:
        location = locations.where(path) if locations else None
        lines.append(f"\n    {dotted_path(path)}" + (f"  ({location})" if location else ""))
    examples = " ".join(f"++{dotted_path(path)}=<value>" for path in paths[:3])
    title = "Missing mandatory value" if len(paths) == 1 else f"{len(paths)} missing mandatory values"
    return ConfigMissingValuesError(f"{title} (???):{''.join(lines)}", fix=examples)


def merge_dummy_models(tree: Tree) -> list[tuple[KeyPath, KeyPath]]:
    """Merge the real implementation over the dummy model of the same instance; return (new path, old path) of each."""
    moves: list[tuple[KeyPath, KeyPath]] = []
    for name, block in tree.items():
        models = block.get(MODELS) if isinstance(block, dict) else None
        if not isinstance(models, dict) or PLACEHOLDER_MODEL not in models or len(models) < 2:
            continue
        dummy = models.pop(PLACEHOLDER_MODEL)
        for implementation, fields in models.items():
            if isinstance(dummy, dict) and isinstance(fields, dict):
                models[implementation] = merge(dummy, fields)
                moves.append(((str(name), MODELS, str(implementation)), (str(name), MODELS, PLACEHOLDER_MODEL)))
    return moves


def check_and_fill(
    tree: Tree, locations: ErrorLocations, request: ResolveRequest, host: HostFacts
) -> tuple[DictConfig, InstanceCheck, list[str]]:
    """Do all checks that do not import a server, and fill in defaults; return configuration, instances and warnings."""
    register_resolvers()
    config = as_config(tree, locations)
    strict_under = {str(key) for key, value in tree.items() if isinstance(value, dict) and is_server_block(value)}
    strict_under |= {name for name, key in KEYS.items() if key.type is not ANY}
    env_name = next((source.name for source in locations.sources if source.kind == "env"), None)
    key_advice = advise_on_provider_keys(host.environ)
    problems, warnings = check_interpolations(
        config, tree, strict_under=strict_under, env_name=env_name, key_advice=key_advice
    )
    raise_all(locations.locate(problems))
    resolved = resolve_tree(config, tree)
    _remember_secrets(resolved)
    instances = check_instances(config, resolved)
    instance_errors, instance_warnings = _classify_problems(instances, locations, resolved)
    host_name = default_host(resolved, host.own_address)
    head = resolved.get("head_server")
    if not isinstance(head, dict) or not head:
        head = {"host": host_name, "port": DEFAULT_HEAD_SERVER_PORT}
    problems = [*check_keys(resolved), *instance_errors, *check_references(instances, resolved)]
    problems += check_addresses(instances.valid, head, host_name)
    raise_all(locations.locate(problems))
    fill_defaults(config, instances.valid, host_name, host, offline=request.offline)
    problems = [*instance_warnings, *misspelt_keys(resolved, used=referenced_names(tree))]
    return config, instances, [*warnings, *instances.warnings, *map(str, locations.locate(problems))]


def _classify_problems(
    instances: InstanceCheck, locations: ErrorLocations, resolved: Mapping[Any, Any]
) -> tuple[list[ConfigProblem], list[ConfigProblem]]:
    """Return the problems of server blocks: those that are errors in this run, and those that are only warnings."""
    errors = [problem for problems in instances.almost.values() for problem in problems]
    warnings: list[ConfigProblem] = []
    for problem in instances.incomplete.values():
        # env.yaml may mention servers that this run does not use
        (errors if locations.is_in_file(problem.path or ()) else warnings).append(problem)
    if resolved.get("error_on_almost_servers") is False:
        return [], [*warnings, *errors]
    return errors, warnings


def resolve_tree(config: DictConfig, tree: Tree) -> dict[str, Any]:
    """Return every top-level value with its interpolations resolved; unresolvable values are unchanged."""
    resolved: dict[str, Any] = {}
    for key, raw in tree.items():
        resolved[str(key)] = raw
        if has_interpolation(raw):
            with suppress(*RESOLVE_ERRORS):
                resolved[str(key)] = as_plain_value(config[key])
    return resolved
