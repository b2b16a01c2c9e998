"""Check the values of global configuration keys, and find keys that are probably misspelt."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from nemo_gym.config.instances import is_server_block
from nemo_gym.config.keys import ANY, KEYS, PORT, Key, known_keys, value_of
from nemo_gym.config.merge import iter_leaves
from nemo_gym.config.problems import ConfigProblem, KeyPath, did_you_mean
from nemo_gym.config.secrets import is_secret_name
from nemo_gym.errors import ConfigError


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
    is_unresolved = isinstance(value, str) and "${" in value and key.type is not ANY
    return not is_unresolved and key.type.accepts(value)


def _wrong_type(key: Key, value: Any) -> str:
    return f"'{key.name}' must be {key.type.description}, not {_value_text(key.name, value)}"


def _check_combinations(config: Mapping[Any, Any]) -> list[ConfigProblem]:
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
        what = f"'head_server.port' must be {PORT.description}, not {_value_text('port', head['port'])}"
        problems.append(ConfigProblem(what, ("head_server", "port")))
    return problems


def _value_text(name: str, value: Any) -> str:
    text = f"a {type(value).__name__}" if is_secret_name(name) or isinstance(value, dict | list) else repr(value)
    return text if len(text) <= 80 else text[:80] + "…"


def misspelt_keys(config: Mapping[Any, Any], *, used: Iterable[str]) -> list[tuple[KeyPath, str]]:
    """Return a path and a warning for every key that resembles a known one. `used` are names that `${…}` refers to."""
    key_names, user_keys = known_keys(), set(used)
    warnings: list[tuple[KeyPath, str]] = []
    for key, value in config.items():
        name = str(key)
        if name in key_names or name in user_keys or is_server_block(value):
            continue
        guess = did_you_mean(name, key_names, cutoff=0.85)
        if guess:
            warnings.append(((name,), f"'{name}' is not a known key{guess}"))
    return warnings


def referenced_names(tree: Any) -> set[str]:
    """Return the top-level names that any `${…}` refers to."""
    references = (
        piece.split("}")[0]
        for _, value in iter_leaves(tree)
        if isinstance(value, str)
        for piece in value.split("${")[1:]
    )
    return {reference.split(".")[0].split("[")[0].strip() for reference in references}
