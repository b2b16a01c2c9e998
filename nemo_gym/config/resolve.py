"""From files, env.yaml and overrides to one checked tree. The steps are in the order in which they happen."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nemo_gym.config.check import Instances, check_addresses, check_refs, find_instances, missing_entrypoint
from nemo_gym.config.defaults import (
    DEFAULT_HEAD_SERVER_PORT,
    PORT_RANGE,
    Surroundings,
    default_host,
    fill_addresses,
    fill_globals,
    pass_on_to_agents,
)
from nemo_gym.config.directives import expand_directives, missing_values
from nemo_gym.config.global_keys import CHECKED, check_global_keys, names_used, nearly_known_keys
from nemo_gym.config.interpolations import check_interpolations, interpolation_problem, register_resolvers
from nemo_gym.config.load import CONFIG_PATHS, Source, load_files, path_list, read_source
from nemo_gym.config.merge import Tree, copied, followed, mentions, merge, merge_into
from nemo_gym.config.overrides import Override, apply_overrides, apply_waiting, parse_overrides
from nemo_gym.config.positions import Positions
from nemo_gym.config.problems import Path as TreePath
from nemo_gym.config.problems import Problem, dotted, raise_all
from nemo_gym.config.secrets import hide_in_place, is_secret_name, scrubbed, secret_values
from nemo_gym.errors import ConfigError, ConfigMissingValuesError
from nemo_gym.keys import SERVER_TYPES

ENV_FILE = "env.yaml"
_DUMMY = "dummy_model"


@dataclass(frozen=True)
class Request:
    """What to resolve."""

    overrides: Sequence[str] = field(default=(), repr=False)
    initial: Tree = field(default_factory=dict, repr=False)
    env_path: Path | None = None
    read_env: bool = True
    offline: bool = False
    hide_secrets: bool = False


@dataclass(frozen=True)
class Resolved:
    """The configuration, what its writer should know, and where it came from."""

    config: DictConfig = field(repr=False)
    warnings: list[str]
    sources: list[Source]
    instances: Instances
    positions: Positions


def resolve(request: Request, around: Surroundings) -> Resolved:
    """Resolve and check a configuration. Starts nothing, writes nothing, and probes ports only when not offline.

    Raises:
        ConfigError: with every problem found at the first step that found any.
    """
    merged = gather(request, around)
    tree, positions = prepare(merged)
    return finish(tree, positions, merged, request, around)


@dataclass
class Gathered:
    """All sources merged, before anything is interpreted."""

    tree: Tree = field(repr=False)
    sources: list[Source]
    overrides: list[Override]
    warnings: list[str]


def gather(request: Request, around: Surroundings) -> Gathered:
    """Read everything and merge it: earlier paths < later paths < env.yaml < command line and initial values."""
    overrides = parse_overrides(request.overrides)
    from_line, waiting = apply_overrides(overrides)
    above = merge(request.initial, from_line)
    env = find_env(request, around)
    top = merge(env.tree, above) if env else copied(above)
    apply_waiting(top, waiting, strict=False)
    sources = [Source("initial", "initial values", request.initial)] if request.initial else []
    sources = [*([env] if env else []), *sources]
    where = Positions(sources, overrides).where((CONFIG_PATHS,))
    loaded = load_files(path_list(_resolved_paths(top), where=where), around.roots, named_in=where)
    tree: Tree = {}
    for source in [*loaded.sources, *([env] if env else [])]:
        merge_into(tree, source.tree, root=tree)
    merge_into(tree, above, root=tree)
    apply_waiting(tree, waiting, strict=True)
    if CONFIG_PATHS in tree or loaded.paths:
        tree[CONFIG_PATHS] = loaded.paths
    env_warnings = list(env.warnings) if env else []
    return Gathered(tree, [*loaded.sources, *sources], overrides, [*loaded.warnings, *env_warnings])


def find_env(request: Request, around: Surroundings) -> Source | None:
    """env.yaml, if there is one."""
    if not request.read_env:
        return None
    if request.env_path is not None:
        return read_source(request.env_path, kind="env") if request.env_path.is_file() else None
    candidates = (root / ENV_FILE for root in around.roots)
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    return read_source(path, kind="env") if path else None


def _resolved_paths(top: Tree) -> Any:
    """`config_paths`, which may point to a list elsewhere in env.yaml or the command line."""
    value = followed(top.get(CONFIG_PATHS), top)
    if not mentions(value):
        return value
    register_resolvers()
    try:
        config = as_config(top)
        found = config[CONFIG_PATHS]
        return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
    except (OmegaConfBaseException, RecursionError) as error:
        problem = interpolation_problem(error, (CONFIG_PATHS,), str(value), names=[str(key) for key in top])
        raise problem.kind(problem.what, fix=problem.fix) from None


def as_config(tree: Mapping[Any, Any], positions: Positions | None = None) -> DictConfig:
    """Plain data as OmegaConf's, with its refusals in our words."""
    try:
        return OmegaConf.create(dict(tree))
    except OmegaConfBaseException as error:
        what, path = _refusal(error)
        raise ConfigError(what, where=positions.where(path) if positions else None) from None
    except RecursionError:
        raise ConfigError("the configuration is nested too deep") from None


