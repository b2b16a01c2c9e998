# mypy: implicit-reexport
"""The process-wide configuration: read once from the command line, env.yaml and files, then shared.

This module reads `sys.argv`, environment variables, search roots and sockets, and passes them to the pure pipeline in
`nemo_gym.config`. It does not open exporters; the collector does.
"""

import json
import logging
import os
import random
import socket
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

from omegaconf import DictConfig
from omegaconf import OmegaConf as OmegaConf
from pydantic import ConfigDict, ValidationError

from nemo_gym import WORKING_DIR, component_search_roots, keys
from nemo_gym.config.checks import InstanceCheck, check_instances, check_references, validation_problems
from nemo_gym.config.defaults import DEFAULT_HOST, HostFacts, fill_addresses, port_range
from nemo_gym.config.instances import PLACEHOLDER_MODEL, check_server_types
from nemo_gym.config.interpolations import check_interpolations
from nemo_gym.config.keys import DEFAULT_HEAD_SERVER_PORT, RESERVED_KEYS, key_constants
from nemo_gym.config.load import CONFIG_PATHS, load_files
from nemo_gym.config.omegaconf_adapter import as_dict
from nemo_gym.config.overrides import apply_overrides, parse_overrides
from nemo_gym.config.problems import dotted_path, raise_all
from nemo_gym.config.resolve import (
    ResolvedConfig,
    ResolveRequest,
    as_config,
    missing_values_error,
    resolve,
    resolve_tree,
)
from nemo_gym.config.schema_cli import MaskedModel
from nemo_gym.config.schema_servers import ServerInstanceConfig
from nemo_gym.config.trees import missing_values
from nemo_gym.config.yaml_text import read_yaml
from nemo_gym.errors import ConfigError, NoServerInstancesError
from nemo_gym.keys import CONFIG_DICT_ENV_VAR as NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME
from nemo_gym.keys import CONFIG_PATH_ENV_VAR as NEMO_GYM_CONFIG_PATH_ENV_VAR_NAME  # noqa: F401 - a public name

NEMO_GYM_RESERVED_TOP_LEVEL_KEYS = list(RESERVED_KEYS)

TOKEN_ID_CAPTURE_BLOCK = "token_id_capture"

_GLOBAL_CONFIG_DICT: DictConfig | None = None

logger = logging.getLogger(__name__)


# a constant for every configuration key and every field of rows: `HF_TOKEN_KEY_NAME` is "hf_token"
globals().update({name: value for name, value in vars(keys).items() if name.endswith("_KEY_NAME")} | key_constants())
if TYPE_CHECKING:

    def __getattr__(name: str) -> str: ...


class NoOpenPortError(ConfigError, RuntimeError):
    """Every port that was tried is in use."""


class GlobalConfigDictParserConfig(MaskedModel):
    """The inputs of a parse, and the steps to skip."""

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
            "policy_model": {"responses_api_models": {PLACEHOLDER_MODEL: {"entrypoint": "app.py"}}},
        }
    )


