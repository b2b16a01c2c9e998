"""Server instances: are the blocks valid, do their references lead somewhere, do their addresses collide."""

import warnings as python_warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import BaseModel, ValidationError

from nemo_gym.config.global_keys import RESERVED
from nemo_gym.config.merge import mentions
from nemo_gym.config.problems import Path, Problem, did_you_mean, nearest
from nemo_gym.config.schema_refs import is_server_ref
from nemo_gym.config.schema_servers import (
    Domain,
    ServerInstanceConfig,
    is_almost_server,
    read_server_instance,
)
from nemo_gym.config.secrets import MASK, is_secret_name, mask_text
from nemo_gym.errors import AlmostServerError, ConfigInterpolationError, ServerRefNotFoundError
from nemo_gym.keys import SERVER_TYPES

_UNION_LABELS = {"rows", "benchmark", "gitlab", "huggingface"}


class Instances:
    """What the top-level blocks turned out to be."""

    def __init__(self) -> None:
        self.valid: list[ServerInstanceConfig] = []
        self.almost: dict[str, list[Problem]] = {}
        self.incomplete: dict[str, Path] = {}
        """Blocks of a server without an entrypoint: by name, the way to the implementation block."""
        self.warnings: list[str] = []


def find_instances(config: DictConfig, plain: Mapping[Any, Any]) -> Instances:
    """Sort the top-level blocks. `plain` is `config` as plain data, used where no live block is needed."""
    found = Instances()
    for key, value in plain.items():
        name = str(key)
        if name in RESERVED or not isinstance(value, dict) or not any(kind in value for kind in SERVER_TYPES):
            continue
        if not is_almost_server(value):
            block = _implementation_path(name, value)
            if block:
                found.incomplete[name] = block
            continue
        with python_warnings.catch_warnings(record=True) as caught:
            python_warnings.simplefilter("always", DeprecationWarning)
            try:
                if mentions(value):  # something in it could not be resolved: find out what
                    OmegaConf.to_container(config[key], resolve=True)
                instance, error = read_server_instance(name, value, config[key])
            except (OmegaConfBaseException, RecursionError) as unresolved:
                found.almost[name] = [_unresolvable(name, unresolved)]
                continue
        found.warnings.extend(f"{name}: {warning.message}" for warning in caught)
        if instance is not None:
            found.valid.append(instance)
        elif error is not None:
            problems = [*_structure_problems(name, value), *validation_problems(error, (name,))]
            block = _implementation_path(name, value)
            found.almost[name] = [_placed(p, block, value) if p.path == (name,) else p for p in problems]
    return found


def _placed(problem: Problem, block: Path | None, value: Any) -> Problem:
    """A problem of a whole instance, at its block, with the key that was probably meant for the missing one."""
    if block is None:
        return replace(problem, path=block)
    settings = value[block[1]][block[2]]
    close = nearest("domain", [str(key) for key in settings], n=1) if "a domain is required" in problem.what else []
    return replace(problem, path=block, fix=f"domain: in place of {close[0]}:" if close else problem.fix)


def _unresolvable(name: str, error: BaseException) -> Problem:
    """Its own `${…}` lead somewhere, but what is there leads nowhere."""
    reason = str(error).splitlines()[0] if str(error) else "it refers to itself"
    return Problem(f"server '{name}' cannot be resolved: {reason}", (name,), kind=ConfigInterpolationError)


def _implementation_path(name: str, block: Mapping[Any, Any]) -> Path | None:
    for kind in SERVER_TYPES:
        implementations = block.get(kind)
        if isinstance(implementations, dict):
            for implementation, fields in implementations.items():
                if isinstance(fields, dict):
                    return (name, kind, str(implementation))
    return None


def missing_entrypoint(name: str, path: Path) -> Problem:
    """A block that says what it is but not what to run."""
    what = f"server '{name}' has no entrypoint"
    return Problem(what, path, "add 'entrypoint: app.py'", kind=AlmostServerError)


