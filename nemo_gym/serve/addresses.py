"""Where the server instances of a configuration are, looked up once instead of at every call."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from pydantic import BaseModel, ValidationError

from nemo_gym.config.check import check_server_block
from nemo_gym.errors import ConfigError, ServerRefNotFoundError
from nemo_gym.keys import ROLLOUT_PATH_PREFIX, SERVER_TYPES
from nemo_gym.net.local import address_key
from nemo_gym.serve.correlation import (
    current_rollout_id,
    current_token_capture,
    maybe_rollout_id_from_run_body,
    rollout_path_prefix,
)

logger = logging.getLogger("nemo_gym.serve")

Model = TypeVar("Model", bound=BaseModel)

MODEL_ENDPOINTS = frozenset({"/v1/responses", "/v1/chat/completions", "/v1/messages"})


@dataclass(frozen=True)
class Address:
    """One server instance: what it is and where it listens."""

    name: str
    server_type: str
    host: str
    port: int

    @property
    def keeps_no_state(self) -> bool:
        """Whether a call may be sent twice without harm: models keep nothing between calls."""
        return self.server_type == "responses_api_models"

    @cached_property
    def base_url(self) -> str:
        return base_url(self.host, self.port)

    @cached_property
    def key(self) -> tuple[str, int]:
        """Under which a server of this process is mounted there."""
        return address_key(self.host, self.port)


class AddressBook:
    """The addresses of one configuration's instances, resolved once."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.observes = observes_rollouts(config)
        """Whether calls are to carry the id of their rollout."""
        self._known: dict[str, Address] = {}

    def __getitem__(self, name: str) -> Address:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = address_of(self.config, name)
        return known


def base_url(host: str, port: int) -> str:
    """`http://host:port`; an IPv6 address gets its brackets."""
    return f"http://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"http://{host}:{port}"


def first_block(config: Mapping[str, Any], name: str) -> tuple[str, Any]:
    """The server type and implementation block of an instance: the first key at each level.

    Raises:
        ServerRefNotFoundError: the configuration has no such instance.
    """
    instance = config.get(name) if isinstance(name, str) else None
    if not isinstance(instance, Mapping | DictConfig) or not instance:
        known = [str(key) for key, value in config.items() if _looks_like_instance(value)]
        raise ServerRefNotFoundError(
            f"no server instance is called {name!r}", fix="one of " + ", ".join(known) if known else "define it"
        )
    server_type = next(iter(instance))
    implementations = instance[server_type]
    return str(server_type), implementations[next(iter(implementations))]


def _looks_like_instance(value: Any) -> bool:
    return isinstance(value, Mapping | DictConfig) and any(server_type in value for server_type in SERVER_TYPES)


def address_of(config: Mapping[str, Any], name: str) -> Address:
    """The address of an instance.

    Raises:
        ServerRefNotFoundError: there is no such instance.
        ConfigError: it has no host or port yet.
    """
    server_type, block = first_block(config, name)
    host, port = block.get("host"), block.get("port")
    if not isinstance(host, str) or not isinstance(port, int):
        raise ConfigError("the instance has no host and port", where=name, fix="start the servers or set both")
    return Address(name, server_type, host, port)


def observes_rollouts(config: Mapping[str, Any]) -> bool:
    """Whether calls are to carry the id of their rollout."""
    tokens = config.get("token_id_capture")
    return bool(config.get("observability_enabled")) or bool(
        isinstance(tokens, Mapping | DictConfig) and tokens.get("enabled")
    )


def entrypoint_of(config: Mapping[str, Any], name: str) -> str:
    """`<type>/<implementation>/<entrypoint>` of an instance."""
    server_type, block = first_block(config, name)
    return f"{server_type}/{next(iter(config[name][server_type]))}/{block['entrypoint']}"


def rollout_prefix(address: Address, url_path: str, body: Any) -> str:
    """The prefix that tells the callee which rollout a call belongs to; none if the path has it already."""
    if url_path.startswith(f"/{ROLLOUT_PATH_PREFIX}/"):
        return ""
    rollout_id = current_rollout_id()
    if address.server_type == "resources_servers":
        if rollout_id is None and url_path == "/verify" and body is not None:
            rollout_id = maybe_rollout_id_from_run_body(body)
        return rollout_path_prefix(rollout_id)
    if address.server_type == "responses_api_models" and url_path in MODEL_ENDPOINTS:
        return rollout_path_prefix(rollout_id, token_capture=current_token_capture())
    return ""


def plain(block: Any) -> dict[str, Any]:
    """A configuration block as a plain dictionary with interpolations resolved."""
    if OmegaConf.is_config(block):
        resolved = OmegaConf.to_container(block, resolve=True)
        return {str(key): value for key, value in resolved.items()} if isinstance(resolved, dict) else {}
    return dict(block)


def checked(declared: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """`values` as the config class `declared`.

    Raises:
        ConfigError: they do not fit; the message names the fields, never their values, which may be secret.
    """
    for problem in check_server_block(where, values, declared):
        if problem.is_warning:
            logger.warning("%s: %s", where, problem)
    try:
        return declared.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors(include_input=False)
        )
        raise ConfigError(f"not a valid {declared.__name__}: {problems}", where=where) from None
