"""The process-wide configuration: read once from the command line, env.yaml and files, then shared.

This is the seam: it knows `sys.argv`, environment variables, search roots and sockets, and hands them to the pure
pipeline in `nemo_gym.config`. Exporters are not opened here; whoever collects rollouts does that.
"""

import json
import logging
import os
import platform
import random
import socket
import sys
from collections.abc import Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, cast

from omegaconf import DictConfig, OmegaConf
from pydantic import ConfigDict, ValidationError

from nemo_gym import WORKING_DIR, component_search_roots
from nemo_gym.config import key_names
from nemo_gym.config.check import Instances, check_refs, find_instances, validation_problems
from nemo_gym.config.defaults import DEFAULT_HEAD_SERVER_PORT, DEFAULT_HOST, PORT_RANGE, Surroundings, fill_addresses
from nemo_gym.config.directives import missing_values
from nemo_gym.config.global_keys import RESERVED
from nemo_gym.config.interpolations import check_interpolations
from nemo_gym.config.key_names import *  # noqa: F403 - some sixty names, listed in its __all__
from nemo_gym.config.key_names import (
    CONFIG_PATHS_KEY_NAME,
    ERROR_ON_ALMOST_SERVERS_KEY_NAME,
    HF_TOKEN_KEY_NAME,
    PORT_RANGE_HIGH_KEY_NAME,
    PORT_RANGE_LOW_KEY_NAME,
    USE_ABSOLUTE_IP_KEY_NAME,
)
from nemo_gym.config.load import load_files
from nemo_gym.config.overrides import apply_overrides, parse_overrides
from nemo_gym.config.problems import dotted, raise_all
from nemo_gym.config.resolve import Request, Resolved, as_config, missing_error, plain_tree, resolve
from nemo_gym.config.schema_cli import MaskedModel
from nemo_gym.config.schema_servers import ServerInstanceConfig
from nemo_gym.config.yaml_text import read_yaml
from nemo_gym.errors import ConfigError, NoServerInstancesError
from nemo_gym.keys import CONFIG_DICT_ENV_VAR, CONFIG_PATH_ENV_VAR

__all__ = [
    "DEFAULT_HEAD_SERVER_PORT",
    "NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME",
    "NEMO_GYM_CONFIG_FILE_ENV_VAR_NAME",
    "NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME",
    "NEMO_GYM_RESERVED_TOP_LEVEL_KEYS",
    "DictConfig",
    "GlobalConfigDictParser",
    "GlobalConfigDictParserConfig",
    "NoOpenPortError",
    "OmegaConf",
    "find_open_port",
    "format_almost_server_warning",
    "get_first_server_config_dict",
    "get_global_config_dict",
    "get_hf_token",
    "maybe_get_global_config_dict",
    "set_global_config_dict",
]
__all__ += key_names.__all__

NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME = CONFIG_DICT_ENV_VAR
NEMO_GYM_CONFIG_FILE_ENV_VAR_NAME = "NEMO_GYM_CONFIG_FILE"
"""Path of a file that holds what `NEMO_GYM_CONFIG_DICT` would: secrets need not be in the environment."""
NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME = CONFIG_PATH_ENV_VAR
NEMO_GYM_RESERVED_TOP_LEVEL_KEYS = list(RESERVED)

_GLOBAL_CONFIG_DICT: DictConfig | None = None

logger = logging.getLogger(__name__)


class NoOpenPortError(ConfigError, RuntimeError):
    """Every port that was tried is in use."""


