"""What is filled in when nobody says anything: addresses, folders, and a few facts about this process."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from nemo_gym.config.schema_servers import ServerInstanceConfig

DEFAULT_HOST = "127.0.0.1"
DEFAULT_HEAD_SERVER_PORT = 11000
PORT_RANGE = (10001, 20000)
OFFLINE_PORT = -1

PickPort = Callable[[Collection[int], int, int], int]
"""(ports not to use, lowest, highest) → a port that is free now."""


@dataclass(frozen=True)
class Surroundings:
    """What the configuration may know about the machine; only the seam looks it up."""

    roots: Sequence[Path]
    working_dir: Path
    current_dir: Path
    python_version: str
    pick_port: PickPort
    own_address: Callable[[], str]
    installed_version: Callable[[str], str | None]


def default_host(config: Mapping[Any, Any], own_address: Callable[[], str]) -> str:
    """Where servers listen that do not say."""
    if config.get("default_host"):
        return str(config["default_host"])
    return own_address() if config.get("use_absolute_ip") else DEFAULT_HOST


def fill_addresses(
    instances: Sequence[ServerInstanceConfig],
    host: str,
    disallowed: Sequence[int],
    pick: Callable[[Collection[int]], int] | None,
) -> list[int]:
    """Give each instance a host and a port; the ports that are in use afterwards. Without `pick` ports stay unknown."""
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


def pass_on_to_agents(config: DictConfig, instances: Sequence[ServerInstanceConfig]) -> None:
    """Top-level `skip_verification` settings reach each agent that does not say otherwise."""
    for key in ("skip_verification", "skip_verification_reward"):
        if config.get(key) is None:
            continue
        for instance in instances:
            block = instance.get_inner_run_server_config_dict()
            if instance.SERVER_TYPE == "responses_api_agents" and key not in block:
                block[key] = config[key]


def fill_globals(config: DictConfig, around: Surroundings) -> None:
    """Write the keys that every reader may rely on."""
    for key, fallback in (("results_dir", "results"), ("cache_dir", "cache")):
        given = config.get(key)
        config[key] = _absolute(given, around.current_dir) if given else str(around.working_dir / fallback)
    computed: dict[str, Any] = {
        "uv_cache_dir": str(Path(config["cache_dir"]) / "uv"),
        "uv_venv_dir": str(around.working_dir),
        "python_version": around.python_version,
    }
    for key, value in computed.items():
        if config.get(key) is None:
            config[key] = value
    if config.get("head_server_deps") is None:
        config["head_server_deps"] = _parent_requirements(around, skew=bool(config.get("allow_openai_version_skew")))


def _absolute(path: str, base: Path) -> str:
    return str((base / Path(path).expanduser()).absolute())


def _parent_requirements(around: Surroundings, *, skew: bool) -> list[str]:
    """Versions that servers in their own environment must share with this one, if this one has them at all."""
    wanted = {"ray": "ray[default]"} if skew else {"ray": "ray[default]", "openai": "openai"}
    versions = {requirement: around.installed_version(name) for name, requirement in wanted.items()}
    return [f"{requirement}=={version}" for requirement, version in versions.items() if version]