def _refusal(error: OmegaConfBaseException) -> tuple[str, TreePath]:
    """What OmegaConf does not take, and the way to it; a secret is not quoted."""
    name = str(error.full_key or "")
    steps = re.findall(r"\[(\d+)\]|([^.\[\]]+)", name)
    path: TreePath = tuple(int(index) if index else key for index, key in steps)
    secret = any(is_secret_name(part) for part in path if isinstance(part, str))
    reason = "cannot be read" if secret else str(error).splitlines()[0]
    return f"'{name}': {reason}", path


def prepare(merged: Gathered) -> tuple[Tree, Positions]:
    """Carry out directives, insist on values for every `???`, merge the stand-in model."""
    expanded = expand_directives(merged.tree)
    moves = expanded.moves
    raise_all(Positions(merged.sources, merged.overrides, moves).located(expanded.problems))
    missing = missing_values(expanded.tree)
    if missing:
        raise missing_error(missing, Positions(merged.sources, merged.overrides, moves))
    moves += merge_dummy_models(expanded.tree)
    return expanded.tree, Positions(merged.sources, merged.overrides, moves)


def missing_error(paths: Sequence[TreePath], positions: Positions | None = None) -> ConfigMissingValuesError:
    """One error for all values that are still `???`."""
    lines = []
    for path in paths:
        where = positions.where(path) if positions else None
        lines.append(f"\n    {dotted(path)}" + (f"  ({where})" if where else ""))
    examples = " ".join(f"++{dotted(path)}=<value>" for path in paths[:3])
    count = "a required value is" if len(paths) == 1 else f"{len(paths)} required values are"
    return ConfigMissingValuesError(f"{count} not set (???):{''.join(lines)}", fix=examples)


def merge_dummy_models(tree: Tree) -> list[tuple[TreePath, TreePath]]:
    """Lay the real implementation over the stand-in model beside it; the moves this makes."""
    moves: list[tuple[TreePath, TreePath]] = []
    for name, block in tree.items():
        models = block.get("responses_api_models") if isinstance(block, dict) else None
        if not isinstance(models, dict) or _DUMMY not in models or len(models) < 2:
            continue
        dummy = models.pop(_DUMMY)
        for implementation, fields in models.items():
            if isinstance(dummy, dict) and isinstance(fields, dict):
                models[implementation] = merge(dummy, fields)
                place: TreePath = (str(name), "responses_api_models")
                moves.append(((*place, str(implementation)), (*place, _DUMMY)))
    return moves


