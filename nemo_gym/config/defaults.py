"""Defaults: addresses of servers, folders, and facts about the process."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_gym.config.keys import DEFAULT_HEAD_PORT, KEYS, value_of
from nemo_gym.config.schema_servers import ServerInstanceConfig

DEFAULT_HOST: str = KEYS["default_host"].default
DEFAULT_HEAD_SERVER_PORT = DEFAULT_HEAD_PORT
OFFLINE_PORT = -1

PickPort = Callable[[Collection[int], int, int], int]
"""(ports not to use, lowest, highest) → a free port."""


@dataclass(frozen=True)
class HostFacts:
    """TableRow about the machine and the process that the configuration depends on."""

    roots: Sequence[Path]
    working_dir: Path
    current_dir: Path
    python_version: str
    pick_port: PickPort
    own_address: Callable[[], str]
    installed_version: Callable[[str], str | None]


def default_host(config: Mapping[Any, Any], own_address: Callable[[], str]) -> str:
    """Return the host of servers whose block has no host."""
    if config.get("default_host"):
        return str(config["default_host"])
    return own_address() if config.get("use_absolute_ip") else DEFAULT_HOST


def port_range(config: Mapping[Any, Any]) -> tuple[int, int]:
    """Return the lowest and the highest port for servers whose block has no port."""
    return value_of(config, "port_range_low"), value_of(config, "port_range_high")


def fill_addresses(
    instances: Sequence[ServerInstanceConfig],
    host: str,
    disallowed: Sequence[int],
    pick: Callable[[Collection[int]], int] | None,
) -> list[int]:
    """Set host and port of each instance without them, and return the used ports. Without `pick`, the port is -1."""
    taken = list(disallowed)
    explicit = [instance.get_inner_run_server_config().port for instance in instances]
    taken += [port for port in explicit if port is not None and port > 0 and port not in taken]
    for instance in instances:
        config, block = instance.get_inner_run_server_config(), instance.get_inner_run_server_config_dict()
        if not config.host:
            config.host = block["host"] = host
        if config.port is None or config.port == OFFLINE_PORT:
            config.port = block["port"] = OFFLINE_PORT if pick is None else pick(taken)
            if pick is not None:
                taken.append(config.port)
    return taken


def fill_agents(config: DictConfig, instances: Sequence[ServerInstanceConfig]) -> None:
    """Copy the top-level `skip_verification` keys into each agent block that does not set them."""
    for key in ("skip_verification", "skip_verification_reward"):
        if config.get(key) is None:
            continue
        for instance in instances:
            block = instance.get_inner_run_server_config_dict()
            if instance.SERVER_TYPE == "responses_api_agents" and key not in block:
                block[key] = config[key]


def fill_globals(config: DictConfig, host: HostFacts) -> None:
    """Set the defaults of the global keys that are computed from facts about the machine."""
    for key in ("results_dir", "cache_dir"):
        base = host.current_dir if config.get(key) else host.working_dir
        config[key] = str((base / Path(config.get(key) or KEYS[key].default).expanduser()).absolute())
    computed: dict[str, Any] = {
        "uv_cache_dir": str(Path(config["cache_dir"]) / "uv"),
        "uv_venv_dir": str(host.working_dir),
        "python_version": host.python_version,
    }
    for key, value in computed.items():
        if config.get(key) is None:
            config[key] = value
    if config.get("head_server_deps") is None:
        config["head_server_deps"] = _parent_requirements(host, skew=bool(config.get("allow_openai_version_skew")))


def _parent_requirements(host: HostFacts, *, skew: bool) -> list[str]:
    """Return pinned requirements of the packages whose version must be the same in every server's environment."""
    requirements = {"ray": "ray[default]"} if skew else {"ray": "ray[default]", "openai": "openai"}
    versions = {requirement: host.installed_version(name) for name, requirement in requirements.items()}
    return [f"{requirement}=={version}" for requirement, version in versions.items() if version]
