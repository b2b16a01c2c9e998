"""Checks of server instances: valid blocks, references that exist, addresses that do not collide."""

import warnings as python_warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from nemo_gym.config.instances import is_server_block
from nemo_gym.config.keys import RESERVED_KEYS
from nemo_gym.config.merge import has_interpolation
from nemo_gym.config.omega import as_plain_value
from nemo_gym.config.problems import ConfigProblem, KeyPath, did_you_mean, nearest_names
from nemo_gym.config.schema_servers import (
    Domain,
    ServerInstanceConfig,
    is_almost_server,
    is_server_ref,
    read_server_instance,
)
from nemo_gym.config.secrets import MASK, is_secret_name, mask_text
from nemo_gym.errors import AlmostServerError, ConfigInterpolationError, ServerRefNotFoundError
from nemo_gym.keys import SERVER_TYPES

_UNION_LABELS = {"rows", "benchmark", "gitlab", "huggingface"}
_COMMON_FIELDS = {"datasets", "hosting", "domain", "verified", "verified_url", "description"}
"""Fields of every server block that a server's config class need not declare."""


@dataclass
class InstanceCheck:
    """The result of checking the top-level server blocks."""

    valid: list[ServerInstanceConfig] = field(default_factory=list)
    almost: dict[str, list[ConfigProblem]] = field(default_factory=dict)
    """Invalid blocks: name -> problems."""
    incomplete: dict[str, KeyPath] = field(default_factory=dict)
    """Blocks without an entrypoint: name -> path of the implementation block."""
    warnings: list[str] = field(default_factory=list)


def check_instances(config: DictConfig, resolved: Mapping[Any, Any]) -> InstanceCheck:
    """Validate the server blocks of `config`. `resolved` is `config` as plain data."""
    result = InstanceCheck()
    for key, block in resolved.items():
        name = str(key)
        if name in RESERVED_KEYS or not isinstance(block, dict) or not is_server_block(block):
            continue
        path = _implementation_path(name, block)
        if not is_almost_server(block):
            if path:
                result.incomplete[name] = path
            continue
        with python_warnings.catch_warnings(record=True) as caught:
            python_warnings.simplefilter("always", DeprecationWarning)
            try:
                if has_interpolation(block):  # it could not be resolved: raise the error again
                    as_plain_value(config[key])
                instance, error = read_server_instance(name, block, config[key])
            except (OmegaConfBaseException, RecursionError) as unresolvable:
                result.almost[name] = [_unresolvable_block(name, unresolvable)]
                continue
        result.warnings.extend(f"{name}: {warning.message}" for warning in caught)
        if instance is not None:
            result.valid.append(instance)
        elif error is not None:
            problems = [*_structure_problems(name, block), *validation_problems(error, (name,))]
            result.almost[name] = [_at_block(p, path, block) if p.path == (name,) else p for p in problems]
    return result


def _at_block(problem: ConfigProblem, path: KeyPath | None, block: Any) -> ConfigProblem:
    """Point a problem of a whole instance to its implementation block; for a missing domain, suggest a misspelt key."""
    if path is None:
        return replace(problem, path=path)
    fields = [str(key) for key in block[path[1]][path[2]]]
    close = nearest_names("domain", fields) if "a domain is required" in problem.what else []
    return replace(problem, path=path, fix=f"domain: in place of {close[0]}:" if close else problem.fix)


def _unresolvable_block(name: str, error: BaseException) -> ConfigProblem:
    reason = str(error).splitlines()[0] if str(error) else "it refers to itself"
    return ConfigProblem(f"server '{name}' cannot be resolved: {reason}", (name,), kind=ConfigInterpolationError)


def _implementation_path(name: str, block: Mapping[Any, Any]) -> KeyPath | None:
    """Return the path of the first implementation block that is a mapping, or None."""
    for kind in SERVER_TYPES:
        implementations = block.get(kind)
        for implementation, fields in implementations.items() if isinstance(implementations, dict) else ():
            if isinstance(fields, dict):
                return (name, kind, str(implementation))
    return None


def missing_entrypoint(name: str, path: KeyPath) -> ConfigProblem:
    """Return the problem of a server block without an entrypoint."""
    what = f"server '{name}' has no entrypoint"
    return ConfigProblem(what, path, "add 'entrypoint: app.py'", kind=AlmostServerError)