class GlobalConfigDictParser:
    """Parses the process's configuration. Subclass it to change a step."""

    def parse(self, parse_config: GlobalConfigDictParserConfig | None = None) -> DictConfig:
        """Return the checked configuration and log its warnings."""
        resolved = self.resolve(parse_config or GlobalConfigDictParserConfig())
        for warning in resolved.warnings:
            logger.warning(warning)
        return resolved.config

    def resolve(self, parse_config: GlobalConfigDictParserConfig) -> ResolvedConfig:
        """Return the checked configuration with its warnings and the locations of its values."""
        initial = parse_config.initial_global_config_dict
        request = ResolveRequest(
            overrides=[] if parse_config.skip_load_from_cli else sys.argv[1:],
            initial={} if initial is None else as_dict(initial, resolve=False),
            env_path=parse_config.dotenv_path,
            read_env=not parse_config.skip_load_from_dotenv,
            offline=parse_config.offline,
            hide_secrets=parse_config.hide_secrets,
        )
        return resolve(request, host_facts())

    def parse_no_environment(self, initial_global_config_dict: DictConfig | None = None) -> DictConfig:
        """Parse the given values without command line and env.yaml."""
        initial = initial_global_config_dict
        return self.parse(
            GlobalConfigDictParserConfig(
                initial_global_config_dict=initial, skip_load_from_cli=True, skip_load_from_dotenv=True
            )
        )

    def parse_global_config_dict_from_cli(self) -> DictConfig:
        """Return the tree of the command-line overrides alone."""
        return as_config(apply_overrides(parse_overrides(sys.argv[1:]))[0])

    def load_extra_config_paths(self, config_paths: list[str]) -> tuple[list[str], list[DictConfig]]:
        """Return the given and included paths, and the content of the files in merge order."""
        files = load_files(config_paths, host_facts().roots)
        return files.paths, [as_config(source.tree) for source in files.sources]

    def filter_for_server_instance_configs(self, global_config_dict: DictConfig) -> list[ServerInstanceConfig]:
        """Return the valid server instances."""
        return _check_instances(global_config_dict).valid

    def raise_on_no_server_instances(self, global_config_dict: DictConfig) -> None:
        """Raise `NoServerInstancesError` if there is no server instance to start."""
        if not self.filter_for_server_instance_configs(global_config_dict):
            check_server_types(as_dict(global_config_dict))
            paths = global_config_dict.get(CONFIG_PATHS) or []
            reason = f"none of {', '.join(map(str, paths))} defines one" if paths else "no config file was given"
            fix = "name configs with --config, --environment or '+config_paths=[…]'"
            raise NoServerInstancesError(f"there is no server instance to start: {reason}", fix=fix)

    def validate_and_populate_defaults(
        self,
        server_instance_configs: list[ServerInstanceConfig],
        default_host: str = DEFAULT_HOST,
        initial_disallowed_ports: list[int] | None = None,
    ) -> list[int]:
        """Check references, give every instance a host and a port, and return the ports in use."""
        blocks = {instance.name: as_dict(instance.server_type_config_dict) for instance in server_instance_configs}
        raise_all(check_references(InstanceCheck(server_instance_configs), blocks))
        disallowed = [DEFAULT_HEAD_SERVER_PORT] if initial_disallowed_ports is None else initial_disallowed_ports
        return fill_addresses(server_instance_configs, default_host, disallowed, find_open_port)

    def collect_missing_value_paths(self, global_config_dict: DictConfig) -> list[str]:
        """Return the dotted path of every `???`."""
        return [dotted_path(path) for path in missing_values(as_dict(global_config_dict, resolve=False))]

    def raise_on_missing_values(self, global_config_dict: DictConfig) -> None:
        missing = missing_values(as_dict(global_config_dict, resolve=False))
        if missing:
            raise missing_values_error(missing)

    def detect_and_report_almost_servers(self, global_config_dict: DictConfig) -> list[str]:
        """Raise the problems of almost servers; with `error_on_almost_servers: false`, log them and return names."""
        almost = _check_instances(global_config_dict).almost
        problems = [problem for block_problems in almost.values() for problem in block_problems]
        if global_config_dict.get("error_on_almost_servers") is not False:
            raise_all(problems)
        for problem in problems:
            logger.warning("%s", problem)
        return list(almost)


def _check_instances(config: DictConfig) -> InstanceCheck:
    """Check the server blocks of a configuration in which every `${…}` must be resolvable."""
    tree = as_dict(config, resolve=False)
    raise_all(check_interpolations(config, tree, strict_under=set(tree), env_name=None)[0])
    return check_instances(config, resolve_tree(config, tree))


def host_facts() -> HostFacts:
    """Return the facts about this machine and process that the configuration depends on."""
    return HostFacts(
        roots=component_search_roots(),
        working_dir=WORKING_DIR,
        pick_port=_pick_port,
        own_address=_own_address,
        environ=os.environ,
    )


