"""Addresses of the server instances of a configuration, resolved once instead of at every call."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from nemo_gym.config.check import check_server_block
from nemo_gym.config.instances import is_server_block
from nemo_gym.errors import ConfigError, ServerRefNotFoundError
from nemo_gym.keys import ROLLOUT_PATH_PREFIX
from nemo_gym.serve.correlation import (
    current_rollout_id,
    current_token_capture,
    maybe_rollout_id_from_run_body,
    rollout_path_prefix,
)
from nemo_gym.transport.in_process import address_key

logger = logging.getLogger("nemo_gym.serve")

Model = TypeVar("Model", bound=BaseModel)

MODEL_ENDPOINTS = frozenset({"/v1/responses", "/v1/chat/completions", "/v1/messages"})


@dataclass(frozen=True)
class Address:
    """One server instance: its type and where it listens."""

    name: str
    server_type: str
    host: str
    port: int

    @property
    def keeps_no_state(self) -> bool:
        """Calls may be sent twice without harm, because models keep nothing between calls."""
        return self.server_type == "responses_api_models"

    @cached_property
    def base_url(self) -> str:
        return base_url(self.host, self.port)

    @cached_property
    def key(self) -> tuple[str, int]:
        """Key under which a server of this process is mounted at this address."""
        return address_key(self.host, self.port)


class AddressBook(dict[str, Address]):
    """Addresses of the instances of one configuration, resolved on first use."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.observes_rollouts = observes_rollouts(config)

    def __missing__(self, name: str) -> Address:
        address = self[name] = address_of(self.config, name)
        return address


def base_url(host: str, port: int) -> str:
    """Return `http://host:port`, with brackets around an IPv6 address."""
    return f"http://[{host}]:{port}" if ":" in host and not host.startswith("[") else f"http://{host}:{port}"


def first_block(config: Mapping[str, Any], name: str) -> tuple[str, Any]:
    """Return the server type and implementation block of an instance: the first key at each level.

    Raises:
        ServerRefNotFoundError: the configuration has no such instance.
    """
    instance = config.get(name) if isinstance(name, str) else None
    if not isinstance(instance, Mapping) or not instance:
        names = [str(key) for key, value in config.items() if is_server_block(value)]
        raise ServerRefNotFoundError(
            f"there is no server instance {name!r}", fix="one of " + ", ".join(names) if names else "define it"
        )
    server_type = next(iter(instance))
    implementations = instance[server_type]
    return str(server_type), implementations[next(iter(implementations))]


def address_of(config: Mapping[str, Any], name: str) -> Address:
    """Return the address of an instance.

    Raises:
        ServerRefNotFoundError: there is no such instance.
        ConfigError: the instance has no host or port yet.
    """
    server_type, block = first_block(config, name)
    host, port = block.get("host"), block.get("port")
    if not isinstance(host, str) or not isinstance(port, int):
        raise ConfigError("the instance has no host and port", where=name, fix="start the servers or set both")
    return Address(name, server_type, host, port)


def observes_rollouts(config: Mapping[str, Any]) -> bool:
    """Return whether calls must carry the id of their rollout."""
    tokens = config.get("token_id_capture")
    return bool(config.get("observability_enabled")) or bool(isinstance(tokens, Mapping) and tokens.get("enabled"))


def entrypoint_of(config: Mapping[str, Any], name: str) -> str:
    """Return `<type>/<implementation>/<entrypoint>` of an instance."""
    server_type, block = first_block(config, name)
    return f"{server_type}/{next(iter(config[name][server_type]))}/{block['entrypoint']}"


def rollout_prefix(address: Address, url_path: str, body: Any) -> str:
    """Return the path prefix with the rollout of a call; empty if the path has it already or calls are not observed."""
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


def validate_config(declared: type[Model], values: Mapping[str, Any], where: str) -> Model:
    """Validate `values` with the config class `declared`.

    Raises:
        ConfigError: the values do not fit; the message names the fields, never their values, which may be secret.
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
