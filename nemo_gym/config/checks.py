"""Checks of a configuration: global keys, server blocks, references between servers, addresses."""

import re
import warnings as python_warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from nemo_gym.config.defaults import OFFLINE_PORT
from nemo_gym.config.instances import is_server_block
from nemo_gym.config.keys import ANY, KEYS, KEYS_WITHOUT_EFFECT, PORT, RESERVED_KEYS, Key, known_keys, value_of
from nemo_gym.config.omegaconf_adapter import as_plain_value
from nemo_gym.config.problems import ConfigProblem, KeyPath, did_you_mean, nearest_names
from nemo_gym.config.schema_servers import (
    Domain,
    ServerInstanceConfig,
    is_almost_server,
    is_server_ref,
    read_server_instance,
)
from nemo_gym.config.secret_names import has_secret_name
from nemo_gym.config.secret_text import MASK, mask_text
from nemo_gym.config.secrets import iter_fields
from nemo_gym.config.trees import has_interpolation, iter_leaves
from nemo_gym.errors import AlmostServerError, ConfigError, ConfigInterpolationError, ServerRefNotFoundError
from nemo_gym.keys import MODELS, RESOURCES, SERVER_TYPES

_UNION_LABELS = {"rows", "benchmark", "gitlab", "huggingface", "[key]"}
"""Parts of pydantic's error locations that are not keys of the configuration."""
_SCHEME = re.compile(r"https?://|\$\{", re.IGNORECASE)
_USER_INFO = re.compile(r"https?://[^/?#]*@")
_COMMON_FIELDS = {"datasets", "hosting", "domain", "verified", "verified_url", "description"}
"""Fields of every server block that a server's config class need not declare."""
FIELDS_OF_RESOURCES_SERVERS = frozenset({"tool_errors", "close_timeout_seconds", "close_idle_seconds"})
"""Fields of every resources server that a user could take for keys of the run, where they would be ignored silently."""
_FLAG_ADVICE = {
    MODELS: "choose one with --model-type (`gym list models` shows them), or ",
    RESOURCES: "choose one with --resources-server, or ",
}
"""Advice on the flag that selects a server, by server type."""


# -- global keys --------------------------------------------------------------------------------------------------


def check_keys(config: Mapping[Any, Any]) -> list[ConfigProblem]:
    """Return a problem for every global key whose value has the wrong type, or contradicts another key."""
    problems = []
    for name, key in KEYS.items():
        value = config.get(name)
        if value is None and (key.nullable or name not in config):
            continue
        if not _accepts(key, value):
            problems.append(ConfigProblem(_wrong_type(key, value), (name,)))
    return problems + _check_combinations(config)


def read_key(config: Mapping[str, Any], name: str) -> Any:
    """Return the value of a key, or its default; for configurations that may not have been checked.

    Raises:
        ConfigError: the value has the wrong type.
    """
    value = value_of(config, name)
    if value is not None and not _accepts(KEYS[name], value):
        raise ConfigError(_wrong_type(KEYS[name], value), where=name)
    return value


def _accepts(key: Key, value: Any) -> bool:
    """Return whether a key accepts a value. Only keys of any type accept a text whose `${…}` could not be resolved."""
    is_unresolved = isinstance(value, str) and "${" in value
    return key.type is ANY or (not is_unresolved and key.type.accepts(value))


def _wrong_type(key: Key, value: Any) -> str:
    return f"'{key.name}' must be {key.type.description}, not {_value_text((key.name,), value)}"