def _own_address() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        what = f"this machine's own address is unknown ({error.strerror or error})"
        raise ConfigError(what, where="use_absolute_ip", fix="+default_host=<address>") from None


def get_global_config_dict(
    global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None,
    global_config_dict_parser_cls: type[GlobalConfigDictParser] = GlobalConfigDictParser,
) -> DictConfig:
    """Return the configuration of this process: the one its parent passed on, or parsed on first use."""
    config = maybe_get_global_config_dict()
    if config is not None:
        return config
    return set_global_config_dict(global_config_dict_parser_config, global_config_dict_parser_cls)


def maybe_get_global_config_dict() -> DictConfig | None:
    """Return the configuration of this process, or None instead of parsing the command line."""
    global _GLOBAL_CONFIG_DICT  # noqa: PLW0603 - the one process-wide value the contract asks for
    if _GLOBAL_CONFIG_DICT is None:
        _GLOBAL_CONFIG_DICT = _from_parent()
    return _GLOBAL_CONFIG_DICT


def _from_parent() -> DictConfig | None:
    """Return the configuration that the parent process resolved and checked, if any."""
    text = os.environ.get(NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME)
    if not text:
        return None
    try:
        value = json.loads(text)  # a YAML parser would change some characters in JSON texts
    except (ValueError, RecursionError):
        value = read_yaml(text, NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME).value
    if not isinstance(value, dict):
        raise ConfigError("does not hold a mapping", where=NEMO_GYM_CONFIG_DICT_ENV_VAR_NAME)
    return as_config(value)


def set_global_config_dict(
    global_config_dict_parser_config: GlobalConfigDictParserConfig | None = None,
    global_config_dict_parser_cls: type[GlobalConfigDictParser] = GlobalConfigDictParser,
) -> DictConfig:
    """Parse now and keep the result for this process."""
    global _GLOBAL_CONFIG_DICT  # noqa: PLW0603
    _GLOBAL_CONFIG_DICT = global_config_dict_parser_cls().parse(global_config_dict_parser_config)
    return _GLOBAL_CONFIG_DICT


def get_first_server_config_dict(global_config_dict: DictConfig, top_level_path: str) -> DictConfig:
    """Return the implementation block of an instance: the value three levels down."""
    block: Any = global_config_dict.get(top_level_path)
    for _ in range(2):
        if not isinstance(block, Mapping) or not block:
            raise ConfigError(f"there is no server instance '{top_level_path}' in the configuration")
        block = block[next(iter(block))]
    if not isinstance(block, Mapping):
        raise ConfigError(f"'{top_level_path}' is not a server instance")
    return cast("DictConfig", block)


def get_hf_token() -> str | None:
    """Return the Hugging Face token of the configuration, or None."""
    token = get_global_config_dict().get("hf_token")
    return None if token is None else str(token)


def find_open_port(disallowed_ports: Collection[int] | None = None, max_retries: int = 50) -> int:
    """Return a free port of the configured range; at most `max_retries` ports are tried."""
    low, high = port_range(cast("Mapping[Any, Any]", _GLOBAL_CONFIG_DICT or {}))
    return _pick_port(disallowed_ports or (), low, high, max_retries)


def _pick_port(disallowed: Collection[int], low: int, high: int, max_retries: int = 50) -> int:
    all_ports, taken = range(low, high + 1), set(disallowed)
    sample = random.sample(all_ports, min(len(all_ports), max_retries + len(taken)))  # some of it may be taken
    for port in [port for port in sample if port not in taken][:max_retries]:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise NoOpenPortError(
        f"found no open port between {low} and {high}", fix="widen port_range_low and port_range_high"
    )


def format_almost_server_warning(name: str, error: ValidationError) -> str:
    """Describe why a block is not a valid server, one line per problem."""
    problems = validation_problems(error, (name,))
    lines = [f"\n  - {problem.what}" + (f" ({problem.fix})" if problem.fix else "") for problem in problems]
    return f"'{name}' looks like a server but is not valid:{''.join(lines)}"