class GlobalConfigDictParserConfig(MaskedModel):
    """What a parse starts from and what it leaves out."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    dotenv_path: Path | None = None
    initial_global_config_dict: DictConfig | None = None
    skip_load_from_cli: bool = False
    skip_load_from_dotenv: bool = False
    hide_secrets: bool = False
    offline: bool = False

    NO_MODEL_GLOBAL_CONFIG_DICT: ClassVar[DictConfig] = DictConfig(
        {
            "policy_base_url": "",
            "policy_api_key": "",
            "policy_model_name": "",
            "policy_model": {"responses_api_models": {"dummy_model": {"entrypoint": "app.py"}}},
        }
    )


class GlobalConfigDictParser:
    """Reads the process's configuration. Subclass it to change a step."""

    def parse(self, parse_config: GlobalConfigDictParserConfig | None = None) -> DictConfig:
        """The checked configuration; what its writer should know goes to the log."""
        resolved = self.resolve(parse_config or GlobalConfigDictParserConfig())
        for warning in resolved.warnings:
            logger.warning(warning)
        return resolved.config

    def resolve(self, parse_config: GlobalConfigDictParserConfig) -> Resolved:
        """The same with warnings and positions as data."""
        initial = parse_config.initial_global_config_dict
        request = Request(
            overrides=[] if parse_config.skip_load_from_cli else sys.argv[1:],
            initial={} if initial is None else _unresolved(initial),
            env_path=parse_config.dotenv_path,
            read_env=not parse_config.skip_load_from_dotenv,
            offline=parse_config.offline,
            hide_secrets=parse_config.hide_secrets,
        )
        return resolve(request, surroundings())

    def parse_no_environment(self, initial_global_config_dict: DictConfig | None = None) -> DictConfig:
        """Parse what is given and nothing else: no command line, no env.yaml."""
        return self.parse(
            GlobalConfigDictParserConfig(
                initial_global_config_dict=initial_global_config_dict,
                skip_load_from_cli=True,
                skip_load_from_dotenv=True,
            )
        )

    def parse_global_config_dict_from_cli(self) -> DictConfig:
        """What the overrides on the command line say by themselves."""
        return as_config(apply_overrides(parse_overrides(sys.argv[1:]))[0])

    def load_extra_config_paths(self, config_paths: list[str]) -> tuple[list[str], list[DictConfig]]:
        """The given paths and all they include, and the files' contents in the order in which they are merged."""
        loaded = load_files(config_paths, surroundings().roots)
        return loaded.paths, [as_config(source.tree) for source in loaded.sources]

    def filter_for_server_instance_configs(self, global_config_dict: DictConfig) -> list[ServerInstanceConfig]:
        """The server instances among the top-level blocks."""
        return _instances(global_config_dict).valid

    def raise_on_no_server_instances(self, global_config_dict: DictConfig) -> None:
        """Refuse to start nothing."""
        if not self.filter_for_server_instance_configs(global_config_dict):
            paths = global_config_dict.get(CONFIG_PATHS_KEY_NAME) or []
            told = f"none of {', '.join(map(str, paths))} defines one" if paths else "no config file was given"
            fix = "name configs with --config, --environment or '+config_paths=[…]'"
            raise NoServerInstancesError(f"there is no server instance to start: {told}", fix=fix)

    def validate_and_populate_defaults(
        self,
        server_instance_configs: list[ServerInstanceConfig],
        default_host: str = DEFAULT_HOST,
        initial_disallowed_ports: list[int] | None = None,
    ) -> list[int]:
        """Check references and give every instance a host and a port; the ports that are taken afterwards."""
        instances = Instances()
        instances.valid = server_instance_configs
        plain = {
            instance.name: OmegaConf.to_container(instance.server_type_config_dict, resolve=True)
            for instance in server_instance_configs
        }
        raise_all(check_refs(instances, plain))
        disallowed = [DEFAULT_HEAD_SERVER_PORT] if initial_disallowed_ports is None else initial_disallowed_ports
        return fill_addresses(server_instance_configs, default_host, disallowed, find_open_port)

    def collect_missing_value_paths(self, global_config_dict: DictConfig) -> list[str]:
        """The dotted path of every `???`."""
        return [dotted(path) for path in missing_values(_unresolved(global_config_dict))]

    def raise_on_missing_values(self, global_config_dict: DictConfig) -> None:
        missing = missing_values(_unresolved(global_config_dict))
        if missing:
            raise missing_error(missing)

    def detect_and_report_almost_servers(self, global_config_dict: DictConfig) -> list[str]:
        """Log each block that is nearly a server, and refuse them unless `error_on_almost_servers` is false."""
        almost = _instances(global_config_dict).almost
        problems = [problem for found in almost.values() for problem in found]
        if global_config_dict.get(ERROR_ON_ALMOST_SERVERS_KEY_NAME) is not False:
            raise_all(problems)
        for problem in problems:
            logger.warning("%s", problem)
        return list(almost)


def _unresolved(config: Any) -> dict[Any, Any]:
    plain = OmegaConf.to_container(config, resolve=False) if OmegaConf.is_config(config) else config
    return plain if isinstance(plain, dict) else {}


def _instances(config: DictConfig) -> Instances:
    tree = _unresolved(config)
    raise_all(check_interpolations(config, tree, strict_under={str(key) for key in tree}, env_name=None)[0])
    return find_instances(config, plain_tree(config, tree))


def surroundings() -> Surroundings:
    """What this process and machine are, as far as configuration depends on it."""
    return Surroundings(
        roots=component_search_roots(),
        working_dir=WORKING_DIR,
        current_dir=Path.cwd(),
        python_version=platform.python_version(),
        pick_port=_pick_port,
        own_address=_own_address,
        installed_version=_installed_version,
    )