def _check_combinations(config: Mapping[Any, Any]) -> list[ConfigProblem]:
    """Return the problems of values that are valid alone but not together, and of the head server's port."""
    problems = []
    low, high = config.get("port_range_low"), config.get("port_range_high")
    if isinstance(low, int) and isinstance(high, int) and low > high:
        what = f"'port_range_low' ({low}) is above 'port_range_high' ({high})"
        problems.append(ConfigProblem(what, ("port_range_low",)))
    folder = config.get("model_call_capture_dir")
    if config.get("observability_enabled") is True:
        if folder is None:
            fix = "+model_call_capture_dir=/absolute/folder"
            what = "'observability_enabled' needs 'model_call_capture_dir'"
            problems.append(ConfigProblem(what, ("observability_enabled",), fix))
        elif isinstance(folder, str) and not Path(folder).is_absolute():
            what = f"'model_call_capture_dir' must be an absolute path, not {folder!r}"
            problems.append(ConfigProblem(what, ("model_call_capture_dir",)))
    head = config.get("head_server")
    if isinstance(head, dict) and head.get("port") is not None and not PORT.accepts(head["port"]):
        path = ("head_server", "port")
        what = f"'head_server.port' must be {PORT.description}, not {_value_text(path, head['port'])}"
        problems.append(ConfigProblem(what, path))
    return problems


def misspelt_keys(config: Mapping[Any, Any], *, used: Iterable[str]) -> list[ConfigProblem]:
    """Return a warning for every key that resembles a known one, or is set to something that has no effect here.

    A key that a `${…}` uses (its name is in `used`) is neither.
    """
    key_names, used_names = known_keys(), set(used)
    warnings = []
    for key, value in config.items():
        name = str(key)
        if name in key_names or name in used_names or is_server_block(value):
            continue
        if name in KEYS_WITHOUT_EFFECT:
            if value and value != "agent":  # the default of `environment_routing_mode`
                problem = f"'{name}' is a key of NeMo Gym 0.7 that has no effect here"
                warnings.append(ConfigProblem(problem, (name,), is_warning=True))
            continue
        if name in FIELDS_OF_RESOURCES_SERVERS:
            problem = f"'{name}' has no effect here: it is a field of each resources server"
            fix = "; ".join(f"+{'.'.join(map(str, path))}.{name}=…" for path in _resources_servers(config)) or None
            warnings.append(ConfigProblem(problem, (name,), fix, is_warning=True))
            continue
        guess = did_you_mean(name, key_names, cutoff=0.85)
        if guess:
            warnings.append(ConfigProblem(f"'{name}' is not a known key{guess}", (name,), is_warning=True))
    return warnings


def _resources_servers(config: Mapping[Any, Any]) -> Iterator[KeyPath]:
    """Yield the path of the block of each resources server."""
    for name, block in config.items():
        path = _implementation_path(str(name), block) if isinstance(block, Mapping) else None
        if path is not None and path[1] == RESOURCES:
            yield path


def referenced_names(tree: Any) -> set[str]:
    """Return the top-level names that any `${…}` refers to."""
    references = (
        piece.split("}")[0]
        for _, value in iter_leaves(tree)
        if isinstance(value, str)
        for piece in value.split("${")[1:]
    )
    return {reference.split(".")[0].split("[")[0].strip() for reference in references}


# -- server blocks ------------------------------------------------------------------------------------------------


@dataclass
class InstanceCheck:
    """The result of checking the top-level server blocks."""

    valid: list[ServerInstanceConfig] = field(default_factory=list)
    almost: dict[str, list[ConfigProblem]] = field(default_factory=dict)
    """Invalid blocks: name -> problems."""
    incomplete: dict[str, ConfigProblem] = field(default_factory=dict)
    """Blocks without an entrypoint: name -> problem."""
    warnings: list[str] = field(default_factory=list)