def finish(tree: Tree, positions: Positions, merged: Gathered, request: Request, around: Surroundings) -> Resolved:
    """Check everything that can be checked without importing a server, and fill in what is left open."""
    register_resolvers()
    config = as_config(tree, positions)
    blocks = {str(key) for key, value in tree.items() if isinstance(value, dict) and set(value) & set(SERVER_TYPES)}
    blocks |= CHECKED.keys()
    env_name = next((source.name for source in merged.sources if source.kind == "env"), None)
    dangling, warnings = check_interpolations(config, tree, strict_under=blocks, env_name=env_name)
    _raise(dangling, positions, tree)
    plain = plain_tree(config, tree)
    instances = find_instances(config, plain)
    report = _InstanceReport(instances, positions, strict=plain.get("error_on_almost_servers") is not False)
    host = default_host(plain, around.own_address)
    head = plain.get("head_server") if isinstance(plain.get("head_server"), dict) else {}
    head = head or {"host": host, "port": DEFAULT_HEAD_SERVER_PORT}
    problems = [*check_global_keys(plain), *report.problems, *check_refs(instances, plain)]
    problems += check_addresses(instances.valid, head, host)
    _raise(problems, positions, plain)
    fill(config, instances, host, request, around)
    near = nearly_known_keys(plain, used=names_used(tree))
    told = [_with_place(positions, path, text) for path, text in near]
    warnings = [*merged.warnings, *warnings, *instances.warnings, *report.warnings, *told]
    if request.hide_secrets:
        hide_in_place(config)
    return Resolved(config, list(dict.fromkeys(warnings)), merged.sources, instances, positions)


def _raise(problems: Sequence[Problem], positions: Positions, tree: Mapping[Any, Any]) -> None:
    """Report with places and without secrets, also those that reached a harmless key through a `${…}`."""
    if problems:
        known = secret_values(tree)
        raise_all([replace(problem, what=scrubbed(problem.what, known)) for problem in positions.located(problems)])


def _with_place(positions: Positions, path: TreePath, text: str) -> str:
    where = positions.where(path)
    return f"{where}: {text}" if where else text


class _InstanceReport:
    """Which findings about blocks stop us, and which are only told."""

    def __init__(self, instances: Instances, positions: Positions, *, strict: bool) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []
        found = [problem for problems in instances.almost.values() for problem in problems]
        for name, path in instances.incomplete.items():
            problem = missing_entrypoint(name, path)
            if positions.in_a_file(path):
                found.append(problem)
            else:  # env.yaml may speak of servers that this run does not use
                self.warnings.append(str(positions.located([problem])[0]))
        if strict:
            self.problems = found
        else:
            self.warnings += [str(problem) for problem in positions.located(found)]


def fill(config: DictConfig, instances: Instances, host: str, request: Request, around: Surroundings) -> None:
    """Write addresses and defaults into the configuration."""
    config["use_absolute_ip"] = bool(config.get("use_absolute_ip"))
    if config.get("head_server") is None:
        config["head_server"] = {"host": host, "port": DEFAULT_HEAD_SERVER_PORT}
    elif config["head_server"].get("host") is None:
        config["head_server"]["host"] = host
    low = config.get("port_range_low") or PORT_RANGE[0]
    high = config.get("port_range_high") or PORT_RANGE[1]
    disallowed = [*(config.get("disallowed_ports") or [])]
    head_port = config["head_server"].get("port")
    if head_port is not None and head_port not in disallowed:
        disallowed.append(head_port)
    pick = None if request.offline else (lambda taken: around.pick_port(taken, low, high))
    config["disallowed_ports"] = fill_addresses(instances.valid, host, disallowed, pick)
    pass_on_to_agents(config, instances.valid)
    fill_globals(config, around)


def plain_tree(config: DictConfig, tree: Tree) -> dict[str, Any]:
    """Every top-level value with its interpolations resolved; those that cannot be stay as they are written."""
    plain: dict[str, Any] = {}
    for key, raw in tree.items():
        value = followed(raw, tree) if mentions(raw) else raw
        if mentions(value):
            try:
                value = config[key]
                value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
            except (OmegaConfBaseException, RecursionError, ValueError, TypeError, OSError):
                value = raw
        plain[str(key)] = value
    return plain