def _structure_problems(name: str, block: Mapping[Any, Any]) -> list[ConfigProblem]:
    """Return a problem for several implementations in one instance, which pydantic reports only as a length."""
    problems = []
    for kind in SERVER_TYPES:
        implementations = block.get(kind)
        if isinstance(implementations, dict) and len(implementations) > 1:
            names = ", ".join(str(key) for key in implementations)
            what = f"server '{name}' has {len(implementations)} implementations ({names}); it can have one"
            fix = "give each its own instance id"
            problems.append(ConfigProblem(what, (name, kind), fix, kind=AlmostServerError))
    return problems


def validation_problems(error: ValidationError, base: KeyPath) -> list[ConfigProblem]:
    """Convert pydantic's errors to problems that name configuration keys and contain no secret values."""
    problems = []
    for detail in error.errors(include_url=False):
        location = tuple(part for part in detail["loc"] if part not in _UNION_LABELS and part != "[key]")
        if detail["type"] in {"too_long", "too_short"} and location and location[-1] in SERVER_TYPES:
            if detail["type"] == "too_short":
                problems.append(ConfigProblem(f"server '{base[0]}' has no implementation", (*base, *location)))
            continue
        problems.append(_field_problem(detail, (*base, *location)))
    return problems


def _field_problem(detail: Any, path: KeyPath) -> ConfigProblem:
    """Convert one error of pydantic to the problem of the field at `path`."""
    name = str(path[-1])
    kind, value, context = detail["type"], detail.get("input"), detail.get("ctx") or {}
    if kind in {"literal_error", "enum"}:
        return _wrong_choice(name, value, path, str(context.get("expected", "")))
    if kind == "missing":
        return ConfigProblem(f"'{name}' is missing", path, f"add '{name}: …'", kind=AlmostServerError)
    if kind == "extra_forbidden":
        return ConfigProblem(f"'{name}' is not a field here", path, kind=AlmostServerError)
    message = str(detail["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if isinstance(value, str) and value and _has_secret_name(path):  # a validator may have quoted the value
        message = message.replace(value, MASK)
    if kind in {"value_error", "assertion_error"}:
        fix = "add 'license: Apache 2.0' (or TBD)" if "license is required" in message else None
        return ConfigProblem(message, path, fix, kind=AlmostServerError)
    actual = "" if isinstance(value, dict | list) else f", not {_value_text(path, value)}"
    return ConfigProblem(f"'{name}': {message[:1].lower()}{message[1:]}{actual}", path, kind=AlmostServerError)


def _wrong_choice(name: str, value: Any, path: KeyPath, expected: str) -> ConfigProblem:
    """Return the problem of a value that is not one of the allowed ones."""
    choices = expected.replace(" or ", ", ")
    names = [domain.value for domain in Domain] if name == "domain" else choices.replace("'", "").split(", ")
    guess = did_you_mean(value, names, cutoff=0.4) if isinstance(value, str) and not is_secret_name(name) else ""
    what = f"'{name}' cannot be {_value_text(path, value)}{guess}"
    return ConfigProblem(what, path, f"must be one of {choices}", kind=AlmostServerError)


def _has_secret_name(path: KeyPath) -> bool:
    return any(is_secret_name(part) for part in path if isinstance(part, str))


def _value_text(path: KeyPath, value: Any) -> str:
    if isinstance(value, str) and _has_secret_name(path):
        return "this value"
    text = mask_text(repr(value)) if not isinstance(value, dict | list) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:80] + "…"


FLAGS = {
    "responses_api_models": "choose one with --model-type (`gym list models` shows them),",
    "resources_servers": "choose one with --resources-server,",
}
"""Advice on the flag that selects a server, by server type."""


def check_references(check: InstanceCheck, resolved: Mapping[Any, Any]) -> list[ConfigProblem]:
    """Return a problem for every reference to an instance that does not exist."""
    targets = {(instance.SERVER_TYPE, instance.name) for instance in check.valid}
    invalid_names = [*check.almost, *check.incomplete]  # reported elsewhere
    implementations: dict[tuple[Any, str], str] = {}
    for name in invalid_names:
        path = _implementation_path(name, resolved[name])
        if path:
            implementations[path[1], str(path[2])] = name
    for instance in reversed(check.valid):
        implementations[instance.SERVER_TYPE, instance.implementation] = instance.name
    problems = []
    for instance in check.valid:
        base: KeyPath = (instance.name, instance.SERVER_TYPE, instance.implementation)
        block = resolved[instance.name][instance.SERVER_TYPE][instance.implementation]
        for key, value in block.items():
            ref = is_server_ref(value)
            if ref is None or (ref.type, ref.name) in targets or ref.name in invalid_names:
                continue
            subject = f"server '{instance.name}': {key} refers to"
            path = (*base, str(key), "name")
            problems.append(_dangling_reference(subject, ref.type, ref.name, path, targets, implementations))
    return problems


def _dangling_reference(
    subject: str,
    kind: str,
    name: str,
    path: KeyPath,
    targets: set[tuple[Any, str]],
    implementations: Mapping[tuple[Any, str], str],
) -> ConfigProblem:
    """Return the problem of a reference to an undefined instance, with the most likely fix."""
    if (kind, name) in implementations:
        what = f"{subject} '{name}', which is an implementation; refer to the instance id"
        return ConfigProblem(what, path, f"name: {implementations[kind, name]}", kind=ServerRefNotFoundError)
    same_name = [other for other, candidate in targets if candidate == name]
    available = sorted(candidate for other, candidate in targets if other == kind)
    close = nearest_names(name, available, n=3)
    if same_name:
        fix = f"type: {same_name[0]} ('{name}' is one of these)"
    elif close:
        fix = f"did you mean {' or '.join(repr(candidate) for candidate in close)}?"
    elif available:
        fix = f"available {kind}: {', '.join(available[:20])}"
    else:
        flag_advice = FLAGS.get(kind)
        fix = f"no {kind} are defined: {flag_advice} or " if flag_advice else f"no {kind} are defined: "
        fix += f"add a config that defines '{name}' to config_paths"
    what = f"{subject} {kind} '{name}', which is not defined"
    return ConfigProblem(what, path, fix, kind=ServerRefNotFoundError)


def check_addresses(
    instances: Sequence[ServerInstanceConfig], head: Mapping[str, Any], host: str
) -> list[ConfigProblem]:
    """Return a problem for every invalid port and for every address that two servers have."""
    problems = []
    taken: dict[tuple[str, int], str] = {}
    if isinstance(head.get("port"), int):
        taken[str(head.get("host") or host), head["port"]] = "the head server"
    for instance in instances:
        config = instance.get_inner_run_server_config()
        path: KeyPath = (instance.name, instance.SERVER_TYPE, instance.implementation, "port")
        if config.port is None or config.port == -1:
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


def check_server_block(
    instance: ServerInstanceConfig | str, block: Mapping[Any, Any], config_class: type[BaseModel]
) -> list[ConfigProblem]:
    """Check a server block against the config class of the server.

    Missing fields and wrong types are errors. An undeclared key is an error only if the class forbids extra fields,
    because many servers read undeclared keys; otherwise it is a warning if it resembles a declared field that is not
    set (`tolerence`).
    """
    name = instance if isinstance(instance, str) else instance.name
    base: KeyPath = (name,) if isinstance(instance, str) else (name, instance.SERVER_TYPE, instance.implementation)
    values = {str(key): value for key, value in block.items()}
    fields = {info.alias or name for name, info in config_class.model_fields.items()} | set(config_class.model_fields)
    problems = []
    forbids_extra = config_class.model_config.get("extra") == "forbid"
    for key in values:
        if key in fields or key in _COMMON_FIELDS:
            continue
        close = nearest_names(key, fields - values.keys(), cutoff=0.75)
        what = f"'{key}' is not a field of {config_class.__name__}"
        fix = f"known fields: {', '.join(sorted(fields))}"
        if close:
            what, fix = f"{what} — did you mean '{close[0]}'?", close[0]
        if close or forbids_extra:
            problem = ConfigProblem(what, (*base, key), fix, kind=AlmostServerError, is_warning=not forbids_extra)
            problems.append(problem)
    try:
        config_class.model_validate({"name": name, "host": "127.0.0.1", "port": 1, **values})
    except ValidationError as error:
        reported = {problem.path for problem in problems}
        problems += [problem for problem in validation_problems(error, base) if problem.path not in reported]
    return problems