def check_instances(config: DictConfig, resolved: Mapping[Any, Any]) -> InstanceCheck:
    """Validate the server blocks of `config`. `resolved` is `config` as plain data."""
    result = InstanceCheck()
    for key, block in resolved.items():
        name = str(key)
        if name in RESERVED_KEYS or not isinstance(block, dict) or not is_server_block(block):
            continue
        path = _implementation_path(name, block)
        if not is_almost_server(block):  # it has no entrypoint
            if path:
                what, fix = f"server '{name}' has no entrypoint", "add 'entrypoint: app.py'"
                result.incomplete[name] = ConfigProblem(what, path, fix, kind=AlmostServerError)
            continue
        with python_warnings.catch_warnings(record=True) as caught:
            python_warnings.simplefilter("always", DeprecationWarning)
            try:
                if has_interpolation(block):  # it could not be resolved; trying again raises the reason
                    as_plain_value(config[key])
                instance, error = read_server_instance(name, block, config[key])
            except (OmegaConfBaseException, RecursionError) as unresolvable:
                reason = str(unresolvable).splitlines()[0] if str(unresolvable) else "it refers to itself"
                what = f"server '{name}' cannot be resolved: {reason}"
                result.almost[name] = [ConfigProblem(what, (name,), kind=ConfigInterpolationError)]
                continue
        result.warnings.extend(f"{name}: {warning.message}" for warning in caught)
        if instance is not None:
            result.valid.append(instance)
        elif error is not None:
            result.almost[name] = [_at_block(problem, path, block) for problem in validation_problems(error, (name,))]
    return result


def _at_block(problem: ConfigProblem, path: KeyPath | None, block: Any) -> ConfigProblem:
    """Point a problem of a whole instance to its implementation block; for a missing domain, suggest a misspelt key."""
    if problem.path is None or len(problem.path) > 1:  # not of the whole instance
        return problem
    fields = block[path[1]][path[2]] if path else ()
    close = nearest_names("domain", map(str, fields)) if "a domain is required" in problem.what else []
    return replace(problem, path=path, fix=f"domain: in place of {close[0]}:" if close else problem.fix)


def _implementation_path(name: str, block: Mapping[Any, Any]) -> KeyPath | None:
    """Return the path of the first implementation block that is a mapping, or None."""
    for server_type in SERVER_TYPES:
        implementations = block.get(server_type)
        for implementation, fields in implementations.items() if isinstance(implementations, dict) else ():
            if isinstance(fields, dict):
                return (name, server_type, str(implementation))
    return None


def validation_problems(error: ValidationError, base: KeyPath) -> list[ConfigProblem]:
    """Convert pydantic's errors to problems that name configuration keys and contain no secret values."""
    details = error.errors(include_url=False)
    return [_field_problem(d, (*base, *(part for part in d["loc"] if part not in _UNION_LABELS))) for d in details]


def _field_problem(detail: Any, path: KeyPath) -> ConfigProblem:
    """Convert one error of pydantic to the problem of the field at `path`."""
    name = str(path[-1])
    kind, value, context = detail["type"], detail.get("input"), detail.get("ctx") or {}
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if isinstance(value, str) and value and has_secret_name(path):  # a validator may have quoted the value
        message = message.replace(value, MASK)
    what, fix = message, None
    if kind == "too_short" and name in SERVER_TYPES:
        what = f"server '{path[0]}' has no implementation"
    elif kind == "too_long" and name in SERVER_TYPES:
        names = ", ".join(map(str, value or ()))
        what = f"server '{path[0]}' has {len(value)} implementations ({names}); it can have one"
        fix = "give each its own instance id"
    elif kind in {"literal_error", "enum"}:
        expected = str(context.get("expected", "")).replace(" or ", ", ")
        choices = [domain.value for domain in Domain] if name == "domain" else expected.replace("'", "").split(", ")
        is_text = isinstance(value, str) and not has_secret_name(path)
        guess = did_you_mean(str(value), choices) if is_text else ""
        what, fix = f"'{name}' cannot be {_value_text(path, value)}{guess}", f"must be one of {expected}"
    elif kind == "missing":
        what, fix = f"'{name}' is missing", f"add '{name}: …'"
    elif kind == "extra_forbidden":
        what = f"'{name}' is not a field here"
    elif kind in {"value_error", "assertion_error"}:
        fix = "add 'license: Apache 2.0' (or TBD)" if "license is required" in message else None
    else:
        actual = "" if isinstance(value, dict | list) else f", not {_value_text(path, value)}"
        what = f"'{name}': {message[:1].lower()}{message[1:]}{actual}"
    return ConfigProblem(what, path, fix, kind=AlmostServerError)