def _own_address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        what = f"this machine's own address is unknown ({error.strerror or error})"
        raise ConfigError(what, where=USE_ABSOLUTE_IP_KEY_NAME, fix="+default_host=<address>") from None


def _installed_version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def get_global_config_dict(
    global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None,
    global_config_dict_parser_cls: type[GlobalConfigDictParser] = GlobalConfigDictParser,
) -> DictConfig:
    """The configuration of this process: as its parent gave it, or parsed on first use."""
    known = maybe_get_global_config_dict()
    if known is not None:
        return known
    return set_global_config_dict(global_config_dict_parser_config, global_config_dict_parser_cls)


def maybe_get_global_config_dict() -> DictConfig | None:
    """The same, but None where the command line would have to be parsed."""
    global _GLOBAL_CONFIG_DICT  # noqa: PLW0603 - the one process-wide value the contract asks for
    if _GLOBAL_CONFIG_DICT is None:
        _GLOBAL_CONFIG_DICT = _from_parent()
    return _GLOBAL_CONFIG_DICT


def _from_parent() -> DictConfig | None:
    """What a parent process resolved for us; it was checked there."""
    text, name = os.environ.get(NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME), NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME
    file = os.environ.get(NEMO_GYM_CONFIG_FILE_ENV_VAR_NAME)
    if not text and file:
        name = file
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{NEMO_GYM_CONFIG_FILE_ENV_VAR_NAME} cannot be read: {error}", where=file) from None
    if not text:
        return None
    value = _read_given(text, name)
    if not isinstance(value, dict):
        raise ConfigError("does not hold a mapping", where=name)
    return as_config(value)


def _read_given(text: str, name: str) -> Any:
    """JSON as what it is (YAML would fold some of its characters), everything else as YAML."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            pass  # YAML's flow style begins like this too
    return read_yaml(text, name).value


def set_global_config_dict(
    global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None,
    global_config_dict_parser_cls: type[GlobalConfigDictParser] = GlobalConfigDictParser,
) -> DictConfig:
    """Parse now and remember the result for this process."""
    global _GLOBAL_CONFIG_DICT  # noqa: PLW0603
    _GLOBAL_CONFIG_DICT = global_config_dict_parser_cls().parse(global_config_dict_parser_config)
    return _GLOBAL_CONFIG_DICT


def get_first_server_config_dict(global_config_dict: DictConfig, top_level_path: str) -> DictConfig:
    """The implementation block of an instance."""
    block: Any = global_config_dict.get(top_level_path)
    for _ in range(2):
        if not isinstance(block, Mapping) or not block:
            raise ConfigError(f"there is no server instance '{top_level_path}' in the configuration")
        block = block[next(iter(block))]
    if not isinstance(block, Mapping):
        raise ConfigError(f"'{top_level_path}' is not a server instance")
    return cast("DictConfig", block)


def get_hf_token() -> str | None:
    """The HuggingFace token of the configuration, if any."""
    token = get_global_config_dict().get(HF_TOKEN_KEY_NAME)
    return None if token is None else str(token)


def find_open_port(disallowed_ports: Collection[int] | None = None, max_retries: int = 50) -> int:
    """A port of the configured range that nobody listens on."""
    config: Any = _GLOBAL_CONFIG_DICT or {}
    low = config.get(PORT_RANGE_LOW_KEY_NAME) or PORT_RANGE[0]
    high = config.get(PORT_RANGE_HIGH_KEY_NAME) or PORT_RANGE[1]
    return _pick_port(disallowed_ports or (), low, high, max_retries)


def _pick_port(disallowed: Collection[int], low: int, high: int, max_retries: int = 50) -> int:
    taken = set(disallowed)
    pool = range(low, high + 1)
    drawn = random.sample(pool, min(len(pool), max_retries + len(taken)))
    for port in [port for port in drawn if port not in taken][:max_retries]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    fix = f"widen {PORT_RANGE_LOW_KEY_NAME} and {PORT_RANGE_HIGH_KEY_NAME}"
    raise NoOpenPortError(f"found no open port between {low} and {high}", fix=fix)


def format_almost_server_warning(name: str, error: ValidationError) -> str:
    """What keeps a block from being a server, one line each."""
    problems = validation_problems(error, (name,))
    lines = [f"\n  - {problem.what}" + (f" ({problem.fix})" if problem.fix else "") for problem in problems]
    return f"'{name}' looks like a server but is not valid:{''.join(lines)}"