def _structure_problems(name: str, block: Mapping[Any, Any]) -> list[Problem]:
    """What pydantic cannot say in a user's words."""
    problems = []
    for kind in SERVER_TYPES:
        implementations = block.get(kind)
        if isinstance(implementations, dict) and len(implementations) > 1:
            names = ", ".join(str(key) for key in implementations)
            what = f"server '{name}' has {len(implementations)} implementations ({names}); it can have one"
            fix = "give each its own instance id"
            problems.append(Problem(what, (name, kind), fix, kind=AlmostServerError))
    return problems


def validation_problems(error: ValidationError, base: Path) -> list[Problem]:
    """Pydantic's findings in our words, without any value that could be a secret."""
    problems = []
    for finding in error.errors(include_url=False):
        location = tuple(part for part in finding["loc"] if part not in _UNION_LABELS and part != "[key]")
        if finding["type"] in {"too_long", "too_short"} and location and location[-1] in SERVER_TYPES:
            if finding["type"] == "too_short":
                problems.append(Problem(f"server '{base[0]}' has no implementation", (*base, *location)))
            continue
        problems.append(_problem(finding, (*base, *location)))
    return problems


def _problem(finding: Any, path: Path) -> Problem:
    field = str(path[-1])
    kind, value, context = finding["type"], finding.get("input"), finding.get("ctx") or {}
    if kind in {"literal_error", "enum"}:
        return _wrong_choice(field, value, path, str(context.get("expected", "")))
    if kind == "missing":
        return Problem(f"'{field}' is missing", path, f"add '{field}: …'", kind=AlmostServerError)
    if kind == "extra_forbidden":
        return Problem(f"'{field}' is not a field here", path, kind=AlmostServerError)
    message = str(finding["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    if isinstance(value, str) and value and _is_secret(path):  # a validator may have quoted it
        message = message.replace(value, MASK)
    if kind == "value_error" and "license is required" in message:
        return Problem(message, path, "add 'license: Apache 2.0' (or TBD)", kind=AlmostServerError)
    if kind in {"value_error", "assertion_error"}:
        return Problem(message, path, kind=AlmostServerError)
    return Problem(f"'{field}': {_lower(message)}{_got(path, value)}", path, kind=AlmostServerError)


def _wrong_choice(field: str, value: Any, path: Path, expected: str) -> Problem:
    choices = expected.replace(" or ", ", ")
    names = [domain.value for domain in Domain] if field == "domain" else choices.replace("'", "").split(", ")
    guess = did_you_mean(value, names, cutoff=0.4) if isinstance(value, str) and not is_secret_name(field) else ""
    what = f"'{field}' cannot be {_shown(path, value)}{guess}"
    return Problem(what, path, f"must be one of {choices}", kind=AlmostServerError)


def _is_secret(path: Path) -> bool:
    return any(is_secret_name(part) for part in path if isinstance(part, str))


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _got(path: Path, value: Any) -> str:
    return "" if isinstance(value, dict | list) else f", not {_shown(path, value)}"


def _shown(path: Path, value: Any) -> str:
    if isinstance(value, str) and _is_secret(path):
        return "what it is"
    text = mask_text(repr(value)) if not isinstance(value, dict | list) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:80] + "…"


FLAGS = {
    "responses_api_models": "choose one with --model-type (`gym list models` shows them),",
    "resources_servers": "choose one with --resources-server,",
}
"""How commands choose a server of a kind by name."""


def check_refs(instances: Instances, plain: Mapping[Any, Any]) -> list[Problem]:
    """References to instances that do not exist, with the name that was probably meant."""
    known = {(instance.SERVER_TYPE, instance.name) for instance in instances.valid}
    # broken ones are reported already
    named = {(kind, name) for name in (*instances.almost, *instances.incomplete) for kind in SERVER_TYPES}
    broken = [_implementation_path(name, plain[name]) for name in (*instances.almost, *instances.incomplete)]
    implementations: dict[tuple[Any, str], str] = {(path[1], str(path[2])): str(path[0]) for path in broken if path}
    implementations |= {
        (instance.SERVER_TYPE, instance.implementation): instance.name for instance in reversed(instances.valid)
    }
    problems = []
    for instance in instances.valid:
        base: Path = (instance.name, instance.SERVER_TYPE, instance.implementation)
        block = plain[instance.name][instance.SERVER_TYPE][instance.implementation]
        for field, value in block.items():
            ref = is_server_ref(value)
            if ref is None or (ref.type, ref.name) in known or (ref.type, ref.name) in named:
                continue
            path = (*base, str(field), "name")
            problems.append(_dangling(instance.name, str(field), ref.type, ref.name, path, known, implementations))
    return problems


def _dangling(
    instance: str,
    field: str,
    kind: str,
    name: str,
    path: Path,
    known: set[tuple[Any, str]],
    implementations: Mapping[tuple[Any, str], str],
) -> Problem:
    what = f"server '{instance}': {field} refers to {kind} '{name}', which is not defined"
    fix: str | None
    if (kind, name) in implementations:
        right = implementations[kind, name]
        what = f"server '{instance}': {field} refers to '{name}', which is an implementation; refer to the instance id"
        return Problem(what, path, f"name: {right}", kind=ServerRefNotFoundError)
    same_name = [other for other, candidate in known if candidate == name]
    available = sorted(candidate for other, candidate in known if other == kind)
    close = nearest(name, available, n=3)
    if same_name:
        fix = f"type: {same_name[0]} ('{name}' is one of these)"
    elif close:
        fix = f"did you mean {' or '.join(repr(candidate) for candidate in close)}?"
    elif available:
        fix = f"available {kind}: {', '.join(available[:20])}"
    else:
        how = FLAGS.get(kind)
        fix = f"no {kind} are defined: {how} or " if how else f"no {kind} are defined: "
        fix += f"add a config that defines '{name}' to config_paths"
    return Problem(what, path, fix, kind=ServerRefNotFoundError)


def check_addresses(instances: Sequence[ServerInstanceConfig], head: Mapping[str, Any], host: str) -> list[Problem]:
    """Ports outside the range of ports, and two servers at one address."""
    problems = []
    taken: dict[tuple[str, int], str] = {}
    if isinstance(head.get("port"), int):
        taken[str(head.get("host") or host), head["port"]] = "the head server"
    for instance in instances:
        config = instance.get_inner_run_server_config()
        path: Path = (instance.name, instance.SERVER_TYPE, instance.implementation, "port")
        if config.port is None or config.port == -1:
            continue
        if not 1 <= config.port <= 65535:
            problems.append(Problem(f"port {config.port} of '{instance.name}' is not between 1 and 65535", path))
            continue
        address = (config.host or host, config.port)
        if address in taken:
            what = f"'{instance.name}' and {taken[address]} are both at {address[0]}:{address[1]}"
            problems.append(Problem(what, path, "give one of them another port, or none to have one chosen"))
        taken.setdefault(address, f"'{instance.name}'")
    return problems


def check_server_block(
    instance: ServerInstanceConfig | str, block: Mapping[Any, Any], config_class: type[BaseModel]
) -> list[Problem]:
    """What is wrong with a block in the eyes of the server's own config class, once that class is imported.

    Missing and mistyped fields are errors. A key the class does not declare is an error only if the class forbids
    extras, because many servers read undeclared keys on purpose; if it looks like a declared field that was not
    given (`tolerence`), it is a warning.
    """
    name = instance if isinstance(instance, str) else instance.name
    base: Path = (name,) if isinstance(instance, str) else (name, instance.SERVER_TYPE, instance.implementation)
    plain = {str(key): value for key, value in block.items()}
    fields = {info.alias or name for name, info in config_class.model_fields.items()} | set(config_class.model_fields)
    problems = []
    forbids = config_class.model_config.get("extra") == "forbid"
    for key in plain:
        if key in fields or key in {"datasets", "hosting", "domain", "verified", "verified_url", "description"}:
            continue
        close = nearest(key, fields - plain.keys(), cutoff=0.75)
        what = f"'{key}' is not a field of {config_class.__name__}"
        fix = f"known fields: {', '.join(sorted(fields))}"
        if close:
            what, fix = f"{what} — did you mean '{close[0]}'?", close[0]
        if close or forbids:
            problems.append(Problem(what, (*base, key), fix, kind=AlmostServerError, is_warning=not forbids))
    try:
        config_class.model_validate({"name": name, "host": "127.0.0.1", "port": 1, **plain})
    except ValidationError as error:
        found = validation_problems(error, base)
        told = {problem.path for problem in problems}
        problems.extend(problem for problem in found if problem.path not in told)
    return problems