def _value_text(path: KeyPath, value: Any) -> str:
    """Return a value for a message, shortened; a secret is not shown."""
    if isinstance(value, dict | list):
        return f"a {type(value).__name__}"
    if isinstance(value, str) and has_secret_name(path):
        return "this value"
    text = mask_text(repr(value))
    return text if len(text) <= 80 else text[:80] + "…"


def check_server_block(path: KeyPath, block: Mapping[Any, Any], config_class: type[BaseModel]) -> list[ConfigProblem]:
    """Check the server block at `path` against the config class of the server.

    Missing fields and wrong types are errors. An undeclared key is an error only if the class forbids extra fields,
    because many servers read undeclared keys; otherwise it is a warning if it resembles a declared field (`tolerence`).
    """
    values = {str(key): value for key, value in block.items()}
    fields = {info.alias or name for name, info in config_class.model_fields.items()} | set(config_class.model_fields)
    problems = []
    forbids_extra = config_class.model_config.get("extra") == "forbid"
    for key in [key for key in values if key not in fields | _COMMON_FIELDS]:
        close = nearest_names(key, fields - values.keys(), cutoff=0.75) or _nearest_set_fields(
            key, fields & values.keys()
        )
        what = f"'{key}' is not a field of {config_class.__name__}"
        fix = f"known fields: {', '.join(sorted(fields))}"
        if close:
            what, fix = f"{what} — did you mean '{close[0]}'?", close[0]
        if close or forbids_extra:
            problem = ConfigProblem(what, (*path, key), fix, kind=AlmostServerError, is_warning=not forbids_extra)
            problems.append(problem)
    placeholders = {"name": str(path[0]), "host": "127.0.0.1", "port": 1}  # fields that a block need not contain
    try:
        config_class.model_validate(placeholders | values)
    except ValidationError as error:
        reported = {problem.path for problem in problems}
        problems += [problem for problem in validation_problems(error, path) if problem.path not in reported]
    return problems


def _nearest_set_fields(key: str, fields: set[str]) -> list[str]:
    """Return the field of the block that an undeclared key most likely means.

    A field that the block sets already must be more similar, because servers that read undeclared keys number them
    or extend the name of a field: `model_server_2` beside `model_server`.
    """
    others = {name for name in fields if not key.startswith(f"{name}_") and key.rstrip("0123456789") != name}
    return nearest_names(key, others, cutoff=0.85)


# -- references and addresses -------------------------------------------------------------------------------------


def check_references(check: InstanceCheck, resolved: Mapping[Any, Any]) -> list[ConfigProblem]:
    """Return a problem for every reference to an instance that does not exist."""
    invalid_names = {*check.almost, *check.incomplete}  # reported elsewhere
    problems = []
    for instance in check.valid:
        _, server_type, implementation = instance.key_path
        for key, value in resolved[instance.name][server_type][implementation].items():
            ref = is_server_ref(value)
            if ref is None or ref.name in invalid_names:
                continue
            if all((other.SERVER_TYPE, other.name) != (ref.type, ref.name) for other in check.valid):
                subject = f"server '{instance.name}': {key}"
                what, fix = _explain_dangling_reference(ref.type, ref.name, check, resolved)
                path = (*instance.key_path, str(key), "name")
                problems.append(ConfigProblem(f"{subject} {what}", path, fix, kind=ServerRefNotFoundError))
    return problems


