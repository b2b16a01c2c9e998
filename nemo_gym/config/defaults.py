"""Fill in defaults: addresses of servers, folders, and facts about the process."""

import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_gym.config.keys import DEFAULT_HEAD_SERVER_PORT, KEYS, value_of
from nemo_gym.config.schema_servers import ServerInstanceConfig
from nemo_gym.keys import AGENTS

DEFAULT_HOST: str = KEYS["default_host"].default
OFFLINE_PORT = -1
"""The port of a server for which no port has been chosen yet."""

PickPort = Callable[[Collection[int], int, int], int]
"""(ports not to use, lowest, highest) → a free port."""


@dataclass(frozen=True)
class HostFacts:
    """Facts about the machine and the process that the configuration depends on."""

    roots: Sequence[Path]
    working_dir: Path
    pick_port: PickPort
    own_address: Callable[[], str]
    environ: Mapping[str, str] = field(default_factory=dict)
    """Environment variables, for API keys that the configuration does not set."""


def default_host(config: Mapping[Any, Any], own_address: Callable[[], str]) -> str:
    """Return the host of servers whose block has no host."""
    if config.get("default_host"):
        return str(config["default_host"])
    return own_address() if config.get("use_absolute_ip") else DEFAULT_HOST


def port_range(config: Mapping[Any, Any]) -> tuple[int, int]:
    """Return the lowest and the highest port for servers whose block has no port."""
    return value_of(config, "port_range_low"), value_of(config, "port_range_high")


def fill_defaults(
    config: DictConfig, instances: Sequence[ServerInstanceConfig], host_name: str, facts: HostFacts, *, offline: bool
) -> None:
    """Write addresses and default values into the configuration. With `offline`, no ports are chosen."""
    config["use_absolute_ip"] = bool(config.get("use_absolute_ip"))
    if config.get("head_server") is None:
        config["head_server"] = {"host": host_name, "port": DEFAULT_HEAD_SERVER_PORT}
    elif config["head_server"].get("host") is None:
        config["head_server"]["host"] = host_name
    low, high = port_range(config)
    disallowed = [*(config.get("disallowed_ports") or [])]
    head_port = config["head_server"].get("port")
    if head_port is not None and head_port not in disallowed:
        disallowed.append(head_port)
    pick = None if offline else (lambda taken: facts.pick_port(taken, low, high))
    config["disallowed_ports"] = fill_addresses(instances, host_name, disallowed, pick)
    _fill_agents(config, instances)
    _fill_globals(config, facts)


def fill_addresses(
    instances: Sequence[ServerInstanceConfig],
    host: str,
    disallowed: Sequence[int],
    pick: Callable[[Collection[int]], int] | None,
) -> list[int]:
    """Set host and port of each instance without them, and return the used ports. Without `pick`, the port is -1."""
    taken = list(disallowed)
    configured_ports = [instance.get_inner_run_server_config().port for instance in instances]
    taken += [port for port in configured_ports if port is not None and port > 0 and port not in taken]
    for instance in instances:
        config, block = instance.get_inner_run_server_config(), instance.get_inner_run_server_config_dict()
        if not config.host:
            config.host = block["host"] = host
        if config.port is None or config.port == OFFLINE_PORT:
            config.port = block["port"] = OFFLINE_PORT if pick is None else pick(taken)
            if pick is not None:
                taken.append(config.port)
    return taken


def _fill_agents(config: DictConfig, instances: Sequence[ServerInstanceConfig]) -> None:
    """Copy the top-level `skip_verification` keys into each agent block that does not set them."""
    for key in ("skip_verification", "skip_verification_reward"):
        if config.get(key) is None:
            continue
        for instance in instances:
            block = instance.get_inner_run_server_config_dict()
            if instance.SERVER_TYPE == AGENTS and key not in block:
                block[key] = config[key]


def _fill_globals(config: DictConfig, host: HostFacts) -> None:
    """Make the folders of results and caches absolute, and set the keys whose defaults are computed."""
    for key in ("results_dir", "cache_dir"):
        base = Path.cwd() if config.get(key) else host.working_dir
        config[key] = str((base / Path(config.get(key) or KEYS[key].default).expanduser()).absolute())
    computed: dict[str, Any] = {
        "uv_cache_dir": str(Path(config["cache_dir"]) / "uv"),
        "uv_venv_dir": str(host.working_dir),
        "python_version": platform.python_version(),
    }
    for key, value in computed.items():
        if config.get(key) is None:
            config[key] = value
    if config.get("head_server_deps") is None:
        config["head_server_deps"] = _parent_requirements(skew=bool(config.get("allow_openai_version_skew")))


def _parent_requirements(*, skew: bool) -> list[str]:
    """Return pinned requirements of the packages whose version must be the same in every server's environment.

    With `skew`, servers may have another version of openai.
    """
    requirements = {"ray": "ray[default]"} if skew else {"ray": "ray[default]", "openai": "openai"}
    pinned = []
    for name, requirement in requirements.items():
        with suppress(metadata.PackageNotFoundError):
            pinned.append(f"{requirement}=={metadata.version(name)}")
    return pinned