def _explain_dangling_reference(
    server_type: str, name: str, check: InstanceCheck, resolved: Mapping[Any, Any]
) -> tuple[str, str]:
    """Return why a reference to an undefined instance is wrong, and the most likely fix."""
    paths: list[KeyPath | None] = [instance.key_path for instance in check.valid]
    paths += [_implementation_path(invalid, resolved[invalid]) for invalid in (*check.almost, *check.incomplete)]
    instance_id = next((path[0] for path in paths if path and path[1:] == (server_type, name)), None)
    if instance_id is not None:
        return f"refers to '{name}', which is an implementation; refer to the instance id", f"name: {instance_id}"
    other_types = [instance.SERVER_TYPE for instance in check.valid if instance.name == name]
    available = sorted(instance.name for instance in check.valid if server_type == instance.SERVER_TYPE)
    close = nearest_names(name, available, n=3)
    if other_types:
        fix = f"type: {other_types[0]} ('{name}' is one of these)"
    elif close:
        fix = f"did you mean {' or '.join(repr(candidate) for candidate in close)}?"
    elif available:
        fix = f"available {server_type}: {', '.join(available[:20])}"
    else:
        advice = _FLAG_ADVICE.get(server_type, "")
        fix = f"no {server_type} are defined: {advice}add a config that defines '{name}' to config_paths"
    # The words of NeMo Gym's own error, which people search for.
    return f"could not find type='{server_type}' name='{name}' in the list of available servers", fix


def check_addresses(
    instances: Sequence[ServerInstanceConfig], head: Mapping[str, Any], host: str
) -> list[ConfigProblem]:
    """Return a problem for every invalid port, address of two servers, and URL with a user beside an API key.

    `host` is the host of servers whose block has none.
    """
    problems: list[ConfigProblem] = []
    taken: dict[tuple[str, int], str] = {}
    if isinstance(head.get("port"), int):
        taken[str(head.get("host") or host), head["port"]] = "the head server"
    for instance in instances:
        config = instance.get_inner_run_server_config()
        path = (*instance.key_path, "port")
        problems += _check_credentials(instance.key_path, config)
        problems += _check_schemes(instance.key_path, config)
        if config.port is None or config.port == OFFLINE_PORT:
            continue
        if not 1 <= config.port <= 65535:
            problems.append(ConfigProblem(f"port {config.port} of '{instance.name}' is not between 1 and 65535", path))
            continue
        address = (config.host or host, config.port)
        if address in taken:
            what = f"'{instance.name}' and {taken[address]} are both at {address[0]}:{address[1]}"
            problems.append(ConfigProblem(what, path, "give one of them another port, or none to have one chosen"))
        taken.setdefault(address, f"'{instance.name}'")
    return problems


def _check_schemes(path: KeyPath, config: BaseModel) -> Iterator[ConfigProblem]:
    """Yield a problem for every `*base_url` without `http://` or `https://`, which no request can be sent to."""
    for name, value in iter_fields(config):
        for url in value if isinstance(value, list) else [value]:
            if name.endswith("base_url") and isinstance(url, str) and url and not _SCHEME.match(url):
                what = f"'{name}' of '{path[0]}' is not a URL: it begins with neither http:// nor https://"
                yield ConfigProblem(what, (*path, name), "http://… for a local server, https://… for others")


def _check_credentials(path: KeyPath, config: BaseModel) -> Iterator[ConfigProblem]:
    """Yield a problem for every `*base_url` with a user beside a key: a request has one Authorization header.

    The key is an API key, or the header `Authorization` in `*default_headers`.
    """
    fields = dict(iter_fields(config))
    fixes = {
        name: f"set {name} to an empty text" for name, value in fields.items() if name.endswith("api_key") and value
    }
    for name, value in fields.items():
        if name.endswith("default_headers") and isinstance(value, Mapping):
            headers = [str(header) for header in value if str(header).lower() == "authorization"]
            fixes |= {f"{name}.{header}": f"remove {name}.{header}" for header in headers}
    for name, value in fields.items() if fixes else ():
        urls = value if isinstance(value, list) else [value]
        if name.endswith("base_url") and any(_USER_INFO.match(url) for url in urls if isinstance(url, str)):
            key, fix = next(iter(fixes.items()))
            what = f"'{name}' of '{path[0]}' contains a user and '{key}' is set; a request can have only one of them"
            yield ConfigProblem(what, (*path, name), f"remove the user from the URL, or {fix}")
